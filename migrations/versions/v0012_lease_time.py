"""A time of leases that no step of the clock carries past them, and one reading for each scope of an admission."""

from migrations import sql

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    sql.run(__file__)
