"""``nvidia-smi -q`` as text: sections by indentation, ``Key : Value``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuwatchd.collect.logs.collector import FormatReader
from gpuwatchd.collect.logs.documents import Card, Instance, Memory, Process, keep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.logs.collector import Collector
    from gpuwatchd.collect.logs.documents import Time

_START = re.compile(r"=+NVSMI LOG=+\s*$")
_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*$")
_LINE = re.compile(r"( *)([^:]*?[^:\s])\s*(?:: (.*)|:)?$")
_TOP_KEYS = ("Timestamp", "Driver Version", "CUDA", "KMD", "Attached GPUs", "NVML")
_AMOUNTS = {"Total": "total", "Used": "used", "Free": "free"}


class Reader(FormatReader):
    """Keeps one card at a time."""

    name = "nvidia-smi-q"

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._card: Card | None = None
        self._line = 0
        self._count = 0
        self._t: Time = None
        self._path: list[str] = []

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a report begins here."""
        return bool(_START.match(lines[at]))

    def feed(self, lines: Sequence[str], first_line: int) -> int:
        """Take the lines of reports."""
        for number, line in enumerate(lines):
            if not line.strip():
                continue
            if line[0] != " " and not self._top(line, first_line + number):
                return number
            if line[0] == " " and self._card is not None:
                self._inner(line)
        return len(lines)

    def close(self) -> None:
        """End the last card."""
        self._flush()
        self._t = None

    def _top(self, line: str, number: int) -> bool:
        if _START.match(line):
            self._flush()
            self._sink.ticks.advance()
            self._t, self._count = None, 0
            return True
        if match := _GPU.match(line):
            self._flush()
            self._card = Card(bus=match.group(1), index=self._count)
            self._line, self._path = number, []
            self._count += 1
            return True
        if line.startswith(_TOP_KEYS):
            key, _, value = line.partition(" : ")
            if key.strip() == "Timestamp":
                self._t = self._sink.clock.both(" ".join(value.split()))
            return True
        return False

    def _flush(self) -> None:
        card, self._card = self._card, None
        if card is not None:
            self._sink.ticks.of(("q", card.bus))
            keep(card, self._t, self._line, self._sink)

    def _inner(self, line: str) -> None:
        match = _LINE.match(line.rstrip())
        if match is None or self._card is None:
            return
        depth, key, value = len(match.group(1)) // 4, match.group(2), match.group(3)
        del self._path[depth - 1 :]
        path = tuple(self._path)
        self._path += [""] * (depth - 1 - len(self._path)) + [key]
        if value is None:
            if path == () and key == "MIG Device":
                self._card.instances.append(Instance())
            return
        self._value(self._card, path, key, value.strip())

    def _value(self, card: Card, path: tuple[str, ...], key: str, value: str) -> None:
        head = path[0] if path else ""
        if not path and key == "Product Name":
            card.name = value
        elif not path and key == "GPU UUID":
            card.uuid = value
        elif path == ("FB Memory Usage",):
            _amount(card.memory, key, value)
        elif head == "MIG Device" and card.instances:
            _instance(card.instances[-1], path, key, value)
        elif head == "Processes":
            _process(card.processes, key, value)


def _amount(memory: Memory, key: str, value: str) -> None:
    name = _AMOUNTS.get(key)
    if name is not None and getattr(memory, name) is None:
        setattr(memory, name, value)


def _instance(instance: Instance, path: tuple[str, ...], key: str, value: str) -> None:
    if key == "GPU Instance ID":
        instance.gi = value
    elif key == "Compute Instance ID":
        instance.ci = value
    elif len(path) == 2 and path[1] in {"Shared FB Memory Usage", "FB Memory Usage"}:
        _amount(instance.memory, key, value)


def _process(processes: list[Process], key: str, value: str) -> None:
    """Fill the last process; the instance ids of a process stand before its pid."""
    key = key.lower()
    last = processes[-1] if processes else None
    if key == "gpu instance id":
        processes.append(Process(gi=value))
    elif key == "compute instance id" and last is not None:
        last.ci = value
    elif key == "process id":
        if last is None or last.pid is not None:
            processes.append(Process(pid=value))
        else:
            last.pid = value
    elif key == "name" and last is not None:
        last.name = value
    elif key == "used gpu memory" and last is not None:
        last.used = value
