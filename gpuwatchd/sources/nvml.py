"""NVIDIA GPUs, through NVML: the only file that imports pynvml.

NVML is initialised once and held for life: initialising it wakes cards and, repeated for hours,
hangs. A card is its UUID; index and handle are not identity. Whatever one query, one process list
or one card refuses is a fault of that part alone: the rest of the sample is complete.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pynvml

from gpuwatchd.errors import SourceUnavailable
from gpuwatchd.model import Availability, Device, DeviceReading, Fault, Sample
from gpuwatchd.sources.nvml_card import (
    GLOBAL_CODES,
    Card,
    code_of,
    state_of,
)
from gpuwatchd.sources.nvml_reader import Reader
from gpuwatchd.sources.nvml_scan import Scanner, known_cards, merge
from gpuwatchd.sources.nvml_system import (
    all_asleep,
    kernel_module_version,
    library_replaced,
    may_sleep,
    read_text,
)
from gpuwatchd.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.model import DeviceState

NVMLError: type[Exception] = pynvml.NVMLError
DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, VERSION_MISMATCH = 9, 12, 18

ABSENT_WAIT_S = 5.0
"""Shortest time between tries where no GPU was ever seen; whoever reads paces beyond that."""
LOST_WAIT_S = (1.0, 60.0)
"""First and longest pause between tries once a GPU has answered and went away."""
ASLEEP_WAIT_S = (5.0, 15.0)
"""Pause before looking again at a card that sleeps, and at one that was let go so that it may."""


class NvmlSource:
    """Every NVIDIA GPU and MIG instance of this machine.

    Parameters
    ----------
    slow_every
        Temperature, power and clock are asked for every so many reads.
    fresh_s
        A carried value older than this is unknown.
    rescan_s
        Time between two looks for new cards and MIG instances.
    proc_root, sys_root
        Where /proc and /sys are.
    clock, monotonic
        Wall clock and monotonic clock, seconds.
    """

    name = "nvml"

    def __init__(
        self,
        *,
        slow_every: int = 3,
        fresh_s: float = 30.0,
        rescan_s: float = 60.0,
        proc_root: str = "/proc",
        sys_root: str = "/sys",
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rescan_s = rescan_s
        self._proc = Path(proc_root)
        self._sys = Path(sys_root)
        self._clock = clock
        self._monotonic = monotonic
        self._boot_id = read_text(self._proc / "sys/kernel/random/boot_id")
        self._cards: dict[str, Card] = {}
        self._reader = Reader(pynvml, self._proc, slow_every=max(1, slow_every), fresh_s=fresh_s)
        self._scanner = Scanner(pynvml)
        self._open = False
        self._may_sleep = False
        self._released = False
        self._retry_at_mono_s = 0.0
        self._reinit_at_mono_s: float | None = None
        self._rescan_at_mono_s = 0.0
        self._wait_s = 0.0
        self._why = Availability(ok=False, reason="NVML has not been asked yet")
        self._module_version: str | None = None
        self.needs_restart = False
        """True when the library file was replaced: only a new process can load the new one."""

    # ---- the protocol ---------------------------------------------------------------------------

    def probe(self) -> Availability:
        """Say whether there is an NVIDIA GPU here and, if not, what is missing. Never raises."""
        if not self._open and not self._released:
            self._start(self._monotonic())
        return self._why

    def devices(self) -> list[Device]:
        """Return the cards known now by index, each followed by its MIG instances."""
        return [card.device for card in self._cards.values()]

    def read(self) -> Sample:
        """Read every card once.

        Raises
        ------
        SourceUnavailable
            When no GPU was ever seen here; asked again later by itself.
        """
        taken_at_s, mono_s = self._clock(), self._monotonic()
        faults: list[Fault] = []
        self._prepare(mono_s, faults)
        readings = [self._read_or_blank(card, mono_s, faults) for card in self._cards.values()]
        self._after(mono_s, readings)
        self._reader.tick += 1
        return Sample(
            taken_at_s=taken_at_s,
            taken_mono_s=mono_s,
            boot_id=self._boot_id,
            readings=tuple(readings),
            faults=tuple(faults),
            events=self._reader.happened(),
        )

    def close(self) -> None:
        """Let go of the driver."""
        self._shutdown()

    def release(self, duration_s: float) -> None:
        """Let go of the driver for a while, so that a GPU can be reset or a module unloaded."""
        self._let_go("the driver was let go on request", self._monotonic() + duration_s)
        self._released = True

    # ---- NVML's life ----------------------------------------------------------------------------

    def _prepare(self, mono_s: float, faults: list[Fault]) -> None:
        due = self._reinit_at_mono_s
        if self._open and due is not None and mono_s >= due:
            self._shutdown()
            self._retry_at_mono_s = mono_s
        if not self._open and mono_s >= self._retry_at_mono_s:
            self._start(mono_s)
        elif self._open and mono_s >= self._rescan_at_mono_s:
            self._rescan(mono_s)
        if self._open:
            return
        if not self._cards:
            raise SourceUnavailable(self._why.reason, hint=self._why.hint)
        faults.append(Fault(where="nvml", why=self._why.reason))

    def _start(self, mono_s: float) -> None:
        """Initialise NVML and find the cards; on failure note why and when to try again."""
        self._released = False
        if all_asleep(self._sys):
            self._let_go("every NVIDIA GPU is asleep and is left so", mono_s + ASLEEP_WAIT_S[0])
            return
        try:
            pynvml.nvmlInit()
        except NVMLError as error:
            self._why = self._explain(code_of(error))
            self._mark("lost")
            self._pause(mono_s)
            return
        self._open = True
        self._reader.attach()
        self._module_version = kernel_module_version(self._proc, self._sys)
        self._may_sleep = may_sleep(self._proc, self._sys)
        for card in self._cards.values():
            card.forget_refusals()
        try:
            self._scan()
        except NVMLError as error:
            self._lose_all(mono_s, code_of(error))
            return
        self._rescan_at_mono_s = mono_s + self._rescan_s
        if self._cards:
            self._why = Availability(ok=True, reason=f"NVML sees {len(self._cards)} device(s)")
            return
        self._shutdown()
        self._why = Availability(
            ok=False,
            reason="the NVIDIA driver is loaded but lists no GPU",
            hint="check nvidia-smi, and that this user or container may open /dev/nvidia*",
        )
        self._pause(mono_s)

    def _rescan(self, mono_s: float) -> None:
        self._rescan_at_mono_s = mono_s + self._rescan_s
        if kernel_module_version(self._proc, self._sys) != self._module_version:
            # The module was exchanged: keeping the old handles can only hurt.
            self._shutdown()
            self._start(mono_s)
            return
        try:
            self._scan()
        except NVMLError as error:
            self._lose_all(mono_s, code_of(error))

    def _shutdown(self) -> None:
        if not self._open:
            return
        self._open = False
        self._reinit_at_mono_s = None
        for card in self._cards.values():
            card.handle = None
        # A library that calls itself uninitialised is as good as shut down.
        with contextlib.suppress(NVMLError):
            pynvml.nvmlShutdown()

    def _pause(self, mono_s: float) -> None:
        first, longest = LOST_WAIT_S if self._cards else (ABSENT_WAIT_S, ABSENT_WAIT_S)
        self._wait_s = min(longest, max(first, self._wait_s * 2))
        self._retry_at_mono_s = mono_s + self._wait_s

    def _lose_all(self, mono_s: float, code: int) -> None:
        """NVML itself is gone: drop every handle and come back later."""
        self._why = self._explain(code)
        self._shutdown()
        self._mark("lost")
        self._pause(mono_s)

    def _let_go(self, why: str, until_mono_s: float) -> None:
        """Shut NVML down although nothing is wrong."""
        self._shutdown()
        self._mark("asleep")
        self._why = Availability(ok=False, reason=why)
        self._retry_at_mono_s = until_mono_s

    def _mark(self, state: DeviceState) -> None:
        for card in self._cards.values():
            card.state = state

    def _after(self, mono_s: float, readings: list[DeviceReading]) -> None:
        """Plan a fresh start when a card was lost; forget the pauses when all is well."""
        if not self._open:
            return
        if self._may_sleep and all(reading.uses == () for reading in readings):
            # Holding NVML keeps a laptop's card awake for ever; nobody needs it now.
            self._let_go("the GPU is unused and may fall asleep", mono_s + ASLEEP_WAIT_S[1])
        elif not any(card.state == "lost" for card in self._cards.values()):
            self._wait_s = 0.0
            self._reinit_at_mono_s = None
        elif self._reinit_at_mono_s is None:
            self._pause(mono_s)
            self._reinit_at_mono_s = self._retry_at_mono_s

    def _explain(self, code: int) -> Availability:
        """Return one sentence and one hint for what NVML refused to start with."""
        if code == LIBRARY_NOT_FOUND:
            reason = "libnvidia-ml.so.1 was not found: no NVIDIA driver is installed here"
            hint = "install the NVIDIA driver; in a container, start it with --gpus all"
        elif code == DRIVER_NOT_LOADED:
            reason = "the NVIDIA driver is installed but not loaded"
            hint = "sudo modprobe nvidia, or reboot after an installation"
        elif code == VERSION_MISMATCH:
            self.needs_restart = library_replaced(self._proc)
            library = self._library_version() or "of unknown version"
            module = kernel_module_version(self._proc, self._sys) or "of unknown version"
            reason = f"NVIDIA library {library} does not fit the loaded kernel module {module}"
            hint = "restart gpuwatchd" if self.needs_restart else "reboot, or reload the module"
        else:
            reason = f"NVML did not answer: {self._reader.text(code)}"
            hint = "nvidia-smi says more; in a container, restart the container"
        return Availability(ok=False, reason=reason, hint=hint)

    @staticmethod
    def _library_version() -> str | None:
        try:
            version = clean(pynvml.nvmlSystemGetNVMLVersion())
        except NVMLError:
            return None
        # "12.550.54.15" is CUDA's major version, then the driver's.
        return version.partition(".")[2] if version.count(".") >= 2 else version

    def _scan(self) -> None:
        """Bring the table of cards up to date. Raises NVMLError when NVML itself is gone."""
        self._cards = merge(self._cards, self._scanner.look(known_cards(self._cards)))

    # ---- reading one card -----------------------------------------------------------------------

    def _read_or_blank(self, card: Card, mono_s: float, faults: list[Fault]) -> DeviceReading:
        """Return the reading of one card, or an empty one that says why. Never raises."""
        if not self._open or card.handle is None:
            if self._open:
                faults.append(card.fault(card.why()))
            return card.blank()
        card.state = "ok"
        try:
            return self._reader.read(card, mono_s, faults)
        except NVMLError as error:
            code = code_of(error)
            if code in GLOBAL_CODES:
                self._lose_all(mono_s, code)
                faults.append(Fault(where="nvml", why=self._why.reason))
            else:
                # Calls on the handle of a lost card may crash: it is found again by its UUID.
                card.handle, card.state = None, state_of(code)
                faults.append(card.fault(self._reader.text(code)))
            return card.blank()
