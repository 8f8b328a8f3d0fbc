"""Benchmark of the scheduler without a model: a step's cost beside the runner, prefix cache, preemption and pace.

Times of the engine's own work are real; in the preemption part the runner's are virtual, of a fake runner whose steps
and tokens have a price, so that it takes seconds and comes out the same everywhere. Half of the pool means fewer
sequences at the same time whoever schedules: about 45 instead of 64 here.
"""

from bench import machine
from bench.arrivals import arrivals
from bench.record import RESULTS, Row, append
from bench.scheduler_runs import Overhead, overhead, preemption, prefix
from bench.table import Cell, render

FILE = "scheduler.csv"
RUNNING = 256
WAITING = (0, 10_000)
STEPS, STEPS_QUICK = 1_000, 100
ARRIVALS_RATE, ARRIVALS_S = 0.4, 120.0  # about half of what two cores sustain; virtual seconds
BESIDE, PACE = 64, 4.0  # a fixed number of prompt tokens beside decodes, and what a worker on a CPU does


def run(*, quick: bool = False) -> None:
    """Measure, print, record.

    Parameters
    ----------
    quick
        A tenth of the steps.
    """
    before: dict[str, Cell] = machine.provenance()
    steps = STEPS_QUICK if quick else STEPS
    costs = [overhead(RUNNING, waiting, steps=steps) for waiting in WAITING]
    shared, pressed = prefix(), preemption()
    fixed = arrivals(rate=ARRIVALS_RATE, seconds=ARRIVALS_S, pace=None, beside=BESIDE)
    paced = arrivals(rate=ARRIVALS_RATE, seconds=ARRIVALS_S, pace=PACE)
    print(f"\nScheduler, without a model; {machine.described(before)}\n")
    print(render(["running", "waiting", "step ms p50", "p95", "p99"], [_cells(cost) for cost in costs]))
    for part in (shared, pressed, fixed, paced):
        print(f"\n{render(list(part), [list(part.values())])}")
    rows: list[Row] = [
        *({"part": "overhead", **cost.row()} for cost in costs),
        {"part": "prefix", **shared},
        {"part": "preemption", **pressed},
        *({"part": "arrivals", **row} for row in (fixed, paced)),
    ]
    append(RESULTS / FILE, [{**before, **row} for row in rows])


def _cells(cost: Overhead) -> list[Cell]:
    return [cost.running, cost.waiting, cost.step_ms.p50, cost.step_ms.p95, cost.step_ms.p99]
