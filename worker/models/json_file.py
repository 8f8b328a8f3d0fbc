"""The JSON files of a model folder, read with types. A field that is null counts as absent, as publishers use it.

Knows no field's meaning. Invariant: every error is one sentence that names the file and the field.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from worker.models.errors import ModelFileError
from worker.models.openable import check_openable

# No size or factor of a published model is near these bounds. Larger values would exhaust the memory or overflow.
INTEGER_MAX: Final = 2**22
NUMBER_MAX: Final = 1e12


@dataclass(slots=True, frozen=True)
class Fields:
    """One JSON object. `place` is what a message calls it."""

    place: str
    values: dict[str, Any]

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        value = self._typed(key, int, "a whole number", default)
        if not least <= value <= INTEGER_MAX:
            raise ModelFileError(f"{self.place}: field {key} is {value}, not in {least} to {INTEGER_MAX}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._typed(key, (int, float), "a number", default)
        if not 0 < value <= NUMBER_MAX:
            raise ModelFileError(f"{self.place}: field {key} is {value}, not above 0 and at most {NUMBER_MAX:g}")
        return float(value)

    def refuse_null(self, key: str) -> None:
        """For a field for which null must not count as absent."""
        if key in self.values and self.values[key] is None:
            raise ModelFileError(f"{self.place}: field {key} is null")

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelFileError(f"{self.place}: field {key} is {value!r}, not true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        return self._typed(key, str, "a text", default)

    def inner(self, key: str) -> "Fields":
        """The object under `key`; an empty one if it is absent."""
        return Fields(f"{self.place}: {key}", self._typed(key, dict, "an object", {}))

    def items(self, key: str) -> list[Any]:
        """The list under `key`, empty if it is absent; a single value counts as a list of one."""
        value = self.values.get(key)
        if value is None:
            return []
        return value if isinstance(value, list) else [value]

    def _typed(self, key: str, kind: type | tuple[type, ...], words: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise ModelFileError(f"{self.place}: field {key} is missing")
            return default
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ModelFileError(f"{self.place}: field {key} is {value!r}, not {words}")
        return value


def read_fields(path: Path, *, optional: bool = False) -> Fields:
    """The object in the file; an empty one if the file is `optional` and absent. Raises ModelFileError."""
    if optional and not path.exists():
        return Fields(str(path), {})
    check_openable(path)
    try:
        values = parse(path.read_bytes())
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error
    except Repeated as error:
        raise ModelFileError(f"{path}: field {error} is there twice") from error
    except ValueError as error:
        raise ModelFileError(f"{path}: not JSON ({error})") from error
    if not isinstance(values, dict):
        raise ModelFileError(f"{path}: not a JSON object")
    return Fields(str(path), values)


class Repeated(ValueError):
    """A field occurs twice, and readers differ in which one they use. The argument is its name."""


def parse(text: bytes) -> Any:
    """Raises Repeated, and ValueError for text that is not JSON or contains half a surrogate pair."""
    try:
        values = json.loads(text, object_pairs_hook=_once)
        if b"\\u" in text:
            json.dumps(values, ensure_ascii=False).encode()  # half a character cannot be
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return values


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise Repeated(next(name for name in names if names.count(name) > 1))
    return found
