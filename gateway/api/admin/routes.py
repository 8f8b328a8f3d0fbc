"""Every route of the administrators' API."""

from collections.abc import Sequence
from typing import Final

from litestar.handlers import HTTPRouteHandler

from gateway.api.admin import audit, fleet, keys, models, plans, quotas, tenants, tiers

ROUTES: Final[Sequence[HTTPRouteHandler]] = (
    *tenants.ROUTES,
    *plans.ROUTES,
    *tiers.ROUTES,
    *keys.ROUTES,
    *quotas.ROUTES,
    *models.ROUTES,
    *fleet.ROUTES,
    *audit.ROUTES,
)
