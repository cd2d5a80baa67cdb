"""A Mac of recorded texts, for the tests of the metal source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatchd.collect.metal.calls import (
    ACCELERATORS,
    ACCELERATORS_TEXT,
    GIB,
    GPU_CLIENTS,
    PLATFORM,
    SYSCTL,
    VM_STAT,
    Denied,
    ListedProcess,
    Mac,
)
from gpuwatchd.collect.metal.source import MetalSource

if TYPE_CHECKING:
    from gpuwatchd.core.model import DeviceReading


DATA = Path(__file__).resolve().parent.parent / "data/macos"
PAGE = 16384
AVAILABLE = (100000 + 300000 + 20000) * PAGE


def text(name: str) -> bytes:
    return (DATA / name).read_bytes()


class FakeMac(Mac):
    """A Mac of recorded texts."""

    def __init__(self) -> None:
        self.output: dict[tuple[str, ...], bytes | Exception] = {
            ACCELERATORS: text("ioreg_m2.plist"),
            ACCELERATORS_TEXT: text("ioreg_m2.txt"),
            GPU_CLIENTS: text("ioreg_clients.txt"),
            PLATFORM: b"<key>IOPlatformUUID</key>\n<string>0A1B2C3D-0000-1111-2222-333344445555"
            b"</string>",
            SYSCTL: text("sysctl.txt"),
            VM_STAT: text("vm_stat.txt"),
        }
        self.asked: list[str] = []
        self.recommended: int | None = None
        self.now_s = 1000.0
        self.held: dict[int, int] = {4100: 5 * GIB, 4200: 3 * GIB, 310: 2 * GIB}
        self.others: dict[int, int | None] = {}
        self.table = [
            ListedProcess(1, 0, "launchd", (), 1.0),
            ListedProcess(310, 1, "WindowServer", (), 2.0),
            ListedProcess(4100, 1, "python3.12", ("python3.12", "train.py"), 3.0),
            ListedProcess(4200, 1, "Draw Things", ("/Applications/Draw Things.app/x",), 4.0),
        ]

    def run(self, argv: tuple[str, ...]) -> bytes:
        self.asked.append(argv[0])
        answer = self.output[argv]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def boot_id(self) -> str:
        return "boot-7"

    def footprint(self, pid: int) -> int | None:
        if pid in self.others:
            raise Denied
        return self.held.get(pid)

    def resident_bytes(self, pid: int) -> int | None:
        return self.others[pid]

    def processes(self) -> list[ListedProcess]:
        self.asked.append("processes")
        return self.table

    def recommended_bytes(self) -> int | None:
        self.asked.append("metal")
        return self.recommended

    def source(self, platform: str = "darwin") -> MetalSource:
        return MetalSource(
            calls=self,
            platform=platform,
            clock=lambda: 5e8 + self.now_s,
            monotonic=lambda: self.now_s,
        )

    def clients(self, **nanoseconds: int) -> None:
        """Say how long the GPU has worked for pids (``p4200=...``)."""
        blocks = [
            "+-o AGXDeviceUserClient  <class AGXDeviceUserClient>\n"
            f'  "AppUsage" = ({{"API"="Metal","accumulatedGPUTime"={time_ns}}})\n'
            f'  "IOUserClientCreator" = "pid {name[1:]}, x"\n'
            for name, time_ns in nanoseconds.items()
        ]
        self.output[GPU_CLIENTS] = "".join(blocks).encode()


def one(mac: FakeMac) -> DeviceReading:
    (reading,) = mac.source().read().readings
    return reading


def held(reading: DeviceReading) -> dict[int, int | None]:
    assert reading.uses is not None
    return {use.key.pid: use.used_bytes for use in reading.uses}
