from pathlib import Path

import pytest

from cli.embedded import demo
from cli.embedded.directory import DataDirectory
from cli.errors import DataDirectoryError


def test_without_a_file_there_are_no_values(tmp_path: Path) -> None:
    assert demo.read(DataDirectory(tmp_path / "data")) == {}


def test_only_exports_are_read_and_quotes_are_taken_off(tmp_path: Path) -> None:
    (tmp_path / "demo.env").write_text("# a note\nexport A='one two'\nB=3\nexport \n")
    assert demo.read(DataDirectory(tmp_path)) == {"A": "one two"}


@pytest.mark.parametrize("content", [b"export A=\xff\n", b"export A='open\n"])
def test_a_damaged_file_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "demo.env").write_bytes(content)
    with pytest.raises(DataDirectoryError, match=r"demo\.env cannot be read"):
        demo.read(DataDirectory(tmp_path))
