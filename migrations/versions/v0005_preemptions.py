"""How often each request gave way."""

from migrations import sql

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    sql.run(__file__)
