"""JSON objects with a time and an amount of memory, under the same loose names as tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from gpuwatchd.collect.logs.columns import layout_from, memory_role, words_of
from gpuwatchd.collect.logs.documents import JsonReader, head_of, text_of
from gpuwatchd.collect.logs.rowwise import ProcessTable
from gpuwatchd.collect.logs.tables import WHAT_TO_LOG, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatchd.collect.logs.collector import Collector
    from gpuwatchd.collect.logs.rowwise import RowTable

_KEY = re.compile(r'"((?:[^"\\]|\\.){1,80})"\s*:')
_MAX_LAYOUTS = 200
_DIGITS = re.compile(r"\d+")


class Reader(JsonReader):
    """Reads objects as rows; the keys are the header."""

    name = "json-lines"

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._tables: dict[tuple[str, ...], RowTable] = {}

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether an object with a key for memory begins here."""
        keys = _KEY.findall(head_of(lines, at))
        return any(memory_role(words_of(key)[0]) for key in keys)

    def value(self, value: dict[str, Any], line: int) -> None:
        """Read the rows of one object."""
        for row in rows_of(value):
            table = self._table(tuple(row))
            if table is None:
                self._sink.bad("torn", line)
            else:
                table.take([text_of(each) for each in row.values()], line)

    def _table(self, keys: tuple[str, ...]) -> RowTable | None:
        table = self._tables.get(keys)
        if table is None and len(self._tables) < _MAX_LAYOUTS:
            layout = layout_from(keys)
            kind = ProcessTable if "pid" in layout.roles else Table
            table = self._tables[keys] = kind(layout, self._sink)
            if not table.has_memory:
                self._sink.no_memory = f"no memory key; keys found: {layout.column_names()}"
                self._sink.no_memory_hint = WHAT_TO_LOG
        return table


def rows_of(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the flat rows of an object: a list or dict of GPUs gives one row for each.

    Examples
    --------
    >>> list(rows_of({"t": 1, "gpus": [{"used": 2}, {"used": 3}]}))
    [{'t': 1, 'used': 2}, {'t': 1, 'used': 3}]
    >>> list(rows_of({"t": 1, "gpu1": {"used": 2}}))
    [{'t': 1, 'gpu': '1', 'used': 2}]
    """
    outer = {key: each for key, each in value.items() if not isinstance(each, dict | list)}
    inner: list[dict[str, Any]] = []
    for key, each in value.items():
        if isinstance(each, list):
            inner += [part for part in each if isinstance(part, dict)]
        elif isinstance(each, dict):
            digits = _DIGITS.search(key)
            own: dict[str, Any] = {"gpu": digits.group()} if digits and "index" not in each else {}
            inner.append(own | each)
    parts = [part for part in inner if any(memory_role(words_of(key)[0]) for key in part)]
    if not parts:
        yield outer
    for part in parts:
        yield outer | {key: each for key, each in part.items() if not isinstance(each, dict | list)}
