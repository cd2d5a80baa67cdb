"""GPUs of a Mac, from texts of the shape that macOS prints."""

from __future__ import annotations

import os
import sys
import time

import pytest

from gpuwatchd.collect.metal import calls
from gpuwatchd.collect.metal.calls import (
    ACCELERATORS,
    GIB,
    GPU_CLIENTS,
    MIB,
    SYSCTL,
    VM_STAT,
    ListedProcess,
    Mac,
)
from gpuwatchd.collect.metal.source import NOT_HERE, WHOLE
from gpuwatchd.core.errors import SourceError, SourceUnavailable
from tests.conftest import only_where, present
from tests.sources.metal_case import AVAILABLE, FakeMac, held, one, text


def test_it_is_not_for_this_system(mac: FakeMac) -> None:
    source = mac.source("linux")
    assert source.probe().reason == NOT_HERE
    with pytest.raises(SourceUnavailable, match="not for this system"):
        source.read()
    assert mac.asked == []


@pytest.mark.requirement("G27")
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


def test_who_works_is_listed_and_who_draws_is_not(mac: FakeMac) -> None:
    mac.table += [
        ListedProcess(500, 1, "ollama", ("/usr/local/bin/ollama", "serve"), 5.0),
        ListedProcess(501, 500, "llama-server", ("/x/lib/ollama/llama-server", "--port", "5"), 6.0),
        ListedProcess(600, 1, "Google Chrome", ("/Applications/Google Chrome.app/x",), 7.0),
    ]
    mac.held |= {500: 20 * MIB, 501: 9 * GIB, 600: 2 * GIB}
    reading = one(mac)
    assert held(reading) == {501: 9 * GIB, 4100: 5 * GIB}
    assert reading.uses_reason == WHOLE


def test_a_launcher_counts_with_its_children(mac: FakeMac) -> None:
    mac.table += [
        ListedProcess(700, 1, "mlx_lm.server", ("mlx_lm.server", "--model", "m"), 5.0),
        ListedProcess(701, 700, "worker", (), 6.0),
        ListedProcess(702, 701, "helper", (), 7.0),
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
    mac.table[-1] = ListedProcess(4200, 1, "Notes", (), 99.0)
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
    mac.table.append(ListedProcess(501, 1, "llama-server", ("llama-server", "-m", "x"), 6.0))
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
    assert [fault.why for fault in sample.faults] == ["ioreg reports no allocated memory"]


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
    assert "no longer lists it" in sample.faults[0].why


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


PYTHON = sys.executable


def test_a_program_is_run_without_a_shell_in_a_bare_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    script = "import os, sys; print(sorted(os.environ)[:2], sys.argv[1:], sys.stdin.read())"
    printed = Mac().run((PYTHON, "-I", "-c", script, "$HOME; ls"))
    assert printed.startswith(b"['LC_ALL', 'PATH'] ['$HOME; ls']")


def test_a_program_that_is_not_there_is_no_mac() -> None:
    with pytest.raises(SourceUnavailable, match="/usr/sbin/no-such-program is not installed"):
        Mac().run(("/usr/sbin/no-such-program",))


def test_a_program_that_fails_is_named_with_its_code() -> None:
    with pytest.raises(SourceError, match="failed with exit code 3"):
        Mac().run((PYTHON, "-c", "raise SystemExit(3)"))


def test_a_program_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "TIMEOUT_S", 0.1)
    began_s = time.monotonic()
    with pytest.raises(SourceError, match=r"did not answer within 0\.1 s"):
        Mac().run((PYTHON, "-c", "import time; time.sleep(30)"))
    assert time.monotonic() - began_s < 10


def test_every_program_of_the_system_has_its_whole_path() -> None:
    named = (
        calls.ACCELERATORS, calls.ACCELERATORS_TEXT, calls.GPU_CLIENTS,
        calls.PLATFORM, calls.SYSCTL, calls.VM_STAT, calls.BOOT_SESSION,
    )  # fmt: skip
    assert all(argv[0].startswith("/usr/") for argv in named), "launchd's PATH is short"


def test_the_process_table_has_this_program_and_its_parent() -> None:
    table = {one.pid: one for one in Mac().processes()}
    own = table[os.getpid()]
    assert own.parent_pid == os.getppid()
    assert own.argv
    assert 0 < own.started_at_s <= time.time()


def test_resident_memory_is_that_of_the_process() -> None:
    held = present(Mac().resident_bytes(os.getpid()))
    assert held > 1 << 20
    assert Mac().resident_bytes(2**22 + 1) is None


@only_where(sys.platform != "darwin", "a Mac has Metal")
def test_without_metal_nothing_is_recommended() -> None:
    assert Mac().recommended_bytes() is None


@only_where(sys.platform == "darwin", "only macOS tells footprints")
def test_a_footprint_of_this_program() -> None:
    found = present(Mac().footprint(os.getpid()))
    assert found > 1 << 20


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (b"0A1B2C3D-0000-1111-2222-333344445555\n", "0A1B2C3D-0000-1111-2222-333344445555"),
        (b"second level name is invalid\n", "boot-1700000000"),
        (SourceError("sysctl failed"), "boot-1700000000"),
        (SourceUnavailable("no sysctl"), "boot-1700000000"),
    ],
)
def test_a_step_of_the_clock_makes_no_other_boot(
    monkeypatch: pytest.MonkeyPatch, printed: bytes | Exception, expected: str
) -> None:
    asked = []

    def run(argv: tuple[str, ...]) -> bytes:
        asked.append(argv)
        if isinstance(printed, Exception):
            raise printed
        return printed

    booted_at_s = [1_700_000_000.9]
    monkeypatch.setattr("psutil.boot_time", lambda: booted_at_s[0])
    mac = Mac()
    monkeypatch.setattr(mac, "run", run)
    first = mac.boot_id()
    booted_at_s[0] += 3600
    assert (first, mac.boot_id()) == (expected, expected)
    assert asked == [calls.BOOT_SESSION]
