"""Measures the gateway's memory with many open streams, on a stack whose worker takes its time over each token."""

import asyncio

from bench import launch, load, tenant
from bench.client import Client
from bench.errors import BenchError
from bench.measure import Measure
from bench.report import Report
from bench.workload import Workload

MODEL = "SmolLM2-135M-Instruct"
STEP_US = 1_000_000
# Streams per wave and seconds between waves: of all 2,000 at once, some are refused, as they should be.
WAVE, WAVE_S = 100, 4.0
SLACK_S = 10  # for the last wave to be open before the first ends
PROMPT_TOKENS = 16
KV_BYTES = 8 * 2**30
LOOK_S = 0.25
STREAM_S_MAX = 300.0
RESIDENT_MIB_MAX = 400


async def measures(streams: int) -> list[Measure]:
    """Raises BenchError when a stream failed."""
    waves = [min(WAVE, streams - opened) for opened in range(0, streams, WAVE)]
    open_s = (len(waves) - 1) * WAVE_S  # when the last wave begins
    tokens = int((open_s + SLACK_S) * 1_000_000 / STEP_US)
    with launch.running(
        runner="fake",
        fake_step_us=STEP_US,
        fake_token_us=0,
        kv_bytes=KV_BYTES,
        sequences_max=streams,
        tokens_per_step=8_192,
    ) as stack:
        await tenant.bound(stack.postgres_url, first_token_ms_max=None, wait_ms_max=int(STREAM_S_MAX * 1_000))
        async with (
            tenant.create(stack.postgres_url) as own,
            Client(stack.base_url, own.key, timeout_s=STREAM_S_MAX) as client,
        ):
            before_mib = stack.resident_mib(launch.GATEWAY)
            workload = Workload(model=MODEL, api="chat", prompt_tokens=PROMPT_TOKENS, output_tokens=tokens)
            opening = asyncio.create_task(_opened(client, workload, waves))
            most_mib = before_mib
            while not opening.done():
                await asyncio.wait([opening], timeout=LOOK_S)
                most_mib = max(most_mib, stack.resident_mib(launch.GATEWAY))
            reports = opening.result()
    if failures := [report.failures for report in reports if report.failures]:
        raise BenchError(f"streams failed: {failures}")
    last = reports[-1].ttft
    if last is None or last.p99 > SLACK_S:
        raise BenchError("the first streams had ended before the last were open")
    return [
        Measure("gateway's memory, no stream", before_mib, "MiB"),
        Measure(f"gateway's memory, {streams:,} open streams", most_mib, "MiB", ("<=", RESIDENT_MIB_MAX)),
    ]


async def _opened(client: Client, workload: Workload, waves: list[int]) -> list[Report]:
    """Each wave's report, once all streams have ended."""
    async with asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[Report]] = []
        for streams in waves:
            tasks.append(group.create_task(load.closed(client, workload, clients=streams, requests=streams)))
            await asyncio.sleep(WAVE_S)
    return [task.result() for task in tasks]
