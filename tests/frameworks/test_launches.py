"""The command lines of a process and its ancestors, from a made-up /proc and from the real one."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from gpuwatchd.analysis.frameworks.engine_addresses import Launch
from gpuwatchd.collect.host import program
from gpuwatchd.collect.host.program import launches
from gpuwatchd.core.model import ProcessKey
from tests.children import Child
from tests.conftest import present

if TYPE_CHECKING:
    from pathlib import Path

BOOTED_S = 1000.0


def made(proc: Path, pid: int, parent: int, argv: list[str], environ: bytes = b"") -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (proc / "stat").write_text(f"cpu 1 2\nbtime {BOOTED_S:.0f}\n")
    fields = f"S {parent} 1 1 0 -1 0 0 0 0 0 1 2 0 0 20 0 1 0 {pid * 100} 0"
    (folder / "stat").write_text(f"{pid} (a) b) {fields}")
    (folder / "cmdline").write_bytes("\0".join([*argv, ""]).encode())
    (folder / "environ").write_bytes(environ)


@pytest.mark.requirement("B4")
def test_a_chain_from_the_engine_to_what_started_it(tmp_path: Path) -> None:
    environ = b"TOKEN=secret\0OLLAMA_HOST=0.0.0.0:9\0PATH=/bin\0"
    made(tmp_path, 30, 20, ["runner"])
    made(tmp_path, 20, 10, ["ollama", "serve"], environ)
    made(tmp_path, 10, 1, ["sh"])
    made(tmp_path, 1, 0, ["init"])
    assert launches(ProcessKey(pid=30, started_at_s=BOOTED_S + 30.0), None, tmp_path) == (
        Launch(30, ("runner",)),
        Launch(20, ("ollama", "serve"), (("OLLAMA_HOST", "0.0.0.0:9"),)),
        Launch(10, ("sh",)),
    )


def test_another_process_with_the_same_number_is_nobody(tmp_path: Path) -> None:
    made(tmp_path, 30, 1, ["other"])
    assert launches(ProcessKey(pid=30, started_at_s=BOOTED_S + 90.0), None, tmp_path) == ()
    assert launches(ProcessKey(pid=31, started_at_s=BOOTED_S + 31.0), None, tmp_path) == ()
    assert launches(ProcessKey(pid=30, started_at_s=None), None, tmp_path) == ()


def test_start_times_count_from_the_boot_that_was_first_told(tmp_path: Path) -> None:
    made(tmp_path, 30, 1, ["server"])  # The clock was set since: the kernel says another boot.
    key = ProcessKey(pid=30, started_at_s=5000.0 + 30.0)
    assert launches(key, None, tmp_path) == ()
    assert launches(key, 5000.0, tmp_path) == (Launch(30, ("server",)),)


def test_a_circle_of_parents_ends(tmp_path: Path) -> None:
    made(tmp_path, 30, 20, ["a"])
    made(tmp_path, 20, 30, ["b"])
    found = launches(ProcessKey(pid=30, started_at_s=BOOTED_S + 30.0), None, tmp_path)
    assert len(found) == program.MOST_ANCESTORS + 1


@pytest.mark.parametrize("proc_root", ["/proc", "/nonexistent"])
def test_a_process_of_this_machine(proc_root: str) -> None:
    command = [sys.executable, "-c", "print(); input()", "--port", "8000"]
    pipe = subprocess.PIPE
    with Child(command, stdin=pipe, stdout=pipe) as process:
        # It runs: right after exec the kernel knows no command line yet.
        present(process.stdout).read(1)
        me = psutil.Process(process.pid)
        key = ProcessKey(pid=process.pid, started_at_s=me.create_time())
        found = launches(key, None, proc_root)
        process.kill()
    assert (found[0].pid, found[0].argv[1:]) == (process.pid, tuple(command[1:]))
    assert found[1].pid == psutil.Process().pid
