"""From the outcomes of one load to the numbers that are compared. Pure."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from bench.client import Outcome
from bench.percentiles import Spread, spread


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One load, in seconds. A failed request counts only in `failures`: a quick refusal would improve the other
    numbers.
    """

    requests: int
    failures: dict[str, int]  # by kind
    wall_s: float  # from the first request's due time to the last one's end
    prompt_tokens: int
    output_tokens: int
    events: int  # with text; fewer than tokens where a server merges them
    ttft: Spread | None  # to the first text; to the end if nothing was streamed
    itl: Spread | None  # between events with text
    e2e: Spread | None
    lag: Spread | None  # how late requests were sent
    client_cpu: float  # share of one core; near 1, the client was the bottleneck

    @property
    def ok(self) -> int:
        return self.requests - sum(self.failures.values())

    @property
    def requests_per_s(self) -> float:
        return self.ok / self.wall_s

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.wall_s

    @property
    def prompt_tokens_per_s(self) -> float:
        return self.prompt_tokens / self.wall_s

    @property
    def events_per_s(self) -> float:
        return self.events / self.wall_s


def summarize(outcomes: Sequence[Outcome], *, client_cpu_s: float) -> Report:
    assert outcomes
    good = [outcome for outcome in outcomes if outcome.failure is None]
    wall_s = max(outcome.end_s for outcome in outcomes) - min(outcome.planned_s for outcome in outcomes)
    return Report(
        requests=len(outcomes),
        failures=dict(Counter(outcome.failure for outcome in outcomes if outcome.failure is not None)),
        wall_s=wall_s,
        prompt_tokens=sum(outcome.prompt_tokens for outcome in good),
        output_tokens=sum(outcome.output_tokens for outcome in good),
        events=sum(outcome.events for outcome in good),
        ttft=spread(outcome.first_s - outcome.planned_s for outcome in good if outcome.first_s is not None),
        itl=spread(gap for outcome in good for gap in outcome.gaps_s),
        e2e=spread(outcome.end_s - outcome.planned_s for outcome in good),
        lag=spread(outcome.sent_s - outcome.planned_s for outcome in outcomes),
        client_cpu=client_cpu_s / wall_s,
    )
