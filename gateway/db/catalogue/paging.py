"""Pages of a list: so many rows after a given one, by the primary key, so that new rows do not shift later pages."""

import uuid
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Select


class Paging(msgspec.Struct, frozen=True, kw_only=True):
    """The rows whose id is greater than `after`, at most `rows_max` of them."""

    after: uuid.UUID | None = None
    rows_max: int | None = None

    def of(self, asked: "Select[*tuple[Any, ...]]", key: "ColumnElement[Any]") -> "Select[*tuple[Any, ...]]":
        asked = asked.order_by(key)
        if self.after is not None:
            asked = asked.where(key > self.after)
        return asked if self.rows_max is None else asked.limit(self.rows_max)


EVERYTHING = Paging()
