"""A step in flight: submitted to the runner, its result not taken yet.

Knows neither runner nor scheduler. Invariant: a flight is landed exactly once, in the order of submission.
"""

from dataclasses import dataclass

from worker.engine.batch import Batch, Sampled
from worker.engine.runner import PendingStep
from worker.engine.schedule import Schedule
from worker.engine.sequence import Sequence


@dataclass(slots=True)
class Refused:
    """A step that the runner refused to take: it fails when it is landed."""

    error: Exception

    def result(self) -> Sampled:
        raise self.error


@dataclass(slots=True)
class Flight:
    plan: Schedule
    batch: Batch
    sampled: list[Sequence]  # the sequence of each entry of `batch.samples`
    step: PendingStep

    def result(self) -> Sampled:
        """Waits for the step. Raises what the runner raised, with the size of the step added."""
        try:
            return self._checked(self.step.result())
        except Exception as error:
            error.add_note(f"in a step of {len(self.batch.context_lens)} sequences and {len(self.batch.ids)} tokens")
            raise

    def _checked(self, sampled: Sampled) -> Sampled:
        if not len(sampled.ids) == len(sampled.logprobs) == len(self.sampled):
            raise RuntimeError(f"the runner sampled {len(sampled.ids)} tokens for {len(self.sampled)} rows")
        return sampled
