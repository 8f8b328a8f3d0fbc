"""Networks as administrators write them, in one spelling each."""

from typing import Annotated

import msgspec

from gateway import address
from gateway.errors import InvalidRequest

LENGTH_MAX = 43  # the longest IPv6 network

Network = Annotated[str, msgspec.Meta(max_length=LENGTH_MAX, description="An address or a network: 192.0.2.0/24.")]


def checked(networks: list[str] | None) -> list[str] | None:
    """Raises InvalidRequest for a text that is not a network, or has bits set below its mask."""
    try:
        return None if networks is None else [str(address.network(text)) for text in networks]
    except ValueError as error:
        raise InvalidRequest(f"networks: {error}.", param="networks", code="invalid_value") from None
