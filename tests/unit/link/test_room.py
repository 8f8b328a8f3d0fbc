"""What a worker may claim, by arithmetic alone."""

import msgspec

from shared import wire
from tests.unit.dispatch.samples import job
from worker.engine.config import EngineConfig
from worker.engine.results import EngineStats
from worker.link.room import Need, Room


def stats(*, free: int = 100, running: int = 0, waiting: int = 0) -> EngineStats:
    return EngineStats(
        blocks_total=100,
        blocks_free=free,
        running=running,
        waiting=waiting,
        preemptions_total=0,
        prompt_tokens_total=0,
        generated_tokens_total=0,
    )


def room(now: EngineStats, *, sequences_max: int = 8) -> Room:
    return Room(EngineConfig(block_size=16, context_length=4096, sequences_max=sequences_max, watermark=0.05), now)


def wanting(*prompts: int, n: int = 1) -> wire.Job:
    return msgspec.structs.replace(job(n=n), prompts=tuple(wire.pack_ids([1] * length) for length in prompts))


def test_every_choice_needs_its_prompt_and_a_first_token() -> None:
    somewhere = room(stats())
    assert somewhere.need(wanting(15)) == Need(blocks=1, sequences=1)
    assert somewhere.need(wanting(16)) == Need(blocks=2, sequences=1)
    assert somewhere.need(wanting(16, 1, n=3)) == Need(blocks=9, sequences=6)


def test_an_idle_engine_takes_anything() -> None:
    assert room(stats()).fits(Need(blocks=1000, sequences=50))


def test_beside_others_it_must_fit_below_the_watermark() -> None:
    busy = room(stats(free=20, running=1))
    assert busy.fits(Need(blocks=15, sequences=1))
    assert not busy.fits(Need(blocks=16, sequences=1))
    assert not busy.fits(Need(blocks=1, sequences=8))


def test_what_was_promised_is_not_given_twice() -> None:
    busy = room(stats(free=20, running=1))
    busy.promise("a", Need(blocks=10, sequences=1))
    assert busy.fits(Need(blocks=5, sequences=1))
    assert not busy.fits(Need(blocks=6, sequences=1))
    busy.reported(stats(free=10, running=2), ["a"])
    assert busy.fits(Need(blocks=5, sequences=1))
    assert not busy.fits(Need(blocks=6, sequences=1))


def test_while_one_waits_inside_nothing_is_claimed() -> None:
    assert not room(stats(running=1, waiting=1)).open
    assert room(stats(running=1)).open
    assert room(stats(running=1)).may_wait()
    assert not room(stats(running=1, waiting=1)).may_wait()


def test_places_are_counted_with_promises() -> None:
    narrow = room(stats(running=6))
    assert narrow.open
    narrow.promise("a", Need(blocks=1, sequences=2))
    assert not narrow.open
    assert not narrow.may_wait()
    narrow.reported(stats(running=2), ["a"])
    assert narrow.open
