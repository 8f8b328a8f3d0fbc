"""What a client says of its own timeout is hearsay: it may shorten its wait and nothing else."""

import pytest

from gateway.api import client_timeout
from gateway.db.queries import TierBounds


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        (["600"], 600.0),
        (["600.0"], 600.0),
        ([" 2.5 "], 2.5),
        (["1e-9"], client_timeout.READ_TIMEOUT_S_MIN),
        ([], None),
        (["0"], None),
        (["-1"], None),
        (["nan"], None),
        (["inf"], None),
        (["1e400"], None),
        (["soon"], None),
        ([""], None),
        (["5", "5"], None),
        (["1" * 21], None),
    ],
)
def test_the_read_timeout_is_one_positive_number_or_unsaid(values: list[str], seconds: float | None) -> None:
    assert client_timeout.read_timeout_s(values) == seconds


@pytest.mark.parametrize(
    ("values", "retry"),
    [
        (["1"], True),
        (["2"], True),
        (["0"], False),
        ([], False),
        (["-1"], False),
        (["1.0"], False),
        (["x"], False),
        (["1", "1"], False),
        (["9" * 21], False),
    ],
)
def test_a_retry_is_one_positive_whole_number(values: list[str], *, retry: bool) -> None:
    assert client_timeout.is_retry(values) is retry


def test_a_client_can_shorten_its_tiers_wait_and_not_lengthen_it() -> None:
    bounds = TierBounds(wait_ms_max=20_000, first_token_ms_max=5_000, queued_requests_max=0, queued_tokens_max=7)
    scope = {"headers": [(b"x-stainless-read-timeout", b"600"), (b"x-stainless-retry-count", b"1")]}
    terms = client_timeout.terms(scope, bounds)  # pyright: ignore[reportArgumentType]
    assert (terms.wait_s, terms.added_s, terms.client_s, terms.timeout_s) == (20.0, 5.0, 600.0, 20.0)
    assert (terms.queued_requests_max, terms.queued_tokens_max, terms.retry) == (0, 7, True)
    hasty = client_timeout.terms({"headers": [(b"x-stainless-read-timeout", b"3")]}, bounds)  # pyright: ignore[reportArgumentType]
    assert hasty.timeout_s == 3.0
    later = hasty.after(2.0)
    assert (later.wait_s, later.client_s, later.timeout_s) == (18.0, 1.0, 1.0)
    assert hasty.after(100.0).timeout_s == 0.0
    assert client_timeout.terms({"headers": []}, TierBounds()).added_s is None  # pyright: ignore[reportArgumentType]
