"""How much of prompts goes beside decodes, so that no running stream pauses for long.

Streams are to notice prompts little: a step should take a few times as long as their typical gap, which is what a step
of the decodes alone takes on average over the tokens lately decoded. A bound by the decodes of each step alone let the
gaps of busy moments grow to four times the median (`bench.arrivals`).

Owns what the parts of a step cost here, learned from steps that were run: a fixed part, one for each decode, one for
each prompt token, one for each pair of a prompt token and a token before it, and one for each token that a chunk finds
in the cache. Knows no clock and no sequence: seconds are handed in. Invariant: every cost stays above zero, and one
that a step had no use for stays as it was.

Learned by the exponentiated gradient (Kivinen and Warmuth, Information and Computation 132, 1997): what a step took,
over what was expected of it, moves each cost by the share that it had in the expectation.
"""

import math
from dataclasses import dataclass, field

RATE = 0.2
SURPRISE_MAX = math.log(4.0)  # what else a machine does must not count for more than this
TYPICAL_TOKENS = 1_000  # decoded, over which the typical gap is averaged
SPARE_LEAST = 1.0  # of the time of the decodes, for prompts, however busy the moment: they must get on
TOKENS_LEAST = 8  # for the first prompt of a step, whatever they cost: it must get on

# Seconds, of the demo model on two cores: where learning starts. Another model mostly differs by one factor.
STEP_S, DECODE_S, TOKEN_S, PAIR_S, FOUND_S = 0.03, 0.0036, 0.0025, 1e-6, 1e-5


@dataclass(slots=True, frozen=True)
class Work:
    """What one step consists of."""

    decodes: int = 0
    tokens: int = 0  # of prompts
    pairs: float = 0.0  # of one of these and a token before it
    found: int = 0  # tokens before the chunks, in the cache already

    def beside(self, tokens: int, computed: int) -> "Work":
        """The same with a chunk of a prompt of which `computed` tokens are done."""
        pairs = tokens * (computed + tokens / 2)
        return Work(self.decodes, self.tokens + tokens, self.pairs + pairs, self.found + computed)


@dataclass(slots=True)
class Pace:
    """A step with prompts is to take at most `times` the typical gap."""

    times: float
    costs_s: list[float] = field(default_factory=lambda: [STEP_S, DECODE_S, TOKEN_S, PAIR_S, FOUND_S])
    typical_decodes: float = 1.0

    def expected_s(self, work: Work) -> float:
        return sum(self._parts_s(work))

    def learn(self, work: Work, took_s: float) -> None:
        """Of steps with decodes alone: a whole budget of prompt tokens costs less a token than a small chunk."""
        if not work.decodes or took_s <= 0:
            return
        parts_s = self._parts_s(work)
        expected_s = sum(parts_s)
        surprise = math.log(took_s / expected_s)
        step = RATE * min(max(surprise, -SURPRISE_MAX), SURPRISE_MAX)
        shares = [part / expected_s for part in parts_s]
        self.costs_s = [cost * math.exp(step * share) for cost, share in zip(self.costs_s, shares, strict=True)]
        weight = min(1.0, work.decodes / TYPICAL_TOKENS)
        self.typical_decodes += weight * (work.decodes - self.typical_decodes)

    def spare_s(self, decodes: int) -> float:
        """What prompts may take beside so many."""
        step_s, decode_s, *_ = self.costs_s
        typical_s, own_s = step_s + decode_s * self.typical_decodes, step_s + decode_s * decodes
        return max(self.times * typical_s - own_s, SPARE_LEAST * own_s)

    def chunk_s(self, tokens: int, computed: int) -> float:
        """What a chunk of a prompt of which `computed` tokens are done adds to a step."""
        return sum(self._parts_s(Work().beside(tokens, computed))[2:])

    def tokens(self, spare_s: float, computed: int) -> int:
        """The longest such chunk that takes at most `spare_s`."""
        _, _, token_s, pair_s, found_s = self.costs_s
        left_s = spare_s - found_s * computed
        if left_s <= 0:
            return 0
        # left = tokens * each + tokens^2 * pair / 2
        each_s = token_s + pair_s * computed
        return int(2 * left_s / (each_s + math.sqrt(each_s * each_s + 2 * pair_s * left_s)))

    def _parts_s(self, work: Work) -> list[float]:
        amounts = (1, work.decodes, work.tokens, work.pairs, work.found)
        return [cost * amount for cost, amount in zip(self.costs_s, amounts, strict=True)]
