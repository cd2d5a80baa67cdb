"""The columns of a table without a header, when exactly one reading fits."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.columns import Layout
from gpuwatchd.collect.logs.times import Clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.core.model import FloatArray

_LEAST_ROWS = 3


def guess(lines: Sequence[str]) -> Layout | None:
    """Return the one layout that fits the rows, or None.

    It fits when there is a time, at most one column can count devices, exactly one column is
    constant per device and largest (the total), and exactly one other can be an amount used.
    """
    rows = [line.split(",") for line in lines]
    widths = Counter(len(row) for row in rows)
    width = widths.most_common(1)[0][0] if rows else 0
    rows = [row for row in rows if len(row) == width]
    if width < 3 or len(rows) < _LEAST_ROWS:
        return None
    columns = [[cell.strip() for cell in column] for column in zip(*rows, strict=True)]
    times = [at for at, column in enumerate(columns) if _is_time(column)]
    if len(times) != 1:
        return None
    roles = {"time": times[0]}
    at = times[0] + 1
    if at < width and _counts_devices(columns[at]):
        roles["index"] = at
    device = columns[roles["index"]] if "index" in roles else [""] * len(rows)
    pair = _memory(columns, set(roles.values()), device)
    if pair is None:
        return None
    roles["used"], roles["total"] = pair
    for position, column in enumerate(columns):
        if position not in roles.values() and all(_is_name(cell) for cell in column):
            roles.setdefault("name", position)
    return Layout([f"column {n + 1}" for n in range(width)], roles, {"used": fields.MIB})


def _is_time(column: Sequence[str]) -> bool:
    clock = Clock()
    good = sum(":" in cell and not math.isnan(clock.parse(cell)) for cell in column)
    return good >= 0.9 * len(column)


def _is_name(cell: str) -> bool:
    return bool(cell) and cell[0].isalpha() and " " in cell


def _counts_devices(column: Sequence[str]) -> bool:
    values = {fields.whole(cell) for cell in column}
    return None not in values and values == set(range(len(values))) and len(values) <= 64


def _memory(
    columns: Sequence[Sequence[str]], taken: set[int], device: Sequence[str]
) -> tuple[int, int] | None:
    """Return the columns of used and total memory, when there is one choice for each."""
    named = {at for at, column in enumerate(columns) if any("iB" in cell for cell in column)}
    amounts: dict[int, FloatArray] = {}
    for at, column in enumerate(columns):
        if at in taken or (named and at not in named):
            continue
        try:
            values = np.array([fields.amount(cell) for cell in column])
        except ValueError:
            continue
        if np.isfinite(values).all() and (named or float(values.max()) > 100 * fields.MIB):
            amounts[at] = values
    totals = [
        at for at, values in amounts.items()
        if float(values.min()) >= 1024 * fields.MIB and _constant(values, device)
        and all((other <= values).all() for other in amounts.values())
    ]  # fmt: skip
    used = [at for at in amounts if at not in totals]
    return (used[0], totals[0]) if len(totals) == 1 and len(used) == 1 else None


def _constant(values: FloatArray, device: Sequence[str]) -> bool:
    seen: dict[str, float] = {}
    return all(seen.setdefault(key, value) == value
               for key, value in zip(device, values.tolist(), strict=True))  # fmt: skip
