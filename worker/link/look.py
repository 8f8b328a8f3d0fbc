"""One look at a tier's queue: which tenants' jobs wait there, by the queue's own answer or by the wakes that came.

Owns the note of what was dealt with in this look. Asks nothing itself. Invariant: a job that was dealt with is not
looked at again.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

from shared import subjects
from shared.jobs import LONG_AGO, Queued, Waiting


@dataclass(slots=True)
class Look:
    """What waits in one tier's queue, as far as we were told."""

    tier: int
    jobs: dict[str, int]  # by tenant
    at: datetime  # by the server's clock; long ago if it was not asked
    told: Mapping[str, deque[Queued]] | None = None  # the jobs themselves by subject, if it was not asked
    passed: dict[str, int] = field(default_factory=dict[str, int])  # by subject, the last job that was dealt with

    @classmethod
    def asked(cls, tier: int, waiting: Waiting) -> Self:
        return cls(tier, {subjects.tenant_of(subject): count for subject, count in waiting.jobs.items()}, waiting.at)

    @classmethod
    def heard(cls, tier: int, told: Mapping[str, deque[Queued]]) -> Self:
        return cls(tier, {subjects.tenant_of(subject): len(jobs) for subject, jobs in told.items()}, LONG_AGO, told)

    def first_told(self, subject: str) -> Queued | None:
        """The first job on `subject` that was told and not dealt with."""
        told, passed = (self.told or {}).get(subject), self.passed.get(subject, 0)
        while told and told[0].seq <= passed:
            told.popleft()
        return told[0] if told else None
