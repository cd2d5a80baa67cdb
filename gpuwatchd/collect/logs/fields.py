"""Numbers, units and special values as tools print them; shared by every format."""

from __future__ import annotations

import csv
import math
import re
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_K = TypeVar("_K")
_V = TypeVar("_V")

MIB = 1024.0**2
UNITS: dict[str, float] = {
    "b": 1.0,
    "byte": 1.0,
    "bytes": 1.0,
    "k": 1024.0,
    "kb": 1024.0,
    "kib": 1024.0,
    "m": MIB,
    "mb": MIB,  # tools of NVIDIA write MB and mean MiB
    "mib": MIB,
    "g": 1024.0**3,
    "gb": 1024.0**3,
    "gib": 1024.0**3,
}
BYTES_FROM = 1e7
"""A number without a unit above this is bytes: no card has ten million MiB."""
MAX_BYTES = 2.0**60
NOT_AVAILABLE = frozenset(
    {"", "-", "--", "n/a", "na", "null", "none", "nan", "err!", "unknown error", "not found"}
)
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?)\s*([A-Za-z]*)", re.ASCII)


class CachedValues(dict[_K, _V]):
    """Values by what they are made of; forgets all of them when there are many."""

    def __init__(self, make: Callable[[_K], _V], most: int = 100_000) -> None:
        self._make = make
        self._most = most

    def __missing__(self, key: _K) -> _V:
        if len(self) >= self._most:
            self.clear()
        value = self[key] = self._make(key)
        return value


def cells_of(line: str, *, strict: bool = False) -> list[str]:
    """Return the cells of a line of CSV without blanks around them; none where it is too odd."""
    reader = csv.reader([line], skipinitialspace=not strict, strict=strict)
    try:
        return [cell.strip() for cell in next(reader, [])]
    except csv.Error:
        return []


def not_available(text: str) -> bool:
    """Say whether a cell means "there is no such figure": never the same as 0.

    Examples
    --------
    >>> not_available("[N/A]"), not_available(" - "), not_available("0 MiB")
    (True, True, False)
    >>> not_available("[GPU is lost]")
    True
    """
    stripped = text.strip().lower()
    if stripped[:1] == "[" and stripped[-1:] == "]":
        return True
    return stripped in NOT_AVAILABLE or stripped.startswith(("not available", "not supported"))


def amount(text: str, unit: float = MIB) -> float:
    """Return bytes; NaN for "not available".

    Parameters
    ----------
    text
        ``841 MiB``, ``841``, ``909.8``.
    unit
        Bytes per unit where the text names none.

    Raises
    ------
    ValueError
        When it is neither a number nor a word for "not available".

    Examples
    --------
    >>> amount("841 MiB") == 841 * MIB, amount(" 12 "), amount("7", 1.0), amount("[N/A]")
    (True, 12582912.0, 7.0, nan)
    """
    stripped = text.strip().strip('"')
    match = _AMOUNT.fullmatch(stripped)
    if match is None:
        if not_available(stripped):
            return math.nan
        raise ValueError(f"{stripped[:40]!r} is not an amount of memory")
    named = match.group(2).lower()
    factor = UNITS.get(named) if named else unit
    if factor is None:
        raise ValueError(f"{named!r} is not a unit of memory")
    value = float(match.group(1)) * factor
    if not value <= MAX_BYTES:
        raise ValueError(f"{stripped[:40]!r} is more memory than exists")
    return value


def whole(text: str | float | None) -> int | None:
    """Return a non-negative integer, or None when it is not one.

    Examples
    --------
    >>> whole(" 7"), whole("7.0"), whole("-"), whole(3), whole(None)
    (7, None, None, 3, None)
    """
    if text is None or isinstance(text, bool):
        return None
    if isinstance(text, str):
        stripped = text.strip()
        return (
            int(stripped)
            if stripped.isascii() and stripped.isdigit() and len(stripped) < 12
            else None
        )
    return int(text) if math.isfinite(text) and text >= 0 and text == int(text) else None


def value_or_none(text: str | None) -> str | None:
    """Return the text without its spaces, or None when it means "not available"."""
    if text is None:
        return None
    stripped = text.strip().strip('"').strip()
    return None if not_available(stripped) else stripped


def uuid(text: str | None) -> str | None:
    """Return a device UUID; None when absent or masked to zeros (then it identifies nothing).

    Examples
    --------
    >>> uuid("GPU-00000000-0000-0000-0000-000000000000") is None, uuid(" GPU-5f ")
    (True, 'GPU-5f')
    """
    value = value_or_none(text)
    if value is None or not value.upper().removeprefix("GPU-").removeprefix("MIG-").strip("0-"):
        return None
    return value


def bus(text: str | None) -> str | None:
    """Return a PCI bus id in one spelling (drivers print domains of four or eight digits).

    Examples
    --------
    >>> bus("00000000:0C:00.0"), bus("0000:0c:00.0"), bus("[N/A]")
    ('0000:0c:00.0', '0000:0c:00.0', None)
    """
    value = value_or_none(text)
    if value is None:
        return None
    domain, mark, rest = value.lower().partition(":")
    if not mark or ":" not in rest:
        return value.lower()
    return f"{domain[-4:].rjust(4, '0')}:{rest}"
