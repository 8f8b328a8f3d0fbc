"""Who may call, in full: rotation, allow-lists, model grants, uses, the audit log and answers to repeated calls."""

from migrations import sql

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    sql.run(__file__)
