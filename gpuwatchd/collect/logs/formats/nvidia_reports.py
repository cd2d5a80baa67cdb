"""Reports of nvidia-smi about its cards: the default table, ``-q`` as text and as XML."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from gpuwatchd.collect.logs import fields
from gpuwatchd.collect.logs.collector import Place
from gpuwatchd.collect.logs.fields import Clock
from gpuwatchd.collect.logs.reader import DocumentReader, LineReader

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatchd.collect.logs.collector import Collector


@dataclass(slots=True)
class _Card:
    """What one report says about one card: rows of itself, its MIG instances, its processes."""

    row: dict[str, str]
    instances: list[dict[str, str]] = field(default_factory=list)
    processes: list[dict[str, str]] = field(default_factory=list)


_NO_USED = {"used": ""}
"""Of a report without its line: total and free leave the driver's reserve in the rest."""


class _ReportReader(LineReader):
    """Base of the three: puts the readings of a card into the collector."""

    documents = True

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._stamp: dict[str, str] = {}
        """The time of the report, where it says one."""

    def _keep(self, card: _Card, line: int) -> None:
        sink, rows = self._sink, self._rows
        with sink.counts.row(line, "torn"):
            place = rows.devices.of(card.row)
            t = rows.time(self._stamp)
            with sink.counts.row(line):
                rows.device(_NO_USED | card.row, t, place)
            parts = {}
            for instance in card.instances:
                key = _part(instance)
                parts[key] = sink.places.find(Place(parent=place, key=key, name=f"MIG {key}"))
                with sink.counts.row(line):
                    rows.device(_NO_USED | instance, t, parts[key])
            for process in card.processes:
                key = _part(process)
                where = parts.get(key, place)
                if where is place and fields.whole(process.get("gi")) is not None:
                    where = sink.places.find(Place(parent=place, key=key, name=f"MIG {key}"))
                with sink.counts.row(line):
                    rows.process(process, t, where)


def _part(row: Mapping[str, str]) -> str:
    return f"{row.get('gi') or '-'}/{row.get('ci') or '-'}"


# The default table, repeated by ``watch`` or a loop.

_RULE = re.compile(r"\s*\+[-=+]{20,}\s*$")
_BANNER = re.compile(r"\s*\|\s*NVIDIA-SMI\s")
_DATED = re.compile(r".*\d\d:\d\d:\d\d.*\d{4}|.*\d{4}.*\d\d:\d\d")
_CARD_ROW = re.compile(
    r"\s*\|\s*(?P<index>\d{1,3})\s+(?P<name>\S.*?)\s+(?:On|Off|N/A|WDDM|TCC|MCDM)\s*"
    r"\|\s*(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s"
)
_MEMORY = re.compile(r"(?P<used>\d+)\s*MiB\s*/\s*(?P<total>\d+)\s*MiB")
_UNKNOWN = {"used": "N/A", "total": "N/A"}
_PART_ROW = re.compile(r"\s*\|\s*(\d{1,3})\s+(\d{1,4})\s+(\d{1,4})\s+(\d{1,4})\s*\|")
_PROCESS_ROW = re.compile(
    r"\s*\|\s*(?P<index>\d{1,3})\s+(?:(?P<gi>N/A|\d+)\s+(?P<ci>N/A|\d+)\s+)?(?P<pid>\d+)"
    r"\s+(?:[CGM](?:\+[CGM])*)\s+(?P<process>.*?)\s+(?P<used>\d+\s*MiB|N/A)\s*\|"
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
            self._stamp = {"time": date}
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
                ids = {"gi": match.group(2), "ci": match.group(3)}
                card.instances.append(ids | memory.groupdict())
        elif self._box == "processes" and (match := _PROCESS_ROW.match(line)):
            card = self._cards.get(int(match.group("index")))
            if card is not None:
                card.processes.append(match.groupdict(""))

    def _card(self, line: str, number: int) -> None:
        if match := _CARD_ROW.match(line):
            self._open = _Card(match.groupdict())
            self._cards[int(match.group("index"))] = self._open
            self._line = number
        elif self._open is not None and "|" in line[1:-1]:
            memory = _MEMORY.search(line)
            self._open.row |= memory.groupdict() if memory else _UNKNOWN
            self._open = None

    def close(self) -> None:
        """End the last table."""
        cards, self._cards = self._cards, {}
        self._box, self._open = "", None
        if not cards:
            return
        self._sink.ticks.document()
        for card in cards.values():
            self._keep(card, self._line)
        self._stamp = {}


# ``-q`` as text: sections by indentation, ``Key : Value``.

_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*$")
_KEY_VALUE = re.compile(r"( *)([^:]*?[^:\s])\s*(?:: (.*)|:)?$")
_TOP_KEYS = ("Timestamp", "Driver Version", "CUDA", "KMD", "Attached GPUs", "NVML")
_CARD_ROLES = {
    "Product Name": "name",
    "GPU UUID": "uuid",
    "FB Memory Usage/Total": "total",
    "FB Memory Usage/Used": "used",
    "FB Memory Usage/Free": "free",
}
_INSTANCE_ROLES = {
    "GPU Instance ID": "gi",
    "Compute Instance ID": "ci",
    "Shared FB Memory Usage/Total": "total",
    "Shared FB Memory Usage/Used": "used",
    "Shared FB Memory Usage/Free": "free",
} | _CARD_ROLES
_PROCESS_ROLES = {
    "gpu instance id": "gi",
    "compute instance id": "ci",
    "process id": "pid",
    "name": "process",
    "used gpu memory": "used",
}


class TextReader(_ReportReader):
    """``nvidia-smi -q`` as text: sections by indentation, ``Key : Value``."""

    start = re.compile(r"=+NVSMI LOG=+\s*$")

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._card: _Card | None = None
        self._line = 0
        self._count = 0
        self._path: list[str] = []

    def line(self, line: str, _stripped: str, number: int) -> bool:
        """Take a line of a report."""
        if line[0] == " ":
            if self._card is not None:
                self._inner(line, self._card)
        elif self.start.match(line):
            self.close()
            self._sink.ticks.document()
            self._count = 0
        elif match := _GPU.match(line):
            self._flush()
            self._card = _Card({"bus": match.group(1), "index": str(self._count)})
            self._line, self._path = number, []
            self._count += 1
        elif line.startswith(_TOP_KEYS):
            key, _, value = line.partition(" : ")
            if key.strip() == "Timestamp":
                self._stamp = {"time": " ".join(value.split())}
        else:
            return False
        return True

    def close(self) -> None:
        """End the last card."""
        self._flush()
        self._stamp = {}

    def _flush(self) -> None:
        card, self._card = self._card, None
        if card is not None:
            self._keep(card, self._line)

    def _inner(self, line: str, card: _Card) -> None:
        match = _KEY_VALUE.match(line.rstrip())
        if match is None:
            return
        depth, key, value = len(match.group(1)) // 4, match.group(2), match.group(3)
        del self._path[depth - 1 :]
        self._path += [""] * (depth - 1 - len(self._path)) + [key]
        if value is not None:
            _enter(card, self._path, value.strip())
        elif self._path == ["MIG Device"]:
            card.instances.append({})


def _enter(card: _Card, path: list[str], value: str) -> None:
    """Put one value where its sections say."""
    section, inner = path[0], "/".join(path[1:])
    if section == "MIG Device":
        if card.instances and inner in _INSTANCE_ROLES:
            card.instances[-1].setdefault(_INSTANCE_ROLES[inner], value)
    elif section != "Processes":
        if role := _CARD_ROLES.get("/".join(path)):
            card.row.setdefault(role, value)
    elif role := _PROCESS_ROLES.get(path[-1].lower()):
        # The instance ids of a process stand before its pid.
        if role == "gi" or (role == "pid" and "pid" in (card.processes or [{"pid": ""}])[-1]):
            card.processes.append({})
        if card.processes:
            card.processes[-1][role] = value


# ``-q -x``: one XML document per look; loops put them one after another.

_MAX_CHARS = 16 << 20
_BEGIN = re.compile(r"\s*<(?:\?xml|!DOCTYPE nvidia_smi_log|nvidia_smi_log)\b")
_END = "</nvidia_smi_log>"
_PROLOGUE = re.compile(r"<\?xml[^>]*\?>|<!DOCTYPE[^>\[]*>")


_XML_ROLES = {
    "uuid": "uuid",
    "product_name": "name",
    # Direct children: a MIG device has a memory of its own.
    "fb_memory_usage/total": "total",
    "fb_memory_usage/used": "used",
    "fb_memory_usage/free": "free",
    "gpu_instance_id": "gi",
    "compute_instance_id": "ci",
}
_XML_PROCESS_ROLES = {
    "pid": "pid",
    "process_name": "process",
    "used_memory": "used",
    "gpu_instance_id": "gi",
    "compute_instance_id": "ci",
}


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
            self._sink.counts.bad("torn", self._line)
            return
        stamp = root.findtext("timestamp")
        self._stamp = {} if stamp is None else {"time": " ".join(stamp.split())}
        self._sink.ticks.document()
        for index, gpu in enumerate(root.findall("gpu")):
            card = _Card({"index": str(index), "bus": gpu.get("id", "")} | _row(gpu, _XML_ROLES))
            parts = gpu.findall("mig_devices/mig_device")
            card.instances = [_row(part, _XML_ROLES) for part in parts]
            listed = gpu.findall("processes/process_info")
            card.processes = [_row(each, _XML_PROCESS_ROLES) for each in listed]
            self._keep(card, self._line)


def _row(element: ET.Element, roles: Mapping[str, str]) -> dict[str, str]:
    """Return what an element holds under the paths that have a role."""
    texts = {role: element.findtext(path) for path, role in roles.items()}
    return {role: text for role, text in texts.items() if text is not None}
