"""When a request that is let in now would have its first token: arithmetic over what workers say and what waits.

Pure, and knows no request: two bodies of work go in, seconds come out. How it reckons (docs/adr/0014): a request waits
until those ahead have found room and their prompts are computed, whichever takes longer; room comes as running
sequences finish, and a less urgent tier has only that share of it that more urgent ones leave. Invariant: what nobody
has measured makes no number worse, and where the answer would rest on it alone there is none.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.dispatch.queues import Work
from shared import wire


@dataclass(slots=True, frozen=True)
class Member:
    """A worker of the pool: its last beat, and by how much it has more, or less, to do since."""

    load: wire.WorkerLoad
    since: Work


@dataclass(slots=True, frozen=True)
class Forecast:
    added_s: float  # by everybody else
    own_s: float  # for the request's own prompt

    @property
    def first_token_s(self) -> float:
        return self.added_s + self.own_s


def forecast(members: Sequence[Member], *, tier: int, ahead: Work, own: Work) -> Forecast | None:
    """None when it cannot be told."""
    if not members:
        return None
    room_s = _room_s(members, tier, ahead + own)
    if room_s is None:
        return None
    rates = [member.load.prompt_tokens_per_s for member in members if member.load.prompt_tokens_per_s > 0]
    if not rates:
        return Forecast(room_s, 0.0)
    rate = sum(rates) / len(rates)  # of one worker; who has not been measured is taken for like the others
    fresh = 1 - sum(member.load.cached_share for member in members) / len(members)
    left = sum(member.load.prompt_tokens_left + member.since.tokens for member in members)
    prompts_s = (left + ahead.tokens) * fresh / (rate * len(members))
    return Forecast(max(room_s, prompts_s), own.tokens * fresh / rate)


def _room_s(members: Sequence[Member], tier: int, wanted: Work) -> float | None:
    """Until there is room for all that is wanted. None if there is none and nobody knows how soon some comes free."""
    places = sum(_places(member, tier) for member in members)
    tokens = sum(_tokens(member, tier) for member in members)
    held = sum(member.load.tokens_held for member in members)
    running = sum(_running(member.load) for member in members)
    missing = max(wanted.sequences - places, 0.0)
    if wanted.tokens > tokens and held:
        missing = max(missing, (wanted.tokens - tokens) * running / held)
    if missing <= 0:
        return 0.0
    finishing_per_s = sum(_finishing_per_s(member.load, tier) for member in members)
    return missing / finishing_per_s if finishing_per_s > 0 else None


def _places(member: Member, tier: int) -> float:
    """Free ones, and those of less urgent sequences, which give way."""
    taken = sum(work.running + work.waiting for work in member.load.tiers if work.tier <= tier)
    return min(member.load.places - taken - member.since.sequences, member.load.places)


def _tokens(member: Member, tier: int) -> float:
    load = member.load
    running = _running(load)
    less_urgent = sum(work.running for work in load.tiers if work.tier > tier)
    gained = load.tokens_held * less_urgent / running if running else 0.0
    return load.tokens_free + gained - member.since.tokens


def _finishing_per_s(load: wire.WorkerLoad, tier: int) -> float:
    """Sequences whose places come to this tier."""
    running = _running(load)
    if not running or load.step_s <= 0 or load.output_tokens_mean <= 0:
        return 0.0
    more_urgent = sum(work.running for work in load.tiers if work.tier < tier)
    share = max(1 - more_urgent / running, load.floor_share)
    return share * running / (load.step_s * load.output_tokens_mean)


def _running(load: wire.WorkerLoad) -> int:
    return sum(work.running for work in load.tiers)
