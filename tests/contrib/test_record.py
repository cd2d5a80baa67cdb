"""The one command that records every leaker, on the stand-in and a torch that drives it."""

from __future__ import annotations

import csv
import json
import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT, need, not_here, ran
from tests.contrib.test_leakers import BLOCK, PROGRAMS
from tests.fakenvml import FakeNvml

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

RECORD = ROOT / "contrib" / "leakers" / "record.py"
TORCH = """
import os, pathlib, pickle
__version__ = "9.9.9"
uint8 = None
held = 0
def told():
    conf = pathlib.Path(os.environ["FAKE_NVML_CONF"])
    fresh = conf.with_suffix(f".{os.getpid()}")
    line = f"proc 0 pid={os.getpid()} mem={held}\\n" if held else ""
    fresh.write_text("driver 570.1\\ngpu 0 name=NVIDIA_Test total=24G\\n" + line)
    fresh.replace(conf)
class version:
    cuda = "12.8"
class memory:
    on = 0
    @classmethod
    def _record_memory_history(cls, max_entries):
        cls.on = max_entries
    @classmethod
    def _dump_snapshot(cls, file):
        trace = [{"action": "alloc", "addr": 1, "size": held, "stream": 0, "frames": []}]
        with open(file, "wb") as stream:
            pickle.dump({"segments": [], "device_traces": [trace], "on": cls.on}, stream)
class cuda:
    memory = memory
    @staticmethod
    def is_available():
        return True
    @staticmethod
    def get_device_name(device):
        return "NVIDIA Test GPU/1"
    @staticmethod
    def mem_get_info(device):
        return 24 * 2**30 - held, 24 * 2**30
    @staticmethod
    def empty_cache():
        told()
""" + BLOCK.replace("return self", "told(); return self")


def _run(*flags: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return ran(
        [sys.executable, "-B", str(RECORD), *flags], timeout=120, env=os.environ | (env or {})
    )


def _world(fake: FakeNvml, torch: str = TORCH) -> dict[str, str]:
    (fake.folder / "torch.py").write_text(torch, encoding="utf-8")
    fake.write("driver 570.1", "gpu 0 name=NVIDIA_Test total=24G")
    env = fake.env()
    return env | {"PYTHONPATH": os.pathsep.join([str(fake.folder), env.get("PYTHONPATH", "")])}


def test_the_dry_run_tells_every_command_and_what_should_be_said() -> None:
    done = _run("--dry-run", "--minutes", "6", "--device", "cuda:1")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    commands = [line for line in lines if ".py" in line]
    assert [line.split()[0].rpartition("/")[2] for line in commands] == [
        f"{n}.py" for n in PROGRAMS
    ]
    assert all("--device cuda:1 --seconds 360" in line for line in commands)
    assert sum("--snapshot" in line for line in commands) == 1
    assert [line.strip().partition(":")[0] for line in lines if line.startswith(" ")] == (
        ["watch or alert"] * 4 + ["no alert"] * 3
    )
    assert lines[-1] == "7 leakers, about 44 min in all"


def test_what_is_planned_is_what_the_leakers_understand() -> None:
    planned = _run("--dry-run", "--minutes", "1").stdout.splitlines()
    for line in planned[:-1:2]:
        done = ran([sys.executable, "-B", *line.split(), "--dry-run"], timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_traces_snapshot_and_provenance_are_written(tmp_path: Path) -> None:
    need(FakeNvml.available(), "a C compiler builds the stand-in library")
    target = tmp_path / "out"
    flags = ("--minutes", "0.3", "--pause", "0", "--interval", "500ms", "-o", str(target))
    env = _world(FakeNvml(tmp_path))
    done = _run(*flags, "--only", "leak_gradual", "sawtooth", env=env)
    # So short a leak is no leak yet, and the answer says so.
    assert (done.returncode, done.stderr) == (3, "")
    assert "NVIDIA Test GPU/1, driver 570.1, torch 9.9.9" in done.stdout
    told = json.loads((target / "provenance.json").read_text(encoding="utf-8"))
    assert (told["gpu"], told["driver"], told["torch"], told["cuda"]) == (
        *("NVIDIA Test GPU/1", "570.1", "9.9.9"),
        "12.8",
    )
    assert told["command"][0] == "record.py"
    gradual, sawtooth = told["runs"]
    if not gradual["listed"]:
        not_here("in a pid namespace of its own the driver's numbers mean nobody")
    assert gradual["files"] == [
        *("leak_gradual.csv", "leak_gradual.device.csv"),
        "leak_gradual.pickle",
    ]
    assert (gradual["result"], sawtooth["result"]) == ("wrong: not noticed", "right")
    assert sawtooth["files"] == ["sawtooth.csv", "sawtooth.device.csv"]
    for run in (gradual, sawtooth):
        assert run["exit_code"] == 0
        with (target / run["files"][0]).open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        assert {row["pid"] for row in rows} == {str(run["pid"])}
        assert len(rows) >= 3
    assert sorted(file.name for file in target.glob("*.log")) == [
        *("leak_gradual.log", "sawtooth.log"),
    ]


@pytest.mark.parametrize(
    ("torch", "words"),
    [
        ("raise ImportError('not here')\n", "pip install torch"),
        ("import sys\nsys.exit('broken driver')\n", "PyTorch does not work here: broken driver"),
        (TORCH.replace("return True", "return False"), "PyTorch sees no CUDA device"),
    ],
)
def test_a_machine_that_cannot_is_told_in_one_line(torch: str, words: str, tmp_path: Path) -> None:
    need(FakeNvml.available(), "a C compiler builds the stand-in library")
    done = _run("-o", str(tmp_path / "out"), env=_world(FakeNvml(tmp_path), torch))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert words in done.stderr


def test_nothing_is_written_over(tmp_path: Path) -> None:
    need(FakeNvml.available(), "a C compiler builds the stand-in library")
    done = _run("-o", str(tmp_path), env=_world(FakeNvml(tmp_path)))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "is not empty" in done.stderr


@pytest.mark.parametrize("flags", [("--minutes", "0"), ("--pause", "-1"), ("--only", "nobody")])
def test_nonsense_is_a_usage_error(flags: tuple[str, ...]) -> None:
    done = _run(*flags)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
