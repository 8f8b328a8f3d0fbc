"""The terms on which a request waits: its tier's bounds, its client's own timeout, and whether it is a retry.

Pure values. What the client states cannot be checked, so it can only shorten the wait.
"""

import msgspec


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds from now; None is no bound."""

    wait_s: float  # until a worker must have started it
    added_s: float | None = None  # that load may add before the first token
    client_s: float | None = None  # until the client will have given up
    queued_requests_max: int | None = None  # waiting in this tier's queue of the pool, all tenants together
    queued_tokens_max: int | None = None
    retry: bool = False  # the client says that it has sent this before

    @property
    def timeout_s(self) -> float:
        """For how long starting the request is still useful."""
        return self.wait_s if self.client_s is None else min(self.wait_s, self.client_s)

    def after(self, seconds: float) -> "Terms":
        """What is left of these terms after `seconds`. Never negative."""
        client_s = None if self.client_s is None else max(0.0, self.client_s - seconds)
        return msgspec.structs.replace(self, wait_s=max(0.0, self.wait_s - seconds), client_s=client_s)
