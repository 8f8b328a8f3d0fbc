"""What the schema's constraints ask for, in words. Knows names of constraints and their meaning, and no statement.

Invariant: a client never reads a constraint's name. A test compares the names here with those of the migrations.
"""

from typing import Final

NAME: Final = "a name has lower-case letters, digits and dashes, at most 63, and no dash in front"
MOMENT: Final = "is out of range: a moment lies in the years 1970 to 9998"
ANY: Final = "a rule of the schema forbids it"

RULES: Final = {
    "api_keys_digest_length": "the digest of a secret has 32 bytes",
    "api_keys_env_form": "an environment has 1 to 8 lower-case letters",
    "api_keys_expires_at_range": f"expires_at {MOMENT}",
    "api_keys_former_digest_length": "the digest of a secret has 32 bytes",
    "api_keys_former_until_range": f"former_until {MOMENT}",
    "api_keys_former_whole": "a former secret and the end of its use are given together",
    "api_keys_models_whole": "the list of models has no null",
    "api_keys_networks_whole": "the list of networks has no null",
    "api_keys_public_id_form": "a public id has 12 digits and lower-case letters",
    "api_keys_revoked_at_range": f"revoked_at {MOMENT}",
    "api_keys_scopes_known": "a key has at least one scope, of inference, admin and admin:read",
    "billing_cursors_form": f"consumer: {NAME}",
    "billing_exports_closed_once": "a period that overlaps it is closed already",
    "billing_exports_digest_length": "the digest of an export has 32 bytes",
    "billing_exports_format_known": "the format is csv or parquet",
    "billing_exports_period": "a period ends after it begins",
    "idempotent_answers_key_length": "an Idempotency-Key has 1 to 255 characters",
    "model_grants_one_scope": "it belongs to one of plan and tenant",
    "models_access_known": "access is open or granted",
    "models_context_positive": "the context is at least 1 token",
    "models_vocab_positive": "the vocabulary has at least 1 token",
    "plans_name_form": NAME,
    "prices_cached_range": "cached_input_upm is 0 to input_upm",
    "prices_currency_form": "a currency is three capital letters",
    "prices_input_range": "input_upm is 0 to 1000000000000",
    "prices_no_overlap": "a price of the same model and plan holds in a part of its period",
    "prices_one_currency": "all prices have one currency, and there are prices in another one",
    "prices_output_range": "output_upm is 0 to 1000000000000",
    "prices_period": "a price ends after it begins",
    "prices_valid_from_range": f"its beginning {MOMENT}",
    "prices_valid_to_range": f"its end {MOMENT}",
    "quotas_allowed_range": "a limit is 0 to 10000000000; day_tokens and month_cost are 0 to 1000000000000000",
    "quotas_burst_range": "a burst is 1 to 10000000000",
    "quotas_metric_known": "there is no such metric",
    "quotas_mode_known": "mode is enforce or shadow",
    "quotas_one_scope": "it belongs to one of plan, tenant and key",
    "tenant_plans_period": "a tenant's plan ends after it begins",
    "tenants_name_form": NAME,
    "tenants_status_known": "status is active or suspended",
    "tiers_first_token_range": "first_token_ms_max is 1 to 3600000",
    "tiers_id_range": "a tier is 0 to 9",
    "tiers_queued_requests_range": "queued_requests_max is at least 0",
    "tiers_queued_tokens_range": "queued_tokens_max is at least 0",
    "tiers_wait_range": "wait_ms_max is 1 to 3600000",
    "usage_adjustments_micro_range": "micro is not 0, and at most 1000000000000000000 up or down",
    "usage_adjustments_reason_length": "a reason has 1 to 500 characters",
}
