"""The catalogue's and the ledger's tables, for SQLAlchemy statements in this package.

The migrations define the schema; a test compares the two column by column. Tables that only SQL functions use (the
limiter's) are not here.
"""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    Identity,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    Uuid,
)
from sqlalchemy.dialects.postgresql import ARRAY, CIDR, INET, JSONB, TIMESTAMP

metadata: Final = MetaData()
_Timestamp: Final = TIMESTAMP(timezone=True)

# What `quotas.metric` may be; money in micro-units, everything else in requests or tokens.
QUOTA_METRICS: Final = (
    "rpm",
    "tpm",
    "max_context",
    "max_output",
    "concurrency",
    "queued_requests",
    "queued_tokens",
    "day_tokens",
    "month_cost",
)

tiers: Final = Table(
    "tiers",
    metadata,
    Column("id", SmallInteger, primary_key=True),
    Column("name", Text, nullable=False),
    Column("wait_ms_max", Integer, nullable=False),
    Column("first_token_ms_max", Integer),
    Column("queued_requests_max", Integer),
    Column("queued_tokens_max", BigInteger),
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
    Column("ignore_unknown_fields", Boolean, nullable=False),
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
    Column("former_digest", LargeBinary),
    Column("former_until", _Timestamp),
    Column("models", ARRAY(Uuid)),
    Column("networks", ARRAY(CIDR)),
    Column("created_at", _Timestamp, nullable=False),
)

key_uses: Final = Table(
    "key_uses",
    metadata,
    Column("api_key_id", Uuid, primary_key=True),
    Column("last_used_on", Date, nullable=False),
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
    Column("access", Text, nullable=False),
    Column("created_at", _Timestamp, nullable=False),
)

model_grants: Final = Table(
    "model_grants",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("model_id", Uuid, nullable=False),
    Column("plan_id", Uuid),
    Column("tenant_id", Uuid),
    Column("created_at", _Timestamp, nullable=False),
)

audit_log: Final = Table(
    "audit_log",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("at", _Timestamp, nullable=False),
    Column("actor", Text, nullable=False),
    Column("actor_ip", INET),
    Column("action", Text, nullable=False),
    Column("object_type", Text, nullable=False),
    Column("object_id", Text, nullable=False),
    Column("before", JSONB),
    Column("after", JSONB),
    Column("request_id", Uuid),
)

idempotent_answers: Final = Table(
    "idempotent_answers",
    metadata,
    Column("tenant_id", Uuid, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("fingerprint", LargeBinary, nullable=False),
    Column("status", SmallInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
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
    Column("price_id", Uuid),
)

prices: Final = Table(
    "prices",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("model_id", Uuid, nullable=False),
    Column("plan_id", Uuid),
    Column("input_upm", BigInteger, nullable=False),
    Column("cached_input_upm", BigInteger, nullable=False),
    Column("output_upm", BigInteger, nullable=False),
    Column("currency", Text, nullable=False),
    Column("valid_from", _Timestamp, nullable=False),
    Column("valid_to", _Timestamp),
    Column("created_at", _Timestamp, nullable=False),
)

usage_adjustments: Final = Table(
    "usage_adjustments",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("request_id", Uuid, nullable=False),
    Column("attempt", SmallInteger, nullable=False),
    Column("occurred_at", _Timestamp, nullable=False),
    Column("tenant_id", Uuid, nullable=False),
    Column("api_key_id", Uuid, nullable=False),
    Column("model_id", Uuid, nullable=False),
    Column("tier", SmallInteger, nullable=False),
    Column("micro", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("created_at", _Timestamp, nullable=False),
)
