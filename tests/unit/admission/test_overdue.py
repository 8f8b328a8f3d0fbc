"""What a refusal says while settlements of its tenant are on their way to Postgres."""

import asyncio
import uuid

import pytest

from gateway.admission import claims
from gateway.admission.bucket import UNITS, Level
from gateway.admission.claims import Verdict
from gateway.admission.limiter import Demand, Limit, Metric
from gateway.admission.overdue import RETRY_US, Overdue, Release, cures, shortened
from tests.demands import KEY, MODEL, TENANT, again, demand, limit

LEASES_US = 13_000_000
OTHER = uuid.UUID(int=99)


def decided(one: Demand, *, left: int = 100, held: int = 1) -> Verdict:
    wanted = claims.of(one)
    levels = [Level(left * UNITS, 0)] * len(wanted.buckets)
    return claims.decide(wanted, levels, [held] * len(wanted.caps), 0, leases_us=LEASES_US)


def test_a_cap_that_an_overdue_settlement_frees_has_a_short_wait() -> None:
    one = demand(limit("concurrency", 1))
    verdict, releases = decided(one), [Release(again(one), queued=False)]
    assert verdict.retry_after_us == LEASES_US
    assert cures(one, verdict, releases)
    assert shortened(one, verdict, releases).retry_after_us == RETRY_US
    assert not cures(one, verdict, [])
    assert shortened(one, verdict, []) == verdict


def test_a_cap_that_stays_full_keeps_its_wait() -> None:
    one = demand(limit("concurrency", 2), limit("concurrency", 1, model=MODEL))
    verdict = decided(one, held=2)  # more than the second allows: how much more is not known
    releases = [Release(again(one), queued=False)]
    assert not cures(one, verdict, releases)
    assert shortened(one, verdict, releases).retry_after_us == LEASES_US


@pytest.mark.parametrize(
    ("metric", "queued", "freed"),
    [
        ("concurrency", False, True),
        ("queued_requests", False, False),
        ("queued_requests", True, True),
        ("queued_tokens", True, True),
        ("day_tokens", True, False),
    ],
)
def test_which_caps_a_settlement_frees(metric: Metric, queued: bool, freed: bool) -> None:
    one = demand(limit(metric, 10 if "tokens" in metric else 1))
    verdict = decided(one, held=10 if "tokens" in metric else 1)
    assert cures(one, verdict, [Release(again(one), queued)]) == freed


@pytest.mark.parametrize(
    ("scope", "freed"),
    [
        (limit("concurrency", 1), True),
        (limit("concurrency", 1, key=KEY), False),
        (limit("concurrency", 1, model=MODEL), False),
    ],
)
def test_another_keys_and_models_requests_free_what_they_share(scope: Limit, freed: bool) -> None:
    one = demand(scope)
    assert cures(one, decided(one), [Release(again(one, api_key_id=OTHER, model_id=OTHER), queued=False)]) == freed


def test_a_bucket_that_is_empty_too_has_its_own_wait() -> None:
    one = demand(limit("concurrency", 1), limit("tokens", 100))
    verdict, releases = decided(one, left=0), [Release(again(one), queued=False)]
    assert not cures(one, verdict, releases)
    told = shortened(one, verdict, releases)
    assert (told.refused, told.retry_after_us) == (0, 6_000_000)  # 10 tokens at 100 a minute


async def test_a_settlement_is_overdue_until_it_is_written_and_no_more_wait_than_it_frees() -> None:
    overdue, one = Overdue(), demand(limit("concurrency", 1))
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    overdue.add(Release(one, queued=False), done)
    waits = asyncio.create_task(overdue.wait(TENANT, 60))
    await asyncio.sleep(0)
    assert not await overdue.wait(TENANT, 60)
    assert await overdue.wait(OTHER, 60)
    done.set_result(None)
    assert await waits
    assert overdue.of(TENANT) == ()
    assert await overdue.wait(TENANT, 60)
