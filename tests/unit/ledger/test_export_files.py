import csv
from pathlib import Path

from gateway.ledger.export import COLUMNS, Line
from gateway.ledger.export_files import CsvWriter


def written(path: Path, **values: object) -> dict[str, str]:
    line: Line = tuple(values.get(name) for name in COLUMNS)
    file = CsvWriter(path)
    file.write([line])
    file.close()
    with path.open(newline="") as lines:
        [row] = csv.DictReader(lines)
    return row


def test_no_text_is_a_formula_to_a_spreadsheet(tmp_path: Path) -> None:
    for number, text in enumerate(("=1+1", "+1", "-1", "@sum", "\t=1", "\n=1")):
        row = written(tmp_path / str(number), reason=text, model=text)
        assert (row["reason"], row["model"]) == (f"'{text}", f"'{text}")


def test_everything_else_is_as_it_is(tmp_path: Path) -> None:
    row = written(tmp_path / "lines", reason='a "b",\rc=1\r\nd', cost_micro=-20)
    assert (row["reason"], row["cost_micro"], row["tenant"]) == ('a "b",\nc=1\nd', "-20", "")
