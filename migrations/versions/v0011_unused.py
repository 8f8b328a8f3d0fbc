"""Reservations that came to nothing leave nothing."""

from migrations import sql

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    sql.run(__file__)
