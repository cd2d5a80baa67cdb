"""Cards that fall asleep (a laptop's): which of them may be read now, from files alone.

Initialising NVML wakes a card, an open handle keeps it awake for ever, and every look at it sets
its idle time back. So a card that may sleep is read only while it is awake *and* somebody else
keeps it so. Read here are ``vendor``, ``class`` and ``power/*`` in sysfs and the driver's ``power``
file; not PCI's ``config`` and not the driver's ``information``, whose reading wakes the card.

Not verified on hardware.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from gpuwatchd.collect.nvml.driver_files import nvidia_cards, read_text

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.core.model import DeviceReading

ALONE_S: Final = 20.0
"""A card that stays awake for so long without us is kept awake by somebody: it would have gone to
sleep within about ten seconds."""
IDLE_S: Final = 30.0
"""A card that computes nothing for so long is let go, so that it may fall asleep."""
LONGEST_S: Final = 600.0
LOOK_AGAIN_S: Final = 10.0
"""Time between two looks through the descriptors of processes."""
_NODE: Final = re.compile(r"/dev/nvidia\d+\b")


class PowerManagedCard:
    """One card that may fall asleep.

    Attributes
    ----------
    bus
        Its PCI address as sysfs writes it.
    asleep
        Whether it slept at the last look.
    """

    def __init__(self, folder: Path) -> None:
        self.bus = folder.name
        self.folder = folder
        self.asleep = False
        self.awake_since_s: float | None = None
        self.alone_s = ALONE_S
        self.idle_s = IDLE_S
        self._idle_since_s: float | None = None
        self._rest_until_s = 0.0
        self._used_bytes: int | None = None
        self._looked_at_s = float("-inf")
        self._seen = False

    def awake(self, mono_s: float) -> bool:
        """Look at its state; return whether it is awake."""
        self.asleep = read_text(self.folder / "power/runtime_status") != "active"
        if self.asleep:
            self.awake_since_s = None
            self.alone_s, self.idle_s = ALONE_S, IDLE_S
            self._rest_until_s = 0.0
        elif self.awake_since_s is None:
            self.awake_since_s = mono_s
        return not self.asleep

    def is_kept_awake(self, mono_s: float, proc: Path, *, only_card: bool) -> bool:
        """Say whether somebody else keeps it awake, asked while we hold nothing.

        The kernel's count of users says so where it is published. Else a process of ours that has
        the card open says so, and what other users have open cannot be seen: there, that the card
        does not fall asleep says it.
        """
        if mono_s < self._rest_until_s or self.awake_since_s is None:
            return False
        usage = read_text(self.folder / "power/runtime_usage")
        if usage.lstrip("-").isdecimal():
            return int(usage) > 0
        if mono_s - self.awake_since_s >= self.alone_s:
            return True
        if only_card and mono_s - self._looked_at_s >= LOOK_AGAIN_S:
            self._looked_at_s = mono_s
            self._seen = _is_open(proc)
        return self._seen and only_card

    def saw(self, reading: DeviceReading, mono_s: float) -> None:
        """Take over what a read of the card showed."""
        if reading.uses:
            self.alone_s = ALONE_S
        idle = not reading.util_pct and reading.used_bytes == self._used_bytes
        self._used_bytes = reading.used_bytes
        if not idle:
            self._idle_since_s = None
            self.idle_s = IDLE_S
        elif self._idle_since_s is None:
            self._idle_since_s = mono_s
        unused = reading.uses == ()
        since_s = mono_s if self._idle_since_s is None else self._idle_since_s
        if unused or mono_s - since_s >= self.idle_s:
            self._rest(mono_s, unused=unused)

    def _rest(self, mono_s: float, *, unused: bool) -> None:
        """Let it go for a while; the next time is put off further while it does not sleep."""
        self._idle_since_s = None
        self.awake_since_s = mono_s
        self._rest_until_s = mono_s + self.alone_s
        self._seen = False
        if unused:
            self.alone_s = min(2 * self.alone_s, LONGEST_S)
        else:
            self.idle_s = min(2 * self.idle_s, LONGEST_S)

    def rests(self, mono_s: float) -> bool:
        """Say whether it is left alone although it is awake and in use."""
        return mono_s < self._rest_until_s


class PowerManagedCards:
    """Every card of the machine that may fall asleep."""

    def __init__(self, proc: Path, sys: Path) -> None:
        self._proc = proc
        self._sys = sys
        self.buses: tuple[str, ...] = ()
        """PCI addresses of all NVIDIA cards, sleeping or not."""
        self.known: dict[str, PowerManagedCard] = {}
        self._first = True
        self.woken = False
        """A read of another card has woken one of these: from now on it is all or nothing."""

    def find(self) -> None:
        """Look which cards there are and which of them may sleep; at a start and now and then."""
        folders = nvidia_cards(self._sys)
        self.buses = tuple(folder.name for folder in folders)
        self.known = {
            folder.name: self.known.get(folder.name) or PowerManagedCard(folder)
            for folder in folders
            if self._may_sleep(folder)
        }

    def _may_sleep(self, folder: Path) -> bool:
        status = read_text(folder / "power/runtime_status")
        if status in {"suspended", "suspending", "resuming"}:
            return True
        if status != "active" or read_text(folder / "power/control") == "on":
            return False
        return "enabled" in _d3_status(self._proc / "driver/nvidia/gpus" / folder.name / "power")

    def left_alone(self, mono_s: float, held: frozenset[str]) -> frozenset[str]:
        """Return the cards that must not be touched now.

        Parameters
        ----------
        held
            Cards that we hold ourselves, which says nothing about others.
        """
        if not self.known:
            return frozenset()
        alone: set[str] = set()
        for bus, card in self.known.items():
            awake = card.awake(mono_s)
            if bus in held:
                # With fine-grained power management a card can sleep although we hold it.
                if not awake or card.rests(mono_s):
                    alone.add(bus)
            elif self._first and awake:
                pass  # one look at the start tells who it is, and costs it some seconds of sleep
            elif not awake or not card.is_kept_awake(
                mono_s, self._proc, only_card=len(self.buses) == 1
            ):
                alone.add(bus)
        self._first = False
        if alone and self.woken:
            return frozenset(self.buses)
        return frozenset(alone)

    def woke(self, asleep: frozenset[str]) -> bool:
        """Say whether one of these cards, which slept before a start, is awake after it."""
        return any(
            read_text(self.known[bus].folder / "power/runtime_status") == "active"
            for bus in asleep
            if bus in self.known
        )

    def asleep(self) -> frozenset[str]:
        """Return the cards that slept at the last look."""
        return frozenset(bus for bus, card in self.known.items() if card.asleep)


def _d3_status(file: Path) -> str:
    for line in read_text(file).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "Runtime D3 status":
            return value.strip().lower()
    return ""


def _is_open(proc: Path) -> bool:
    """Say whether a process whose descriptors we may see, other than this one, has a card open."""
    own = str(os.getpid())
    try:
        pids = [pid.name for pid in proc.iterdir() if pid.name.isdecimal() and pid.name != own]
    except OSError:
        return False
    for pid in pids:
        folder = proc / pid / "fd"
        try:
            names = os.listdir(folder)  # noqa: PTH208 - names alone
        except OSError:
            continue
        for name in names:
            try:
                if _NODE.match(os.readlink(folder / name)):  # noqa: PTH115 - thousands of them
                    return True
            except OSError:
                continue
    return False
