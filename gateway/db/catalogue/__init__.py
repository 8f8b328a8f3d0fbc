"""Tenants, plans, tiers, keys, quotas and models, as operators manage them through the API or the command line.

Each function that changes something is one transaction, or part of the caller's if it is given a connection, and writes
its row of the audit log; the schema's triggers notify the gateways. Knows the caller only as the author in the audit
log.
"""

from gateway.db.catalogue.errors import AlreadyExists, CatalogueError, NotFound, Refused
from gateway.db.catalogue.keys import KeyRow, create_key, find_key, list_keys, revoke_key, rotate_key, update_key
from gateway.db.catalogue.limits import ALLOWED_MAX, NO_LIMITS, Allowed, Limits
from gateway.db.catalogue.models import (
    Access,
    GrantRow,
    ModelRow,
    create_grant,
    delete_grant,
    find_model,
    list_grants,
    list_models,
    set_access,
)
from gateway.db.catalogue.paging import EVERYTHING, Paging
from gateway.db.catalogue.plans import (
    PlanRow,
    create_plan,
    delete_plan,
    find_plan,
    list_plans,
    plan_of_tier,
    update_plan,
)
from gateway.db.catalogue.quotas import Mode, QuotaRow, Scope, delete_quota, list_quotas, set_quota
from gateway.db.catalogue.tenants import Status, TenantRow, create_tenant, find_tenant, list_tenants, update_tenant
from gateway.db.catalogue.tiers import TierRow, find_tier, list_tiers, update_tier

__all__ = [
    "ALLOWED_MAX",
    "EVERYTHING",
    "NO_LIMITS",
    "Access",
    "Allowed",
    "AlreadyExists",
    "CatalogueError",
    "GrantRow",
    "KeyRow",
    "Limits",
    "Mode",
    "ModelRow",
    "NotFound",
    "Paging",
    "PlanRow",
    "QuotaRow",
    "Refused",
    "Scope",
    "Status",
    "TenantRow",
    "TierRow",
    "create_grant",
    "create_key",
    "create_plan",
    "create_tenant",
    "delete_grant",
    "delete_plan",
    "delete_quota",
    "find_key",
    "find_model",
    "find_plan",
    "find_tenant",
    "find_tier",
    "list_grants",
    "list_keys",
    "list_models",
    "list_plans",
    "list_quotas",
    "list_tenants",
    "list_tiers",
    "plan_of_tier",
    "revoke_key",
    "rotate_key",
    "set_access",
    "set_quota",
    "update_key",
    "update_plan",
    "update_tenant",
    "update_tier",
]
