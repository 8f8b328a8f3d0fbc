"""Steps that failed one after the other: whether it is still the fault of what was in them.

A failed step ends its requests, so that one which spoils its steps is gone with the first of them and those already
launched. Steps that go on to fail without it tell that the runner itself is broken: an error of a CUDA device, for one,
comes back from each call until the process ends. Invariant: one step that lands begins anew.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

STEPS_MAX = 3


class RunnerBroken(Exception):
    """No step gets through any more. Its cause is what the last one raised."""


@dataclass(slots=True)
class Streak:
    _steps: int = 0
    _requests: set[str] = field(default_factory=set[str])
    _last: Exception | None = None

    def landed(self) -> None:
        if self._steps:
            self._steps, self._requests, self._last = 0, set(), None

    def failed(self, error: Exception, requests: Iterable[str]) -> None:
        self._steps += 1
        self._requests.update(requests)
        self._last = error

    def check(self) -> None:
        """Raises RunnerBroken."""
        if self._steps >= STEPS_MAX and len(self._requests) > 1:
            raise RunnerBroken(f"{self._steps} steps in a row have failed") from self._last
