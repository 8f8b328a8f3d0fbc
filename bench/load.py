"""The load generator: many requests at a time, in one of two shapes, and one report.

Closed loop: a number of clients, each of which sends its next request when the last has ended. It shows what a server
sustains; a slow server slows its clients down. Open loop: arrivals at a mean rate (Poisson), whatever becomes of
earlier ones, with latencies counted from when each was due. It shows what users would feel, queues included.
"""

import asyncio
import random
import time
from collections.abc import Iterator

from bench.client import Client, Outcome
from bench.report import Report, summarize
from bench.workload import Workload

REQUESTS_MAX = 1_000_000  # outcomes are kept in memory


async def closed(client: Client, workload: Workload, *, clients: int, requests: int) -> Report:
    """`requests` in all, from `clients` at a time."""
    assert 0 < clients <= requests <= REQUESTS_MAX
    indices = iter(range(requests))

    async def run() -> list[Outcome]:
        return [await client.send(workload, index) for index in indices]

    cpu_s = time.process_time()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run()) for _ in range(clients)]
    outcomes = [outcome for task in tasks for outcome in task.result()]
    return summarize(outcomes, client_cpu_s=time.process_time() - cpu_s)


async def poisson(client: Client, workload: Workload, *, rate: float, duration_s: float) -> Report:
    """`rate` arrivals a second on average, for `duration_s`; then waits for the last answer."""
    cpu_s = time.process_time()
    outcomes = await sent(client, workload, rate=rate, duration_s=duration_s)
    return summarize(outcomes, client_cpu_s=time.process_time() - cpu_s)


async def sent(client: Client, workload: Workload, *, rate: float, duration_s: float) -> list[Outcome]:
    """The outcome of each request of such a load, in the order in which they were due."""
    tasks: list[asyncio.Task[Outcome]] = []
    start_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for index, at_s in enumerate(arrivals(rate, duration_s, workload.seed)):
            await asyncio.sleep(max(0.0, start_s + at_s - time.perf_counter()))
            tasks.append(group.create_task(client.send(workload, index, planned_s=start_s + at_s)))
    return [task.result() for task in tasks]


def arrivals(rate: float, duration_s: float, seed: int) -> Iterator[float]:
    """Times of a Poisson process, ascending from 0 (the first arrives at once); the same for the same seed."""
    assert rate > 0
    assert rate * duration_s <= REQUESTS_MAX
    generator = random.Random(f"arrivals/{seed}")
    at_s = 0.0
    while at_s < duration_s:
        yield at_s
        at_s += generator.expovariate(rate)
