"""`forebay usage export`: a period's bill, line by line, into a file that appears whole or not at all."""

import asyncio
import contextlib
import os
import re
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import asyncpg
import cyclopts

from cli import database
from cli.errors import CommandError
from cli.moments import utc
from gateway.db import migrate, pools
from gateway.db.engine import CONNECT_TIMEOUT_S
from gateway.ledger import export as exports
from gateway.ledger import export_files
from gateway.ledger.export import Bounds, Exported, Format


def export(
    *,
    out: Path | None = None,
    form: Annotated[Format, cyclopts.Parameter(name="--format")] = "csv",
    month: str | None = None,
    since: Annotated[datetime | None, cyclopts.Parameter(name="--from")] = None,
    until: Annotated[datetime | None, cyclopts.Parameter(name="--to")] = None,
    close: bool = False,
) -> None:
    """Write a period's bill to a file, and print how many lines it has and its SHA-256.

    Parameters
    ----------
    out
        The file, which must not exist yet; usage-PERIOD.FORMAT in this folder when left out.
    form
        csv, or parquet (which needs the extra `export`).
    month
        YYYY-MM, in UTC.
    since
        Instead of a month: the beginning (ISO 8601, UTC unless it says otherwise).
    until
        And the end, exclusive.
    close
        This is the period's bill: repeating the export gives the same lines, and bills that come later for it are in
        the next period's. Only once everything that was used in it is booked.
    """
    start, end = _period(month, since, until)
    out = out or Path(f"usage-{month or f'{start:%Y%m%d}-{end:%Y%m%d}'}.{form}")
    if out.exists():
        raise CommandError(f"{out} exists already")
    within, exported = asyncio.run(_export(start, end, out, form, close=close))
    print(f"{exported.row_count} rows, {exported.total_micro} micro-units, {exported.unpriced} rows without a price")
    print(f"sha256 {exported.sha256.hex()}  {out}")
    if within.closing:
        print("the period is closed")


async def _export(start: datetime, end: datetime, out: Path, form: Format, *, close: bool) -> tuple[Bounds, Exported]:
    address = database.url()
    try:
        await migrate.check(address)
        connection = await asyncpg.connect(address, timeout=int(CONNECT_TIMEOUT_S), statement_cache_size=0)
        try:
            within = await exports.bounds(connection, start, end, close=close)
            with _whole(out) as part:
                exported = await exports.write(connection, within, export_files.writer(form, part), part)
                await exports.record(connection, within, form, exported)
        finally:
            await connection.close()
    except (migrate.SchemaError, exports.NotComplete, export_files.FormatMissing) as error:
        raise CommandError(str(error)) from error
    except pools.AWAY as error:
        raise CommandError(f"the export failed: {database.reason(error)}") from error
    return within, exported


@contextlib.contextmanager
def _whole(out: Path) -> Generator[Path]:
    """A temporary name to write to. It becomes `out` at the end, and is removed after any error."""
    part = out.with_name(f"{out.name}.part")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)


def _period(month: str | None, since: datetime | None, until: datetime | None) -> tuple[datetime, datetime]:
    if (month is None) == (since is None or until is None) or (month is not None and (since or until)):
        raise CommandError("give a month, or --from and --to")
    if month is None:
        assert since is not None
        assert until is not None
        start, end = utc(since), utc(until)
        if start >= end:
            raise CommandError("the period ends before it begins")
        return start, end
    if not re.fullmatch(r"(19[7-9]|2[0-9]{2})[0-9]-(0[1-9]|1[0-2])", month):
        raise CommandError(f"a month is written YYYY-MM, not {month}")
    year, number = map(int, month.split("-"))
    return datetime(year, number, 1, tzinfo=UTC), datetime(year + number // 12, number % 12 + 1, 1, tzinfo=UTC)
