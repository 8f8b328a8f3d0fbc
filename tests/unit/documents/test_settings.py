"""docs/settings.md lists every setting of each program, with its default."""

import re
from pathlib import Path

import msgspec
import pytest

from cli.embedded.settings import UpSettings
from cli.ledger import LedgerSettings
from gateway.settings import GatewaySettings
from worker.settings import WorkerSettings

DOCUMENT = (Path(__file__).parents[3] / "docs" / "settings.md").read_text()


def documented(program: str) -> dict[str, str]:
    """Name and default, as the section of one program says."""
    section = DOCUMENT.split(f"## `forebay {program}`\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) ?\|", section, re.MULTILINE))


def shown(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    match field.default:
        case None | "":
            return ""
        case bool():
            return f"`{str(field.default).lower()}`"
        case float():
            return f"`{field.default:g}`"
        case _:
            return f"`{field.default}`"


@pytest.mark.parametrize(
    ("program", "settings"),
    [("up", UpSettings), ("gateway", GatewaySettings), ("worker", WorkerSettings), ("ledger", LedgerSettings)],
)
def test_every_setting_is_documented_with_its_default(program, settings) -> None:
    fields = msgspec.structs.fields(settings)
    assert documented(program) == {f"FOREBAY_{field.name.upper()}": shown(field) for field in fields}
