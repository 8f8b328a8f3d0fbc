import datetime as dt
import uuid

import pytest

from gateway.ledger import rows
from shared import wire
from shared.ids import uuid7
from tests.integration.test_ledger import event


def test_a_row_happens_when_its_request_was_made() -> None:
    made = dt.datetime(2026, 11, 29, 23, 59, 59, 999_000, dt.UTC)
    row = rows.parse(wire.encode(event(request=uuid7(made.timestamp()))))
    assert row.occurred_at == made


def test_no_time_to_the_first_token_is_not_zero() -> None:
    assert rows.parse(wire.encode(event(ttft_ms=None))).ttft_ms is None
    assert rows.parse(wire.encode(event(ttft_ms=0))).ttft_ms == 0


@pytest.mark.parametrize("field", ["tenant", "key", "model", "request"])
def test_ids_are_uuids(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} is not a UUID"):
        rows.parse(wire.encode(event(**{field: "acme"})))


def test_the_latest_uuid7_still_has_a_time_or_a_reason() -> None:
    last = uuid.UUID(int=(2**48 - 1) << 80 | 7 << 76 | 2 << 62)
    with pytest.raises(ValueError, match="year"):
        rows.parse(wire.encode(event(request=last)))
