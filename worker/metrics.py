"""The worker's Prometheus metrics. Reads what others count; owns only the histograms and the count of late kernels.

`forebay_kv_blocks` are the usable blocks, without the null block; `forebay_kv_blocks_free` those that no sequence
holds. `forebay_kernels_compiled_late_total` is to stay at 0: each one held up every stream of its worker.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from worker.link.link import Link

STEP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)

PREEMPTION_BUCKETS = (0, 1, 2, 4, 8, 16)


class WorkerMetrics(Collector):
    """Metrics of serving; empty until `watch` has been called."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._steps = Histogram(
            "forebay_engine_step_seconds",
            "Time of one engine step.",
            buckets=STEP_BUCKETS_S,
            registry=self.registry,
        )
        self._preemptions = Histogram(
            "forebay_request_preemptions",
            "How often the sequences of a request gave way; more than a few say that too much is let in.",
            buckets=PREEMPTION_BUCKETS,
            registry=self.registry,
        )
        self._link: Link | None = None
        self._compiled_late = 0

    def compiled_late(self) -> None:
        """A kernel was compiled while requests were served."""
        self._compiled_late += 1

    def watch(self, link: Link) -> None:
        self._link = link
        link.custody.on_step = self._steps.observe
        link.custody.on_bill = lambda event: self._preemptions.observe(event.preemptions)

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        yield _counter("kernels_compiled_late", "Kernels compiled while serving.", self._compiled_late)
        link = self._link
        if link is None:
            return
        stats = link.custody.stats
        yield _gauge("kv_blocks", "Usable blocks of the KV pool.", stats.blocks_total)
        yield _gauge("kv_blocks_free", "Blocks that no sequence holds.", stats.blocks_free)
        yield _gauge("sequences_running", "Sequences in the batch.", stats.running)
        yield _gauge("sequences_waiting", "Sequences inside that wait for room.", stats.waiting)
        yield _gauge(
            "engine_step_age_seconds", "Time that the present step has taken.", link.custody.thread.step_age_s()
        )
        yield _gauge(
            "engine_healthy", "0 while the engine hangs in a step, or its device has failed.", link.fault is None
        )
        yield _gauge("attempts_held", "Attempts claimed whose end has not been sent.", len(link.custody.attempts))
        yield _gauge("usage_events_pending", "Bills not yet acknowledged.", link.usage.pending)
        yield _counter("preemptions", "Sequences that gave way and were computed again.", stats.preemptions_total)
        yield _gauge(
            "kv_blocks_cached", "Free blocks whose contents the prefix cache can still use.", stats.cached_blocks
        )
        yield _counter("prompt_tokens", "Prompt tokens of started requests.", stats.prompt_tokens_total)
        yield _counter(
            "prefix_hit_tokens",
            "Those of them that the prefix cache had; to be divided by the prompt tokens.",
            stats.prefix_hits_tokens_total,
        )
        yield _counter("generated_tokens", "Tokens sampled.", stats.generated_tokens_total)
        yield _counter(
            "wasted_tokens", "Tokens of attempts that another worker owned.", link.custody.wasted_tokens_total
        )
        yield _counter("frames", "Frames published.", link.outbox.frames_total)
        yield _counter("frame_items_dropped", "Items that NATS did not take.", link.outbox.dropped_total)
        yield _counter("claims_lost", "Claims that another worker won.", link.intake.races_lost_total)
        yield _counter("usage_events_dropped", "Bills given up for lack of memory.", link.usage.dropped_total)
        spans = CounterMetricFamily("forebay_spans", "Spans by what became of them.", labels=["as"])
        spans.add_metric(["exported"], link.tracer.exported_total)
        spans.add_metric(["dropped"], link.tracer.dropped_total)
        yield spans
        yield _counter("nats_reconnects", "Connections to NATS made anew.", link.bus.reconnects)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"forebay_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"forebay_{name}", text, value=value)
