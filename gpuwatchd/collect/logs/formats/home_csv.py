"""Tables that people write themselves: header words matched loosely, ``,`` ``;`` or tab."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.collect.logs.columns import layout_of
from gpuwatchd.collect.logs.tables import HeadedReader

if TYPE_CHECKING:
    from collections.abc import Sequence


class Reader(HeadedReader):
    """One table with a header of somebody's own."""

    name = "csv"

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a header with a memory column, or with a time and rows under it, is here."""
        layout = layout_of(lines[at])
        if layout is None or "pid" in layout.roles:
            return False
        roles = set(layout.roles)
        if roles & {"used", "free"}:
            return True
        below = next((line for line in lines[at + 1 :] if line.strip()), "")
        rows = below.count(layout.separator) == lines[at].count(layout.separator)
        return rows and any(sign.isdigit() for sign in below) and bool(roles & {"time", "uuid"})
