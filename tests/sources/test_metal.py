"""GPUs of a Mac, from texts of the shape that macOS prints; recordings of others where present."""

from __future__ import annotations

import csv
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.errors import SourceError, SourceUnavailable
from gpuwatchd.sources import metal_ioreg, metal_system
from gpuwatchd.sources.metal import NOT_HERE, MetalSource
from gpuwatchd.sources.metal_calls import (
    ACCELERATORS,
    ACCELERATORS_TEXT,
    GPU_CLIENTS,
    PLATFORM,
    SYSCTL,
    VM_STAT,
    Denied,
    Known,
)
from gpuwatchd.sources.metal_processes import WHOLE
from gpuwatchd.sources.metal_system import GIB, MIB, Ceiling, Footprint, System

if TYPE_CHECKING:
    from gpuwatchd.model import DeviceReading

DATA = Path(__file__).resolve().parent.parent / "data/macos"
PAGE = 16384
AVAILABLE = (100000 + 300000 + 20000) * PAGE


def text(name: str) -> bytes:
    return (DATA / name).read_bytes()


class FakeMac:
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
            Known(1, 0, "launchd", (), 1.0),
            Known(310, 1, "WindowServer", (), 2.0),
            Known(4100, 1, "python3.12", ("python3.12", "train.py"), 3.0),
            Known(4200, 1, "Draw Things", ("/Applications/Draw Things.app/x",), 4.0),
        ]

    def run(self, argv: tuple[str, ...]) -> bytes:
        self.asked.append(argv[0])
        answer = self.output[argv]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def boot_id(self) -> str:
        return "boot-7"

    def footprint(self, pid: int) -> Footprint | None:
        if pid in self.others:
            raise Denied
        held = self.held.get(pid)
        return None if held is None else Footprint(held, held // 100)

    def resident_bytes(self, pid: int) -> int | None:
        return self.others[pid]

    def processes(self) -> list[Known]:
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


@pytest.fixture
def mac() -> FakeMac:
    return FakeMac()


def one(mac: FakeMac) -> DeviceReading:
    (reading,) = mac.source().read().readings
    return reading


def held(reading: DeviceReading) -> dict[int, int | None]:
    assert reading.uses is not None
    return {use.key.pid: use.used_bytes for use in reading.uses}


# ---- parsing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ioreg_m2.plist", "ioreg_m2.txt"])
def test_both_forms_say_the_same(name: str) -> None:
    (node,) = metal_ioreg.parse(text(name))
    assert (node.kind, node.model, node.vendor) == ("AGXAcceleratorG14G", "Apple M2", "apple")
    assert node.stats["Alloc system memory"] == 6 * GIB, "not the legend's 1 or 11"
    assert node.stats["In use system memory"] == 5 * GIB, "not (driver), which is always 0"
    assert node.stats["lastRecoveryTime"] == 9007199254740995, "beyond what a float can hold"
    assert "TiledSceneBytes" not in node.stats, "negative: no number of bytes"
    assert node.busy_pct == 97.0


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"\n", b"<?xml version='1.0'?><plist><array>", b"<?xml version='1.0'?><plist/>",
        b"<plist version='1.0'><array><string>x</string></array></plist>",
        b"<plist version='1.0'><dict><key>a</key><integer>x</integer></dict></plist>",
        b"<plist version='1.0'><dict><key>a</key><data>!</data></dict></plist>",
        b"<plist version='1.0'><dict><string>a</string></dict></plist>",
        b"<plist version='1.0'><date>x</date></plist>",
        b"bplist00garbage", b"bplist00" + bytes(64), bytes(range(256)), b"+-o <class >",
    ],
)  # fmt: skip
def test_what_is_no_accelerator_is_none(raw: bytes) -> None:
    assert metal_ioreg.parse(raw) == []


@pytest.mark.parametrize("name", ["ioreg_m2.plist", "ioreg_m2.txt", "ioreg_clients.txt"])
def test_output_that_is_cut_anywhere_hurts_nobody(name: str) -> None:
    raw = text(name)
    for end in range(0, len(raw), 7):
        nodes = metal_ioreg.parse(raw[:end])
        clients = metal_ioreg.parse_clients(raw[:end].decode())
        assert len(nodes) <= 1
        assert len(clients) <= 4


def test_clients_are_summed_per_program() -> None:
    found = metal_ioreg.parse_clients(text("ioreg_clients.txt").decode())
    assert {pid: client.gpu_time_ns for pid, client in found.items()} == {
        310: 5_000_000_000, 4100: 9_500_000_000, 4200: 0, 9999: 123,
    }  # fmt: skip
    assert found[310].name == "WindowServer"


def test_sysctl_and_vm_stat() -> None:
    sysctl = metal_system.parse_sysctl(text("sysctl.txt").decode())
    system = metal_system.system_of(sysctl, text("vm_stat.txt").decode())
    assert system == System(
        ram_bytes=24 * GIB,
        limit_bytes=None,
        pressure=1,
        swap_bytes=512 * MIB + MIB // 2,
        available_bytes=AVAILABLE,
    )
    assert metal_system.system_of({}, "") == System()


def test_an_older_name_of_the_limit_counts() -> None:
    assert metal_system.system_of({"debug.iogpu.wired_limit": "20480"}, "").limit_bytes == 20 * GIB
    newer = {"iogpu.wired_limit_mb": "0", "debug.iogpu.wired_limit": "20480"}
    assert metal_system.system_of(newer, "").limit_bytes is None


@pytest.mark.parametrize(
    ("system", "recommended", "want"),
    [
        (System(ram_bytes=24 * GIB, limit_bytes=20 * GIB), 17 * GIB, Ceiling(20 * GIB, "set")),
        (System(ram_bytes=24 * GIB), 17 * GIB, Ceiling(17 * GIB, "Metal")),
        (System(ram_bytes=24 * GIB), None, Ceiling(16 * GIB, "estimate")),
        (System(ram_bytes=36 * GIB), None, Ceiling(24 * GIB, "estimate")),
        (System(ram_bytes=64 * GIB), None, Ceiling(48 * GIB, "estimate")),
        (System(), None, None),
    ],
)
def test_the_ceiling_is_what_is_surest(
    system: System, recommended: int | None, want: Ceiling | None
) -> None:
    assert metal_system.ceiling(system, recommended) == want


@pytest.mark.parametrize(
    ("allocated", "in_use", "system", "want"),
    [
        (6 * GIB, GIB, System(available_bytes=20 * GIB), 10 * GIB),
        (6 * GIB, GIB, System(available_bytes=2 * GIB), 2 * GIB),
        (6 * GIB, GIB, System(), 10 * GIB),
        (20 * GIB, 4 * GIB, System(available_bytes=20 * GIB), 12 * GIB),
        (20 * GIB, None, System(available_bytes=20 * GIB), 0),
        (6 * GIB, GIB, System(available_bytes=2 * GIB, pressure=4), 0),
        (None, GIB, System(available_bytes=2 * GIB), None),
    ],
)
def test_the_room_is_bounded_by_the_ceiling_and_by_the_host(
    allocated: int | None, in_use: int | None, system: System, want: int | None
) -> None:
    limit = Ceiling(16 * GIB, "Metal")
    assert metal_system.room(limit, allocated, in_use, system) == want


def test_a_footprint_lies_where_every_version_has_it() -> None:
    raw = bytes(16) + struct.pack("=6Q", *range(6)) + struct.pack("=QQ", 30 * MIB, 4 * GIB)
    assert metal_system.parse_rusage(raw + bytes(16)) == Footprint(4 * GIB, 30 * MIB)
    assert metal_system.parse_rusage(raw + bytes(200)) == Footprint(4 * GIB, 30 * MIB)
    assert metal_system.parse_rusage(raw) is None


# ---- the source ---------------------------------------------------------------------------------


def test_it_is_not_for_this_system(mac: FakeMac) -> None:
    source = mac.source("linux")
    assert source.probe().reason == NOT_HERE
    with pytest.raises(SourceUnavailable, match="not for this system"):
        source.read()
    assert mac.asked == []


def test_a_mac_gives_what_is_allocated_and_what_is_left(mac: FakeMac) -> None:
    source = mac.source()
    sample = source.read()
    (reading,) = sample.readings
    (device,) = source.devices()
    assert (device.vendor, device.name, device.memory_kind) == ("apple", "Apple M2", "unified")
    assert reading.used_bytes == 6 * GIB
    assert reading.resident_bytes == 5 * GIB
    assert reading.total_bytes == device.memory_total_bytes == 16 * GIB
    assert reading.free_bytes == AVAILABLE
    assert (reading.util_pct, reading.memory_api, reading.state) == (97.0, "ioreg alloc", "ok")
    assert (sample.faults, sample.boot_id) == ((), "boot-7")


def test_it_is_the_same_device_after_a_boot_and_shows_no_serial_number(mac: FakeMac) -> None:
    first, second = mac.source(), mac.source()
    first.read()
    raw = mac.output[ACCELERATORS]
    assert isinstance(raw, bytes)
    mac.output[ACCELERATORS] = raw.replace(b"4294968671", b"4294999999")
    second.read()
    assert first.devices()[0].uid == second.devices()[0].uid
    assert "0a1b2c3d" not in first.devices()[0].uid.lower()


def test_metal_is_asked_once_and_only_where_nothing_is_set(mac: FakeMac) -> None:
    mac.recommended = 17 * GIB
    source = mac.source()
    assert "17.0 GiB of memory (recommended by Metal)" in source.probe().reason
    assert source.read().readings[0].total_bytes == 17 * GIB
    assert mac.asked.count("metal") == 1
    mac.output[SYSCTL] = text("sysctl.txt").replace(b"limit_mb: 0", b"limit_mb: 20480")
    again = mac.source()
    assert "set by iogpu.wired_limit_mb" in again.probe().reason
    assert mac.asked.count("metal") == 1


def test_an_estimate_is_called_one(mac: FakeMac) -> None:
    assert "16.0 GiB of memory (an estimate)" in mac.source().probe().reason


def test_who_works_is_listed_and_who_draws_is_not(mac: FakeMac) -> None:
    mac.table += [
        Known(500, 1, "ollama", ("/usr/local/bin/ollama", "serve"), 5.0),
        Known(501, 500, "llama-server", ("/x/lib/ollama/llama-server", "--port", "5"), 6.0),
        Known(600, 1, "Google Chrome", ("/Applications/Google Chrome.app/x",), 7.0),
    ]
    mac.held |= {500: 20 * MIB, 501: 9 * GIB, 600: 2 * GIB}
    reading = one(mac)
    assert held(reading) == {501: 9 * GIB, 4100: 5 * GIB}
    assert reading.uses_reason == WHOLE


def test_a_launcher_counts_with_its_children(mac: FakeMac) -> None:
    mac.table += [
        Known(700, 1, "mlx_lm.server", ("mlx_lm.server", "--model", "m"), 5.0),
        Known(701, 700, "worker", (), 6.0),
        Known(702, 701, "helper", (), 7.0),
    ]
    mac.held |= {700: 20 * MIB, 701: 4 * GIB, 702: GIB}
    assert held(one(mac))[700] == 5 * GIB + 20 * MIB


def test_whoever_keeps_the_gpu_busy_is_listed_from_then_on(mac: FakeMac) -> None:
    source = mac.source()
    shares = []
    # 2 s of 30, then 6 of 30, then none; and a client that was closed and took its time along.
    for time_ns in (0, 2_000_000_000, 8_000_000_000, 8_000_000_000, 1_000):
        mac.clients(p4200=time_ns, p310=time_ns)
        (reading,) = source.read().readings
        shares.append({u.key.pid: u.sm_pct for u in reading.uses or () if u.key.pid != 4100})
        mac.now_s += 30
    assert shares == [{}, {}, {4200: 20.0}, {4200: 0.0}, {4200: None}]


def test_a_new_program_with_an_old_pid_has_not_worked_yet(mac: FakeMac) -> None:
    source = mac.source()
    for time_ns in (0, 9_000_000_000):
        mac.clients(p4200=time_ns)
        source.read()
        mac.now_s += 30
    mac.table[-1] = Known(4200, 1, "Notes", (), 99.0)
    assert 4200 not in held(source.read().readings[0])


def test_who_has_the_gpu_open_is_asked_now_and_then_footprints_each_time(mac: FakeMac) -> None:
    source = mac.source()
    source.read()
    mac.held[4100] = 7 * GIB
    mac.now_s += 5
    assert held(source.read().readings[0])[4100] == 7 * GIB
    assert mac.asked.count("processes") == 1
    mac.now_s += 30
    source.read()
    assert mac.asked.count("processes") == 2


def test_of_others_only_a_lower_bound_is_known(mac: FakeMac) -> None:
    mac.others = {4100: 90 * MIB}
    reading = one(mac)
    assert held(reading) == {4100: 90 * MIB}
    assert "of 1 process of other users only a lower bound is known" in str(reading.uses_reason)
    mac.others = {4100: None}
    assert held(one(mac)) == {4100: None}


def test_a_program_that_has_just_ended_is_unknown_not_nothing(mac: FakeMac) -> None:
    mac.held.pop(4100)
    assert held(one(mac)) == {4100: None}


def test_without_the_list_of_clients_names_still_tell(mac: FakeMac) -> None:
    mac.output[GPU_CLIENTS] = SourceError("ioreg did not answer within 1.5 s")
    mac.table.append(Known(501, 1, "llama-server", ("llama-server", "-m", "x"), 6.0))
    mac.held[501] = 9 * GIB
    assert held(one(mac)) == {501: 9 * GIB}


def test_a_missing_key_is_unknown(mac: FakeMac) -> None:
    raw = text("ioreg_m2.plist")
    mac.output[ACCELERATORS] = raw.replace(b"<key>In use system memory</key>", b"<key>x</key>")
    reading = one(mac)
    assert (reading.resident_bytes, reading.used_bytes) == (None, 6 * GIB)
    mac.output[ACCELERATORS] = raw.replace(b"<key>Alloc system memory</key>", b"<key>x</key>")
    sample = mac.source().read()
    assert sample.readings[0].used_bytes is None
    assert sample.readings[0].free_bytes is None
    assert [fault.why for fault in sample.faults] == ["ioreg tells no allocated memory"]


def test_a_damaged_list_is_asked_for_in_the_other_form(mac: FakeMac) -> None:
    mac.output[ACCELERATORS] = text("ioreg_m2.plist")[:900]
    assert one(mac).used_bytes == 6 * GIB


def test_no_gpu_is_said_and_is_not_an_idle_one(mac: FakeMac) -> None:
    mac.output[ACCELERATORS] = b""
    source = mac.source()
    assert not source.probe().ok
    with pytest.raises(SourceUnavailable, match="lists no GPU"):
        source.read()


def test_a_gpu_that_is_not_listed_any_more_is_lost(mac: FakeMac) -> None:
    source = mac.source()
    source.read()
    mac.output[ACCELERATORS] = b""
    sample = source.read()
    assert (sample.readings[0].state, sample.readings[0].used_bytes) == ("lost", None)
    assert "does not list it" in sample.faults[0].why


def test_ioreg_that_hangs_is_a_fault_and_the_rest_goes_on(mac: FakeMac) -> None:
    source = mac.source()
    source.read()
    mac.output[ACCELERATORS] = SourceError("ioreg did not answer within 1.5 s")
    sample = source.read()
    assert (sample.readings[0].used_bytes, sample.readings[0].state) == (None, "hung")
    assert [fault.why for fault in sample.faults] == ["ioreg did not answer within 1.5 s"]
    assert sample.faults[0].device_uid == sample.readings[0].device_uid
    with pytest.raises(SourceError, match="did not answer"):
        mac.source().read()


@pytest.mark.parametrize("part", [SYSCTL, VM_STAT])
def test_one_part_that_fails_hides_no_other(mac: FakeMac, part: tuple[str, ...]) -> None:
    mac.output[part] = SourceError("it failed with exit code 1")
    sample = mac.source().read()
    assert sample.readings[0].used_bytes == 6 * GIB
    assert held(sample.readings[0]) == {4100: 5 * GIB}
    assert [fault.why for fault in sample.faults] == ["it failed with exit code 1"]


def test_the_ceiling_stays_when_sysctl_fails_later(mac: FakeMac) -> None:
    source = mac.source()
    source.read()
    mac.output[SYSCTL] = SourceError("sysctl failed with exit code 1")
    assert source.read().readings[0].total_bytes == 16 * GIB


def test_a_restart_of_the_gpu_is_told_once(mac: FakeMac) -> None:
    source = mac.source()
    assert source.read().events == ()
    raw = text("ioreg_m2.plist")
    mac.output[ACCELERATORS] = raw.replace(b"<integer>3</integer>", b"<integer>4</integer>")
    (event,) = source.read().events
    assert (event.kind, event.hardware) == ("gpu-hung", None)
    assert "4 times since boot" in event.text
    assert source.read().events == ()


def test_a_machine_that_runs_short_of_memory_says_so_once_per_step(mac: FakeMac) -> None:
    source = mac.source()
    told = []
    for level in (1, 2, 2, 4, 4, 1, 2):
        line = f"vm_pressure_level: {level}".encode()
        mac.output[SYSCTL] = text("sysctl.txt").replace(b"vm_pressure_level: 1", line)
        sample = source.read()
        told.append([event.text.partition(" of the machine is ")[2] for event in sample.events])
    raised, critical = "raised, 512 MiB are swapped", "critical, 512 MiB are swapped"
    assert told == [[], [raised], [], [critical], [], [], [raised]]
    mac.output[SYSCTL] = SourceError("sysctl failed")
    assert source.read().events == ()
    assert source.read().readings[0].free_bytes is not None


# ---- recordings of others, where they are -------------------------------------------------------


@pytest.fixture
def recorded(shared_data: Path) -> Path:
    return shared_data / "platforms/macos"


RECORDED = {
    "ioreg_m5pro_macos27_idle.plist": ("Apple M5 Pro", 6614056960, 1046872064, 12.0),
    "ioreg_m4_idle.txt": ("Apple M4", 7630618624, 550649856, 3.0),
    "ioreg_g17x_llm_busy.txt": ("AGXAcceleratorG17X", 31368167424, 28367667200, 99.0),
    "ioreg_graphics_busy.txt": ("IOAccelerator", 4272832512, 1200357376, 57.0),
    "ioreg_m4air_partial_no_inuse.txt": ("AGXAcceleratorG16G", 7524302848, None, 88.0),
}


@pytest.mark.shared_data
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_accelerators(recorded: Path, mac: FakeMac, name: str) -> None:
    mac.output[ACCELERATORS] = (recorded / name).read_bytes()
    source = mac.source()
    (reading,) = source.read().readings
    model, allocated, in_use, busy = RECORDED[name]
    assert source.devices()[0].name == model
    assert source.devices()[0].memory_kind == "unified"
    assert (reading.used_bytes, reading.resident_bytes) == (allocated, in_use)
    assert reading.util_pct == busy


@pytest.mark.shared_data
def test_two_gpus_of_an_older_mac(recorded: Path, mac: FakeMac) -> None:
    name = "ioreg_intel_amd_two_nodes_SYNTHETIC.plist"
    mac.output[ACCELERATORS] = (recorded / name).read_bytes()
    source = mac.source()
    apple, amd = source.read().readings
    assert [device.vendor for device in source.devices()] == ["apple", "amd"]
    assert [device.memory_kind for device in source.devices()] == ["unified", "dedicated"]
    assert apple.util_pct == 100.0, "137 in the registry"
    assert (amd.used_bytes, amd.free_bytes, amd.total_bytes) == (2 * GIB, 6 * GIB, 8 * GIB)
    assert amd.uses is None
    assert "discrete" in str(amd.uses_reason)
    assert len({device.uid for device in source.devices()}) == 2


@pytest.mark.shared_data
def test_recorded_clients(recorded: Path) -> None:
    flat = metal_ioreg.parse_clients((recorded / "ioreg_agx_userclients.txt").read_text())
    assert {pid: (one.name, one.gpu_time_ns) for pid, one in flat.items()} == {
        444: ("runningboardd", 0),
        440: ("WindowServer", 38738170958 + 76336458 + 1000000000),
    }
    nested = (recorded / "ioreg_agx_nested_with_agcinfo.txt").read_text()
    assert {one.name: one.gpu_time_ns for one in metal_ioreg.parse_clients(nested).values()} == {
        "wine64-preloader": 300000000,
        "Brave Browser": 125000000,
    }
    assert metal_ioreg.parse_text(nested) == []


@pytest.mark.shared_data
def test_recorded_memory_of_the_host(recorded: Path) -> None:
    sysctl = metal_system.parse_sysctl((recorded / "sysctl_samples.txt").read_text())
    vm_stat = (recorded / "vm_stat_sample.txt").read_text()
    system = metal_system.system_of(sysctl, vm_stat)
    assert (system.pressure, system.limit_bytes, system.swap_bytes) == (1, None, 5 * GIB)
    assert system.available_bytes == (57308 + 829809 + 33205) * PAGE


@pytest.mark.shared_data
def test_the_estimate_is_never_far_above_what_machines_said(recorded: Path) -> None:
    with (recorded / "recommended_max_working_set.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows
    for row in rows:
        estimate = metal_system.ceiling(System(ram_bytes=int(row["ram_bytes"])), None)
        assert estimate is not None
        assert 0.85 <= estimate.total_bytes / int(row["recommendedMaxWorkingSetSize_bytes"]) < 1.01
