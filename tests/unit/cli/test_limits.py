"""Limits on the command line are whole numbers that the limiter can compute with, and nothing is rounded."""

from dataclasses import fields

import cyclopts
import pytest

from cli.limits import LimitOptions
from cli.tenant import app
from gateway.db.catalogue import Limits
from gateway.db.tables import QUOTA_METRICS


def parsed(value: str) -> object:
    _, bound, _ = app.parse_args(["create", "example", "--rpm", value], exit_on_error=False, print_error=False)
    return bound.arguments["options"].rpm


def test_unlimited_is_a_statement_of_its_own() -> None:
    _, bound, _ = app.parse_args(["create", "example", "--rpm", "unlimited", "--tpm", "0"], exit_on_error=False)
    assert bound.arguments["options"].stated() == Limits(rpm=None, tpm=0)


@pytest.mark.parametrize("value", ["0", "1", "1000000000000000"])
def test_whole_numbers_are_taken_as_they_are(value: str) -> None:
    assert parsed(value) == int(value)


@pytest.mark.parametrize("value", ["1.5", "-1", "1e3", "ten", "", "1000000000000001", "9223372036854775808", "nan"])
def test_anything_else_is_refused(value: str) -> None:
    with pytest.raises(cyclopts.CoercionError):
        parsed(value)


def test_every_metric_has_its_option_and_its_field() -> None:
    assert tuple(field.name for field in fields(LimitOptions)) == QUOTA_METRICS
    assert Limits.__struct_fields__ == QUOTA_METRICS
