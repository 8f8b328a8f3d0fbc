"""Moments that everybody can read."""

from migrations import sql

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    sql.run(__file__)
