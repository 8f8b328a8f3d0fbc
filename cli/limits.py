"""The options for limits, shared by tenants, plans and keys."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import cyclopts

from cli.whole_numbers import number
from gateway.db.catalogue import ALLOWED_MAX, Limits

UNLIMITED = "unlimited"

Value = int | Literal["unlimited"] | None


def value(_: object, tokens: Sequence[cyclopts.Token]) -> int | str:
    text = tokens[0].value
    return text if text == UNLIMITED else number(text, 0, ALLOWED_MAX)


def _limit(what: str) -> cyclopts.Parameter:
    return cyclopts.Parameter(converter=value, help=f"{what}. 0 allows none; left out, no limit is set or changed.")


@cyclopts.Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """A whole number, or `unlimited`."""

    rpm: Annotated[Value, _limit("Requests per minute")] = None
    tpm: Annotated[Value, _limit("Tokens per minute, prompt and output together")] = None
    max_context: Annotated[Value, _limit("Tokens of prompt and output that one request may have")] = None
    max_output: Annotated[Value, _limit("Tokens of output that one request may have")] = None
    concurrency: Annotated[Value, _limit("Requests at once")] = None
    queued_requests: Annotated[Value, _limit("Requests that wait for a worker")] = None
    queued_tokens: Annotated[Value, _limit("Tokens of requests that wait for a worker")] = None
    day_tokens: Annotated[Value, _limit("Tokens a day")] = None
    month_cost: Annotated[Value, _limit("Cost a month, in millionths of the currency")] = None

    def stated(self) -> Limits:
        given = {metric: value for metric, value in asdict(self).items() if value is not None}
        return Limits(**{metric: None if value == UNLIMITED else value for metric, value in given.items()})


NO_OPTIONS = LimitOptions()


def shown(limits: Limits) -> str:
    """The text of a table's cell."""
    return ", ".join(
        f"{metric} {UNLIMITED if allowed is None else f'{allowed:,}'}" for metric, allowed in limits.stated().items()
    )
