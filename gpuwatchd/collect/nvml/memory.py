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
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gpuwatchd.collect.nvml.calls import (
    ABSENT_CODES,
    FUNCTION_NOT_FOUND,
    INSUFFICIENT_SIZE,
    MEMORY_V2,
    NO_PERMISSION,
    OK,
    Memory1,
    Memory2,
    has_own_memory,
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
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from gpuwatchd.collect.nvml.calls import CardCalls
    from gpuwatchd.collect.nvml.driver_files import KernelFiles


UNKNOWN_MEMORY: Final = 0xFFFF_FFFF_FFFF_FFFF
MAX_PIDS: Final = 4_194_304
_FULL_PCT: Final = 100
_SAMPLES: Final = 128
MOST_SAMPLES: Final = 4096
"""Utilisation samples that there is room for: at first, and when the driver asks for more."""
MOST_DOUBTS: Final = 4
"""Looks in a row at a busy card whose processes all do nothing, before it is believed."""
WOBBLE_PCT: Final = 10.0
WOBBLE_LOOKS: Final = 4
"""A share that moves by fewer points is no news, but every so many looks (a minute as a rule): what
is made of each list that changes costs more than the whole read."""
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

    def __init__(self, asked: CardCalls, proc: Path) -> None:
        self._asked = asked
        self._card = asked.card
        calls = asked.calls
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
        self.raw: dict[str, bytes] = {}
        """The lists as they came, by kind."""
        self.uses: Uses | None = None
        """What was made of them; None when it has to be made anew."""
        self.by_pid: dict[int, ProcessUse] = {}
        self.largest_bytes = 0
        """Memory of the largest of them."""
        self._untold = False
        """Whether the memory of some of them is unknown."""
        self._shares = ProcessShares(asked)
        self._grow(32)

    def _grow(self, entries: int) -> None:
        self._room = entries
        self._buffer = ctypes.create_string_buffer(entries * _ENTRY.size)

    def read(
        self, mono_s: float, *, slow: bool, busy_pct: float | None
    ) -> tuple[Uses | None, str | None]:
        """Return (uses, None), or (None, why they are unknown); with both, their memory is.

        ``slow``: it is time for what is not asked every tick, lists that were empty and how busy
        each process is. ``busy_pct`` is how busy the card is.
        """
        first = self.uses is None
        slow = slow or first
        changed, why_not = self._fetch(mono_s, slow=slow)
        if why_not is None and (changed or first):
            why_not = self._merge()
            if why_not is not None and self._by_older(mono_s):
                why_not = None
        if why_not is not None:
            self.uses = None
            return None, why_not
        doubtful = self._shares.is_doubtful(busy_pct)
        if (slow or doubtful) and self._shares.refresh(self.by_pid.keys(), busy_pct, self._room):
            self._merge()
        return self.uses, UNTOLD if self._untold else None

    def _fetch(self, mono_s: float, *, slow: bool) -> tuple[bool, str | None]:
        """Read the lists that are due; return whether one changed, and why that is unknown."""
        changed = False
        unlisted = self._card.unlisted
        for kind, functions in self._functions.items():
            before = self.raw.get(kind)
            again_s, _ = unlisted.get(kind, (mono_s, 0.0))
            if mono_s >= again_s and (slow or kind == "C" or before != b""):
                code, raw = self._list(kind, functions)
                if code in ABSENT_CODES:
                    raw = self._put_off(kind, mono_s, before)
                elif code != OK:
                    return True, self._refusal(code)
                else:
                    unlisted.pop(kind, None)
                if raw != before:
                    self.raw[kind] = raw
                    changed = True
            if kind in unlisted and (self.raw.get(kind) or kind == "C"):
                return True, _NO_MORE if self.raw.get(kind) else _NONE
        return changed, None

    def _by_older(self, mono_s: float) -> bool:
        """Read the lists by the older structure: the newest one's entries may be wider than known.

        Returns whether that is credible, and then stays with it. If it is not, the driver's list
        itself was wrong, and the next look asks for the newest again.
        """
        card = self._card
        newest = [kind for kind, version in card.versions.items() if version == 0]
        if not newest:
            return False
        unlisted = dict(card.unlisted)
        card.versions.update(dict.fromkeys(newest, 1))
        _, why_not = self._fetch(mono_s, slow=True)
        if why_not is None and card.unlisted.keys() <= unlisted.keys():
            why_not = self._merge()
            if why_not is None:
                return True
        for kind in newest:
            del card.versions[kind]
        card.unlisted.clear()
        card.unlisted.update(unlisted)
        self.raw.clear()
        return False

    def _put_off(self, kind: str, mono_s: float, before: bytes | None) -> bytes:
        """Note when to ask again for a list that does not exist here; return what it holds.

        That is what it held before as long as this may be a passing failure, then nothing.
        """
        shortest_s, longest_s = ASK_AGAIN_S
        _, last_s = self._card.unlisted.get(kind, (0.0, 0.0))
        pause_s = min(longest_s, max(shortest_s, 2 * last_s))
        self._card.unlisted[kind] = (mono_s + pause_s, pause_s)
        return before if before and pause_s < BELIEVED_S else b""

    def _merge(self) -> str | None:
        """Make the uses of the lists as they came; return why that is impossible."""
        self.uses, max_pid = None, self._max_pid
        held: dict[int, tuple[int | None, str]] = {}
        for kind, raw in self.raw.items():
            if not raw:
                continue
            oldest = self._card.versions[kind] == len(_VERSIONS) - 1
            for pid, memory_bytes in (_ENTRY_V1 if oldest else _ENTRY).iter_unpack(raw):
                if not 0 < pid <= max_pid:
                    self.raw.clear()
                    return f"the driver's process list is not credible (pid {pid})"
                known = None if memory_bytes == UNKNOWN_MEMORY else memory_bytes
                held[pid] = _joined(held[pid], known, kind) if pid in held else (known, kind)
        old, shares = self.by_pid, self._shares.by_pid
        fresh: dict[int, ProcessUse] = {}
        for pid, (used, kind) in held.items():
            use, sm_pct = old.get(pid), shares.get(pid)
            if use is None:
                use = ProcessUse(key=_key(pid), used_bytes=used, kind=kind, sm_pct=sm_pct)
            elif use.used_bytes != used or use.kind != kind or use.sm_pct != sm_pct:
                use = ProcessUse(key=use.key, used_bytes=used, kind=kind, sm_pct=sm_pct)
            fresh[pid] = use
        self.by_pid = fresh
        self.uses = tuple(fresh.values())
        known_bytes = [use.used_bytes for use in self.uses if use.used_bytes is not None]
        self.largest_bytes = max(known_bytes, default=0)
        self._untold = len(known_bytes) < len(fresh)
        return None

    def _refusal(self, code: int) -> str:
        """Return why a list is unknown; raises where the card or NVML itself is gone."""
        self._asked.calls.check(code)
        if code == INSUFFICIENT_SIZE:
            return "the process list kept growing while it was read"
        return f"the driver refused the process list: {self._asked.calls.error(code)} (code {code})"

    def _list(self, kind: str, functions: tuple[Callable[..., int], ...]) -> tuple[int, bytes]:
        """Return NVML's code and the list as it came, in the newest structure that works."""
        code, raw = FUNCTION_NOT_FOUND, b""
        versions = self._card.versions
        for version in range(versions.get(kind, self._newest), len(_VERSIONS)):
            code, count = self._call(functions[version])
            if code == FUNCTION_NOT_FOUND:
                continue
            versions[kind] = version
            if code == OK and count:
                entry = _ENTRY if _VERSIONS[version] else _ENTRY_V1
                raw = string_at(self._buffer, count * entry.size)
            break
        return code, raw

    def _call(self, call: Callable[..., int]) -> tuple[int, int]:
        """Read one list into the buffer; a list that grew gets a larger one."""
        code, asked = INSUFFICIENT_SIZE, self._asked
        count = asked.number
        for _ in range(LIST_TRIES):
            count.value = self._room
            code = call(asked.handle, asked.number_ref, self._buffer)
            if code != INSUFFICIENT_SIZE:
                break
            self._grow(min(65536, max(self._room * 2, count.value)))
        return code, min(count.value, self._room)


class ProcessShares:
    """How much each process uses the compute units of a card.

    A process that did nothing has no sample. That it did nothing is believed where others have
    samples, or where the whole card is idle; otherwise the driver may know of nobody.
    """

    def __init__(self, asked: CardCalls) -> None:
        self._asked = asked
        self._list_samples = asked.calls.find("nvmlDeviceGetProcessUtilization")
        self.by_pid: dict[int, float | None] = {}
        """Per cent, as last asked for."""
        self._newest_us = 0
        """Instant of the newest sample."""
        self._doubts = 0
        """Looks in a row at which the card worked and none of its processes did."""
        self._looks = 0

    def is_doubtful(self, busy_pct: float | None) -> bool:
        """Say whether the driver is to be asked again, for a card that is so busy."""
        # That nobody does anything is believed while the card is idle: some work in bursts. Where
        # the driver insists on it (a process of another system works), doubt comes to rest.
        shares = self.by_pid.values()
        if 0.0 not in shares or any(shares):
            self._doubts = 0
        elif busy_pct:
            self._doubts += 1
            return self._doubts <= MOST_DOUBTS
        return False

    def refresh(self, pids: AbstractSet[int], busy_pct: float | None, room: int) -> bool:
        """Ask for the shares of these processes; say whether anything is new.

        ``room``: how many processes there may be.
        """
        card = self._asked.card
        if "sm" in card.refused or not pids:
            return False
        code, newest = self._samples(room)
        if code in ABSENT_CODES or code == NO_PERMISSION:
            card.refused.add("sm")
        elif code in {OK, _NOT_FOUND}:
            absent = 0.0 if newest or busy_pct == 0 else None
            found = {pid: newest.get(pid, absent) for pid in pids}
            self._looks += 1
            least_pct = WOBBLE_PCT if self._looks % WOBBLE_LOOKS else 0.0
            if _alike(self.by_pid, found, least_pct):
                return False
            self.by_pid = found
            return True
        else:
            self._asked.calls.check(code)
        had_any, self.by_pid = bool(self.by_pid), {}
        return had_any

    def _samples(self, room: int) -> tuple[int, dict[int, float]]:
        """Return NVML's code and, by pid, the share of the newest sample."""
        code, raw = self._ask(max(_SAMPLES, room))
        if code == INSUFFICIENT_SIZE:
            # A driver may ask for room for every sample it could have, however few there are.
            code, raw = self._ask(MOST_SAMPLES)
        if code != OK or not raw:
            return code, {}
        newest, latest_us = _newest(raw)
        self._newest_us = max(self._newest_us, latest_us)
        return code, newest

    def _ask(self, room: int) -> tuple[int, bytes]:
        asked = self._asked
        asked.number.value = room
        samples = ctypes.create_string_buffer(room * _SAMPLE.size)
        since = ctypes.c_ulonglong(self._newest_us)
        code = self._list_samples(asked.handle, samples, asked.number_ref, since)
        return code, string_at(samples, min(asked.number.value, room) * _SAMPLE.size)


def _alike(before: dict[int, float | None], now: dict[int, float | None], least_pct: float) -> bool:
    """Say whether the same processes work as before, or rest as before, but for fewer points."""
    return before.keys() == now.keys() and all(
        share == (last := before[pid]) or (share and last and abs(share - last) < least_pct)
        for pid, share in now.items()
    )


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
    """Reads the memory of a card, by the same call for the whole life of a series."""

    def __init__(self, asked: CardCalls, files: KernelFiles) -> None:
        self._asked = asked
        self._card = asked.card
        self._files = files
        find, older, newer = asked.calls.find, Memory1(), Memory2(version=MEMORY_V2)
        self._questions: dict[str, tuple[Callable[..., int], Memory1 | Memory2, Any]] = {
            "v2": (find("nvmlDeviceGetMemoryInfo_v2"), newer, ctypes.byref(newer)),
            "v1": (find("nvmlDeviceGetMemoryInfo"), older, ctypes.byref(older)),
        }
        """Version of the memory query -> its entry point, and what it fills."""
        self._used_bytes = 0
        """The driver's "used"."""
        self._ahead_bytes = 0
        """By how much "used" was above the figure from "free" when the two agreed last."""
        self._capability: tuple[int, int] | None = None
        """The chip's compute capability; None: not asked yet, (0, 0): the driver does not say."""

    def read(self) -> Figures:
        """Return one look at the memory."""
        api = self._card.memory_api
        if api is None:
            return self._choose()
        if api != "unified":
            return self._by(api)
        return self._again() if self._card.unanswered else Figures()

    def _choose(self) -> Figures:
        """Decide once: version 2, else version 1, else this card shares the host's memory.

        Mixing the two versions in one series would look like a step of the driver's reserve. Only
        the chip means shared memory; where it is not one of those known, that neither version
        exists does, at many looks in a row. A lost or forbidden card, or zeros, do not.
        """
        card = self._card
        whole = not card.is_parent and card.device.parent_uid is None
        has_own = self._has_own() if whole else None
        if has_own is False:
            card.learn_memory("unified", "unified", unanswered=card.unanswered)
            return Figures()
        figures = Figures()
        for api in ("v2", "v1"):
            figures = self._by(api)
            if figures.code in ABSENT_CODES:
                continue
            if figures.memory is not None:
                coherent = self._is_coherent(figures.memory.total_bytes or 0)
                card.learn_memory(api, "coherent" if coherent else None)
            return figures
        if not whole:
            return Figures()
        if has_own or self._capability is None:
            return figures  # a failure, or not known yet
        card.unanswered += 1
        if card.unanswered < LOOKS:
            return figures
        card.learn_memory("unified", "unified", unanswered=card.unanswered)
        return Figures()

    def _again(self) -> Figures:
        """Ask once more for the memory of a chip in no list, and take back that it has none."""
        for api in ("v2", "v1"):
            figures = self._by(api)
            if figures.memory is not None:
                self._card.learn_memory(api, "dedicated")
                return figures
        return Figures()

    def _has_own(self) -> bool | None:
        """Say whether the chip has memory of its own; None where it is none of those known."""
        name = self._card.device.name
        if self._capability is None and has_own_memory(name, None) is None:
            code, capability = self._asked.capability()
            if code == OK or code in ABSENT_CODES:
                self._capability = capability if code == OK else (0, 0)
        return has_own_memory(name, self._capability)

    def _by(self, api: str) -> Figures:
        """Return what one version says."""
        ask, answer, place = self._questions[api]
        code = ask(self._asked.handle, place)
        if code != OK:
            return Figures(code)
        self._used_bytes = answer.used
        reserved = answer.reserved if isinstance(answer, Memory2) else None
        figures = credible(
            answer.total, answer.free, answer.used, reserved, ahead_bytes=self._ahead_bytes
        )
        if figures.memory is not None and figures.fault is None:
            self._ahead_bytes = max(0, answer.used - (figures.memory.used_bytes or 0))
        return figures

    def _is_coherent(self, total_bytes: int) -> bool:
        """Say whether the kernel manages this card's memory (Grace Hopper and its kind).

        The driver's file says it to older libraries. Not verified on hardware.
        """
        device = self._card.device
        code, node = self._asked.numa()
        if code == OK:
            return node >= 0 and self._is_memory_of(node, total_bytes)
        status = read_text(
            self._files.proc / "driver/nvidia/gpus" / (device.pci_bus or "-") / "numa_status"
        )
        if status:
            return re.search(r"(?mi)^Status:\s*online", status) is not None
        if code != FUNCTION_NOT_FOUND or not _SUPERCHIP.search(device.name):
            return False
        code, mode = self._asked.addressing()
        return code != OK or mode == _ATS

    def _is_memory_of(self, node: int, total_bytes: int) -> bool:
        """Say whether a NUMA node is the card's memory, and not merely the CPUs next to it.

        A node is a GPU's where no CPU is in it and it is about as large as the card; other memory
        without CPUs (CXL) has another size. Where the kernel shows no nodes, or a part of the
        memory only, the chip's name decides.
        """
        folder = self._files.sys / f"devices/system/node/node{node}"
        if read_text(folder / "cpulist"):
            return False
        size_bytes = kilobytes(read_text(folder / "meminfo").partition("MemTotal:")[2]) or 0
        about = abs(size_bytes - total_bytes) <= total_bytes / 4
        return about or _SUPERCHIP.search(self._card.device.name) is not None

    def shared(self, uses: tuple[ProcessUse, ...] | None) -> Memory:
        """Return the memory of a card that shares the host's."""
        if uses is None and "C" in self._card.unlisted:
            self._card.state = "unsupported"
        return host_memory(self._files.proc, uses)

    def doubt(self, memory: Memory, largest_bytes: int) -> bool:
        """Say whether the driver's figures cannot be true beside its process list.

        Seen are drivers that report that nothing is in use, or a total smaller than what one
        process holds (``largest_bytes``). It says nothing of the kind of memory: that is the
        chip's.
        """
        if largest_bytes > (memory.total_bytes or 0):
            return True
        # Where "free" holds the reserve, little in use comes out as none: the driver's own figure
        # then still covers the process.
        least_bytes = max(_NOTICED_BYTES, self._used_bytes + 1)
        return memory.used_bytes == 0 and largest_bytes >= least_bytes
