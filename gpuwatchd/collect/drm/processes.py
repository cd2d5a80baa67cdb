"""Who has AMD and Intel cards open, and what each holds: /proc/PID/fdinfo and KFD.

Reading another user's open files takes rights that a user's daemon does not have. Such processes
are not listed, and the answer says how many there are: what they hold is unknown, not nothing.
KFD (AMD's compute driver) names its processes to everybody. **Not verified on hardware**.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.collect.drm.fdinfo import Busy, Client, parse
from gpuwatchd.collect.drm.process_names import is_contained
from gpuwatchd.collect.drm.sysfs import compute_devices, number, read_text, word
from gpuwatchd.core.model import ProcessKey, ProcessUse

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


class _Tally:
    """What one process holds on one card."""

    __slots__ = ("compute", "engines", "held", "kfd")

    def __init__(self) -> None:
        self.held: int | None = None
        self.kfd: int | None = None
        self.compute = False
        self.engines: dict[str, float] = {}

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

    Parameters
    ----------
    proc, sys
        Where /proc and /sys are.
    rescan_s
        Time between two looks through everybody's open files; what is known is read every time.
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

        Parameters
        ----------
        mono_s
            Monotonic clock, seconds.
        cards
            (PCI address, whether host memory counts) of the cards to look for.
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
                text = self._fdinfo(pid, descriptor)
                if text is None:
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

    def _fdinfo(self, pid: int, descriptor: int) -> str | None:
        try:
            return read_text(f"{self._proc}/{pid}/fdinfo/{descriptor}", _FDINFO_BYTES)
        except OSError:
            return None

    # ---- the slow look --------------------------------------------------------------------------

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

    # ---- KFD ------------------------------------------------------------------------------------

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
