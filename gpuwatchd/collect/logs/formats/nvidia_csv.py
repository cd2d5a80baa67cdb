"""``nvidia-smi --query-gpu=... --format=csv`` in all its variants of columns and units."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuwatchd.collect.logs.columns import layout_of
from gpuwatchd.collect.logs.tables import HeadedReader

if TYPE_CHECKING:
    from collections.abc import Sequence

_OWN_WORDS = re.compile(
    r"(?:^#?|,)\s*(?:memory\.(?:used|free|total|reserved)|utilization\.(?:gpu|memory)|power\.draw"
    r"|temperature\.gpu|pci\.bus_id|fan\.speed|clocks\.\S+|driver_version|pstate)(?:\s|,|$)",
    re.IGNORECASE,
)


class Reader(HeadedReader):
    """One table of readings per device."""

    name = "nvidia-smi-csv"

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a header of ``--query-gpu`` stands here."""
        line = lines[at]
        if line[:1] in {"{", "|"} or not _OWN_WORDS.search(line):
            return False
        layout = layout_of(line)
        return layout is not None and "pid" not in layout.roles
