"""How long each tier may wait."""

from migrations import sql

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    sql.run(__file__)
