"""``nvidia-smi -q -x``: one XML document per look; loops put them one after another."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from gpuwatchd.collect.logs.collector import FormatReader
from gpuwatchd.collect.logs.documents import Card, Instance, Memory, Process, keep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.logs.collector import Collector

_MAX_CHARS = 16 << 20
_START = re.compile(r"\s*<(?:\?xml|!DOCTYPE nvidia_smi_log|nvidia_smi_log)\b")
_END = "</nvidia_smi_log>"
_PROLOGUE = re.compile(r"<\?xml[^>]*\?>|<!DOCTYPE[^>\[]*>")


class Reader(FormatReader):
    """Parses one document at a time, without its DTD and without entities."""

    name = "nvidia-smi-xml"

    def __init__(self, sink: Collector) -> None:
        super().__init__(sink)
        self._lines: list[str] = []
        self._chars = 0
        self._line = 0

    @staticmethod
    def starts(lines: Sequence[str], at: int) -> bool:
        """Say whether a document begins here."""
        if not _START.match(lines[at]):
            return False
        head = "".join(lines[at : at + 4])
        return "nvidia_smi_log" in head

    def feed(self, lines: Sequence[str], first_line: int) -> int:
        """Take the lines of documents; what stands between two is not ours."""
        for number, line in enumerate(lines):
            if not self._lines:
                if not line.strip():
                    continue
                if not _START.match(line):
                    return number
                self._line = first_line + number
            elif _START.match(line) and "<nvidia_smi_log" in "".join(self._lines[:6]):
                self._torn()
                self._line = first_line + number
            self._lines.append(line)
            self._chars += len(line)
            if _END in line:
                self._document()
            elif self._chars > _MAX_CHARS:
                self._torn()
        return len(lines)

    def close(self) -> None:
        """Count a document that never ended."""
        if self._lines:
            self._torn()

    def _torn(self) -> None:
        self._lines, self._chars = [], 0
        self._sink.bad("torn", self._line)

    def _document(self) -> None:
        text = "\n".join(self._lines)
        self._lines, self._chars = [], 0
        for part in text.split(_END):
            if "<nvidia_smi_log" in part:
                self._parse(part + _END)

    def _parse(self, text: str) -> None:
        text = _PROLOGUE.sub("", text).strip()
        if "<!" in text.replace("<!--", ""):
            self._sink.note("a document that declares entities was refused")
            self._sink.bad("torn", self._line)
            return
        try:
            root = ET.fromstring(text)  # noqa: S314 - no DTD and no entity is left in it
        except (ET.ParseError, ValueError):
            self._sink.bad("torn", self._line)
            return
        stamp = root.findtext("timestamp")
        t = None if stamp is None else self._sink.clock.both(" ".join(stamp.split()))
        if t is not None and math.isnan(t[0]):
            t = (math.nan, math.nan)
        self._sink.ticks.advance()
        for index, element in enumerate(root.findall("gpu")):
            self._sink.ticks.of(("xml", index))
            keep(_card(element, index), t, self._line, self._sink)
        self._sink.ticks.advance()


def _card(gpu: ET.Element, index: int) -> Card:
    return Card(
        bus=gpu.get("id"),
        index=index,
        uuid=gpu.findtext("uuid"),
        name=gpu.findtext("product_name"),
        memory=_memory(gpu),
        instances=[
            Instance(
                gi=part.findtext("gpu_instance_id") or "-",
                ci=part.findtext("compute_instance_id") or "-",
                memory=_memory(part),
            )
            for part in gpu.findall("mig_devices/mig_device")
        ],
        processes=[
            Process(
                pid=each.findtext("pid"),
                name=each.findtext("process_name"),
                used=each.findtext("used_memory"),
                gi=each.findtext("gpu_instance_id"),
                ci=each.findtext("compute_instance_id"),
            )
            for each in gpu.findall("processes/process_info")
        ],
    )


def _memory(element: ET.Element) -> Memory:
    """Return the frame buffer of the element itself: a direct child, not that of a MIG part."""
    found = element.find("fb_memory_usage")
    if found is None:
        return Memory()
    return Memory(found.findtext("total"), found.findtext("used"), found.findtext("free"))
