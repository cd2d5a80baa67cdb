"""Who has AMD and Intel cards open, and what each holds: /proc/PID/fdinfo and KFD.

Reading another user's open files takes rights that a user's daemon does not have. Such processes
are not listed, and the answer says how many there are: what they hold is unknown, not nothing.
KFD (AMD's compute driver) names its processes to everybody. **Not verified on hardware**.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.analysis import frameworks
from gpuwatchd.collect.drm.sysfs import compute_devices, number, read_text, word
from gpuwatchd.core.model import ProcessInfo, ProcessKey, ProcessUse
from gpuwatchd.core.text import clean, mask_argv

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

KFD: Final = "/dev/kfd"
_KERNEL_THREAD: Final = 0x0020_0000
_GPU_FILE: Final = "vram_"
_FDINFO_BYTES: Final = 16 * 1024


class Holders(NamedTuple):
    """Who holds what on one card."""

    uses: tuple[ProcessUse, ...] | None
    """None: they are not known."""
    reason: str | None
    """Why there may be more that hold memory; None when these are all."""
    busy_pct: float | None
    """The busiest engine's share of the time since the last look, over all these processes."""


@dataclass
class _Tally:
    """What one process holds on one card."""

    held: int | None = None
    kfd: int | None = None
    compute: bool = False
    engines: dict[str, float] = field(default_factory=dict)

    def add(self, client: Client, shares: dict[str, float], *, unified: bool) -> None:
        held = client.held_bytes(unified=unified)
        if held is not None:
            self.held = held + (self.held or 0)
        self.compute = self.compute or client.computes
        for engine, share in shares.items():
            self.engines[engine] = self.engines.get(engine, 0.0) + share

    def use(self, pid: int) -> ProcessUse | None:
        """Return the entry of the list; None for one that has the card open and holds nothing."""
        # Two accountings of the same memory: the larger is nearer to the truth, the sum is not.
        known = [amount for amount in (self.held, self.kfd) if amount is not None]
        if known and max(known) == 0 and not any(self.engines.values()):
            return None
        return ProcessUse(
            key=ProcessKey(pid=pid, started_at_s=None),
            used_bytes=max(known) if known else None,
            kind="C" if self.compute or self.kfd is not None else "G",
            sm_pct=min(100.0, 100 * max(self.engines.values())) if self.engines else None,
        )


class Processes:
    """The processes that have a card of ``/dev/dri`` or ``/dev/kfd`` open.

    Everybody's open files are looked through every ``rescan_s``; what is known is read every time.
    """

    def __init__(self, proc: Path, sys: Path, *, rescan_s: float = 30.0) -> None:
        self._proc = proc
        self._sys = sys
        self._rescan_s = rescan_s
        self._scan_at_mono_s = float("-inf")
        self._open: dict[int, tuple[int, ...]] = {}
        """pid -> its descriptors of cards."""
        self._compute: frozenset[int] = frozenset()
        """Those that have /dev/kfd open."""
        self._kfd_pids: frozenset[int] = frozenset()
        self._parsed: dict[tuple[int, int], tuple[str, Client | None]] = {}
        """(pid, descriptor) -> what it said last, and what that means."""
        self._kfd_files: dict[int, dict[str, str]] = {}
        """pid -> KFD's number of a card it holds memory on -> PCI address."""
        self._unreadable = 0
        self._gpu_ids: dict[str, str] = {}
        self._busy = Busy()
        self._is_contained = is_contained(proc)

    def holders(self, mono_s: float, cards: Iterable[tuple[str, bool]]) -> dict[str, Holders]:
        """Return PCI address -> who holds the card.

        ``cards`` are those to look for: (PCI address, whether host memory counts).
        """
        due = mono_s >= self._scan_at_mono_s
        kfd = self._kfd(every=due)
        if due or not kfd.keys() <= self._kfd_pids:
            self._scan()
            self._kfd_pids = frozenset(kfd)
            self._scan_at_mono_s = mono_s + self._rescan_s
        unified = dict(cards)
        tallies: dict[str, dict[int, _Tally]] = {pdev: {} for pdev in unified}
        engines: dict[str, dict[str, float]] = {pdev: {} for pdev in unified}
        self._busy.start(mono_s)
        met: set[object] = set()
        for pid, descriptor, client in self._clients():
            pdev = client.pdev
            if pdev is None or pdev not in unified:
                continue
            mark = client.client_id if client.client_id is not None else (pid, descriptor)
            if (pdev, mark) in met:
                continue  # duplicated, or inherited by a fork: it was counted
            met.add((pdev, mark))
            shares = self._busy.of((pdev, mark), client)
            tally = tallies[pdev].setdefault(pid, _Tally())
            tally.add(client, shares, unified=unified[pdev])
            tally.compute = tally.compute or pid in self._compute
            for engine, share in shares.items():
                engines[pdev][engine] = engines[pdev].get(engine, 0.0) + share
        self._busy.forget(met)
        for pid, held in kfd.items():
            for pdev, amount in held.items():
                if pdev in unified:
                    tally = tallies[pdev].setdefault(pid, _Tally())
                    tally.kfd = amount + (tally.kfd or 0)
        holders = {}
        for pdev, by_pid in tallies.items():
            uses = tuple(use for pid, one in sorted(by_pid.items()) if (use := one.use(pid)))
            busiest = max(engines[pdev].values(), default=None)
            busy_pct = None if busiest is None else min(100.0, 100 * busiest)
            holders[pdev] = Holders(uses, self._reason(), busy_pct)
        return holders

    def _reason(self) -> str | None:
        count = self._unreadable
        if not count:
            return None
        some = "1 process" if count == 1 else f"{count} processes"
        return f"the open files of {some} of other users cannot be read: what they hold is unknown"

    def _clients(self) -> Iterable[tuple[int, int, Client]]:
        """Yield (pid, descriptor, client), the lowest pid first: parents before their forks."""
        for pid, descriptors in sorted(self._open.items()):
            kept = []
            for descriptor in descriptors:
                try:
                    text = read_text(f"{self._proc}/{pid}/fdinfo/{descriptor}", _FDINFO_BYTES)
                except OSError:
                    self._parsed.pop((pid, descriptor), None)
                    continue
                kept.append(descriptor)
                before, client = self._parsed.get((pid, descriptor), ("", None))
                if text != before:  # whoever is idle says the same again
                    client = parse(text)
                    self._parsed[pid, descriptor] = (text, client)
                if client is not None:
                    yield pid, descriptor, client
            if len(kept) != len(descriptors):
                self._open[pid] = tuple(kept)

    def _scan(self) -> None:
        """Look through everybody's open files."""
        found: dict[int, tuple[int, ...]] = {}
        compute: set[int] = set()
        self._unreadable = 0
        for pid in sorted(_numbers_in(self._proc, must=True)):
            descriptors = self._cards_of(pid, compute)
            if descriptors:
                found[pid] = descriptors
        self._open, self._compute = found, frozenset(compute)
        there = {(pid, descriptor) for pid, known in found.items() for descriptor in known}
        self._parsed = {at: pair for at, pair in self._parsed.items() if at in there}
        self._gpu_ids = compute_devices(self._sys)

    def _cards_of(self, pid: int, compute: set[int]) -> tuple[int, ...]:
        found = []
        try:
            with os.scandir(self._proc / str(pid) / "fd") as entries:
                for entry in entries:
                    target = _target(entry.path)
                    if target == KFD:
                        compute.add(pid)
                    elif target.startswith("/dev/dri/") and entry.name.isdecimal():
                        found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            return ()  # it has ended
        except OSError:
            # Forbidden; or we have too many files open ourselves: it holds something or nothing.
            self._unreadable += not self._is_kernel_thread(pid)
        return tuple(sorted(found))

    def _is_kernel_thread(self, pid: int) -> bool:
        fields = word(self._proc / str(pid) / "stat").rpartition(")")[2].split()
        return len(fields) > 6 and fields[6].isdecimal() and int(fields[6]) & _KERNEL_THREAD != 0

    def _kfd(self, *, every: bool) -> dict[int, dict[str, int]]:
        """Return pid -> PCI address -> bytes, of the processes that compute on AMD cards.

        Its pids are those of the host: in a container they mean other processes. Each process has
        a file for every card, most of them 0: between two slow looks (``every``) only those are
        read that were not, and those of new processes.
        """
        folder = self._sys / "class/kfd/kfd/proc"
        pids = _numbers_in(folder)
        if not pids or self._is_contained:
            return {}
        if not self._gpu_ids:
            self._gpu_ids = compute_devices(self._sys)
        found: dict[int, dict[str, int]] = {}
        before, self._kfd_files = self._kfd_files, {}
        for pid in pids:
            held = found.setdefault(pid, {})
            values = None if every else before.get(pid)
            used = self._kfd_files[pid] = {} if values is None else values
            for gpu_id, pdev in (self._gpu_ids if values is None else values).items():
                amount = number(f"{folder}/{pid}/{_GPU_FILE}{gpu_id}")
                if amount is None:
                    continue
                held[pdev] = amount + held.get(pdev, 0)
                if amount and values is None:
                    used[gpu_id] = pdev
        return found


def _numbers_in(folder: Path, *, must: bool = False) -> list[int]:
    """Return the numbers among the names in a folder: its pids.

    Raises
    ------
    OSError
        When it ``must`` be there and cannot be listed: nobody is not the same as unknown.
    """
    try:
        with os.scandir(folder) as entries:
            return [int(entry.name) for entry in entries if entry.name.isdecimal()]
    except OSError:
        if must:
            raise
        return []


def _target(link: str | Path) -> str:
    try:
        # Thousands of links in one look: a Path each would cost more than the links.
        return os.readlink(link).removesuffix(" (deleted)")  # noqa: PTH115
    except OSError:
        return ""


# Who the processes of this container are.
# The pids that drivers name belong to the host, so that inside a container nobody is named. Here
# they come from the container's own /proc: they are local, and this source says itself who they
# are.

_INITIAL: Final = "pid:[4026531836]"
"""What /proc/self/ns/pid is on a host: the number is part of the kernel's interface."""
_ARGV_BYTES: Final = 16 * 1024
_STAT_BYTES: Final = 1 << 20
"""The line before the boot time counts every interrupt of every processor."""


def is_contained(proc: Path) -> bool:
    """Say whether this process has a pid namespace of its own."""
    try:
        return str((proc / "self/ns/pid").readlink()) != _INITIAL
    except OSError:
        return False


class Names:
    """Identities, each read once per life of a process."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._known: dict[tuple[int, int], ProcessInfo] = {}
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._booted_at_s: int | None = None

    def of(self, pids: Iterable[int]) -> dict[int, ProcessInfo]:
        """Return pid -> who it is; a process that has just ended is left out."""
        if self._booted_at_s is None:
            stat = word(f"{self._proc}/stat", _STAT_BYTES)
            booted = re.search(r"^btime (\d+)$", stat, re.MULTILINE | re.ASCII)
            self._booted_at_s = int(booted[1]) if booted else None
        processes: dict[int, ProcessInfo] = {}
        kept: dict[tuple[int, int], ProcessInfo] = {}
        for pid in pids:
            name, _, rest = word(f"{self._proc}/{pid}/stat").rpartition(")")
            fields = rest.split()
            if len(fields) < 20 or not fields[19].isdecimal():
                continue
            identity = (pid, int(fields[19]))
            info = self._known.get(identity) or self._read(identity, name.partition("(")[2], fields)
            processes[pid] = kept[identity] = info
        self._known = kept
        return processes

    def _read(self, identity: tuple[int, int], name: str, fields: list[str]) -> ProcessInfo:
        pid, ticks = identity
        raw = word(f"{self._proc}/{pid}/cmdline", _ARGV_BYTES)
        argv = raw.rstrip("\0").split("\0") if raw else []
        framework, sure = frameworks.recognise(argv, (), name)
        booted_s = self._booted_at_s
        started_at_s = None if booted_s is None else booted_s + ticks / self._ticks_per_s
        return ProcessInfo(
            key=ProcessKey(pid=pid, started_at_s=started_at_s),
            name=clean(name) or f"pid {pid}",
            argv=mask_argv(argv),
            parent_pid=int(fields[1]) if fields[1].isdecimal() else None,
            state=clean(fields[0], limit=1),
            framework=framework,
            framework_sure=sure,
            role=frameworks.role(argv, name),
        )


# What /proc/PID/fdinfo/FD of an open graphics device says, as the kernel documents it.
# Pure: text in, values out. The format is ``key: value [unit]`` (kernel documentation, "DRM
# client usage stats" and the pages of the amdgpu, i915 and xe drivers). **Not verified on
# hardware**: the tests use text of the documented shape.

_UNITS: Final = {"": 1, "ns": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_KINDS: Final = ("engine-capacity-", "engine-", "total-cycles-", "cycles-", "resident-", "memory-")
"""Beginnings of the keys that are followed by a name; the longer one first."""
_LINE: Final = re.compile(
    rf"^drm-({'|'.join(_KINDS)}|)([\w.-]+):[ \t]*(\S+)(?:[ \t]+(\w+))?[ \t]*$",
    re.MULTILINE | re.ASCII,
)
_MOST_DIGITS: Final = 19
"""Of a number that the kernel may write here; with more it is none of ours."""
_OWN_MEMORY: Final = re.compile(r"vram\d*|local\d*")
"""Regions that lie on the card: amdgpu "vram", xe "vram0", i915 "local0"."""
_HOST_MEMORY: Final = re.compile(r"gtt|system\d*|stolen(-system\d*)?")
"""Regions that lie in the host's memory. Any other region is kept and counted nowhere."""


class Client(NamedTuple):
    """One open file of one driver: what it holds and how long it has computed."""

    driver: str
    pdev: str | None
    """PCI address, as sysfs writes it."""
    client_id: int | None
    """Unique per device; the same on duplicated and inherited descriptors."""
    resident: dict[str, int]
    """Region -> bytes in use; a region that the driver does not report is missing."""
    engines: dict[str, int]
    """Engine -> nanoseconds of work, or cycles where the driver counts those."""
    ticks: dict[str, int]
    """Engine -> cycles that have passed in all (xe); empty where ``engines`` is nanoseconds."""
    capacity: dict[str, int]
    """Engine -> number of equal engines; 1 where it is missing."""

    def held_bytes(self, *, unified: bool) -> int | None:
        """Return the bytes that count: on the card, and in the host's memory too when shared."""
        found = [
            amount
            for region, amount in self.resident.items()
            if _OWN_MEMORY.fullmatch(region) or (unified and _HOST_MEMORY.fullmatch(region))
        ]
        return sum(found) if found else None

    @property
    def computes(self) -> bool:
        """Whether it has used an engine that only computes."""
        return any(self.engines.get(name, 0) > 0 for name in ("compute", "ccs"))


def parse(text: str) -> Client | None:
    r"""Return what one fdinfo file says; None when it is not of a graphics device.

    ``drm-resident-*`` is what is in use; ``drm-memory-*`` is the older word for the same, so that
    both are never added. ``drm-total-*`` was only asked for and may not be backed: it is left out.

    Examples
    --------
    >>> client = parse("drm-driver:\tamdgpu\ndrm-client-id:\t7\ndrm-memory-vram:\t4 KiB\n")
    >>> client.client_id, client.held_bytes(unified=False)
    (7, 4096)
    >>> parse("pos:\t0\nflags:\t02\n") is None
    True
    """
    values: dict[str, dict[str, int]] = {kind: {} for kind in _KINDS}
    plain: dict[str, str] = {}
    for kind, name, value, unit in _LINE.findall(text):
        if not kind:
            plain[name] = value
            continue
        factor = _UNITS.get(unit)
        if factor is not None and value.isdecimal() and len(value) <= _MOST_DIGITS:
            values[kind][name] = int(value) * factor
    driver = plain.get("driver", "").lower()
    if not driver:
        return None
    engines, client_id = values["engine-"], plain.get("client-id", "")
    is_number = client_id.isdecimal() and len(client_id) <= _MOST_DIGITS
    return Client(
        driver=driver,
        pdev=plain.get("pdev", "").lower() or None,
        client_id=int(client_id) if is_number else None,
        resident=values["memory-"] | values["resident-"],
        engines=engines or values["cycles-"],
        ticks={} if engines else values["total-cycles-"],
        capacity={name: number for name, number in values["engine-capacity-"].items() if number},
    )


class Busy:
    """How busy engines were between two looks, from counters that may run backwards.

    The kernel allows a counter to fall behind for a while and asks readers to stay with the larger
    value until it has caught up.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[object, str], tuple[int, int]] = {}
        self._before_ns: int | None = None
        self._step_ns = 0

    def start(self, mono_s: float) -> None:
        """Begin a look at an instant of the monotonic clock, seconds."""
        now_ns = int(mono_s * 1e9)
        self._step_ns = 0 if self._before_ns is None else now_ns - self._before_ns
        self._before_ns = now_ns

    def of(self, key: object, client: Client) -> dict[str, float]:
        """Return engine -> share of its time that a client used since the last look, 0-1."""
        shares: dict[str, float] = {}
        for engine, raw in client.engines.items():
            work, whole = self._seen.get((key, engine), (raw, client.ticks.get(engine, 0)))
            count = max(raw, work)
            ticks = max(client.ticks.get(engine, 0), whole)
            known = (key, engine) in self._seen
            self._seen[key, engine] = (count, ticks)
            span = ticks - whole if client.ticks else self._step_ns
            if known and span > 0:
                room = span * client.capacity.get(engine, 1)
                shares[engine] = min(1.0, (count - work) / room)
        return shares

    def forget(self, keys: set[object]) -> None:
        """Keep the counters of these clients only."""
        if any(key not in keys for key, _ in self._seen):
            self._seen = {at: value for at, value in self._seen.items() if at[0] in keys}
