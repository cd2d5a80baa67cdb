"""A process keeps its identity when the clock is set, also for the next daemon."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.collect.host import BootAnchor, Host
from gpuwatchd.collect.host.procfs import inside_container
from gpuwatchd.store import live
from tests.conftest import ROOT, need, not_here, present
from tests.fakenvml import FakeNvml
from tests.host.world import STARTED, Clock, FakeProc, linux

if TYPE_CHECKING:
    from gpuwatchd.core.model import ProcessKey

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
BOOTED_S = 1_700_000_000


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "boot.json"


def key_of(proc: FakeProc, kept: Path | None, step_s: int = 0) -> ProcessKey:
    """Return the identity of a process for a daemon that starts after a step of the clock."""
    proc.put("stat", f"cpu 1 2 3\nbtime {BOOTED_S + step_s}\n")
    proc.process(7)
    anchor = BootAnchor(kept) if kept else None
    host = Host(proc.folder, contained=False, anchor=anchor, monotonic=Clock())
    return host.processes([7])[7].key


@pytest.mark.parametrize("step_s", [-3600, -1, 1, 40, 12 * 3600])
def test_a_step_of_the_clock_changes_nobody(proc: FakeProc, kept: Path, step_s: int) -> None:
    first = key_of(proc, kept)
    assert first.started_at_s == BOOTED_S + STARTED / TICKS_PER_S
    assert key_of(proc, kept, step_s) == first
    assert key_of(proc, kept, 2 * step_s) == first
    assert key_of(proc, None, step_s) != first


def test_another_process_with_the_number_is_still_another(proc: FakeProc, kept: Path) -> None:
    first = key_of(proc, kept)
    proc.process(7, starttime=STARTED + 1)
    host = Host(proc.folder, contained=False, anchor=BootAnchor(kept), monotonic=Clock())
    assert host.processes([7])[7].key != first


def test_another_boot_begins_anew(proc: FakeProc, kept: Path) -> None:
    first = key_of(proc, kept)
    proc.put("sys/kernel/random/boot_id", "boot-b\n")
    second = key_of(proc, kept, 500)
    assert second.started_at_s == (first.started_at_s or 0) + 500
    assert key_of(proc, kept, 900) == second


def test_a_clock_that_was_years_off_is_not_believed_for_ever(proc: FakeProc, kept: Path) -> None:
    wrong = key_of(proc, kept, -BOOTED_S + 100)
    right = key_of(proc, kept)
    assert wrong != right
    assert key_of(proc, kept, 5) == right


@pytest.mark.parametrize("text", ["", "{", '{"boot_id": 7}', "\0" * 50])
def test_a_damaged_file_is_written_anew(proc: FakeProc, kept: Path, text: str) -> None:
    kept.write_text(text)
    first = key_of(proc, kept)
    assert key_of(proc, kept, 40) == first
    assert kept.stat().st_mode & 0o077 == 0


def test_where_nothing_can_be_kept_the_kernels_word_counts(proc: FakeProc, tmp_path: Path) -> None:
    assert key_of(proc, tmp_path / "absent" / "boot.json", 40).started_at_s == (
        BOOTED_S + 40 + STARTED / TICKS_PER_S
    )
    path = tmp_path / "boot.json"
    assert BootAnchor(path).settled("", 5.0) == 5.0
    assert not path.exists()


@pytest.mark.slow
@linux
def test_the_daemon_keeps_it_in_its_state_directory(
    child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    need(FakeNvml.available(), "a C compiler builds the stand-in library")
    if inside_container(Path("/proc"), Path("/")):
        not_here("in a pid namespace of its own no process has a start")
    fake = FakeNvml(tmp_path)
    fake.write("gpu 0 total=8G reserved=100M base=100M", f"proc 0 pid={child.pid} mem=1G")
    env = fake.env() | {
        "GPUWATCHD_STATE_DIR": str(tmp_path / "state"),
        "GPUWATCHD_RUNTIME_DIR": str(tmp_path / "run"),
    }

    def began_s() -> float:
        command = [sys.executable, "-m", "gpuwatchd", "--source", "nvml", "--once"]
        subprocess.run(command, env=env, cwd=ROOT, check=True, capture_output=True, timeout=60)
        state = present(live.read(tmp_path / "run"))
        (process,) = state.devices[0].processes or ()
        return present(process.info.key.started_at_s)

    first_s = began_s()
    file = tmp_path / "state" / "boot.json"
    kept = msgspec.json.decode(file.read_bytes())
    # As if the clock had been set forward by 40 s between this start and the next.
    file.write_bytes(msgspec.json.encode(kept | {"booted_at_s": kept["booted_at_s"] - 40}))
    assert began_s() == first_s - 40
