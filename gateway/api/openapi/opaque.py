"""Types for the OpenAPI document that stand in for those with undecoded fields.

The schema of a Struct states each field's default, which is impossible for a `msgspec.Raw`. In the document such a
field may be anything, and null when it is left out.
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
