"""Our own export as CSV: ``taken_at,device_uid,index,name,pid,used_bytes,total_bytes,...``.

What ``gpuwatchctl history --format csv`` writes is read too: ``at,gpu,uid,...,used_last_bytes``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.collect.logs.columns import layout_of
from gpuwatchd.collect.logs.tables import HeadedReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.logs.columns import Layout

OF_HISTORY: Final = {
    "at": "taken_at",
    "gpu": "index",
    "uid": "device_uid",
    "name": "process_name",
    "used_last_bytes": "used_bytes",
}
"""What the columns of ``history`` are called in an export."""


class Reader(HeadedReader):
    """A row with a pid is about a process, one without about the device."""

    name = "gpuwatchd-csv"

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether the header of an export stands here."""
        line = lines[at]
        if _is_history(line):
            return True
        return line[:1] != "{" and "device_uid" in line and layout_of(line) is not None

    def layout(self, header: str) -> Layout | None:
        """Return what the columns hold, in a header of ``history`` under their other names."""
        if _is_history(header):
            names = header.strip().split(",")
            return layout_of(",".join(OF_HISTORY.get(name, name) for name in names))
        return layout_of(header)


def _is_history(line: str) -> bool:
    return line.startswith("at,gpu,uid,") and "used_last_bytes" in line
