"""The three group roles and what each may do."""

from migrations import sql

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    sql.run(__file__)
