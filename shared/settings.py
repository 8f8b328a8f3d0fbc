"""Builds frozen Structs from the environment, with errors that name the variable. Nothing is read at import.

A field `ops_port: int` of a settings Struct is the variable `FOREBAY_OPS_PORT`. Command-line options overwrite the same
names in the environment before it is loaded, so that there is one way in.
"""

import hmac
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

PREFIX = "FOREBAY_"

Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
DrainSeconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]


class SettingsError(Exception):
    """A setting is missing or cannot be read. The message names the environment variable."""


class Secret:
    """A value that `repr`, `str` and formatting show as `***`. `reveal()` returns it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value, other._value)

    def __hash__(self) -> int:
        return hash(self._value)

    def reveal(self) -> str:
        return self._value


S = TypeVar("S", bound=msgspec.Struct)


def load(kind: type[S], environ: Mapping[str, str]) -> S:
    """Build `kind` from `environ`. Raises SettingsError naming the variable that is missing or malformed."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        name = PREFIX + field.name.upper()
        raw = environ.get(name)
        if raw is None or raw == "":
            if field.required:
                msg = f"{name} is not set"
                raise SettingsError(msg)
            continue
        if field.type is Secret or field.type == Secret | None:
            values[field.name] = Secret(raw)
            continue
        try:
            values[field.name] = msgspec.convert(raw, field.type, strict=False)
        except msgspec.ValidationError as error:
            msg = f"{name}: {error}"
            raise SettingsError(msg) from None
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        msg = f"{PREFIX}*: {error}"
        raise SettingsError(msg) from None
