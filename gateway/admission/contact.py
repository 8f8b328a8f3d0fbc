"""Since when this gateway has seen Postgres without a break.

Leases of others may have run out only because nobody could renew them: while Postgres was away from all, or when its
clock was set forward. Who has seen it for a while has seen the others' renewals too. Knows no leases. Invariant: after
a break, `lasting` is false until `enough_us` have passed in which Postgres was seen again and again.
"""

from collections.abc import Callable


class Contact:
    """`gap_us`: as long as this may pass between two sights; more is a break. `now_us` is this machine's own clock."""

    def __init__(self, now_us: Callable[[], int], *, gap_us: int, enough_us: int) -> None:
        self._now_us = now_us
        self._gap_us = gap_us
        self._enough_us = enough_us
        self._since_us: int | None = None
        self._seen_us = 0

    def seen(self, *, steady: bool) -> None:
        """Postgres has answered. `steady`: its clock was where it was expected."""
        now_us = self._now_us()
        if self._since_us is None or not steady or now_us - self._seen_us > self._gap_us:
            self._since_us = now_us
        self._seen_us = now_us

    @property
    def lasting(self) -> bool:
        return self._since_us is not None and self._seen_us - self._since_us >= self._enough_us
