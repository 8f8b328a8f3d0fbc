"""The bucket against another way to say what a token bucket is.

`bucket` keeps a level and cuts it at the burst each time it looks. The model never cuts: it follows the account as if
the bucket had no bound (X), and takes off the most by which X ever stood above the burst. That is the reflection of X
at the burst (Skorokhod 1961), a closed form of the past instead of a recursion.
"""

import random
import sys

from gateway.admission import bucket
from gateway.admission.bucket import UNITS, Claim, Level

TRACES, STEPS = 100_000, 5


class Account:
    """A bucket that starts full, in units."""

    def __init__(self, burst: int, per_minute: int) -> None:
        self.burst = burst
        self.per_minute = per_minute
        self.now_us = 0
        self.flow = 0  # taken and given back since the start
        self.above = 0  # the most by which X ever stood above the burst

    @property
    def level(self) -> int:
        return self.burst * UNITS + self.per_minute * self.now_us + self.flow - self.above

    def look(self) -> int:
        self.above = max(self.above, self.per_minute * self.now_us + self.flow)
        return self.level


def trace(random_: random.Random) -> None:
    """A history of one bucket: time passes or steps back, demands come, some of what was taken is given back."""
    per_minute, burst = random_.choice([1, 7, 60, 997, 100_000_000]), random_.choice([1, 3, 100, 100_000_000])
    one = Claim("k", "tokens", per_minute, burst, 0)
    level, model = Level(burst * UNITS, 0), Account(burst, per_minute)
    clock_us = taken = 0
    for _ in range(STEPS):
        clock_us += random_.choice([-5_000_000, 0, 1, 999, 1_000_003, 90_000_001])
        model.now_us = max(model.now_us, clock_us)  # a clock that stepped back refills nothing
        level = bucket.refill(level, one, clock_us)
        assert level.units == model.look()
        amount = random_.randrange(burst + 2)
        claim = Claim("k", "tokens", per_minute, burst, amount)
        if taken and random_.random() < 0.3:
            back = random_.randrange(taken + 1)
            taken -= back
            level, model.flow = bucket.refund(level, claim, back), model.flow + back * UNITS
        elif bucket.fits(level, claim):
            assert model.level >= amount * UNITS
            taken += amount
            level, model.flow = bucket.take(level, claim), model.flow - amount * UNITS
        elif (wait_us := bucket.wait_us(level, claim)) is not None:
            assert model.level + per_minute * (wait_us - 1) < amount * UNITS <= model.level + per_minute * wait_us
        else:
            assert amount > burst
        assert level.units == model.look()


def test_a_hundred_thousand_histories_agree_with_the_model() -> None:
    seed = random.SystemRandom().randrange(2**32)
    sys.stdout.write(f"{seed = }")  # pytest shows it when the test fails
    random_ = random.Random(seed)
    for _ in range(TRACES):
        trace(random_)
