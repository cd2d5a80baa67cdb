"""A tree of plain files with the shape of /sys and /proc, for the tests of the drm source.

Written by hand from the kernel's documentation (DRM client usage stats; the fdinfo pages of amdgpu,
i915 and xe; amdgpu's sysfs files; KFD's topology). No file is a recording, and nothing here was
verified on hardware.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from gpuwatchd.collect.drm.source import DrmSource

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.core.model import DeviceReading, Sample

MIB = 1024**2
GIB = 1024**3
NAVI, ARC, IGPU, APU = "0000:03:00.0", "0000:07:00.0", "0000:00:02.0", "0000:c4:00.0"


class Tree:
    """A machine."""

    def __init__(self, root: Path) -> None:
        self.proc = root / "proc"
        self.sys = root / "sys"
        self.now_s = 100.0
        self.put(self.proc / "sys/kernel/random/boot_id", "boot-1")
        self.put(self.proc / "meminfo", f"MemTotal: {32 * MIB} kB\nMemAvailable: {20 * MIB} kB")
        (self.sys / "class/drm").mkdir(parents=True)

    @staticmethod
    def put(file: Path, text: object) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def card(self, number: int, pdev: str, driver: str, **files: object) -> Path:
        """Add a card; ``a__b`` in a name stands for ``a/b``."""
        folder = self.sys / "bus/pci/devices" / pdev
        vendor = {"amdgpu": "0x1002", "nvidia": "0x10de", "nouveau": "0x10de"}.get(driver, "0x8086")
        self.put(folder / "uevent", f"DRIVER={driver}\nPCI_CLASS=30000\nPCI_SLOT_NAME={pdev}")
        self.put(folder / "vendor", vendor)
        self.put(folder / "class", "0x030000")
        self.put(folder / "device", "0x73bf")
        for name, value in files.items():
            self.put(folder / name.replace("__", "/"), value)
        entry = self.sys / f"class/drm/card{number}"
        entry.mkdir()
        (entry / "device").symlink_to(os.path.relpath(folder, entry))
        (self.sys / f"class/drm/card{number}-DP-1").mkdir()
        return folder

    def navi(self, used: object = 2 * GIB, **files: object) -> Path:
        known: dict[str, object] = {
            "mem_info_vram_total": 16 * GIB,
            "mem_info_vram_used": used,
            "mem_info_gtt_total": 15 * GIB,
            "mem_info_gtt_used": 64 * MIB,
            "gpu_busy_percent": 37,
            "unique_id": "5a1b2c3d4e5f6071",
            "power__runtime_status": "active",
            "hwmon__hwmon4__temp1_input": 61000,
            "hwmon__hwmon4__power1_average": 143000000,
            "hwmon__hwmon4__freq1_input": 2105000000,
        }
        return self.card(1, NAVI, "amdgpu", **(known | files))

    def open(
        self, pid: int, descriptor: int, fdinfo: str, target: str = "/dev/dri/renderD128"
    ) -> None:
        """Give a process an open file."""
        folder = self.proc / str(pid)
        self.put(folder / "fdinfo" / str(descriptor), fdinfo)
        link = folder / "fd" / str(descriptor)
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)

    def contain(self) -> None:
        """Make it the inside of a container."""
        link = self.proc / "self/ns/pid"
        link.parent.mkdir(parents=True)
        link.symlink_to("pid:[4026532999]")

    def process(self, pid: int, name: str, cmdline: str, born: int = 4242) -> None:
        """Say who a process is."""
        zeros = " ".join(["0"] * 17)
        self.put(self.proc / f"{pid}/stat", f"{pid} ({name}) S 1 {zeros} {born} 0")
        (self.proc / f"{pid}/cmdline").write_text(f"{cmdline}\0")

    def kfd(self, pid: int, held: int, gpu_id: int = 4098, location: int = 0x0300) -> None:
        node = self.sys / "class/kfd/kfd/topology/nodes/1"
        self.put(node / "gpu_id", gpu_id)
        self.put(node / "properties", f"simd_count 160\nlocation_id {location}\ndomain 0")
        self.put(self.sys / "class/kfd/kfd/topology/nodes/0/gpu_id", 0)
        self.put(self.sys / f"class/kfd/kfd/proc/{pid}/vram_{gpu_id}", held)

    def source(self, **settings: Any) -> DrmSource:
        return DrmSource(
            proc_root=str(self.proc),
            sys_root=str(self.sys),
            clock=lambda: 5e8 + self.now_s,
            monotonic=lambda: self.now_s,
            **settings,
        )


def amd_fdinfo(
    client: int, vram_kib: int, gtt_kib: int = 0, *, pdev: str = NAVI, gfx: int = 0
) -> str:
    """Return fdinfo of a recent amdgpu: the old keys and the new ones beside each other."""
    return (
        "pos:\t0\nflags:\t02100002\nmnt_id:\t26\nino:\t684\npasid:\t32771\n"
        f"drm-driver:\tamdgpu\ndrm-pdev:\t{pdev}\ndrm-client-id:\t{client}\n"
        f"drm-total-vram:\t{2 * vram_kib} KiB\ndrm-shared-vram:\t0\n"
        f"drm-resident-vram:\t{vram_kib} KiB\ndrm-resident-gtt:\t{gtt_kib} KiB\n"
        f"drm-resident-cpu:\t512 KiB\ndrm-memory-vram:\t{vram_kib} KiB\n"
        f"drm-memory-gtt: \t{gtt_kib} KiB\namd-evicted-vram:\t0 KiB\n"
        f"drm-engine-gfx:\t{gfx} ns\n"
    )


def xe_fdinfo(
    client: int, vram_kib: int, *, cycles: int = 0, total: int = 0, pdev: str = ARC
) -> str:
    """Return fdinfo of xe, which counts cycles."""
    return (
        f"pos:\t0\ndrm-driver:\txe\ndrm-client-id:\t{client}\ndrm-pdev:\t{pdev}\n"
        "drm-total-system:\t0\ndrm-resident-system:\t0\n"
        f"drm-total-gtt:\t192 KiB\ndrm-resident-gtt:\t192 KiB\n"
        f"drm-total-vram0:\t{vram_kib + 8} KiB\ndrm-resident-vram0:\t{vram_kib} KiB\n"
        "drm-total-stolen:\t0\ndrm-resident-stolen:\t0\n"
        f"drm-cycles-rcs:\t0\ndrm-total-cycles-rcs:\t{total}\n"
        f"drm-cycles-ccs:\t{cycles}\ndrm-total-cycles-ccs:\t{total}\n"
        "drm-engine-capacity-ccs:\t4\n"
    )


def only(sample: Sample) -> DeviceReading:
    """Return the one reading of a sample."""
    (reading,) = sample.readings
    return reading


def held(reading: DeviceReading) -> dict[int, int | None]:
    """Return pid -> bytes."""
    assert reading.uses is not None
    return {use.key.pid: use.used_bytes for use in reading.uses}
