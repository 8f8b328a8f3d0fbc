"""docs/telemetry.md lists every metric of a gateway and of a worker, and no other."""

import re
from pathlib import Path
from typing import Any, cast

from prometheus_client import CollectorRegistry

from gateway.metrics import Metrics
from worker.metrics import WorkerMetrics

DOCUMENT = (Path(__file__).parents[3] / "docs" / "telemetry.md").read_text()


class Anything:
    """Stands for whatever metrics are read from: every attribute is it again, and its value is 1."""

    def __getattr__(self, name: str) -> "Anything":
        return self

    def __call__(self) -> "Anything":
        return self

    def __len__(self) -> int:
        return 1

    def __float__(self) -> float:
        return 1.0


ANYTHING = cast("Any", Anything())


def documented(program: str) -> set[str]:
    table = DOCUMENT.split(f"| metric of a {program} |")[1].split("\n\n")[0]
    cells = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"\w+", cell)}


def names(registry: CollectorRegistry) -> set[str]:
    """As they are exposed: counters end in _total."""
    families = [family for family in registry.collect() if family.name.startswith("forebay_")]
    return {f"{family.name}_total" if family.type == "counter" else family.name for family in families}


def of_a_gateway() -> CollectorRegistry:
    metrics = Metrics()
    metrics.watch_workers(dict)
    metrics.watch_ledger(ANYTHING)
    metrics.watch_usage(ANYTHING)
    metrics.watch_limiter(in_grace=bool, settlements_dropped=int)
    metrics.watch_tracer(ANYTHING)
    return metrics.registry


def of_a_worker() -> CollectorRegistry:
    metrics = WorkerMetrics()
    metrics.watch(ANYTHING)
    return metrics.registry


def test_every_metric_of_a_gateway_is_documented() -> None:
    assert documented("gateway") == names(of_a_gateway())


def test_every_metric_of_a_worker_is_documented() -> None:
    assert documented("worker") == names(of_a_worker())


def test_names_are_those_that_prometheus_asks_for() -> None:
    """What `promtool check metrics` complains of: a gauge with a counter's suffix, a metric without help."""
    for family in [*of_a_gateway().collect(), *of_a_worker().collect()]:
        assert family.documentation, family.name
        if family.type == "gauge":
            assert not family.name.endswith(("_total", "_count", "_sum", "_bucket")), family.name
