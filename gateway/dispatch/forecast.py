"""When a request that is admitted now would have its first token, computed from workers' reports and the queues.

Pure, and knows no request: two amounts of work go in, seconds come out. The model (docs/adr/0014): a request waits
until those ahead have found room and their prompts are computed, whichever takes longer. Room appears as running
sequences finish, and a less urgent tier gets only the share that more urgent ones leave. Invariant: what was never
measured makes no forecast worse, and if the result would rest on it alone, there is none.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gateway.dispatch.queues import Work
from shared import wire


class Member(msgspec.Struct, frozen=True):
    """A worker of the pool: its last beat, how much more, or less, it has had to do since, and how many sequences that
    the beat counts have ended since.
    """

    load: wire.WorkerLoad
    since: Work
    ended: float = 0


class Forecast(msgspec.Struct, frozen=True):
    added_s: float  # by everybody else
    own_s: float  # for the request's own prompt

    @property
    def first_token_s(self) -> float:
        return self.added_s + self.own_s


@dataclass(slots=True)
class _Pool:
    """All members together, as seen by a request of one tier."""

    places: float = 0.0  # free ones, and those of less urgent sequences, which would be preempted
    tokens: float = 0.0  # likewise
    running: float = 0.0
    held: float = 0.0
    finishing_per_s: float = 0.0  # finishing sequences whose places this tier gets
    prompt_tokens_left: float = 0.0
    cached_share: float = 0.0  # a sum over members, like the next
    prompt_tokens_per_s: float = 0.0
    measured: int = 0  # members that have measured it

    def add(self, member: Member, tier: int) -> None:
        load, since = member.load, member.since
        more_urgent = same = less_urgent = waiting = 0
        for work in load.tiers:
            if work.tier > tier:
                less_urgent += work.running
                continue
            waiting += work.waiting
            if work.tier < tier:
                more_urgent += work.running
            else:
                same += work.running
        counted = more_urgent + same + less_urgent
        running = max(counted - member.ended, 0)
        held = load.tokens_held * running / counted if counted else load.tokens_held
        self.places += min(load.places - more_urgent - same - waiting - since.sequences, load.places)
        self.tokens += load.tokens_free + load.tokens_held - held - since.tokens
        self.running += running
        self.held += held
        self.prompt_tokens_left += load.prompt_tokens_left + since.tokens
        self.cached_share += load.cached_share
        if load.prompt_tokens_per_s > 0:
            self.prompt_tokens_per_s += load.prompt_tokens_per_s
            self.measured += 1
        if counted:
            self.tokens += held * less_urgent / counted
            if load.step_s > 0 and load.output_tokens_mean > 0:
                share = max(1 - more_urgent / counted, load.floor_share)
                self.finishing_per_s += share * counted / (load.step_s * load.output_tokens_mean)  # others took over

    def room_s(self, wanted: Work) -> float | None:
        """Seconds until there is room for `wanted`. None if there is no room and nothing was measured that could
        predict any.
        """
        missing = max(wanted.sequences - self.places, 0.0)
        if wanted.tokens > self.tokens and self.held:
            missing = max(missing, (wanted.tokens - self.tokens) * self.running / self.held)
        if missing <= 0:
            return 0.0
        return missing / self.finishing_per_s if self.finishing_per_s > 0 else None


def forecast(members: Sequence[Member], *, tier: int, ahead: Work, own: Work) -> Forecast | None:
    """None when no forecast is possible."""
    if not members:
        return None
    pool = _Pool()
    for member in members:
        pool.add(member, tier)
    room_s = pool.room_s(ahead + own)
    if room_s is None:
        return None
    if not pool.measured:
        return Forecast(room_s, 0.0)
    # Of one worker; members without a measurement are assumed to equal the others.
    rate = pool.prompt_tokens_per_s / pool.measured
    fresh = 1 - pool.cached_share / len(members)
    prompts_s = (pool.prompt_tokens_left + ahead.tokens) * fresh / (rate * len(members))
    return Forecast(max(room_s, prompts_s), own.tokens * fresh / rate)
