import json
import uuid
from typing import Any

import pytest

from shared import log


class Odd:
    def __repr__(self) -> str:
        return "odd"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("é\n\u2028\x9b", "é\n\u2028\x9b"),
        (2**70, 2**70),
        ("\ud800", "\ud800"),
        (Odd(), "odd"),
        (uuid.UUID(int=1), str(uuid.UUID(int=1))),
    ],
)
def test_a_line_holds_whatever_it_is_given(value: Any, shown: Any) -> None:
    line = log._line({"event": "a.b", "value": value}, default=repr)
    assert b"\n" not in line
    assert line.isascii()
    assert json.loads(line) == {"event": "a.b", "value": shown}
