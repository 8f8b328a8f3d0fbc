"""Counts what this process has billed since it started, for its beats: the worker's side of reconciliation.

A bill counts when it is handed over for sending, whether or not it ever arrives.
"""

from dataclasses import dataclass

from shared import wire


@dataclass(slots=True)
class BillCounts:
    bills: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, event: wire.UsageEvent) -> None:
        self.bills += 1
        self.prompt_tokens += event.prompt_tokens
        self.completion_tokens += event.completion_tokens
