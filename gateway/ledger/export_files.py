"""The two formats of an export. Both are functions of the lines alone: the same lines give the same bytes.

CSV needs no library. Parquet needs pyarrow (the extra `export`), which is imported only when it is used.
"""

import csv
import datetime as dt
import importlib
from pathlib import Path
from typing import Any

from gateway.ledger.export import COLUMNS, Format, Line, LineWriter

FORMULA = ("=", "+", "-", "@", "\t", "\n")  # first characters that make a spreadsheet read a text as a formula


class FormatMissing(Exception):
    """The library for this form is not installed; the message says which."""


class CsvWriter:
    """RFC 4180 with line feeds; times in UTC with milliseconds; null is empty. A text that would be a formula gets an
    apostrophe, and a break in one is a line feed: a carriage return alone the library writes without quotes.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._csv = csv.writer(self._file, lineterminator="\n")
        self._csv.writerow(COLUMNS)

    def write(self, lines: list[Line]) -> None:
        self._csv.writerows([_text(value) for value in line] for line in lines)

    def close(self) -> None:
        self._file.close()


class ParquetWriter:
    """A row group per batch. Ids are texts; money and counts are 64-bit integers."""

    def __init__(self, path: Path) -> None:
        try:
            self._arrow: Any = importlib.import_module("pyarrow")
            parquet: Any = importlib.import_module("pyarrow.parquet")
        except ImportError:
            raise FormatMissing(
                "Parquet needs pyarrow: install it (.venv/bin/pip install pyarrow), or export csv"
            ) from None
        kinds = {
            "text": self._arrow.string(),
            "uuid": self._arrow.string(),
            "integer": self._arrow.int64(),
            "time": self._arrow.timestamp("ms", tz="UTC"),
        }
        self._schema = self._arrow.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
        self._writer = parquet.ParquetWriter(str(path), self._schema, compression="zstd")

    def write(self, lines: list[Line]) -> None:
        columns = zip(*lines, strict=True)
        arrays = [
            self._arrow.array([_id(value) for value in column] if kind == "uuid" else list(column), field.type)
            for column, kind, field in zip(columns, COLUMNS.values(), self._schema, strict=True)
        ]
        self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


def writer(form: Format, path: Path) -> LineWriter:
    """Raises FormatMissing."""
    return CsvWriter(path) if form == "csv" else ParquetWriter(path)


def _text(value: object) -> object:
    if isinstance(value, str):
        plain = value.replace("\r\n", "\n").replace("\r", "\n")
        return f"'{plain}" if plain.startswith(FORMULA) else plain
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return "" if value is None else value


def _id(value: object) -> str | None:
    return None if value is None else str(value)
