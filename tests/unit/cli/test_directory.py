import os
import stat
from pathlib import Path

import msgspec
import pytest

from cli.embedded.directory import DataDirectory
from cli.errors import AlreadyRunning, DataDirectoryError

ROLES = ("gateway", "worker")


@pytest.fixture
def directory(tmp_path: Path) -> DataDirectory:
    made = DataDirectory(tmp_path / "data")
    made.prepare()
    return made


def test_passwords_are_made_once_and_nobody_else_may_read_them(directory: DataDirectory) -> None:
    first = directory.load_secrets(ROLES)
    assert len({first.postgres, first.forebay, first.gateway, *first.nats.values()}) == 5
    assert directory.load_secrets(ROLES) == first
    assert stat.S_IMODE(directory.secrets_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.root.stat().st_mode) == 0o700


def test_a_directory_of_before_gets_the_password_that_it_lacks(directory: DataDirectory) -> None:
    first = directory.load_secrets(ROLES)
    directory.save_secrets(msgspec.structs.replace(first, gateway=""))
    completed = directory.load_secrets(ROLES)
    assert completed.gateway
    assert msgspec.structs.replace(completed, gateway=first.gateway) == first
    assert directory.load_secrets(ROLES) == completed


def test_only_one_may_hold_the_directory(directory: DataDirectory) -> None:
    assert not directory.is_locked()
    with directory.lock():
        assert directory.is_locked()
        with pytest.raises(AlreadyRunning, match=f"process {os.getpid()}"), DataDirectory(directory.root).lock():
            pass
    assert not directory.is_locked()


def test_a_directory_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(DataDirectoryError, match=r"thesis\.tex"):
        DataDirectory(tmp_path).prepare()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_path_that_is_a_file_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataDirectoryError, match="cannot be used"):
        DataDirectory(tmp_path / "file").prepare()


def test_damaged_or_lost_passwords_are_named(directory: DataDirectory) -> None:
    directory.load_secrets(ROLES)
    directory.secrets_file.write_text("{")
    with pytest.raises(DataDirectoryError, match="damaged"):
        directory.load_secrets(ROLES)
    directory.secrets_file.unlink()
    directory.postgres.mkdir()
    with pytest.raises(DataDirectoryError, match="missing"):
        directory.load_secrets(ROLES)
