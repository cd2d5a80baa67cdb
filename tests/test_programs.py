"""The key of a program: the same work has the same, anything else another, or none."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.analysis import program_key as programs
from gpuwatchd.analysis.program_key import FileMark, launch, program_key, settled, settled_arguments
from gpuwatchd.collect.host import Host, program
from gpuwatchd.core.model import Device, ProcessInfo, ProcessKey
from gpuwatchd.core.text import mask_argv
from tests.children import Child
from tests.conftest import ON_LINUX
from tests.making import present

if TYPE_CHECKING:
    from pathlib import Path

MARK = FileMark("/home/a/train.py", 100, 5)


def key(*argv: str, user: str = "alice", script: FileMark | None = MARK) -> str | None:
    found = launch(mask_argv(argv, limit=len(argv)))
    return None if found is None else program_key(found, user=user, script=script)


def test_what_changes_from_run_to_run_does_not_change_the_key() -> None:
    first = key(
        *("python", "train.py", "--lr", "0.1", "--seed", "1", "--output_dir=/scratch/job_11/out"),
        *("--master_port", "29501", "--run-name", "blue-fox-1", "--local_rank=0", "hydra.seed=4"),
        *("--device", "cuda:0", "--data", "/data/2026-11-20/tokens.bin"),
    )
    second = key(
        *("python", "train.py", "--lr", "0.1", "--seed=77", "--output_dir", "/scratch/job_12/out"),
        *("--master_port=29777", "--run-name", "red-owl-9", "--local_rank=3", "hydra.seed=5"),
        *("--device", "cuda:5", "--data", "/data/2026-11-21/tokens.bin"),
    )
    assert present(first) == second


@pytest.mark.parametrize(
    "other",
    [
        ("python", "train.py", "--lr", "0.2"),
        ("python", "train.py", "--lr", "0.1", "--cache"),
        ("python", "eval.py", "--lr", "0.1"),
        ("python", "-m", "train", "--lr", "0.1"),
        ("python3.12", "train.py", "--lr", "0.1"),
        ("python", "train.py", "--lora-rank", "64", "--lr", "0.1"),
        ("python", "train.py", "--lr", "0.1", "--data-dir", "/data/b"),
    ],
)
def test_other_work_has_another_key(other: tuple[str, ...]) -> None:
    script = None if other[1] == "-m" else MARK._replace(path=f"/home/a/{other[1]}")
    assert key("python", "train.py", "--lr", "0.1") != key(*other, script=script)


def test_changed_code_another_user_and_another_library_have_other_keys() -> None:
    found = present(launch(["python", "train.py"]))
    keys = {
        program_key(found, user="alice", script=MARK),
        program_key(found, user="bob", script=MARK),
        program_key(found, user="alice", script=MARK._replace(size=101)),
        program_key(found, user="alice", script=MARK._replace(changed_ns=6)),
        program_key(found, user="alice", script=MARK._replace(path="/home/b/train.py")),
        program_key(found, user="alice", script=MARK, library=FileMark("/l/libtorch_cpu.so", 1, 1)),
        program_key(found, user="alice", script=MARK, library=FileMark("/l/libtorch_cpu.so", 2, 1)),
        program_key(found, user="alice", script=MARK, executable=FileMark("/usr/bin/python", 1, 1)),
    }
    assert len(keys) == 8


@pytest.mark.parametrize(
    "argv",
    [
        [],
        [""],
        ["-bash"],
        ["python"],
        ["python", "-i"],
        ["python", "-ui", "train.py"],
        ["python", "-uc", "import x"],
        ["python", "-m"],
        ["python", "-"],
        ["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()"],
        ["python", "-m", "ipykernel_launcher", "-f", "kernel-1.json"],
        ["python", "/opt/venv/bin/jupyter-lab"],
        ["/usr/bin/ipython", "train.py"],
        ["node"],
        ["VLLM::EngineCore_DP0"],
        ["ray::Trainer.fit"],
        ["python train.py --set-by-title"],
    ],
)
def test_what_may_be_anything_next_time_has_no_key(argv: list[str]) -> None:
    assert launch(argv) is None


@pytest.mark.parametrize(
    "argv", [["-m", "a.train", "-x"], ["-um", "a.train", "-x"], ["-ma.train", "-x"],
             ["-X", "dev", "-W", "error", "-u", "-m", "a.train", "-x"]]
)  # fmt: skip
def test_a_module_is_found_behind_flags(argv: list[str]) -> None:
    assert launch(["python", *argv]) == ("python", "", "a.train", ("-x",))


def test_a_written_over_command_line_has_no_key() -> None:
    assert launch(["trainer-worker"], "/usr/bin/python3.11") is None
    assert launch(["llama-server", "-m", "x"], "/opt/llama-server") is not None


def test_a_secret_never_reaches_the_key() -> None:
    first = key("python", "train.py", "--hf-token", "hf_abcdefghijklmnopqrst", "--x", "1")
    other = key("python", "train.py", "--hf-token", "hf_zzzzzzzzzzzzzzzzzzzz", "--x", "1")
    assert first == other


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("/models/Llama-3.1-8B-Instruct", "/models/Llama-3.1-8B-Instruct"),
        ("/tmp/tmpab12/model.bin", "/tmp/#/model.bin"),
        ("tcp://127.0.0.1:29500", "tcp://#"),
        ("ckpt_1732182000.pt", "ckpt_#.pt"),
        ("3fa85f64-5717-4562-b3fc-2c963f66afa6", "#"),
        ("0.0001", "0.0001"),
        ("65536", "65536"),
    ],
)
def test_words_are_settled(word: str, kept: str) -> None:
    assert settled(word) == kept


def test_a_negative_number_is_a_value_and_a_flag_is_not() -> None:
    assert settled_arguments(["--seed", "-1", "--lr", "2"]) == ("--lr", "2")
    assert settled_arguments(["--seed", "--lr", "2"]) == ("--lr", "2")


def test_the_card_belongs_to_the_key() -> None:
    small = Device(uid="a", vendor="nvidia", index=0, name="A100", memory_total_bytes=40)
    large = Device(uid="b", vendor="nvidia", index=1, name="A100", memory_total_bytes=80)
    twin = Device(uid="c", vendor="nvidia", index=2, name="A100", memory_total_bytes=80)
    assert programs.key_on("p", small) != programs.key_on("p", large)
    assert programs.key_on("p", large) == programs.key_on("p", twin)


STARTED_S = time.time() + 1e6
"""Later than any file that a test writes."""
INFO = ProcessInfo(key=ProcessKey(pid=7, started_at_s=STARTED_S), name="python", user="a")


def test_a_script_that_changed_after_the_start_is_not_what_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass")
    argv, folder = ["python", "train.py"], str(tmp_path)
    before = present(program.key(INFO, argv, folder=folder))
    os.utime(tmp_path / "train.py", (STARTED_S + 100, STARTED_S + 100))
    assert program.key(INFO, argv, folder=folder) is None
    (tmp_path / "train.py").write_text("pass  # another")
    assert program.key(INFO, argv, folder=folder) not in {before, None}


def test_a_module_of_the_working_directory_is_looked_up(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    argv, folder = ["python", "-m", "pkg.train"], str(tmp_path)
    installed = program.key(INFO, argv, folder=folder)
    (tmp_path / "pkg/train.py").write_text("pass")
    assert program.key(INFO, argv, folder=folder) not in {installed, None}


def test_a_relative_script_is_nobodys_without_its_directory() -> None:
    assert program.key(INFO, ["python", "train.py"]) is None
    assert program.key(INFO, ["python", "/srv/train.py"]) is not None
    assert program.key(INFO, ["/opt/x"], executable="/opt/x (deleted)") is None


@ON_LINUX
def test_the_host_knows_the_program_of_a_live_process(tmp_path: Path) -> None:
    script = tmp_path / "work.py"
    script.write_text("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    found = []
    for seed in ("1", "2"):
        with Child(
            [sys.executable, "work.py", "--seed", seed], cwd=tmp_path, stdout=subprocess.PIPE
        ) as child:
            try:
                present(child.stdout).readline()
                for host in (Host(), Host(watch="psutil")):
                    found.append(host.processes([child.pid])[child.pid].program)
                    host.close()
            finally:
                child.kill()
    assert found[0] is not None
    assert found == [found[0]] * 4


def test_a_key_takes_no_openssl() -> None:
    script = (
        "import sys; from gpuwatchd import pipeline;"
        "from gpuwatchd.analysis import program_key as programs;"
        "from gpuwatchd.core.model import Device;"
        "card = Device(uid='u', vendor='v', index=0, name='n', memory_total_bytes=1);"
        "print(programs.key_on('a', card), '_hashlib' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["b5901942ca02ba5ea9d1c062f15735b6", "False"]
