"""The columns of a table without a header, told by what they hold: only if one reading fits."""

from __future__ import annotations

import math
import re
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.collect.logs.fields import MIB, Clock, Layout, amount, not_available, uuid, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.core.model import FloatArray

_LEAST_ROWS = 3
_OTHER_UNIT = re.compile(r"\d+(?:\.\d+)? ?(?:%|W|C|MHz)")
_EPOCHS = ((1e9, 4.2e9), (1e12, 4.2e12))
"""Numbers that may be times, 2001 to 2103: seconds, milliseconds."""
_MOST_PCT = 100.0
"""A whole number that is never larger may be a use in per cent, or a temperature."""


def guess(lines: Sequence[str]) -> Layout | None:
    """Return the one layout that fits the rows, or None.

    It fits when there is a time, at most one column can count devices, exactly one column is
    constant per device and largest (the total), and exactly one other can be an amount used. Or
    when each column can be only one thing, and exactly one of them is an amount used.

    Examples
    --------
    >>> guess(["0, 841 MiB", "1, 3 MiB", "0, 842 MiB"]).roles
    {'index': 0, 'used': 1}
    >>> guess(["841, 700", "842, 701", "843, 702"]) is None
    True
    """
    rows = [line.split(",") for line in lines]
    width = Counter(map(len, rows)).most_common(1)[0][0] if rows else 0
    rows = [row for row in rows if len(row) == width]
    if len(rows) < _LEAST_ROWS:
        return None
    columns = [[cell.strip() for cell in column] for column in zip(*rows, strict=True)]
    return _with_total(columns) or _each_known(columns)


def _with_total(columns: Sequence[Sequence[str]]) -> Layout | None:
    """Return the layout of rows with a time, used memory and the total, whatever else they hold."""
    times = [at for at, column in enumerate(columns) if _is_date(column)]
    if len(columns) < 3 or len(times) != 1:
        return None
    roles, at, device = {"time": times[0]}, times[0] + 1, [""] * len(columns[0])
    if at < len(columns) and _counts(columns[at]):
        roles["index"], device = at, list(columns[at])
    pair = _memory(columns, set(roles.values()), device)
    if pair is None:
        return None
    roles["used"], roles["total"] = pair
    for position, column in enumerate(columns):
        words = all(cell[:1].isalpha() and " " in cell for cell in column)
        if words and position not in roles.values():
            roles.setdefault("name", position)
    return _layout(columns, roles, MIB)


def _each_known(columns: Sequence[Sequence[str]]) -> Layout | None:
    """Return the layout when each column can be only one thing, and one of them is used memory."""
    found: dict[str, list[int]] = {}
    for at, column in enumerate(columns):
        role = _role(column)
        if role is None:
            return None
        found.setdefault(role, []).append(at)
    plain, named = found.pop("plain", []), found.pop("named", [])
    found.pop("other", None)
    if (named and plain) or any(len(positions) > 1 for positions in found.values()):
        return None
    roles = {role: positions[0] for role, positions in found.items()}
    device = columns[roles["index"]] if "index" in roles else [""] * len(columns[0])
    amounts = named or plain
    if len(amounts) == 1:
        roles["used"] = amounts[0]
    elif pair := _memory(columns, set(range(len(columns))) - set(amounts), device):
        roles["used"], roles["total"] = pair
    else:
        return None
    return _layout(columns, roles, MIB if named else None)


def _role(column: Sequence[str]) -> str | None:
    """Return what a column without a name can only be; "other" has a unit that is no memory's."""
    present = [cell for cell in column if not not_available(cell)]
    if not present:
        return "other"
    if _is_date(column) or _is_epoch(column):
        return "time"
    if all(_OTHER_UNIT.fullmatch(cell) for cell in present):
        return "other"
    with suppress(ValueError):
        top = max(amount(cell) for cell in present) / MIB
        if all("iB" in cell for cell in present):
            return "named"
        if _counts(column):
            return "index"
        whole_numbers = all(cell.isdigit() for cell in present)
        return "plain" if whole_numbers and top > _MOST_PCT else None
    if all(cell.startswith(("GPU-", "MIG-")) and uuid(cell) for cell in present):
        return "uuid"
    return "name" if all(cell[:1].isalpha() and " " in cell for cell in present) else None


def _is_date(column: Sequence[str]) -> bool:
    parse = Clock().parse
    dates = sum(":" in cell and not math.isnan(parse(cell)) for cell in column)
    return dates >= 0.9 * len(column)


def _is_epoch(column: Sequence[str]) -> bool:
    try:
        values = np.array(list(map(float, column)))
    except ValueError:
        return False
    inside = any(low <= values.min() and values.max() <= high for low, high in _EPOCHS)
    return inside and bool((np.diff(values) >= 0).all())


def _counts(column: Sequence[str]) -> bool:
    """Say whether a column may count devices."""
    numbers = {whole(cell) for cell in column}
    return numbers == set(range(len(numbers))) and len(numbers) <= 64


def _layout(columns: Sequence[Sequence[str]], roles: dict[str, int], unit: float | None) -> Layout:
    return Layout([f"column {n + 1}" for n in range(len(columns))], roles, {"used": unit})


def _memory(
    columns: Sequence[Sequence[str]], taken: set[int], device: Sequence[str]
) -> tuple[int, int] | None:
    """Return the columns of used and total memory, when there is one choice for each."""
    named = {at for at, column in enumerate(columns) if any("iB" in cell for cell in column)}
    amounts: dict[int, FloatArray] = {}
    for at, column in enumerate(columns):
        if at in taken or (named and at not in named):
            continue
        with suppress(ValueError):
            values = np.array([amount(cell) for cell in column])
            if np.isfinite(values).all() and (named or float(values.max()) > 100 * MIB):
                amounts[at] = values
    devices = len(set(device))
    totals = [
        at
        for at, values in amounts.items()
        if float(values.min()) >= 1024 * MIB
        and len(set(zip(device, values.tolist(), strict=True))) == devices  # constant per device
        and all((other <= values).all() for other in amounts.values())
    ]
    used = [at for at in amounts if at not in totals]
    return (used[0], totals[0]) if len(totals) == 1 and len(used) == 1 else None
