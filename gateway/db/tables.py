"""The catalogue and the bill as SQLAlchemy tables, for the statements in this package.

The migrations are the schema; a test compares the two column by column. What only SQL functions touch (the limiter)
is not here.
"""

from typing import Final

from sqlalchemy import BigInteger, Boolean, Column, Integer, LargeBinary, MetaData, SmallInteger, Table, Text, Uuid
from sqlalchemy.dialects.postgresql import ARRAY, TIMESTAMP

metadata: Final = MetaData()
_Timestamp: Final = TIMESTAMP(timezone=True)

tiers: Final = Table(
    "tiers",
    metadata,
    Column("id", SmallInteger, primary_key=True),
    Column("name", Text, nullable=False),
)

plans: Final = Table(
    "plans",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    Column("tier", SmallInteger, nullable=False),
    Column("created_at", _Timestamp, nullable=False),
)

tenants: Final = Table(
    "tenants",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("plan_id", Uuid, nullable=False),
    Column("created_at", _Timestamp, nullable=False),
)

api_keys: Final = Table(
    "api_keys",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("public_id", Text, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    Column("env", Text, nullable=False),
    Column("secret_digest", LargeBinary, nullable=False),
    Column("last4", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("scopes", ARRAY(Text), nullable=False),
    Column("expires_at", _Timestamp),
    Column("revoked_at", _Timestamp),
    Column("created_at", _Timestamp, nullable=False),
)

quotas: Final = Table(
    "quotas",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("plan_id", Uuid),
    Column("tenant_id", Uuid),
    Column("api_key_id", Uuid),
    Column("model_id", Uuid),
    Column("metric", Text, nullable=False),
    Column("allowed", BigInteger),
    Column("burst", BigInteger),
    Column("mode", Text, nullable=False),
    Column("created_at", _Timestamp, nullable=False),
)

models: Final = Table(
    "models",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("alias", Text, nullable=False),
    Column("context_length", Integer, nullable=False),
    Column("vocab_size", Integer, nullable=False),
    Column("card", Text, nullable=False),
    Column("created_at", _Timestamp, nullable=False),
)

usage_events: Final = Table(
    "usage_events",
    metadata,
    Column("request_id", Uuid, primary_key=True),
    Column("attempt", SmallInteger, primary_key=True),
    Column("final", Boolean, nullable=False),
    Column("occurred_at", _Timestamp, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("api_key_id", Uuid, nullable=False),
    Column("model_id", Uuid, nullable=False),
    Column("tier", SmallInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("recomputed_tokens", BigInteger, nullable=False),
    Column("finish", Text, nullable=False),
    Column("ttft_ms", BigInteger),
    Column("total_ms", BigInteger, nullable=False),
    Column("cost_micro", BigInteger),
    Column("worker", Text, nullable=False),
    Column("gateway", Text, nullable=False),
    Column("preemptions", Integer, nullable=False),
)
