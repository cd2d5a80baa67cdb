"""How much memory a card has (its own, the host's, or a NUMA node's), and what of it who uses.

Whether a card has memory of its own is a property of its chip. Figures that cannot be true are a
fault for as long as they last; they never decide what kind of memory a card has.

Nothing here imports pynvml.
"""

from __future__ import annotations

import ctypes
import re
import struct
from ctypes import string_at
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from gpuwatchd.collect.nvml.calls import (
    ABSENT_CODES,
    FATAL_CODES,
    FUNCTION_NOT_FOUND,
    INSUFFICIENT_SIZE,
    NO_PERMISSION,
    OK,
)
from gpuwatchd.collect.nvml.driver_files import (
    Memory,
    host_memory,
    in_container,
    kilobytes,
    read_text,
)
from gpuwatchd.core import units
from gpuwatchd.core.model import ProcessKey, ProcessUse

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuwatchd.collect.nvml.calls import Calls, Card, HandleBuffers, Memory1, Memory2


UNKNOWN_MEMORY: Final = 0xFFFF_FFFF_FFFF_FFFF
MAX_PIDS: Final = 4_194_304
_FULL_PCT: Final = 100
_SAMPLES: Final = 128
MOST_SAMPLES: Final = 4096
"""Utilisation samples that there is room for: at first, and when the driver asks for more."""
MOST_DOUBTS: Final = 4
"""Looks in a row at a busy card whose processes all do nothing, before it is believed."""
LIST_TRIES: Final = 4
"""One read, and three more with a larger buffer when the list grew meanwhile."""

ASK_AGAIN_S: Final = (1.0, 3600.0)
"""First and longest pause before a list is asked for again of which the driver says that it does
not exist; each is twice the one before."""
BELIEVED_S: Final = 60.0
"""From this pause on, a list that was there before is believed to exist no more."""

UNTOLD: Final = "the driver lists processes without their memory (as under WSL 2 and WDDM)"
_NONE: Final = "the driver does not list processes"
_NO_MORE: Final = "the driver listed processes before and does not now"

_ENTRY: Final = struct.Struct("@IQ8x")
_ENTRY_V1: Final = struct.Struct("@IQ")
_SAMPLE: Final = struct.Struct("@IQI12x")
_KINDS: Final = (
    ("C", "nvmlDeviceGetComputeRunningProcesses"),
    ("G", "nvmlDeviceGetGraphicsRunningProcesses"),
    ("M", "nvmlDeviceGetMPSComputeRunningProcesses"),
)
_VERSIONS: Final = ("_v3", "_v2", "")
_NOT_FOUND: Final = 6

Uses = tuple[ProcessUse, ...]


class ProcessLists:
    """The compute, graphics and MPS lists of a card, merged: each pid once.

    The lists are read straight into a kept buffer, one call instead of two, through the library
    that nvidia-ml-py has loaded; nvidia-ml-py itself cannot fall back to the older structures.
    What has not changed since the last look is the same object again.
    """

    def __init__(self, calls: Calls, error: type[Exception], proc: Path) -> None:
        self._calls = calls
        self._error = error
        # Driver 535 widened the third structure for a while; the second has not changed since.
        widened = calls.has("nvmlDeviceGetConfComputeMemSizeInfo") and not calls.has(
            "nvmlDeviceGetRunningProcessDetailList"
        )
        self._newest = 1 if widened else 0
        self._functions = {
            kind: tuple(calls.find(name + version) for version in _VERSIONS)
            for kind, name in _KINDS
        }
        # The driver's numbers are the host's: what a container may use (from Linux 6.14 on it has
        # a figure of its own) bounds them not.
        text = read_text(proc / "sys/kernel/pid_max")
        self._max_pid = int(text) if text.isdecimal() and not in_container(proc) else MAX_PIDS

    def read(
        self, card: Card, desk: HandleBuffers, mono_s: float, *, turn: bool, busy_pct: float | None
    ) -> tuple[Uses | None, str | None]:
        """Return (uses, None), or (None, why they are unknown); with both, their memory is.

        ``turn``: it is time for what is not asked every tick, lists that were empty and how busy
        each process is. ``busy_pct`` is how busy the card is.
        """
        first = desk.uses is None
        turn = turn or first
        changed, why_not = self._fetch(card, desk, mono_s, turn=turn)
        if why_not is None and (changed or first):
            why_not = self._merge(desk)
            if why_not is not None and self._by_older(card, desk, mono_s):
                why_not = None
        if why_not is not None:
            desk.uses = None
            return None, why_not
        # That nobody does anything is believed while the card is idle: some work in bursts. Where
        # the driver insists on it (a process of another system works), doubt comes to rest.
        quiet = 0.0 in desk.busy.values() and not any(desk.busy.values())
        doubtful = bool(busy_pct) and quiet
        desk.doubts = desk.doubts + 1 if doubtful else 0 if not quiet else desk.doubts
        if (turn or (doubtful and desk.doubts <= MOST_DOUBTS)) and self._look_busy(
            card, desk, busy_pct
        ):
            self._merge(desk)
        return desk.uses, UNTOLD if desk.untold else None

    def _fetch(
        self, card: Card, desk: HandleBuffers, mono_s: float, *, turn: bool
    ) -> tuple[bool, str | None]:
        """Read the lists that are due; return whether one changed, and why that is unknown."""
        changed = False
        for kind, functions in self._functions.items():
            before = desk.raw.get(kind)
            again_s, _ = card.unlisted.get(kind, (mono_s, 0.0))
            if mono_s >= again_s and (turn or kind == "C" or before != b""):
                code, raw = self._list(card, desk, kind, functions)
                if code in ABSENT_CODES:
                    raw = self._put_off(card, kind, mono_s, before)
                elif code != OK:
                    return True, self._refusal(code)
                else:
                    card.unlisted.pop(kind, None)
                if raw != before:
                    desk.raw[kind] = raw
                    changed = True
            if kind in card.unlisted and (desk.raw.get(kind) or kind == "C"):
                return True, _NO_MORE if desk.raw.get(kind) else _NONE
        return changed, None

    def _by_older(self, card: Card, desk: HandleBuffers, mono_s: float) -> bool:
        """Read the lists by the older structure: the newest one's entries may be wider than known.

        Returns whether that is credible, and then stays with it. If it is not, the driver's list
        itself was wrong, and the next look asks for the newest again.
        """
        newest = [kind for kind, version in desk.list_version.items() if version == 0]
        if not newest:
            return False
        unlisted = dict(card.unlisted)
        card.versions.update(dict.fromkeys(newest, 1))
        _, why_not = self._fetch(card, desk, mono_s, turn=True)
        if why_not is None and card.unlisted.keys() <= unlisted.keys():
            why_not = self._merge(desk)
            if why_not is None:
                return True
        for kind in newest:
            del card.versions[kind]
        card.unlisted = unlisted
        desk.raw.clear()
        return False

    @staticmethod
    def _put_off(card: Card, kind: str, mono_s: float, before: bytes | None) -> bytes:
        """Note when to ask again for a list that does not exist here; return what it holds.

        That is what it held before as long as this may be a passing failure, then nothing.
        """
        shortest_s, longest_s = ASK_AGAIN_S
        _, last_s = card.unlisted.get(kind, (0.0, 0.0))
        pause_s = min(longest_s, max(shortest_s, 2 * last_s))
        card.unlisted[kind] = (mono_s + pause_s, pause_s)
        return before if before and pause_s < BELIEVED_S else b""

    def _merge(self, desk: HandleBuffers) -> str | None:
        """Make the uses of the lists as they came; return why that is impossible."""
        desk.uses = None
        held: dict[int, tuple[int | None, str]] = {}
        for kind, raw in desk.raw.items():
            if not raw:
                continue
            entry = _ENTRY_V1 if desk.list_version[kind] == len(_VERSIONS) - 1 else _ENTRY
            for pid, memory_bytes in entry.iter_unpack(raw):
                if not 0 < pid <= self._max_pid:
                    desk.raw.clear()
                    return f"the driver's process list is not credible (pid {pid})"
                known = None if memory_bytes == UNKNOWN_MEMORY else memory_bytes
                before = held.get(pid)
                held[pid] = (known, kind) if before is None else _joined(before, known, kind)
        old, busy = desk.by_pid, desk.busy
        fresh: dict[int, ProcessUse] = {}
        for pid, (used, kind) in held.items():
            use, sm_pct = old.get(pid), busy.get(pid)
            if use is None:
                use = ProcessUse(key=_key(pid), used_bytes=used, kind=kind, sm_pct=sm_pct)
            elif use.used_bytes != used or use.kind != kind or use.sm_pct != sm_pct:
                use = ProcessUse(key=use.key, used_bytes=used, kind=kind, sm_pct=sm_pct)
            fresh[pid] = use
        desk.by_pid = fresh
        desk.uses = tuple(fresh.values())
        known_bytes = [use.used_bytes for use in desk.uses if use.used_bytes is not None]
        desk.largest_bytes = max(known_bytes, default=0)
        desk.untold = len(known_bytes) < len(fresh)
        return None

    def _refusal(self, code: int) -> str:
        """Return why a list is unknown; raises where the card or NVML itself is gone."""
        if code in FATAL_CODES:
            raise self._error(code)
        if code == INSUFFICIENT_SIZE:
            return "the process list kept growing while it was read"
        return f"the driver refused the process list: {self._error(code)} (code {code})"

    def _list(
        self, card: Card, desk: HandleBuffers, kind: str, functions: tuple[Callable[..., int], ...]
    ) -> tuple[int, bytes]:
        """Return NVML's code and the list as it came, in the newest structure that works."""
        code, raw = FUNCTION_NOT_FOUND, b""
        for version in range(card.versions.get(kind, self._newest), len(_VERSIONS)):
            code, count = self._call(desk, functions[version])
            if code == FUNCTION_NOT_FOUND:
                continue
            desk.list_version[kind] = version
            entry = _ENTRY if _VERSIONS[version] else _ENTRY_V1
            raw = string_at(desk.buffer, count * entry.size) if code == OK and count else b""
            card.versions[kind] = version
            break
        return code, raw

    @staticmethod
    def _call(desk: HandleBuffers, call: Callable[..., int]) -> tuple[int, int]:
        """Read one list into the desk's buffer; a list that grew gets a larger one."""
        code = INSUFFICIENT_SIZE
        count = desk.number
        for _ in range(LIST_TRIES):
            count.value = desk.room
            code = call(desk.handle, desk.number_ref, desk.buffer)
            if code != INSUFFICIENT_SIZE:
                break
            desk.grow(min(65536, max(desk.room * 2, count.value)))
        return code, min(count.value, desk.room)

    def _look_busy(self, card: Card, desk: HandleBuffers, busy_pct: float | None) -> bool:
        """Ask how much each process uses the compute units; say whether anything is new.

        A process that did nothing has no sample. That it did nothing is believed where others
        have samples, or where the whole card is idle; otherwise the driver may know of nobody.
        """
        if "sm" in card.refused or not desk.by_pid:
            return False
        code, newest = self._samples(desk)
        if code in FATAL_CODES:
            raise self._error(code)
        if code in ABSENT_CODES or code == NO_PERMISSION:
            card.refused.add("sm")
        elif code in {OK, _NOT_FOUND}:
            absent = 0.0 if newest or busy_pct == 0 else None
            found: dict[int, float | None] = {**newest}
            if newest.keys() != desk.by_pid.keys():
                found = {pid: newest.get(pid, absent) for pid in desk.by_pid}
            if found != desk.busy:
                desk.busy = found
                return True
            return False
        had_any, desk.busy = bool(desk.busy), {}
        return had_any

    def _samples(self, desk: HandleBuffers) -> tuple[int, dict[int, float]]:
        """Return NVML's code and, by pid, the share of the newest sample."""
        room = max(_SAMPLES, desk.room)
        code, raw = self._ask_samples(desk, room)
        if code == INSUFFICIENT_SIZE:
            # A driver may ask for room for every sample it could have, however few there are.
            code, raw = self._ask_samples(desk, MOST_SAMPLES)
        if code != OK or not raw:
            return code, {}
        newest, latest_us = _newest(raw)
        desk.seen_us = max(desk.seen_us, latest_us)
        return code, newest

    def _ask_samples(self, desk: HandleBuffers, room: int) -> tuple[int, bytes]:
        count, since = desk.number, ctypes.c_ulonglong(desk.seen_us)
        count.value = room
        buffer = ctypes.create_string_buffer(room * _SAMPLE.size)
        code = self._calls.find("nvmlDeviceGetProcessUtilization")(
            desk.handle, buffer, desk.number_ref, since
        )
        return code, string_at(buffer, min(count.value, room) * _SAMPLE.size)


def _newest(raw: bytes) -> tuple[dict[int, float], int]:
    """Return the newest share of each pid, and the instant of the newest of all."""
    # Column by column: as a rule each pid is there once, and an entry at a time is slow.
    whole = memoryview(raw)
    pids, instants = whole.cast("I")[::8].tolist(), whole.cast("Q")[1::4].tolist()
    shares = whole.cast("I")[4::8].tolist()
    if len(set(pids)) < len(pids) or 0 in pids or max(shares) > _FULL_PCT:
        # Drivers are known to hand out blank samples, and shares far above 100.
        told = [
            one
            for one in zip(instants, pids, shares, strict=True)
            if one[1] and one[2] <= _FULL_PCT
        ]
        told.sort(key=itemgetter(0))  # of two at one instant the later one counts
        instants = [at_us for at_us, _, _ in told]
        pids, shares = [pid for _, pid, _ in told], [share for _, _, share in told]
    return dict(zip(pids, map(float, shares), strict=True)), max(instants, default=0)


@lru_cache(maxsize=4096)
def _key(pid: int) -> ProcessKey:
    return ProcessKey(pid=pid, started_at_s=None)


def _joined(before: tuple[int | None, str], known: int | None, kind: str) -> tuple[int | None, str]:
    """Return one entry for a pid that is in several lists: its memory counts once."""
    memory, kinds = before
    if known is not None:
        memory = known if memory is None else max(memory, known)
    return memory, kinds if kind in kinds.split("+") else f"{kinds}+{kind}"


_SHARED: Final = re.compile(r"\b(GB10|Thor|Orin|Xavier|Tegra|Jetson)\b")
"""Names of chips whose GPU has no memory of its own, whatever the driver answers."""
_SHARED_CAPABILITIES: Final = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (10, 1), (11, 0), (12, 1)})
"""Compute capabilities of such chips: Tegra X1 and X2, Xavier, Orin, Thor (two numberings), GB10.
NVML's architecture does not tell them apart: Orin and A100 are Ampere, GB10 and B200 Blackwell."""
_OWN_CAPABILITIES: Final = frozenset(
    {
        *((3, 0), (3, 5), (3, 7), (5, 0), (5, 2), (6, 0), (6, 1), (7, 0), (7, 5)),
        *((8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)),
    }
)
"""Compute capabilities of chips that always have memory of their own."""
_SUPERCHIP: Final = re.compile(r"\bG[HB][23]00\b")
"""Names of chips whose GPU memory the kernel may manage as a NUMA node."""
_ATS: Final = 2
_NOTICED_BYTES: Final = 64 * 2**20
MOST_BYTES: Final = 8 * 2**40
"""A larger total is not believed: the largest card has less than half a TiB."""

LOOKS: Final = 12
"""So many looks in a row, a minute as a rule, a driver has to lack the memory of a chip in no list
before it counts as the host's: one such answer may be a glitch."""

NOT_CREDIBLE: Final = "the driver's figures contradict its process list"
ZEROS: Final = "the driver answers zeros: how much memory the GPU has is unknown"
CONTRADICTION: Final = "the driver's used and free memory contradict each other"


class Figures(NamedTuple):
    """What one look at the memory came to."""

    code: int = OK
    """NVML's."""
    memory: Memory | None = None
    """None where it is unknown, or where the processes must tell it (unified memory)."""
    fault: str | None = None
    """What is wrong with figures that NVML gave without an error."""


def credible(
    total: int, free: int, used: int, reserved: int | None, *, ahead_bytes: int = 0
) -> Figures:
    """Return what may be believed of the driver's figures, in bytes.

    Drivers differ in whether "used" holds the reserve, and whether "free" does. Either is right as
    long as "used" lies between what "free" leaves with and without the reserve. Then the figure is
    counted from "free" the same way every time: counting another way in between would look like a
    step of the reserve's size.

    Where the two contradict each other beyond that, the driver's "used" counts, unless it is an
    extreme (nothing, everything or more than there is); then "free" does, unless it is one. Where
    both are, how much is used is unknown. It counts less ``ahead_bytes``, by which it was above the
    figure from "free" as long as they agreed: that, too, would look like a step of the reserve.
    """
    if total == 0:
        return Figures(fault=ZEROS)
    if total > MOST_BYTES:
        return Figures(fault=f"the driver's total of {units.size(total)} is not believed")
    if reserved is not None and reserved > total:
        reserved = None
    kept = reserved or 0
    by_free = max(0, total - free - kept)
    if free <= total and by_free - _NOTICED_BYTES <= used <= total - free + _NOTICED_BYTES:
        return Figures(memory=Memory(by_free, free, total, reserved))
    if 0 < used < total:
        held = max(0, used - ahead_bytes)
        by_used = Memory(held, max(0, total - kept - held), total, reserved)
        return Figures(memory=by_used, fault=CONTRADICTION)
    if 0 < free < total:
        return Figures(memory=Memory(by_free, free, total, reserved), fault=CONTRADICTION)
    return Figures(fault=CONTRADICTION)


class MemoryReader:
    """Reads memory, by the same call for the whole life of a series."""

    def __init__(self, calls: Calls, proc: Path, sys: Path) -> None:
        self._calls = calls
        self._proc = proc
        self._sys = sys

    def read(self, card: Card, desk: HandleBuffers) -> Figures:
        """Return one look at the memory."""
        api = card.memory_api
        if api is None:
            return self._choose(card, desk)
        if api != "unified":
            return self._by(desk, api)
        return self._again(card, desk) if card.unanswered else Figures()

    def _choose(self, card: Card, desk: HandleBuffers) -> Figures:
        """Decide once: version 2, else version 1, else this card shares the host's memory.

        Mixing the two versions in one series would look like a step of the driver's reserve. Only
        the chip means shared memory; where it is not one of those known, that neither version
        exists does, at many looks in a row. A lost or forbidden card, or zeros, do not.
        """
        whole = not card.is_parent and card.device.parent_uid is None
        has_own = self._has_own(card, desk) if whole else None
        if has_own is False:
            self._share(card)
            return Figures()
        figures = Figures()
        for api in ("v2", "v1"):
            figures = self._by(desk, api)
            if figures.code in ABSENT_CODES:
                continue
            if figures.memory is not None:
                card.memory_api, card.unanswered = api, 0
                if self._is_coherent(card, desk, figures.memory.total_bytes or 0):
                    card.device = msgspec.structs.replace(card.device, memory_kind="coherent")
            return figures
        if not whole:
            return Figures()
        if has_own or desk.capability is None:
            return figures  # a failure, or not known yet
        card.unanswered += 1
        if card.unanswered < LOOKS:
            return figures
        self._share(card)
        return Figures()

    def _again(self, card: Card, desk: HandleBuffers) -> Figures:
        """Ask once more for the memory of a chip in no list, and take back that it has none."""
        for api in ("v2", "v1"):
            figures = self._by(desk, api)
            if figures.memory is not None:
                card.memory_api, card.unanswered = api, 0
                card.device = msgspec.structs.replace(card.device, memory_kind="dedicated")
                return figures
        return Figures()

    def _has_own(self, card: Card, desk: HandleBuffers) -> bool | None:
        """Say whether the chip has memory of its own; None where it is none of those known."""
        if _SHARED.search(card.device.name):
            return False
        if desk.capability is None:
            code, capability = self._calls.capability(desk)
            if code == OK or code in ABSENT_CODES:
                desk.capability = capability if code == OK else (0, 0)
        if desk.capability in _SHARED_CAPABILITIES:
            return False
        return True if desk.capability in _OWN_CAPABILITIES else None

    @staticmethod
    def _share(card: Card) -> None:
        card.memory_api = "unified"
        card.device = msgspec.structs.replace(card.device, memory_kind="unified")

    def _by(self, desk: HandleBuffers, api: str) -> Figures:
        """Return what one version says."""
        found: Memory1 | Memory2
        reserved: int | None
        if api == "v2":
            code, found, reserved = self._calls.memory2(desk), desk.memory2, desk.memory2.reserved
        else:
            code, found, reserved = self._calls.memory1(desk), desk.memory1, None
        if code != OK:
            return Figures(code)
        figures = credible(
            found.total, found.free, found.used, reserved, ahead_bytes=desk.ahead_bytes
        )
        if figures.memory is not None and figures.fault is None:
            desk.ahead_bytes = max(0, found.used - (figures.memory.used_bytes or 0))
        return figures

    def _is_coherent(self, card: Card, desk: HandleBuffers, total_bytes: int) -> bool:
        """Say whether the kernel manages this card's memory (Grace Hopper and its kind).

        The driver's file says it to older libraries. Not verified on hardware.
        """
        code, node = self._calls.numa(desk)
        if code == OK:
            return node >= 0 and self._is_memory_of(card, node, total_bytes)
        status = read_text(
            self._proc / "driver/nvidia/gpus" / (card.device.pci_bus or "-") / "numa_status"
        )
        if status:
            return re.search(r"(?mi)^Status:\s*online", status) is not None
        if code != FUNCTION_NOT_FOUND or not _SUPERCHIP.search(card.device.name):
            return False
        code, mode = self._calls.addressing(desk)
        return code != OK or mode == _ATS

    def _is_memory_of(self, card: Card, node: int, total_bytes: int) -> bool:
        """Say whether a NUMA node is a card's memory, and not merely the CPUs next to it.

        A node is a GPU's where no CPU is in it and it is about as large as the card; other memory
        without CPUs (CXL) has another size. Where the kernel shows no nodes, or a part of the
        memory only, the chip's name decides.
        """
        folder = self._sys / f"devices/system/node/node{node}"
        if read_text(folder / "cpulist"):
            return False
        size_bytes = kilobytes(read_text(folder / "meminfo").partition("MemTotal:")[2]) or 0
        about = abs(size_bytes - total_bytes) <= total_bytes / 4
        return about or _SUPERCHIP.search(card.device.name) is not None

    def shared(self, card: Card, uses: tuple[ProcessUse, ...] | None) -> Memory:
        """Return the memory of a card that shares the host's."""
        if uses is None and "C" in card.unlisted:
            card.state = "unsupported"
        return host_memory(self._proc, uses)

    @staticmethod
    def doubt(card: Card, desk: HandleBuffers, memory: Memory) -> bool:
        """Say whether the driver's figures cannot be true beside its process list.

        Seen are drivers that report that nothing is in use, or a total smaller than what one
        process holds. It says nothing of the kind of memory: that is the chip's.
        """
        if desk.largest_bytes > (memory.total_bytes or 0):
            return True
        # Where "free" holds the reserve, little in use comes out as none: the driver's own figure
        # then still covers the process.
        answer = desk.memory2 if card.memory_api == "v2" else desk.memory1
        least_bytes = max(_NOTICED_BYTES, answer.used + 1)
        return memory.used_bytes == 0 and desk.largest_bytes >= least_bytes
