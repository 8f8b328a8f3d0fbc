"""From the values of the Authorization header to one well-formed key, or a refusal.

The scheme's name is not case-sensitive, the credentials are (RFC 9110 11.1). Two headers are refused, because a program
on the way may have read the other one.
"""

from gateway import keys
from gateway.errors import InvalidKey
from gateway.keys import ParsedKey

CHALLENGE = {"www-authenticate": "Bearer"}


def refused() -> InvalidKey:
    """The same error for a malformed, unknown, revoked or expired key: it does not reveal which keys exist."""
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
