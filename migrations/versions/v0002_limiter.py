"""Token buckets and reservations, and the functions that are the only way to change them."""

from migrations import sql

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    sql.run(__file__)
