"""The Authorization header: its values to one well-formed key, or a refusal.

RFC 9110 11.1: the scheme's name has no case, the credentials do. Two headers are refused in whatever order, because
another program on the way may have read the other one.
"""

from gateway.auth import keys
from gateway.auth.keys import ParsedKey
from gateway.errors import InvalidKey

CHALLENGE = {"www-authenticate": "Bearer"}


def refused() -> InvalidKey:
    """One answer for malformed, unknown, revoked and expired: it says nothing about which keys exist."""
    return InvalidKey("Incorrect API key provided.", headers=CHALLENGE)


def key(values: list[str]) -> ParsedKey:
    """The key in all `values` of the header. Raises InvalidKey."""
    if not values:
        raise InvalidKey(
            "You did not provide an API key. Send it in an Authorization header: Authorization: Bearer YOUR_KEY.",
            headers=CHALLENGE,
        )
    if len(values) > 1:
        raise InvalidKey("More than one Authorization header was sent.", headers=CHALLENGE)
    scheme, _, credentials = values[0].strip(" \t").partition(" ")
    parsed = keys.parse(credentials.strip(" \t")) if scheme.lower() == "bearer" else None
    if parsed is None:
        raise refused()
    return parsed
