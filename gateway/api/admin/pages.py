"""Lists in pages, as OpenAI's: `limit` and `after`, and whether there is more."""

import uuid
from typing import Annotated, Final, Generic, TypeVar

import msgspec

from gateway.db.catalogue import Paging

LIMIT_MAX: Final = 100

PageLimit = Annotated[int, msgspec.Meta(ge=1, le=LIMIT_MAX, description="How many objects the page may have.")]


class PageQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: PageLimit = 20
    after: Annotated[uuid.UUID, msgspec.Meta(description="The last id of the page before.")] | None = None

    @property
    def paging(self) -> Paging:
        """One row more than the page has, to see whether there is more."""
        return Paging(after=self.after, rows_max=self.limit + 1)


T = TypeVar("T", bound=msgspec.Struct)


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """`last_id` is the `after` of the next page. Rows created meanwhile do not shift pages that were already read."""

    object: str = "list"
    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool


def page(rows: list[T], limit: int) -> Page[T]:
    """The page of `rows`, which hold one more than `limit` if there is more."""
    data = rows[:limit]
    ids = [str(getattr(row, "id")) for row in (*data[:1], *data[-1:])]  # noqa: B009  every row of a list has one
    return Page(
        data=data,
        first_id=ids[0] if ids else None,
        last_id=ids[-1] if ids else None,
        has_more=len(rows) > limit,
    )
