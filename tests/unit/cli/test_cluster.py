from pathlib import Path

import pytest

from cli.embedded import postgres
from cli.embedded.directory import DataDirectory
from cli.errors import CommandError, DataDirectoryError


def test_a_cluster_of_another_postgres_is_refused(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.prepare()
    secrets = directory.load_secrets(())
    directory.postgres.mkdir()
    (directory.postgres / "PG_VERSION").write_text("16\n")
    with pytest.raises(DataDirectoryError, match="made by Postgres 16 and this is Postgres 18"):
        postgres.ensure_cluster(directory, secrets, print)


def test_an_interrupted_first_start_leaves_no_half_cluster(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.prepare()
    secrets = directory.load_secrets(())
    (directory.root / "postgres.new").mkdir()
    (directory.root / "postgres.new" / "PG_VERSION").write_text("18\n")
    postgres.ensure_cluster(directory, secrets, print)
    assert (directory.postgres / "global" / "pg_control").exists()
    assert not (directory.root / "postgres.new").exists()


def test_initdb_s_own_words_are_shown(tmp_path: Path) -> None:
    (tmp_path / "occupied").touch()
    with pytest.raises(CommandError, match="initdb: error"):
        postgres.initdb(tmp_path, "password", postgres.account())
