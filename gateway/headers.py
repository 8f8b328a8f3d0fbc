"""Request headers, read directly from the ASGI scope: Litestar's own mapping costs a tenth of a small request's
time.
"""

from collections import defaultdict
from typing import Final

from litestar.types import Scope

BY_NAME: Final = "forebay.headers"  # key in a scope: its headers by name, after the first lookup


def values(scope: Scope, name: bytes) -> list[str]:
    """All values of the header `name` (lower case, as ASGI gives it), in the order of their lines."""
    known: dict[bytes, list[bytes]] | None = scope.get(BY_NAME)
    if known is None:
        known = scope[BY_NAME] = _by_name(scope)  # pyright: ignore[reportGeneralTypeIssues] (a key of our own)
    return [value.decode("latin-1") for value in known.get(name, ())]


def first(scope: Scope, name: bytes) -> str:
    """The first value, or an empty string."""
    return next(iter(values(scope, name)), "")


def _by_name(scope: Scope) -> dict[bytes, list[bytes]]:
    known: defaultdict[bytes, list[bytes]] = defaultdict(list)
    for name, value in scope["headers"]:
        known[name].append(value)
    return known
