"""A folder that looks like /proc, and a clock that stands still."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.collect.host import Host
from tests.conftest import ON_LINUX

if TYPE_CHECKING:
    from pathlib import Path

linux = ON_LINUX

TORCH_MAPS = (
    "7f00-7f01 r-xp 00000000 fe:00 11 /opt/venv/lib/torch/lib/libtorch_cpu.so\n"
    "7f01-7f02 rw-p 00000000 fe:00 11 /opt/venv/lib/torch/lib/libtorch_cpu.so\n"
    "7f02-7f03 rw-p 00000000 00:00 0 \n"
)
STARTED = 5000


class FakeProc:
    """A folder that looks like /proc."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.put("stat", "cpu 1 2 3\nbtime 1700000000\n")
        self.put("sys/kernel/random/boot_id", "boot-a\n")

    def put(self, path: str, text: str | bytes) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text if isinstance(text, bytes) else text.encode())

    def process(
        self,
        pid: int,
        *,
        name: bytes = b"python3",
        argv: bytes = b"python3\0train.py\0",
        state: str = "S",
        starttime: int = STARTED,
        uid: int = 0,
        maps: str | None = None,
        parent: int = 1,
        terminal: int = 0,
        session: int = 7,
        anonymous_kib: int | None = 4,
        swapped_kib: int = 0,
        cgroup: str = "0::/user.slice/session-3.scope\n",
        environ: bytes | None = None,
    ) -> None:
        rest = f" {state} {parent} {pid} {session} {terminal} -1 0 0 0 0 0 1 2 0 0 20 0 1 0"
        rest += f" {starttime} 0 0\n"
        self.put(f"{pid}/stat", f"{pid} (".encode() + name + b")" + rest.encode())
        self.put(f"{pid}/cmdline", argv)
        status = f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
        if anonymous_kib is not None:
            status += f"RssAnon:\t{anonymous_kib:8} kB\nVmSwap:\t{swapped_kib:8} kB\n"
        self.put(f"{pid}/status", status)
        self.put(f"{pid}/cgroup", cgroup)
        if environ is not None:
            self.put(f"{pid}/environ", environ)
        if maps is not None:
            self.put(f"{pid}/maps", maps)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def host_of(proc: FakeProc, clock: Clock | None = None) -> Host:
    return Host(proc.folder, contained=False, monotonic=clock or Clock())
