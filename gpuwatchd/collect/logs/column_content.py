"""The columns of a table without a header, told by what they hold: only if one reading fits."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.collect.logs.fields import MIB, Clock, Layout, amount, not_available, uuid, whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LEAST_ROWS = 3
_OTHER_UNIT = re.compile(r"\d+(?:\.\d+)? ?(?:%|W|C|MHz)")
_EPOCHS = ((1e9, 4.2e9), (1e12, 4.2e12))
"""Numbers that may be times, 2001 to 2103: seconds, milliseconds."""
_MOST_PCT = 100.0
"""A whole number that is never larger may be a use in per cent, or a temperature."""


def guess(lines: Sequence[str]) -> Layout | None:
    """Return the one layout that fits the rows, or None.

    It fits when each column can be only one thing and one of them is an amount used. Others may
    be unclear where there is a date, and of two amounts one is larger and constant per device.

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
    dated = any(map(_is_date, columns))
    found: defaultdict[str, list[int]] = defaultdict(list)
    for at, column in enumerate(columns):
        found[_role(column, dated=dated)].append(at)
    roles = {role: found[role][0] for role in ("time", "index", "uuid", "name") if found[role]}
    amounts = found["named"] or found["plain"] + found["possible"]
    clear = not (found["unclear"] or found["possible"] or (found["named"] and found["plain"]))
    if not clear or any(len(found[role]) > 1 for role in roles):
        if not dated or len(found["time"]) > 1 or len(amounts) < 2:
            return None
        # A share that is 0 or 1 looks like a number of a device: that one follows the time.
        roles.pop("index", None)
        if roles["time"] + 1 in found["index"]:
            roles["index"] = roles["time"] + 1
    if len(amounts) > 1:
        device = columns[roles["index"]] if "index" in roles else [""] * len(rows)
        total = _total({at: columns[at] for at in amounts}, device)
        if total is None:
            return None
        amounts.remove(total)
        roles["total"] = total
    if len(amounts) != 1:
        return None
    roles["used"] = amounts[0]
    unit = MIB if found["named"] else None
    return Layout([f"column {n + 1}" for n in range(width)], roles, {"used": unit})


def _role(column: Sequence[str], *, dated: bool) -> str:
    """Return what a column without a name can only be; "other" has a unit that is no memory's.

    A "possible" amount is one where another figure shows that it is.
    """
    present = [cell for cell in column if not not_available(cell)]
    if _is_date(column):
        return "time"
    if _is_epoch(column):
        return "possible" if dated else "time"
    if all(_OTHER_UNIT.fullmatch(cell) for cell in present):
        return "other"
    with suppress(ValueError):
        top = max(amount(cell) for cell in present) / MIB
        if all("iB" in cell for cell in present):
            return "named"
        if _counts(column):
            return "index"
        if top > _MOST_PCT:
            return "plain" if all(cell.isdigit() for cell in present) else "possible"
    if all(cell.startswith(("GPU-", "MIG-")) and uuid(cell) for cell in present):
        return "uuid"
    return "name" if all(cell[:1].isalpha() and " " in cell for cell in present) else "unclear"


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


def _total(amounts: Mapping[int, Sequence[str]], device: Sequence[str]) -> int | None:
    """Return the one column that is large, constant per device and never below the others."""
    values = {at: np.array(list(map(amount, column))) for at, column in amounts.items()}
    totals = [
        at
        for at, total in values.items()
        if total.min() >= 1024 * MIB
        and len(set(zip(device, total.tolist(), strict=True))) == len(set(device))
        and not any((other > total).any() for other in values.values())
    ]
    return totals[0] if len(totals) == 1 else None
