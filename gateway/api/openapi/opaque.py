"""Types for the document in place of those that keep a part of a body undecoded.

The schema of a Struct states the default of each field, and a `msgspec.Raw` cannot be stated. Here every such field may
be anything, and is null when it is left out.
"""

from functools import cache, reduce
from operator import or_
from types import GenericAlias, UnionType
from typing import Any, Union, get_args, get_origin

import msgspec


def described(kind: Any) -> Any:
    """`kind` with Any in place of Raw, wherever it stands."""
    if kind is msgspec.Raw:
        return Any
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct(kind)
    arguments = tuple(described(argument) for argument in get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return reduce(or_, arguments)
    return GenericAlias(list, arguments) if get_origin(kind) is list else kind


@cache
def _struct(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    fields = [_field(field) for field in msgspec.structs.fields(kind)]
    return msgspec.defstruct(
        kind.__name__,
        fields,
        namespace={"__doc__": kind.__doc__},
        kw_only=True,
        forbid_unknown_fields=kind.__struct_config__.forbid_unknown_fields,
    )


def _field(field: msgspec.structs.FieldInfo) -> Any:
    kind = described(field.type)
    if field.required:
        return field.name, kind
    return field.name, kind, None if field.type is msgspec.Raw else field.default
