"""The driver as a whole: starting and ending NVML, and saying what is wrong with it.

Each of these calls may take seconds or hang, so each runs in a lane of its own and returns what it
found instead of changing anything. Nothing here imports pynvml.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gpuwatchd.collect.nvml import library as nvml_library
from gpuwatchd.collect.nvml.card import code_of
from gpuwatchd.collect.nvml.system import Library, in_container, kernel_module_version
from gpuwatchd.core.model import Availability
from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.collect.nvml.library import Flaw
    from gpuwatchd.collect.nvml.reader import Reader

NO_PERMISSION, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, VERSION_MISMATCH = 4, 9, 12, 18
NO_ATTACH: Final = 2
"""Flag of nvmlInitWithFlags: touch only the cards that are asked for."""


class Opened(NamedTuple):
    """What a start came to."""

    is_open: bool
    cards: int = 0
    """How many cards NVML counts."""
    code: int = 0
    """NVML's code of what it refused; 0 when it refused nothing."""


def silence(gone: Availability | None, stuck_s: float, *, started_before: bool) -> Availability:
    """Return what to say while NVML is not open and a call to the driver has not returned.

    Parameters
    ----------
    gone
        Why NVML itself is gone; None when it is not.
    stuck_s
        For how long the call has not returned.
    started_before
        Whether a GPU has answered before.
    """
    silent = f"has not answered for {stuck_s:.0f} s"
    if gone is not None:
        reason = f"{gone.reason}; a call to the driver {silent}"
    elif started_before:
        reason = f"the NVIDIA driver is being started anew or let go, and {silent}"
    else:
        reason = f"the NVIDIA driver {silent}"
    return Availability(ok=False, reason=reason, hint="dmesg says more")


class Driver:
    """Calls that concern no single card.

    Parameters
    ----------
    api
        The pynvml module.
    reader
        Learns of the library as soon as it is loaded.
    proc, sys
        Where /proc and /sys are.
    """

    def __init__(self, api: Any, reader: Reader, proc: Path, sys: Path) -> None:
        self._api = api
        self._error: type[Exception] = api.NVMLError
        self._reader = reader
        self._proc = proc
        self._sys = sys
        self._library = Library(proc)
        self._version: str | None = None
        self._flaw: Flaw | None = None
        """Why a library that is there could not be loaded."""
        self.needs_restart = False
        """True when the library file was replaced: only a new process can load the new one."""

    def open(self, *, attach: bool) -> Opened:
        """Start NVML; ``attach`` as a rule, not where a card must not be woken. Never raises."""
        if self._version is None and (flaw := nvml_library.danger()) is not None:
            self._flaw = flaw
            return Opened(is_open=False, code=LIBRARY_NOT_FOUND)
        try:
            if attach:
                self._api.nvmlInit()
            else:
                self._api.nvmlInitWithFlags(NO_ATTACH)
        except self._error as error:
            if code_of(error) == LIBRARY_NOT_FOUND:
                self._flaw = nvml_library.refusal()
            return Opened(is_open=False, code=code_of(error))
        finally:
            self._library.note()
            self._version = self._version or self._library_version()
        self._reader.attach()
        return self.count()

    def count(self) -> Opened:
        """Ask how many cards there are. Never raises."""
        try:
            return Opened(is_open=True, cards=self._api.nvmlDeviceGetCount())
        except self._error as error:
            return Opened(is_open=True, code=code_of(error))

    def close(self) -> None:
        """End NVML."""
        # A library that calls itself uninitialised is as good as shut down.
        with contextlib.suppress(self._error):
            self._api.nvmlShutdown()

    def _library_version(self) -> str | None:
        try:
            version = clean(self._api.nvmlSystemGetNVMLVersion())
        except (self._error, UnicodeError):
            return None  # no library, or one that does not say
        # "12.550.54.15" is CUDA's major version, then the driver's.
        return version.partition(".")[2] if version.count(".") >= 2 else version

    def module_version(self) -> str | None:
        """Return the version of the loaded kernel module."""
        return kernel_module_version(self._proc, self._sys)

    def look_for_library(self) -> bool:
        """Note and say whether a library that fits lies ready for a new process."""
        if not self.needs_restart:
            fresh = self._library.replaced_by()
            module = self.module_version()
            # Half-way through an upgrade the file is new and the module is not: wait for both.
            self.needs_restart = fresh is not None and fresh in {"", module}
        return self.needs_restart

    def explain(self, code: int) -> Availability:
        """Return one sentence and one hint for what NVML refused to start with."""
        if code == LIBRARY_NOT_FOUND and self._flaw is not None:
            why = clean(self._flaw.words, limit=1024)
            reason = f"the NVIDIA library cannot be loaded: {why}"
            hint = self._flaw.hint
        elif code == LIBRARY_NOT_FOUND:
            reason = "no NVIDIA driver is installed here: libnvidia-ml.so.1 was not found"
            hint = "install the NVIDIA driver; in a container, start it with --gpus all"
        elif code == NO_PERMISSION:
            reason = "the NVIDIA driver refuses this user"
            hint = "ls -l /dev/nvidia*: this user, or its container, must be allowed to open them"
        elif code == DRIVER_NOT_LOADED:
            reason = "the NVIDIA driver is installed but not loaded"
            hint = "sudo modprobe nvidia, or reboot after an installation"
        elif code == VERSION_MISMATCH:
            module = self.module_version() or "of unknown version"
            library = self._version or "of unknown version"
            reason = f"NVIDIA library {library} does not fit the loaded kernel module {module}"
            if self.look_for_library():
                hint = "the daemon starts anew with the new library; else restart it"
            else:
                hint = "reboot, or reload the module"
        else:
            reason = f"NVML did not answer: {self._reader.text(code)}"
            hint = "nvidia-smi says more"
            if in_container(self._proc):
                # A reload of systemd on the host takes the GPUs away from a running container.
                hint = "restart the container: the host may have taken its GPUs away"
        return Availability(ok=False, reason=reason, hint=hint)
