"""The thin functions that ask the system, as far as they can be asked anywhere."""

from __future__ import annotations

import os
import sys
import time

import pytest

from gpuwatchd.collect.metal import calls
from gpuwatchd.collect.metal.calls import Mac
from gpuwatchd.core.errors import SourceError, SourceUnavailable
from tests.conftest import present

PYTHON = sys.executable


def test_a_program_is_run_without_a_shell_in_a_bare_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    script = "import os, sys; print(sorted(os.environ)[:2], sys.argv[1:], sys.stdin.read())"
    printed = Mac().run((PYTHON, "-I", "-c", script, "$HOME; ls"))
    assert printed.startswith(b"['LC_ALL', 'PATH'] ['$HOME; ls']")


def test_a_program_that_is_not_there_is_no_mac() -> None:
    with pytest.raises(SourceUnavailable, match="/usr/sbin/no-such-program is not here"):
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


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has Metal")
def test_without_metal_nothing_is_recommended() -> None:
    assert Mac().recommended_bytes() is None


@pytest.mark.skipif(sys.platform != "darwin", reason="only macOS tells footprints")
def test_a_footprint_of_this_program() -> None:
    found = present(Mac().footprint(os.getpid()))
    assert found.footprint_bytes > 1 << 20


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
