"""Who may call, in full."""

from migrations import sql

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    sql.run(__file__)
