import math

import pytest

from bench.table import render, shown


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (0.0, "0"),
        (0.012345, "0.0123"),
        (1.0, "1.00"),
        (43.21, "43.2"),
        (280.4, "280"),
        (1234.5, "1,234"),
        (25_000, "25,000"),
        (-0.5, "-0.500"),
        (math.inf, "inf"),
        (math.nan, "nan"),
        (None, "-"),
        ("bf16", "bf16"),
    ],
)
def test_a_cell_is_shown_as_a_person_reads_it(cell: str | float | None, text: str) -> None:
    assert shown(cell) == text


def test_columns_are_as_wide_as_their_widest_cell_and_numbers_stand_right() -> None:
    assert render(["what", "n"], [["chunks", 12_345], ["x", None]]).splitlines() == [
        "| what   |      n |",
        "| ------ | -----: |",
        "| chunks | 12,345 |",
        "| x      |      - |",
    ]


def test_a_column_with_a_text_in_it_stands_left() -> None:
    assert render(["value"], [[1], ["two"]]).splitlines() == ["| value |", "| ----- |", "| 1     |", "| two   |"]


def test_a_table_without_rows_is_its_head() -> None:
    assert render(["a", "long name"], []).splitlines() == ["|   a | long name |", "| --: | --------: |"]


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(AssertionError):
        render(["a", "b"], [[1]])
