"""Tiers, plans, tenants, keys, quotas and models, and the feed of their changes."""

from migrations import sql

revision = "0001"
down_revision = None


def upgrade() -> None:
    sql.run(__file__)
