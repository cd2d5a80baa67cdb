"""The programs that make a GPU, or a log, misbehave."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.cli import main
from tests.children import Child
from tests.conftest import ROOT, present, ran

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

LEAKERS = ROOT / "contrib" / "leakers"
PROGRAMS = (
    *("leak_gradual", "leak_steps", "leak_cyclic", "leak_host"),
    *("warmup_then_flat", "sawtooth", "spike"),
)

BLOCK = """
class Block:
    def __init__(self, size):
        global held
        self.size = size
        held += size
    def __del__(self):
        global held
        held -= self.size
    def fill_(self, value):
        return self
def empty(size, dtype, device):
    return Block(size)
def device(name):
    return name
"""
FAKE_TORCH = (
    """
import pathlib
uint8 = None
held = 0
log = pathlib.Path(__file__).with_name("held.log")
class cuda:
    @staticmethod
    def is_available():
        return True
    @staticmethod
    def mem_get_info(device):
        return 4_000_000_000 - held, 4_000_000_000
    @staticmethod
    def empty_cache():
        with log.open("a") as lines:
            lines.write(f"{held}\\n")
"""
    + BLOCK
)


@pytest.mark.parametrize("program", [*PROGRAMS, "record"])
def test_one_whose_output_is_not_read_ends_without_a_word(program: str) -> None:
    """As under ``| head -n 1``."""
    read, write = os.pipe()
    os.close(read)
    call = [sys.executable, str(LEAKERS / f"{program}.py"), "--dry-run"]
    done = subprocess.run(call, stdout=write, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def _call(
    program: str, *flags: str, path: Path | None = None, timeout_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin"} | ({"PYTHONPATH": str(path)} if path else {})
    return ran(
        [sys.executable, "-B", str(LEAKERS / f"{program}.py"), *flags],
        timeout=timeout_s,
        env=environment,
    )


def _planned_mb(program: str, *flags: str) -> list[float]:
    done = _call(program, "--dry-run", *flags)
    assert done.returncode == 0, done.stderr
    return [float(line.split()[-2].replace(",", "")) for line in done.stdout.splitlines()[1:]]


def test_the_dry_run_tells_the_shape() -> None:
    assert _planned_mb("leak_gradual", "--rate", "60", "--start", "0")[:4] == [0, 60, 120, 180]
    steps = _planned_mb("leak_steps", "--rate", "100", "--every", "120", "--start", "0")
    assert steps == [0, 0, 200, 200, 400, 400, 600, 600, 800, 800, 1000]
    rise = _planned_mb("warmup_then_flat", "--rate", "600", "--tau", "60", "--start", "0")
    assert rise == sorted(rise)
    assert rise[1] == pytest.approx(379, abs=1)
    assert rise[-1] == pytest.approx(600, abs=1)
    teeth = _planned_mb("sawtooth", "--rate", "100", "--period", "180", "--start", "5")
    assert teeth[:7] == [5, 105, 205, 5, 105, 205, 5]
    creeping = ("--rate", "30", "--swing", "60", "--period", "120", "--start", "0")
    assert _planned_mb("leak_cyclic", *creeping)[:6] == [0, 30, 60, 90, 120, 150]
    jump = _planned_mb("spike", "--rate", "500", "--after", "150", "--start", "7")
    assert jump[:5] == [7, 7, 7, 507, 507]
    assert _planned_mb("leak_host", "--rate", "40")[:3] == [0, 40, 80]


def test_a_host_leak_leaves_the_device_alone(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    flags = ("--start", "20", "--rate", "1200", "--seconds", "1.5")
    done = _call("leak_host", *flags, path=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "MB held on the host" in done.stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_without_torch_it_says_so_in_one_line(program: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('not here')\n")
    done = _call(program, path=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "pip install torch" in done.stderr


def test_a_sawtooth_gives_memory_back_to_the_driver(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    flags = (
        "--rate",
        "60000",
        "--period",
        "1",
        "--start",
        "20",
        "--seconds",
        "2.4",
        "--leave",
        "0",
    )
    done = _call("sawtooth", *flags, path=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "MB held" in done.stdout
    falls = [int(line) for line in (tmp_path / "held.log").read_text().split()]
    assert falls
    assert all(left < 600e6 for left in falls)


def test_it_leaves_room_for_others(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    flags = ("--start", "3900", "--seconds", "0.6", "--leave", "500")
    done = _call("leak_gradual", *flags, path=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[2:4] == ["0", "MB"]


def test_ctrl_c_ends_a_leaker_quietly(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    with Child(
        [sys.executable, "-B", str(LEAKERS / "leak_gradual.py"), "--start", "10"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)},
    ) as process:
        assert "MB held" in present(process.stdout).readline()
        time.sleep(0.05)  # between the line and the try around it there is no gap; this is margin
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "")


@pytest.mark.parametrize(
    "shape", ["gradual", "steps", "cyclic", "warmup", "sawtooth", "spike", "flat"]
)
def test_make_log_writes_what_nvidia_smi_writes(shape: str, tmp_path: Path) -> None:
    target = tmp_path / "x.csv"
    done = _call("make_log", shape, "--hours", "0.5", "--interval", "10", "-o", str(target))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with target.open(newline="") as stream:
        header, *rows = list(csv.reader(stream, skipinitialspace=True))
    assert header[0] == "timestamp"
    assert header[3:5] == ["memory.used [MiB]", "memory.total [MiB]"]
    assert len(rows) == 181
    assert rows[0][0] == "2026/03/02 09:00:00.000"
    assert rows[-1][0] == "2026/03/02 09:30:00.000"
    assert all(0 <= int(row[3].removesuffix(" MiB")) <= 24564 for row in rows)


def test_make_log_leaks_at_the_asked_rate_and_ends_when_full() -> None:
    done = _call("make_log", "gradual", "--rate", "500", "--noise", "0", "--hours", "9")
    used = [int(line.split(", ")[3].removesuffix(" MiB")) for line in done.stdout.splitlines()[1:]]
    assert used[12] - used[0] == pytest.approx(500e6 / 1024**2, abs=1)
    assert used[-1] == pytest.approx(24564, abs=50)
    assert len(used) < 9 * 720


def test_make_log_is_repeatable_and_differs_by_seed() -> None:
    def text(seed: str) -> str:
        return _call("make_log", "sawtooth", "--hours", "0.1", "--seed", seed).stdout

    assert text("1") == text("1") != text("2")


@pytest.mark.parametrize("flags", [("flat", "--interval", "0"), ("nonsense",), ()])
def test_make_log_refuses_nonsense(flags: tuple[str, ...]) -> None:
    done = _call("make_log", *flags)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_make_log_says_where_it_cannot_write(tmp_path: Path) -> None:
    done = _call("make_log", "flat", "-o", str(tmp_path / "no" / "x.csv"))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("shape", "pattern"),
    [("gradual", "gradual"), ("steps", "step"), ("cyclic", "cyclic"), ("flat", None)],
)
def test_a_made_log_is_judged_as_the_readme_says(
    shape: str, pattern: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "x.csv"
    # Long enough for the default rate to be certain; 10 s apart to be quick.
    _call("make_log", shape, "--hours", "3", "--interval", "10", "-o", str(target))
    assert main(["analyze", "--json", str(target)]) == (0 if pattern is None else 3)
    [file] = json.loads(capsys.readouterr().out)["data"]
    assert (file["rows"], file["bad_rows"], file["error"]) == (1081, 0, None)
    [subject] = file["subjects"]
    assert bool(subject["alerts"]) == (pattern is not None)
    if pattern is not None:
        assert subject["verdict"]["pattern"] == pattern
