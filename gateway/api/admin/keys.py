"""/admin/v1/keys. A key's text appears once, in the answer that creates or rotates it, and is never stored."""

from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway import keys
from gateway.api.admin import networks
from gateway.api.admin.networks import Network
from gateway.api.admin.operation import Call
from gateway.api.admin.pages import Page, PageQuery, page
from gateway.api.admin.route import get, patch, post
from gateway.api.admin.texts import Alias, Name, Note, form
from gateway.db import catalogue
from gateway.db.catalogue import NO_LIMITS, KeyRow, Limits

OVERLAP_S_MAX: Final = 30 * 86_400
LISTED_MAX: Final = 1_000

Moment = Annotated[datetime, msgspec.Meta(tz=True)]
Env = Annotated[str, msgspec.Meta(pattern=form("[a-z]{1,8}"), description="The second part of the key's text.")]
Models = Annotated[list[Alias], msgspec.Meta(max_length=LISTED_MAX)]
Networks = Annotated[list[Network], msgspec.Meta(max_length=LISTED_MAX)]


class NewKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`models` and `networks`: null allows all, an empty list none."""

    tenant: Name
    scope: Literal["inference", "admin", "admin:read"] = "inference"
    env: Env = "live"
    name: Note = ""
    models: Models | None = None
    networks: Networks | None = None
    expires_at: Moment | None = None
    limits: Limits = NO_LIMITS


class KeyChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that are left out stay as they are; null removes a list or the expiry."""

    name: Note | UnsetType = UNSET
    models: Models | UnsetType | None = UNSET
    networks: Networks | UnsetType | None = UNSET
    expires_at: Moment | UnsetType | None = UNSET
    limits: Limits = NO_LIMITS


class Rotation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For how long the secret before this rotation still works; 0 stops all former ones at once."""

    overlap_s: Annotated[int, msgspec.Meta(ge=0, le=OVERLAP_S_MAX)]


class ShownKey(msgspec.Struct, frozen=True, kw_only=True):
    """`text` is what a client sends, shown this once: an answer that is given again has null there."""

    text: str | None
    key: KeyRow

    def without_secret(self) -> "ShownKey":
        return ShownKey(text=None, key=self.key)


@post("/keys")
async def create_key(call: Call, body: NewKey) -> ShownKey:
    """Create a key."""
    text, record = keys.generate(body.env)
    made = await catalogue.create_key(
        call.connection,
        body.tenant,
        record,
        scopes=(body.scope,),
        name=body.name,
        models=body.models,
        networks=networks.checked(body.networks),
        expires_at=body.expires_at,
        limits=body.limits,
        by=call.author,
    )
    return ShownKey(text=text, key=made)


class KeyQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tenant: Name | None = None


@get("/keys")
async def list_keys(call: Call, query: KeyQuery) -> Page[KeyRow]:
    """List keys, of all tenants or of one."""
    return page(await catalogue.list_keys(call.connection, query.tenant, query.paging), query.limit)


@get("/keys/{public_id}")
async def get_key(call: Call) -> KeyRow:
    """Look at a key."""
    return await catalogue.find_key(call.connection, call.path["public_id"])


@patch("/keys/{public_id}")
async def update_key(call: Call, body: KeyChange) -> KeyRow:
    """Change a key's note, lists, expiry or limits. Every gateway obeys within a second."""
    return await catalogue.update_key(
        call.connection,
        call.path["public_id"],
        name=body.name,
        models=body.models,
        networks=body.networks if body.networks is UNSET else networks.checked(body.networks),
        expires_at=body.expires_at,
        limits=body.limits,
        by=call.author,
    )


@post("/keys/{public_id}/rotate", status=200)
async def rotate_key(call: Call, body: Rotation) -> ShownKey:
    """Give a key a new secret; its public id, limits and bills stay, and the old secret works until `former_until`."""
    before = await catalogue.find_key(call.connection, call.path["public_id"])
    text, record = keys.renew(before.env, before.public_id)
    after = await catalogue.rotate_key(call.connection, record, overlap_s=body.overlap_s, by=call.author)
    return ShownKey(text=text, key=after)


@post("/keys/{public_id}/revoke", status=200)
async def revoke_key(call: Call) -> KeyRow:
    """Revoke a key, with all its secrets. Every gateway refuses it within a second."""
    return await catalogue.revoke_key(call.connection, call.path["public_id"], by=call.author)


ROUTES: Final = (create_key, list_keys, get_key, update_key, rotate_key, revoke_key)
