"""Every limit, and who holds what of it."""

from migrations import sql

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    sql.run(__file__)
