"""Decoding into types, from whichever thread.

msgspec learns a type when it is first asked for, and two threads that make it learn at the same
time crash the whole program, also where their types have only a part in common. Here one learns
after the other; what is known is decoded side by side.
"""

from __future__ import annotations

from _thread import allocate_lock
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

Kind = TypeVar("Kind")
_learning = allocate_lock()
"""Of `threading`, whose import costs `status` more than all of this."""
_known: dict[Any, msgspec.json.Decoder[Any]] = {}


def decoder(kind: type[Kind]) -> msgspec.json.Decoder[Kind]:
    """Return the one decoder of a type, which any thread may use."""
    found = _known.get(kind)
    if found is None:
        with _learning:
            found = _known.setdefault(kind, msgspec.json.Decoder(kind))
    return found


def decode(content: bytes | str, kind: type[Kind]) -> Kind:
    """Return JSON as a type.

    Raises
    ------
    msgspec.MsgspecError
        When it is no JSON, or does not fit.
    """
    return decoder(kind).decode(content)


def convert(raw: Any, kind: type[Kind], dec_hook: Callable[[type, Any], Any] | None = None) -> Kind:
    """Return plain values as a type.

    Raises
    ------
    msgspec.ValidationError
        When they do not fit.
    """
    decoder(kind)  # learns it
    return msgspec.convert(raw, kind, dec_hook=dec_hook)
