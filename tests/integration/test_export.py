"""Exports: what is in them, in which order, and what happens to what comes too late for one."""

import csv
import datetime as dt
import hashlib
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow.parquet
import pytest

from cli.errors import CommandError
from gateway.ledger.export import COLUMNS
from tests.integration.bills import World, at, world
from tests.integration.test_catalogue import forebay
from tests.integration.test_rollups import ADJUST, priced, uncommitted

__all__ = ["forebay"]

Forebay = Callable[..., Awaitable[str]]


@pytest.fixture
async def bills(database_url: str) -> AsyncIterator[World]:
    async with world(database_url) as made:
        yield made


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def complete_until(bills: World, moment: str) -> None:
    await bills.pool.execute(
        "INSERT INTO usage_completeness VALUES (true, $1, 0, now())"
        " ON CONFLICT (single) DO UPDATE SET complete_until = excluded.complete_until",
        at(moment),
    )


async def test_a_month_in_both_forms_is_the_same_lines_with_count_and_checksum(
    bills: World, forebay: Forebay, tmp_path: Path
) -> None:
    who = await priced(bills)
    last, _ = await bills.book(at("2026-03-31T23:59:59.999"), prompt_tokens=9, cached_tokens=4, **who)
    first, _ = await bills.book(at("2026-03-01"), prompt_tokens=2, ttft_ms=None, **who)
    await bills.book(at("2026-02-28T23:59:59.999"), **who)
    await bills.book(at("2026-04-01"), **who)
    await bills.book(at("2026-03-15"), tenant=who["model"], model=who["tenant"])
    await bills.pool.execute(ADJUST, -3, first)
    await bills.settled()
    printed = await forebay("usage", "export", "--month", "2026-03", "--out", str(tmp_path / "m.csv"))
    digest = hashlib.sha256((tmp_path / "m.csv").read_bytes()).hexdigest()
    assert printed.splitlines() == [
        "4 rows, 30 micro-units, 1 rows without a price",
        f"sha256 {digest}  {tmp_path / 'm.csv'}",
    ]
    usage, adjustment, unpriced, late = lines(tmp_path / "m.csv")
    assert (usage["request_id"], usage["occurred_at"], usage["cost_micro"], usage["currency"]) == (
        str(first),
        "2026-03-01T00:00:00.000Z",
        "13",
        "EUR",
    )
    assert (adjustment["kind"], adjustment["request_id"], adjustment["cost_micro"]) == ("adjustment", str(first), "-3")
    assert (unpriced["tenant"], unpriced["cost_micro"], unpriced["price_id"]) == ("", "", "")
    assert (late["request_id"], late["tenant"], late["model"], late["cached_tokens"]) == (str(last), "acme", "m", "4")
    await forebay("usage", "export", "--month", "2026-03", "--format", "parquet", "--out", str(tmp_path / "m.parquet"))
    stored = pyarrow.parquet.read_table(tmp_path / "m.parquet").to_pylist()
    assert [plain(row) for row in stored] == lines(tmp_path / "m.csv")
    recorded = await bills.pool.fetch("SELECT format, row_count, total_micro, sha256, closing FROM billing_exports")
    assert [tuple(row)[:3] for row in recorded] == [("csv", 4, 30), ("parquet", 4, 30)]
    assert recorded[0]["sha256"].hex() == digest


def plain(row: dict[str, Any]) -> dict[str, str]:
    """A Parquet row as CSV would have it."""
    shown = {name: "" if value is None else str(value) for name, value in row.items()}
    moment: dt.datetime = row["occurred_at"]
    return {**shown, "occurred_at": moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03}Z"}


async def test_what_comes_after_a_period_was_closed_is_in_the_next_one_once(
    bills: World, forebay: Forebay, tmp_path: Path
) -> None:
    who = await priced(bills)
    jan, _ = await bills.book(at("2026-01-15"), **who)

    async def export(month: str, name: str, *options: str) -> list[str]:
        await bills.settled()
        await forebay("usage", "export", "--month", month, "--out", str(tmp_path / name), *options)
        return [line["request_id"] for line in lines(tmp_path / name)]

    with pytest.raises(CommandError, match=r"complete until 2026-02-01 01:00:00 UTC; that is not known"):
        await export("2026-01", "early", "--close")
    await complete_until(bills, "2026-02-01T00:30")
    with pytest.raises(CommandError, match=r"that is 2026-02-01 00:30:00 UTC now"):
        await export("2026-01", "early", "--close")
    assert names(tmp_path) == []
    await complete_until(bills, "2026-02-01T02:00")
    assert await export("2026-01", "jan", "--close") == [str(jan)]
    late, _ = await bills.book(at("2026-01-20"), **who)
    feb, _ = await bills.book(at("2026-02-02"), **who)
    assert await export("2026-01", "again") == [str(jan)]
    assert (tmp_path / "again").read_bytes() == (tmp_path / "jan").read_bytes()
    assert await export("2026-02", "preview") == [str(late), str(feb)]
    await complete_until(bills, "2026-06-01")
    assert await export("2026-02", "feb", "--close") == [str(late), str(feb)]
    await bills.pool.execute(ADJUST, 5, jan)
    mar = await export("2026-03", "mar", "--close")
    assert mar == [str(jan)]
    assert await export("2026-02", "feb2", "--close") == [str(late), str(feb)]
    with pytest.raises(CommandError, match="closed in their order"):
        await export("2025-12", "dec", "--close")
    assert await bills.pool.fetchval("SELECT count(*) FROM billing_exports WHERE closing") == 3


async def test_no_line_is_left_out_by_a_period_that_is_skipped(bills: World, forebay: Forebay, tmp_path: Path) -> None:
    who = await priced(bills)
    for month in ("01", "02", "03"):
        await bills.book(at(f"2026-{month}-15T10:00"), **who)
    await bills.settled()
    await complete_until(bills, "2026-06-01")

    async def close(month: str) -> None:
        await forebay("usage", "export", "--month", month, "--close", "--out", str(tmp_path / month))

    with pytest.raises(CommandError, match="bills begin at 2026-01-15 10:00:00 UTC: close from there on"):
        await close("2026-02")
    await close("2026-01")
    with pytest.raises(CommandError, match="begins where the last one ended, at 2026-02-01 00:00:00 UTC"):
        await close("2026-03")
    assert names(tmp_path) == ["2026-01"]
    await close("2026-02")
    await close("2026-03")
    closed = [line["occurred_at"][:7] for name in sorted(names(tmp_path)) for line in lines(tmp_path / name)]
    assert closed == ["2026-01", "2026-02", "2026-03"]


async def test_a_period_is_not_closed_over_bills_that_an_old_transaction_hides(
    bills: World, forebay: Forebay, tmp_path: Path
) -> None:
    who = await priced(bills)
    await bills.book(at("2026-01-15"), **who)
    await complete_until(bills, "2026-06-01")
    export = ("usage", "export", "--month", "2026-01", "--out", str(tmp_path / "jan"))
    async with uncommitted(bills, at("2026-01-16")):
        await bills.book(at("2026-01-17"), **who)
        with pytest.raises(CommandError, match="still open"):
            await forebay(*export, "--close")
    await bills.settled()
    await forebay(*export, "--close")
    assert len(lines(tmp_path / "jan")) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--month", "2026-13"), "YYYY-MM"),
        (("--month", "9999-12"), "YYYY-MM"),
        ((), "a month, or --from and --to"),
        (("--month", "2026-01", "--from", "2026-01-01"), "a month, or --from and --to"),
        (("--from", "2026-01-02", "--to", "2026-01-01"), "ends before it begins"),
        (("--month", "2026-02"), "exists already"),
        (("--month", "2026-01", "--out", "no/folder"), "No such file"),
        (("--month", "2026-01", "--format", "parquet"), "pip install pyarrow"),
    ],
)
async def test_an_export_that_cannot_be_says_why_and_leaves_no_file(
    bills: World,
    forebay: Forebay,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    (tmp_path / "usage-2026-02.csv").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CommandError, match=message):
        await forebay("usage", "export", *arguments)
    assert names(tmp_path) == ["usage-2026-02.csv"]
    assert await bills.pool.fetchval("SELECT count(*) FROM billing_exports") == 0


async def test_without_a_name_the_file_is_called_after_its_period(
    bills: World, forebay: Forebay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await forebay("usage", "export", "--month", "2026-12")
    await forebay("usage", "export", "--from", "2026-12-01", "--to", "2027-01-01")
    assert sorted(names(tmp_path)) == ["usage-2026-12.csv", "usage-20261201-20270101.csv"]
    first, second = await bills.pool.fetch("SELECT period_from, period_to, row_count FROM billing_exports")
    assert tuple(first) == tuple(second) == (at("2026-12-01"), at("2027-01-01"), 0)


async def test_the_columns_are_those_that_billing_reads(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        found = await connection.fetch(
            "SELECT column_name FROM information_schema.columns WHERE table_name = 'billing_lines'"
        )
    finally:
        await connection.close()
    assert {row["column_name"] for row in found} - set(COLUMNS) == {"xid"}


async def test_adjusting_by_command_moves_the_total_and_never_below_nothing(bills: World, forebay: Forebay) -> None:
    who = await priced(bills)
    request, cost = await bills.book(at("2026-03-01"), attempt=2, **who)
    assert cost == 18
    assert "attempt 2" in await forebay("usage", "adjust", str(request), "--micro", "-10", "--reason", "promised")
    await forebay("usage", "adjust", str(request), "--micro=4", "--reason", "too much")
    shown = await forebay("usage", "show", "--tenant", "acme", "--json")
    assert '"requests":1' in shown
    assert '"cost_micro":12' in shown
    for micro, who_else, message in (
        ("-13", request, "has cost less than that"),
        ("0", request, "an amount other than 0"),
        ("1", uuid.uuid4(), "no bill of a request"),
    ):
        with pytest.raises(CommandError, match=message):
            await forebay("usage", "adjust", str(who_else), f"--micro={micro}", "--reason", "r")
    [row] = await bills.pool.fetch("SELECT micro, actor FROM usage_adjustments WHERE micro < 0")
    assert (row["micro"], row["actor"].startswith("cli:")) == (-10, True)
