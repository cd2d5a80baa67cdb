"""Reports of nvidia-smi about its cards: the default table, ``-q`` as text and as XML."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.collector import BadRow, DocumentReader, LineReader, Place
from gpuwatchd.collect.logs.fields import Clock

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from gpuwatchd.collect.logs.collector import Collector, Time


@dataclass(slots=True)
class _Process:
    """A process in the list of a card, as printed; None where a line is missing."""

    pid: str | None = None
    name: str | None = None
    used: str | None = None
    gi: str | None = None
    ci: str | None = None


@dataclass(slots=True, kw_only=True)
class _Card:
    """What one report says about one card, or about a MIG instance on it."""

    bus: str | None = None
    index: int | None = None
    uuid: str | None = None
    name: str | None = None
    total: str | None = None
    used: str | None = None
    free: str | None = None
    gi: str = "-"
    ci: str = "-"
    instances: list[_Card] = field(default_factory=list)
    processes: list[_Process] = field(default_factory=list)


class _ReportReader(LineReader):
    """Base of the three: puts the readings of a card into the collector."""

    _t: Time = None

    def _keep(self, card: _Card, line: int, tick: Hashable) -> None:
        sink = self._sink
        sink.ticks.of(tick)
        try:
            row = Place(
                uuid=fields.uuid(card.uuid),
                bus=fields.bus(card.bus),
                index=card.index,
                name=fields.value_or_none(card.name),
                total=_bytes(card.total) or None,
            )
        except ValueError:
            sink.bad("torn", line)
            return
        place = sink.places.find(row)
        if self._t is not None and math.isnan(self._t[0]) and math.isnan(self._t[1]):
            sink.bad("bad time", line)
            return
        with sink.row(line):
            self._level(place, card)
        parts = {}
        for instance in card.instances:
            key = f"{instance.gi}/{instance.ci}"
            parts[key] = sink.places.find(Place(parent=place, key=key, name=f"MIG {key}"))
            with sink.row(line):
                self._level(parts[key], instance)
        for process in card.processes:
            key = f"{process.gi}/{process.ci}"
            where = parts.get(key, place)
            if where is place and fields.whole(process.gi) is not None:
                where = sink.places.find(Place(parent=place, key=key, name=f"MIG {key}"))
            with sink.row(line):
                self._process(where, process)

    def _level(self, place: Place, card: _Card) -> None:
        used, free, total = _bytes(card.used), _bytes(card.free), _bytes(card.total)
        if used is None:
            if card.used is not None and total is None:
                self._sink.no_memory = "unified memory: this log holds no memory figure"
            raise BadRow("not available")
        if total is not None and (used > total or (free or 0.0) > total * 1.02):
            raise BadRow("torn")
        usable = None if free is None else used + free
        self._sink.point(place, self._t, used, total=total, usable=usable)

    def _process(self, place: Place, process: _Process) -> None:
        pid = fields.whole(process.pid)
        if pid is None:
            raise BadRow("not available" if fields.not_available(process.pid or "") else "torn")
        who = self._sink.process(pid, fields.value_or_none(process.name))
        used = _bytes(process.used)
        if used is None or who is None:
            raise BadRow("not available")
        if place.total is not None and used > place.total:
            raise BadRow("torn")
        self._sink.point(place, self._t, used, process=who)


def _bytes(text: str | None) -> float | None:
    value = math.nan if text is None else fields.amount(text)
    return None if math.isnan(value) else value


# The default table, repeated by ``watch`` or a loop.

_RULE = re.compile(r"\s*\+[-=+]{20,}\s*$")
_BANNER = re.compile(r"\s*\|\s*NVIDIA-SMI\s")
_DATED = re.compile(r".*\d\d:\d\d:\d\d.*\d{4}|.*\d{4}.*\d\d:\d\d")
_CARD_ROW = re.compile(
    r"\s*\|\s*(\d{1,3})\s+(\S.*?)\s+(?:On|Off|N/A|WDDM|TCC|MCDM)\s*"
    r"\|\s*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s"
)
_MEMORY = re.compile(r"(\d+)\s*MiB\s*/\s*(\d+)\s*MiB")
_PART_ROW = re.compile(r"\s*\|\s*(\d{1,3})\s+(\d{1,4})\s+(\d{1,4})\s+(\d{1,4})\s*\|")
_PROCESS_ROW = re.compile(
    r"\s*\|\s*(\d{1,3})\s+(?:(N/A|\d+)\s+(N/A|\d+)\s+)?(\d+)\s+(?:[CGM](?:\+[CGM])*)"
    r"\s+(.*?)\s+(\d+\s*MiB|N/A)\s*\|"
)
_CLOCK = Clock()


def _date_in(line: str) -> str | None:
    """Return the date that a separator line holds, if any."""
    if len(line) > 120 or not _DATED.match(line):
        return None
    text = line.strip().strip("=#-*[]").strip()
    return None if math.isnan(_CLOCK.parse(text)) else text


class TableReader(_ReportReader):
    """The default table of nvidia-smi, repeated by ``watch`` or a loop."""

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._cards: dict[int, _Card] = {}
        self._box = ""
        self._open: _Card | None = None
        self._line = 0

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a table, or the date just above one, stands here."""
        if not _RULE.match(lines[at]) and _date_in(lines[at]) is None:
            return False
        below = range(at, min(at + 4, len(lines) - 1))
        rule = next((row for row in below if _RULE.match(lines[row])), None)
        return rule is not None and bool(_BANNER.match(lines[rule + 1]))

    def line(self, _line: str, stripped: str, number: int) -> bool:
        """Take a line of a table or the date above one."""
        if stripped[0] == "|":
            self._inside(stripped, number)
        elif not _RULE.match(stripped):
            date = _date_in(stripped)
            if date is None:
                return False
            self.close()
            self._t = self._sink.clock.both(date)
        return True

    def _inside(self, line: str, number: int) -> None:
        if _BANNER.match(line):
            if self._box:
                self.close()
            self._box, self._line = "cards", number
        elif line.startswith("| MIG devices:"):
            self._box = "parts"
        elif line.startswith("| Processes:") or "Process name" in line:
            self._box = "processes"
        elif self._box == "cards":
            self._card(line, number)
        elif self._box == "parts" and (match := _PART_ROW.match(line)):
            memory, card = _MEMORY.search(line), self._cards.get(int(match.group(1)))
            if memory and card is not None:
                part = _Card(gi=match.group(2), ci=match.group(3))
                part.used, part.total = (f"{each} MiB" for each in memory.groups())
                card.instances.append(part)
        elif self._box == "processes" and (match := _PROCESS_ROW.match(line)):
            index, gi, ci, pid, name, used = match.groups()
            if int(index) in self._cards:
                process = _Process(pid, name, used, gi, ci)
                self._cards[int(index)].processes.append(process)

    def _card(self, line: str, number: int) -> None:
        if match := _CARD_ROW.match(line):
            index = int(match.group(1))
            self._open = _Card(bus=match.group(3), index=index, name=match.group(2))
            self._cards[index] = self._open
            self._line = number
        elif self._open is not None and (memory := _MEMORY.search(line)):
            self._open.used, self._open.total = (f"{each} MiB" for each in memory.groups())
            self._open = None
        elif self._open is not None and "|" in line[1:-1]:
            self._open.used = "N/A"
            self._open = None

    def close(self) -> None:
        """End the last table."""
        cards, self._cards = self._cards, {}
        self._box, self._open = "", None
        if not cards:
            return
        self._sink.ticks.advance()
        for card in cards.values():
            self._keep(card, self._line, ("table", card.index))
        self._t = None


# ``-q`` as text: sections by indentation, ``Key : Value``.

_REPORT = re.compile(r"=+NVSMI LOG=+\s*$")
_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*$")
_KEY_VALUE = re.compile(r"( *)([^:]*?[^:\s])\s*(?:: (.*)|:)?$")
_TOP_KEYS = ("Timestamp", "Driver Version", "CUDA", "KMD", "Attached GPUs", "NVML")
_CARD_KEYS = {"Product Name": "name", "GPU UUID": "uuid"}
_INSTANCE_KEYS = {"GPU Instance ID": "gi", "Compute Instance ID": "ci"}
_AMOUNTS = {"Total": "total", "Used": "used", "Free": "free"}
_PROCESS_KEYS = {
    "gpu instance id": "gi",
    "compute instance id": "ci",
    "process id": "pid",
    "name": "name",
    "used gpu memory": "used",
}


class TextReader(_ReportReader):
    """``nvidia-smi -q`` as text: sections by indentation, ``Key : Value``."""

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._card: _Card | None = None
        self._line = 0
        self._count = 0
        self._path: list[str] = []

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a report begins here."""
        return bool(_REPORT.match(lines[at]))

    def line(self, line: str, _stripped: str, number: int) -> bool:
        """Take a line of a report."""
        if line[0] == " ":
            if self._card is not None:
                self._inner(line, self._card)
        elif _REPORT.match(line):
            self.close()
            self._sink.ticks.advance()
            self._count = 0
        elif match := _GPU.match(line):
            self._flush()
            self._card = _Card(bus=match.group(1), index=self._count)
            self._line, self._path = number, []
            self._count += 1
        elif line.startswith(_TOP_KEYS):
            key, _, value = line.partition(" : ")
            if key.strip() == "Timestamp":
                self._t = self._sink.clock.both(" ".join(value.split()))
        else:
            return False
        return True

    def close(self) -> None:
        """End the last card."""
        self._flush()
        self._t = None

    def _flush(self) -> None:
        card, self._card = self._card, None
        if card is not None:
            self._keep(card, self._line, ("q", card.bus))

    def _inner(self, line: str, card: _Card) -> None:
        match = _KEY_VALUE.match(line.rstrip())
        if match is None:
            return
        depth, key, value = len(match.group(1)) // 4, match.group(2), match.group(3)
        del self._path[depth - 1 :]
        path = self._path.copy()
        self._path += [""] * (depth - 1 - len(path)) + [key]
        if value is not None:
            _enter(card, path, key, value.strip())
        elif not path and key == "MIG Device":
            card.instances.append(_Card())


def _enter(card: _Card, path: list[str], key: str, value: str) -> None:
    """Put one value where its sections say."""
    if not path and key in _CARD_KEYS:
        setattr(card, _CARD_KEYS[key], value)
    elif path == ["FB Memory Usage"]:
        _amount(card, key, value)
    elif path[:1] == ["MIG Device"] and card.instances:
        instance = card.instances[-1]
        if key in _INSTANCE_KEYS:
            setattr(instance, _INSTANCE_KEYS[key], value)
        elif path[1:] in (["Shared FB Memory Usage"], ["FB Memory Usage"]):
            _amount(instance, key, value)
    elif path[:1] == ["Processes"] and (name := _PROCESS_KEYS.get(key.lower())):
        last = card.processes[-1] if card.processes else None
        # The instance ids of a process stand before its pid.
        if name == "gi" or (name == "pid" and (last is None or last.pid is not None)):
            last = _Process()
            card.processes.append(last)
        if last is not None:
            setattr(last, name, value)


def _amount(card: _Card, key: str, value: str) -> None:
    name = _AMOUNTS.get(key)
    if name is not None and getattr(card, name) is None:
        setattr(card, name, value)


# ``-q -x``: one XML document per look; loops put them one after another.

_MAX_CHARS = 16 << 20
_BEGIN = re.compile(r"\s*<(?:\?xml|!DOCTYPE nvidia_smi_log|nvidia_smi_log)\b")
_END = "</nvidia_smi_log>"
_PROLOGUE = re.compile(r"<\?xml[^>]*\?>|<!DOCTYPE[^>\[]*>")


class XmlReader(DocumentReader, _ReportReader):
    """``nvidia-smi -q -x``: one XML document per look; loops put them one after another."""

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a document begins here."""
        return bool(_BEGIN.match(lines[at])) and "nvidia_smi_log" in "".join(lines[at : at + 4])

    def line(self, line: str, _stripped: str, number: int) -> bool:
        """Take a line of a document; what stands between two is not ours."""
        begins = bool(_BEGIN.match(line))
        if not self._lines and not begins:
            return False
        if begins and "<nvidia_smi_log" in "".join(self._lines[:6]):
            self._torn()
        self._add(line, number)
        if _END in line:
            for part in self._text().split(_END):
                if "<nvidia_smi_log" in part:
                    self._parse(part + _END)
        elif self._chars > _MAX_CHARS:
            self._torn()
        return True

    def _parse(self, text: str) -> None:
        text = _PROLOGUE.sub("", text).strip()
        root = None
        if "<!" in text.replace("<!--", ""):
            self._sink.note("a document that declares entities was refused")
        else:
            with suppress(ET.ParseError, ValueError):
                root = ET.fromstring(text)  # noqa: S314 - no DTD and no entity is left in it
        if root is None:
            self._sink.bad("torn", self._line)
            return
        stamp = root.findtext("timestamp")
        t = None if stamp is None else self._sink.clock.both(" ".join(stamp.split()))
        self._t = (math.nan, math.nan) if t is not None and math.isnan(t[0]) else t
        self._sink.ticks.advance()
        for index, element in enumerate(root.findall("gpu")):
            card = _card(element, index)
            card.instances = [_card(part) for part in element.findall("mig_devices/mig_device")]
            self._keep(card, self._line, ("xml", index))
        self._sink.ticks.advance()


def _card(gpu: ET.Element, index: int | None = None) -> _Card:
    """Return a card or a part of one; its memory is a direct child, not that of a MIG part."""
    return _Card(
        bus=gpu.get("id"),
        index=index,
        uuid=gpu.findtext("uuid"),
        name=gpu.findtext("product_name"),
        total=gpu.findtext("fb_memory_usage/total"),
        used=gpu.findtext("fb_memory_usage/used"),
        free=gpu.findtext("fb_memory_usage/free"),
        gi=gpu.findtext("gpu_instance_id") or "-",
        ci=gpu.findtext("compute_instance_id") or "-",
        processes=[
            _Process(
                pid=each.findtext("pid"),
                name=each.findtext("process_name"),
                used=each.findtext("used_memory"),
                gi=each.findtext("gpu_instance_id"),
                ci=each.findtext("compute_instance_id"),
            )
            for each in gpu.findall("processes/process_info")
        ],
    )
