"""What the documents link to and the files that they name: each exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("bench", "cli", "gateway", "kernels", "migrations", "shared", "tests", "worker")
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "bench/results/README.md"]
HISTORY = {"CHANGELOG.md", "log.md"}  # name files as they were called then


def modules() -> set[str]:
    paths = (path.relative_to(ROOT).as_posix() for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
    return {f"/{path}" for path in paths}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files(document: Path) -> None:
    targets = re.findall(r"\]\((?!https?://)([^)#]+)", document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []


def test_the_modules_that_are_named_exist() -> None:
    known = modules()
    for document in DOCUMENTS:
        if document.name not in HISTORY:
            named = re.findall(r"`([\w/]+\.py)\b", document.read_text())
            missing = [name for name in named if not any(path.endswith(f"/{name}") for path in known)]
            assert missing == [], document.name
