"""Ids in paths."""

import uuid

from gateway.api.admin.operation import Call
from gateway.errors import ObjectNotFound


def row_id(call: Call, name: str) -> uuid.UUID:
    """The id in the path at {name}. Raises ObjectNotFound for a text that is not an id, as for an id of nothing."""
    try:
        return uuid.UUID(call.path[name])
    except ValueError:
        raise ObjectNotFound(f"There is no {name} of that id.") from None
