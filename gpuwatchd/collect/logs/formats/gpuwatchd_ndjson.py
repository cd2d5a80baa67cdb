"""Our own export as JSON lines, and that of ``history``: the same names as in the CSV."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuwatchd.collect.logs.columns import layout_from
from gpuwatchd.collect.logs.documents import JsonReader, head_of, text_of
from gpuwatchd.collect.logs.formats.gpuwatchd_csv import OF_HISTORY
from gpuwatchd.collect.logs.rowwise import ProcessTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.logs.collector import Collector

_KEYS = ("taken_at", "device_uid", "index", "name", "pid", "process_name", "started_at", "user",
         "used_bytes", "free_bytes", "total_bytes", "reserved_bytes")  # fmt: skip


class Reader(JsonReader):
    """One object per reading."""

    name = "gpuwatchd-ndjson"

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._table = ProcessTable(layout_from(_KEYS), sink)

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether an exported reading begins here."""
        head = head_of(lines, at)
        return ('"device_uid"' in lines[at] and '"used_bytes"' in head) or (
            '"uid"' in lines[at] and '"used_last_bytes"' in head
        )

    def value(self, value: dict[str, Any], line: int) -> None:
        """Read one object."""
        if "used_last_bytes" in value:
            value = {OF_HISTORY.get(key, key): each for key, each in value.items()}
        process = value.get("process")
        flat = value | {"process_name": value.get("process_name") or process}
        if isinstance(process, dict):
            flat |= {"pid": process.get("pid"), "process_name": process.get("name")}
        self._table.take([text_of(flat.get(key)) for key in _KEYS], line)
