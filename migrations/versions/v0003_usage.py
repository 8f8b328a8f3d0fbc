"""Usage events in daily partitions, rejected events, and what the ledger does after an insert."""

from migrations import sql

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    sql.run(__file__)
