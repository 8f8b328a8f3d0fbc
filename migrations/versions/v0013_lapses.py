"""A lease that runs out is given back, and its owner may still return."""

from migrations import sql

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    sql.run(__file__)
