"""What an operator sees of the fleet."""

from gateway.dispatch.fleet import FleetView
from gateway.dispatch.overload import Overload
from gateway.dispatch.report import QueueRow, fleet_report
from tests.unit.dispatch.samples import beat
from tests.unit.dispatch.test_fleet import card
from tests.unit.dispatch.test_forecast import running
from tests.unit.dispatch.test_queues import of, said


def test_workers_queues_and_failing_pools() -> None:
    fleet = FleetView(silence_s=1.5)
    fleet.put_card("card", card())
    fleet.on_beat(beat("b", load=running((0, 3))), 0.0)
    fleet.on_beat(beat("a", ready=False), 0.0)
    state = Overload(fleet, random=lambda: 0.0)
    state.queues.heard(said((2, "x", 4, 40)), 0.0)
    state.breakers.lost("bad", 0.0)
    state.breakers.lost("bad", 0.0)
    with state.queues.holding(of("y", tier=2, tokens=5, n=3), "default"):
        report = fleet_report(fleet, state, 0.0)
    assert [(row.worker, row.state, row.places) for row in report.workers] == [
        ("a", "unready", None),
        ("b", "ready", 10),
    ]
    [first, second] = report.workers
    assert (first.step_ms, second.step_ms, second.prompt_tokens_per_s) == (None, 100.0, 1_000)
    assert report.queues == (QueueRow(pool="default", tier=2, requests=5, sequences=7, prompt_tokens=45, tenants=2),)
    assert report.pools_failing == ("bad",)
    assert fleet_report(fleet, state, 100.0).queues == ()
