"""Values with every field away from its default, made from the types alone.

A value follows from where it stands: from the names that its JSON has, never from the names in
Python. So the same value comes out when a field is renamed and its JSON is not.
"""

from __future__ import annotations

from binascii import crc32
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import inspect

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind = TypeVar("Kind")
_NO_LIMIT = 10**9


def filled(kind: type[Kind]) -> Kind:
    """Return a Struct with every field, at any depth, away from its default."""
    made: Kind = _made(inspect.type_info(kind), "", None)
    return made


def _made(kind: inspect.Type, path: str, default: object) -> Any:  # noqa: C901, PLR0911, PLR0912 - one per type
    match kind:
        case inspect.StructType():
            return kind.cls(
                **{
                    one.name: _made(one.type, f"{path}.{one.encode_name}", _default(one))
                    for one in kind.fields
                }
            )
        case inspect.UnionType():
            known = next(one for one in kind.types if not isinstance(one, inspect.NoneType))
            return _made(known, path, default)
        case inspect.BoolType():
            return default is not True
        case inspect.IntType():
            return min(_number(path), kind.le or _NO_LIMIT)
        case inspect.FloatType():
            return min(_number(path) + 0.5, kind.le or _NO_LIMIT)
        case inspect.StrType():
            return path[-kind.max_length :] if kind.max_length else path
        case inspect.EnumType():
            return next(one for one in kind.cls if one != default)
        case inspect.AnyType():
            return path
        case inspect.LiteralType():
            return next(one for one in reversed(kind.values) if one != default)
        case inspect.TupleType():
            return tuple(_made(one, f"{path}.{at}", None) for at, one in enumerate(kind.item_types))
        case inspect.VarTupleType():
            return tuple(_made(kind.item_type, f"{path}.{at}", None) for at in range(2))
        case inspect.ListType():
            return [_made(kind.item_type, f"{path}.{at}", None) for at in range(2)]
        case inspect.DictType():
            return {f"{path}.key": _made(kind.value_type, f"{path}.key", None)}
        case _:
            raise TypeError(f"{path}: there is no value for {kind}")


def _number(path: str) -> int:
    """Return a number that hardly another place has."""
    return 1_000 + crc32(path.encode()) % 999_000_000


def _default(field: inspect.Field) -> object:
    made = field.default_factory
    return made() if callable(made) else field.default


def structs(value: object) -> Iterator[msgspec.Struct]:
    """Yield every Struct that a value holds, at any depth, itself included."""
    if isinstance(value, msgspec.Struct):
        yield value
    for one in _parts(value):
        yield from structs(one)


def leaves(value: object) -> Iterator[tuple[type, object]]:
    """Yield every plain value, at any depth, of an object or of its JSON; None is none.

    With its sort, since True and 1 are equal.
    """
    if isinstance(value, bool | int | float | str):
        yield (bool if isinstance(value, bool) else object), value
    for one in _parts(value):
        yield from leaves(one)


def _parts(value: object) -> Iterator[object]:
    if isinstance(value, msgspec.Struct):
        yield from (getattr(value, name) for name in value.__struct_fields__)
    elif isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value


def away(value: msgspec.Struct) -> set[str]:
    """Return which fields of a Struct itself, by JSON name, are neither at the default nor None."""
    return {
        one.encode_name
        for one in inspect.type_info(type(value)).fields  # type: ignore[attr-defined]
        if (found := getattr(value, one.name)) is not None and found != _default(one)
    }


def names(kind: type[msgspec.Struct]) -> set[str]:
    """Return the JSON names of the fields of a Struct itself."""
    return set(kind.__struct_encode_fields__)
