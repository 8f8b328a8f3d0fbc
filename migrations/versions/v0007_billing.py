"""What tokens cost, and what billing reads."""

from migrations import sql

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    sql.run(__file__)
