"""Every command of docs/operating.md is run as it stands there, in its order, by one shell."""

import re
from pathlib import Path

import pytest

from cli import usage
from tests.e2e.stack import Stack
from tests.e2e.test_readme import ROOT, shell

SECTIONS = re.split(r"^## ", (ROOT / "docs" / "operating.md").read_text(), flags=re.MULTILINE)
EXPORT = "Export a month"


def script(*, export: bool) -> str:
    """All blocks of the page, or all but those of the last section; the first command that fails ends it."""
    chosen = [section for section in SECTIONS if export or not section.startswith(EXPORT)]
    blocks = [block for section in chosen for block in re.findall(r"```sh\n(.*?)```", section, re.DOTALL)]
    return "set -euo pipefail\n" + "\n".join(blocks)


def test_the_page_says_what_an_administrator_looks_for() -> None:
    titles = {section.splitlines()[0] for section in SECTIONS[1:]}
    assert {"Onboard a tenant", "Change a plan", "Rotate a key", EXPORT} <= titles


@pytest.mark.timeout(560)
def test_its_commands_work_on_a_running_stack(stack: Stack, clone: Path) -> None:
    (clone / ".forebay").symlink_to(stack.directory.root)
    done = shell(script(export="export" in usage.app), {}, clone, seconds_max=500)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert "shown this once" in done.stderr
    actors = {row["actor"] for row in stack.query("SELECT actor FROM audit_log")}
    assert any(actor.startswith("cli:") for actor in actors)
    assert any(actor.startswith("key:") for actor in actors)
