"""/admin/v1/tiers/{tier}: how long a tier's requests may wait, and how many."""

from typing import Annotated, Final

import msgspec
from msgspec import UNSET, UnsetType

from gateway.api.admin.operation import Call
from gateway.api.admin.route import patch
from gateway.db import catalogue
from gateway.db.catalogue import TierRow
from gateway.errors import ObjectNotFound

Wait = Annotated[int, msgspec.Meta(ge=1, le=3_600_000, description="Milliseconds.")]
Most = Annotated[int, msgspec.Meta(ge=0, le=10_000_000_000, description="0 lets nothing wait.")]


class TierChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that are left out stay as they are; null removes a bound."""

    wait_ms_max: Wait | UnsetType = UNSET
    first_token_ms_max: Wait | UnsetType | None = UNSET
    queued_requests_max: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | UnsetType | None = UNSET
    queued_tokens_max: Most | UnsetType | None = UNSET


@patch("/tiers/{tier}")
async def update_tier(call: Call, body: TierChange) -> TierRow:
    """Change how long a tier's requests may wait, and how many. Every gateway obeys within a second."""
    tier = call.path["tier"]
    if not (tier.isascii() and tier.isdecimal() and len(tier) == 1):
        raise ObjectNotFound("There is no tier of that number.")
    return await catalogue.update_tier(call.connection, int(tier), msgspec.structs.asdict(body), by=call.author)


ROUTES: Final = (update_tier,)
