"""Pages of a list: a number of rows after a given one, by primary key, so that new rows do not shift later pages."""

import uuid
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Select


class Paging(msgspec.Struct, frozen=True, kw_only=True):
    """The rows whose id is greater than `after`, at most `rows_max` of them."""

    after: uuid.UUID | None = None
    rows_max: int | None = None

    def of(self, statement: "Select[*tuple[Any, ...]]", key: "ColumnElement[Any]") -> "Select[*tuple[Any, ...]]":
        statement = statement.order_by(key)
        if self.after is not None:
            statement = statement.where(key > self.after)
        return statement if self.rows_max is None else statement.limit(self.rows_max)


EVERYTHING = Paging()
