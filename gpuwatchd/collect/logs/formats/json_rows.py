"""JSON objects as rows of tables, the keys as their header: our own export, and anybody's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from gpuwatchd.collect.logs.collector import BadRow
from gpuwatchd.collect.logs.columns import layout_from, memory_role, words_of
from gpuwatchd.collect.logs.documents import JsonReader, head_of, text_of
from gpuwatchd.collect.logs.formats.csv_tables import OF_HISTORY
from gpuwatchd.collect.logs.tables import WHAT_TO_LOG, Table, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatchd.collect.logs.collector import Collector

_EXPORTED = ("taken_at", "device_uid", "index", "name", "pid", "process_name", "started_at",
             "user", "used_bytes", "free_bytes", "total_bytes", "reserved_bytes")  # fmt: skip
_KEY = re.compile(r'"((?:[^"\\]|\\.){1,80})"\s*:')
_MAX_LAYOUTS = 200
_DIGITS = re.compile(r"\d+")


class ExportReader(JsonReader):
    """Our own export as JSON lines, and that of ``history``: the same names as in the CSV."""

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._table = table_of(layout_from(_EXPORTED), sink)

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
        self._table.take([text_of(flat.get(key)) for key in _EXPORTED], line)


class LooseReader(JsonReader):
    """JSON objects with a time and an amount of memory, under the same loose names as tables."""

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._tables: dict[tuple[str, ...], Table] = {}

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether an object with a key for memory begins here."""
        return _names_memory(_KEY.findall(head_of(lines, at)))

    def value(self, value: dict[str, Any], line: int) -> None:
        """Read the rows of one object."""
        for row in rows_of(value):
            with self._sink.row(line):
                self._table(tuple(row)).take([text_of(each) for each in row.values()], line)

    def _table(self, keys: tuple[str, ...]) -> Table:
        table = self._tables.get(keys)
        if table is None:
            if len(self._tables) >= _MAX_LAYOUTS:
                raise BadRow("torn")
            layout = layout_from(keys)
            table = self._tables[keys] = table_of(layout, self._sink)
            if not table.has_memory:
                self._sink.no_memory = f"no memory key; keys found: {layout.column_names()}"
                self._sink.no_memory_hint = WHAT_TO_LOG
        return table


def _names_memory(keys: Sequence[str] | dict[str, Any]) -> bool:
    return any(memory_role(words_of(key)[0]) for key in keys)


def rows_of(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the flat rows of an object: a list or dict of GPUs gives one row for each.

    Examples
    --------
    >>> list(rows_of({"t": 1, "gpus": [{"used": 2}, {"used": 3}]}))
    [{'t': 1, 'used': 2}, {'t': 1, 'used': 3}]
    >>> list(rows_of({"t": 1, "gpu1": {"used": 2}}))
    [{'t': 1, 'gpu': '1', 'used': 2}]
    """
    inner: list[dict[str, Any]] = []
    for key, each in value.items():
        if isinstance(each, list):
            inner += [part for part in each if isinstance(part, dict)]
        elif isinstance(each, dict):
            digits = _DIGITS.search(key)
            own: dict[str, Any] = {"gpu": digits.group()} if digits and "index" not in each else {}
            inner.append(own | each)
    outer = _scalars(value)
    parts = [outer | _scalars(part) for part in inner if _names_memory(part)]
    yield from parts or [outer]


def _scalars(value: dict[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in value.items() if not isinstance(each, dict | list)}
