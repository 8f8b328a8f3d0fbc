"""Measures what an abusive tenant does to another's time to first token, in alternating runs without and with it.

The abuser is of the least urgent tier and sends ten times what its limit allows; the other is of the most urgent one
and sends the same requests in every run. What is compared is the 99th percentile of its time to the first token, as
the median of the ratios of neighbouring runs.
"""

import asyncio
import statistics

import msgspec
import uvloop

from bench import launch, load, machine, tenant
from bench.client import Client, Outcome
from bench.errors import BenchError
from bench.measure import COLUMNS, Measure
from bench.percentiles import Spread, spread
from bench.record import RESULTS, append
from bench.table import render
from bench.workload import Workload
from gateway.db.catalogue import Limits

FILE = "neighbours.csv"
MODEL = "SmolLM2-135M-Instruct"
PAIRS = 5
STEP_US = 10_000
OUTPUT_TOKENS = 8
PROMPT_TOKENS = 16
VICTIM_RATE = 15.0
ABUSER_TIER = 2
ABUSER_RPM = 120
ABUSER_RATE = 10 * ABUSER_RPM / 60
WARM_S = 8.0  # in which the abuser uses up its burst, one minute's refill
REQUEST_S_MAX = 30.0


class Size(msgspec.Struct, frozen=True, kw_only=True):
    run_s: float


FULL = Size(run_s=10)
QUICK = Size(run_s=3)


def run(*, quick: bool = False) -> None:
    """Measure, print, record.

    Parameters
    ----------
    quick
        Shorter runs.
    """
    before = machine.provenance()
    with launch.running(runner="fake", fake_step_us=STEP_US, fake_token_us=0) as stack:
        measures = uvloop.run(_measure(stack, QUICK if quick else FULL))
    print(f"\nNeighbours: fake engine; {machine.described(before)}\n")
    print(render(COLUMNS, [measure.cells for measure in measures]))
    append(RESULTS / FILE, [{**before, **dict(zip(COLUMNS, measure.cells, strict=True))} for measure in measures])


async def _measure(stack: launch.Stack, size: Size) -> list[Measure]:
    async with (
        tenant.create(stack.postgres_url) as victim,
        tenant.create(stack.postgres_url, tier=ABUSER_TIER, limits=Limits(rpm=ABUSER_RPM)) as abuser,
        Client(stack.base_url, victim.key, timeout_s=REQUEST_S_MAX) as polite,
        Client(stack.base_url, abuser.key, timeout_s=REQUEST_S_MAX) as rude,
    ):
        await _both(polite, rude, WARM_S)
        alone, beside = list[Spread](), list[Spread]()
        refused = sent = 0
        for _ in range(PAIRS):
            alone.append(_first_tokens(await _victim(polite, size.run_s)))
            outcomes, abuse = await _both(polite, rude, size.run_s)
            beside.append(_first_tokens(outcomes))
            sent += len(abuse)
            refused += sum(outcome.failure == "http_429" for outcome in abuse)
    p99_alone_ms, p99_beside_ms = (statistics.median(one.p99 for one in runs) * 1_000 for runs in (alone, beside))
    ratios = [with_it.p99 / without.p99 for with_it, without in zip(beside, alone, strict=True)]
    return [
        Measure("abuser's requests refused", refused / sent * 100, "%"),
        Measure("first token alone, p99, median", p99_alone_ms, "ms"),
        Measure("first token beside the abuser, p99, median", p99_beside_ms, "ms"),
        Measure("ratio of the p99s, least", min(ratios), ""),
        Measure("ratio of the p99s, median", statistics.median(ratios), "", ("<=", 1.2)),
        Measure("ratio of the p99s, most", max(ratios), ""),
    ]


async def _victim(client: Client, run_s: float) -> list[Outcome]:
    return await load.sent(client, _workload(1), rate=VICTIM_RATE, duration_s=run_s)


async def _both(polite: Client, rude: Client, run_s: float) -> tuple[list[Outcome], list[Outcome]]:
    async with asyncio.TaskGroup() as group:
        abuse = group.create_task(load.sent(rude, _workload(2), rate=ABUSER_RATE, duration_s=run_s))
        victim = group.create_task(_victim(polite, run_s))
    return victim.result(), abuse.result()


def _first_tokens(outcomes: list[Outcome]) -> Spread:
    failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    if failures:
        raise BenchError(f"requests of the polite tenant failed: {failures}")
    found = spread(outcome.first_s - outcome.planned_s for outcome in outcomes if outcome.first_s is not None)
    assert found is not None
    return found


def _workload(seed: int) -> Workload:
    return Workload(
        model=MODEL, api="chat", prompt_tokens=PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS, stream=True, seed=seed
    )
