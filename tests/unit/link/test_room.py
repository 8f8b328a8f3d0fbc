"""What a worker may claim, by arithmetic alone."""

from typing import Any

import msgspec

from shared import wire
from tests.unit.dispatch.samples import job
from tests.unit.engine.builders import make_load
from worker.engine.config import EngineConfig
from worker.engine.results import EngineStats, TierLoad
from worker.link.room import Need, Room


def stats(*, free: int = 100, **tiers: TierLoad) -> EngineStats:
    """`t1=TierLoad(...)` is what tier 1 has in the engine."""
    loads = {int(name[1:]): load for name, load in tiers.items()}
    return EngineStats(
        blocks_total=100,
        blocks_free=free,
        running=sum(load.running for load in loads.values()),
        waiting=sum(load.waiting for load in loads.values()),
        held=sum(load.held for load in loads.values()),
        preemptions_total=0,
        prompt_tokens_total=0,
        generated_tokens_total=0,
        cached_blocks=0,
        prefix_hits_tokens_total=0,
        tiers=loads,
    )


def room(now: EngineStats, *, sequences_max: int = 8) -> Room:
    return Room(EngineConfig(block_size=16, context_length=4096, sequences_max=sequences_max, watermark=0.05), now)


def wanting(*prompts: int, n: int = 1, tier: int = 0, tenant: str = "acme") -> wire.Job:
    ids = tuple(wire.pack_ids([1] * length) for length in prompts)
    return msgspec.structs.replace(job(n=n), prompts=ids, tier=tier, tenant=tenant)


def blocks(count: int, *, sequences: int = 1, **where: Any) -> wire.Job:
    """A job that needs so many blocks."""
    return wanting(*[1] * (sequences - 1), 16 * (count - sequences + 1) - 1, **where)


def test_every_choice_needs_its_prompt_and_a_first_token() -> None:
    somewhere = room(stats())
    assert somewhere.need(wanting(15)) == Need(blocks=1, sequences=1)
    assert somewhere.need(wanting(16)) == Need(blocks=2, sequences=1)
    assert somewhere.need(wanting(16, 1, n=3)) == Need(blocks=9, sequences=6)


def test_the_choices_of_a_prompt_share_its_full_blocks() -> None:
    somewhere = room(stats())
    assert somewhere.need(wanting(40, n=4)) == Need(blocks=2 + 4, sequences=4)
    assert somewhere.need(wanting(47, n=4)) == Need(blocks=2 + 4, sequences=4)
    assert somewhere.need(wanting(48, n=4)) == Need(blocks=2 + 4 * 2, sequences=4)
    assert somewhere.need(wanting(49, n=4)) == Need(blocks=3 + 4, sequences=4)


def test_an_idle_engine_takes_anything() -> None:
    assert room(stats()).fits(Need(blocks=1000, sequences=50))


def test_beside_others_it_must_fit_below_the_watermark() -> None:
    busy = room(stats(free=20, t0=make_load(running=1)))
    assert busy.fits(Need(blocks=15, sequences=1))
    assert not busy.fits(Need(blocks=16, sequences=1))
    assert not busy.fits(Need(blocks=1, sequences=8))


def test_what_was_promised_is_not_given_twice() -> None:
    busy = room(stats(free=20, t0=make_load(running=1)))
    busy.promise("a", blocks(10, tenant="first"))
    assert busy.fits(Need(blocks=5, sequences=1))
    assert not busy.fits(Need(blocks=6, sequences=1))
    assert (busy.promised_tenants(0), busy.promised_tenants(1)) == ({"first"}, set())
    busy.reported(stats(free=10, t0=make_load(running=2)), ["a"])
    assert busy.promised_tenants(0) == set()
    assert busy.fits(Need(blocks=5, sequences=1))
    assert not busy.fits(Need(blocks=6, sequences=1))


def test_while_one_waits_inside_nothing_is_claimed() -> None:
    assert room(stats(t0=make_load(running=1))).open
    assert not room(stats(t0=make_load(running=1, waiting=1))).open
    claimed = room(stats(free=20, t0=make_load(running=1)))
    claimed.promise("a", blocks(50))  # it does not fit: it was taken to wait
    assert not claimed.open
    assert not claimed.open_to(0)
    claimed.reported(stats(free=20, t0=make_load(running=1, waiting=1)), ["a"])
    assert not claimed.open_to(0)


def test_places_are_counted_with_promises() -> None:
    narrow = room(stats(t0=make_load(running=6)))
    assert narrow.open
    narrow.promise("a", blocks(2, sequences=2))
    assert not narrow.open
    assert not narrow.open_to(0)
    narrow.reported(stats(t0=make_load(running=2)), ["a"])
    assert narrow.open


def test_to_an_urgent_job_less_urgent_work_is_room() -> None:
    full = room(stats(free=5, t1=make_load(running=3, blocks=40), t2=make_load(running=5, blocks=50)))
    assert not full.open
    assert [full.open_to(tier) for tier in (0, 1, 2, 3)] == [True, True, False, False]
    assert not full.fits(Need(blocks=1, sequences=1))
    assert full.fits_before_others(Need(blocks=90, sequences=8), 0)
    assert not full.fits_before_others(Need(blocks=91, sequences=8), 0)
    assert full.fits_before_others(Need(blocks=50, sequences=5), 1)
    assert not full.fits_before_others(Need(blocks=50, sequences=6), 1)
    assert not full.fits_before_others(Need(blocks=1, sequences=1), 2)


def test_room_that_others_would_make_is_promised_once() -> None:
    full = room(stats(free=5, t2=make_load(running=8, blocks=90)))
    full.promise("a", blocks(60, sequences=7))
    assert full.open_to(0)
    assert full.fits_before_others(Need(blocks=30, sequences=1), 0)
    assert not full.fits_before_others(Need(blocks=31, sequences=1), 0)
    assert not full.fits_before_others(Need(blocks=1, sequences=2), 0)


def test_only_who_waits_and_is_as_urgent_stands_in_the_way() -> None:
    """What was preempted waits inside too, and must not keep urgent jobs out."""
    crowded = room(stats(free=5, t1=make_load(running=2, waiting=1, blocks=20), t2=make_load(running=4, blocks=70)))
    assert [crowded.open_to(tier) for tier in (0, 1, 2)] == [True, False, False]
    assert not crowded.open
    crowded.promise("a", blocks(99))  # more than all others could give way to
    assert not crowded.open_to(0)


def test_held_choices_take_places_and_blocks_but_keep_nobody_out() -> None:
    some = room(stats(free=50, t1=make_load(running=1, held=3, held_blocks=5, blocks=50)))
    assert some.open
    assert some.open_to(1)
    assert some.fits(Need(blocks=40, sequences=4))
    assert not some.fits(Need(blocks=41, sequences=1))
    assert not some.fits(Need(blocks=1, sequences=5))
    assert some.fits_before_others(Need(blocks=95, sequences=8), 0)  # of a less urgent tier: they will wait


def test_what_runs_in_a_tier_that_is_owed_its_floor_share_is_no_room() -> None:
    full = room(stats(free=5, t1=make_load(running=2, blocks=20), t2=make_load(running=6, blocks=70, owed=True)))
    assert full.fits_before_others(Need(blocks=20, sequences=2), 0)
    assert not full.fits_before_others(Need(blocks=21, sequences=1), 0)
    assert not full.fits_before_others(Need(blocks=1, sequences=3), 0)
    assert not full.open_to(1)
