import csv
from pathlib import Path

from bench import record


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_first_row_makes_folder_file_and_header(tmp_path: Path) -> None:
    path = tmp_path / "results" / "stack.csv"
    record.append(path, [{"commit": "abc", "clients": 4, "rate": 1234.56789, "note": None}])
    assert path.read_text() == "commit,clients,rate,note\nabc,4,1234.57,\n"


def test_later_rows_are_added_under_one_header(tmp_path: Path) -> None:
    path = tmp_path / "stack.csv"
    record.append(path, [{"a": 1, "b": 2}])
    record.append(path, [{"b": 4, "a": 3}, {"a": 5}])
    assert path.read_text() == "a,b\n1,2\n3,4\n5,\n"


def test_a_new_column_leaves_the_old_numbers_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "stack.csv"
    record.append(path, [{"a": "1.250", "b": "x, y"}])
    record.append(path, [{"a": 2, "c": 3}])
    assert rows_of(path) == [{"a": "1.250", "b": "x, y", "c": ""}, {"a": "2", "b": "", "c": "3"}]
    assert [found.name for found in tmp_path.iterdir()] == ["stack.csv"]
