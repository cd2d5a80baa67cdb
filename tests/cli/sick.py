"""A machine of files on which a fault can be planted, and what ``doctor`` says of it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwatchd.cli import doctor
from gpuwatchd.cli.doctor import CheckContext
from gpuwatchd.cli.global_flags import Globals
from gpuwatchd.core import config
from gpuwatchd.core.model import (
    Availability,
    Device,
    DeviceReading,
    Fault,
    ProcessKey,
    ProcessUse,
    Sample,
)
from gpuwatchd.service.unit_files import Done
from tests import making

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatchd.cli.doctor import Check

UNIT_SHOWN = {
    "LoadState": "loaded", "ActiveState": "active", "Result": "success", "NRestarts": "0",
    "FragmentPath": "", "NeedDaemonReload": "no", "UnitFileState": "enabled",
    "MemoryMax": "536870912", "MemoryCurrent": "60000000",
}  # fmt: skip


class Machine:
    """Files below a folder, a configuration and an environment."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.root.mkdir()
        self.environ: dict[str, str] = {"HOME": str(folder / "home"), "PATH": ""}
        self.settings = ""
        self.offline = False
        self.shown: dict[str, dict[str, str]] = {}

    def put(self, path: str, content: str = "") -> Path:
        """Write a file of the machine."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        return file

    def systemd(self, **shown: str) -> None:
        """Let systemd have started it, with the unit of the user as given."""
        (self.root / "run/systemd/system").mkdir(parents=True, exist_ok=True)
        self.shown["--user"] = {**UNIT_SHOWN, **shown}

    def run(self, argv: Sequence[str], *, timeout_s: float = 30.0) -> Done:
        """Answer as systemctl does."""
        assert timeout_s <= 10
        shown = self.shown.get("--user" if "--user" in argv else "system")
        if shown is None:
            return Done(1, "Failed to connect to bus: No medium found")
        return Done(0, "\n".join(f"{key}={value}" for key, value in shown.items()))

    def around(self) -> CheckContext:
        """Return it as the checks see it."""
        file = self.root.parent / "settings.toml"
        file.write_text(self.settings)
        file.chmod(0o600)
        loaded = config.load(file, environ={})
        return CheckContext(
            Globals(), loaded, root=self.root, environ=self.environ, offline=self.offline,
            run=self.run,
        )  # fmt: skip

    def ask(self, *names: str) -> list[Check]:
        """Return what the checks answer."""
        return list(doctor.ask(self.around(), names))

    def faults(self, *names: str) -> dict[str, Check]:
        """Return what is wrong, by its id."""
        return {check.id: check for check in self.ask(*names) if check.level != "ok"}


class Card:
    """A source with one GPU and one process of our own."""

    name = "nvml"
    pid = os.getpid()

    def probe(self) -> Availability:
        return Availability(ok=True, reason="1 GPU")

    def devices(self) -> tuple[Device, ...]:
        return (making.CARD,)

    def read(self) -> Sample:
        key = ProcessKey(pid=self.pid, started_at_s=None)
        use = ProcessUse(key=key, used_bytes=3 * making.GIB)
        reading = DeviceReading(
            device_uid=making.CARD.uid, used_bytes=4 * making.GIB, free_bytes=76 * making.GIB,
            total_bytes=80 * making.GIB, uses=(use,),
        )  # fmt: skip
        return Sample(
            taken_at_s=time.time(), taken_mono_s=1.0, boot_id="b", readings=(reading,),
            faults=(Fault(where="nvml/GPU-1/power", why="no power", device_uid="GPU-1"),),
        )  # fmt: skip

    def close(self) -> None:
        pass


class Well:
    """A service manager that answers, and would write what is written."""

    unit = "# Written by gpuwatchctl service install\n[Service]\nExecStart=/usr/bin/gpuwatchd\n"

    def probe(self) -> Availability:
        return Availability(ok=True, reason="the user manager answers")

    def render(self) -> str:
        return self.unit


def nvidia(
    machine: Machine,
    *,
    module: str = "",
    library: str = "",
    head: bytes | None = None,
    node: bool = False,
) -> None:
    """Put an NVIDIA GPU on the bus, with as much of its driver as named.

    The library is ``head``, or the beginning of one that is built for this machine.
    """
    card = "sys/bus/pci/devices/0000:41:00.0"
    machine.put(f"{card}/vendor", "0x10de\n")
    machine.put(f"{card}/class", "0x030200\n")
    if module:
        machine.put("sys/module/nvidia/version", f"{module}\n")
    if library:
        real = machine.put(f"usr/lib64/libnvidia-ml.so.{library}")
        if head is None:
            # Without its count of segments: as it is, nothing of it is missing.
            head = Path(sys.executable).read_bytes()[:56] + bytes(8)
        real.write_bytes(head)
        (real.parent / "libnvidia-ml.so.1").symlink_to(real.name)
    if node:
        machine.put("dev/nvidiactl")


def planted(environ: Mapping[str, Any], **more: str) -> dict[str, str]:
    """Return an environment with more in it."""
    return {**{key: str(value) for key, value in environ.items()}, **more}


def lock_line(file: Path) -> str:
    """Return how /proc/locks shows that a file is locked."""
    about = file.stat()
    place = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
    return f"1: FLOCK  ADVISORY  WRITE 4711 {place} 0 EOF\n"
