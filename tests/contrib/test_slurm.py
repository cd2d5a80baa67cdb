"""The Slurm prolog, epilog and health check: real shells, the real program, a pretended node."""

from __future__ import annotations

import importlib.machinery
import os
import shutil
import subprocess
import sys
import time
import types
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.core.model import Holding
from tests import making
from tests.children import Child, shell_script
from tests.cli import world
from tests.conftest import ROOT, need, ran

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.store.live import LiveProcess

pytestmark = pytest.mark.slow

SLURM = ROOT / "contrib" / "slurm"
SCRIPTS = ("prolog", "epilog", "health", "common")
NEXT_S = 60.0


class Node:
    """A node whose log and controller are programs that write down what they are told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.marks = folder / "marks"
        bin_ = folder / "bin"
        bin_.mkdir()
        self.answer("logger", "")
        self.answer("scontrol", f"echo drained > {folder}/state")
        self.answer("sinfo", f"cat {folder}/state")
        (folder / "state").write_text("idle\n")
        self.environ = {
            **os.environ, "SLURM_JOB_ID": "42", "SLURM_JOB_GPUS": "0,1", "SLURM_JOB_USER": "alice",
            "SLURMD_NODENAME": "node7", "GPUWATCHD_SLURM_MARKS": str(self.marks),
            "GPUWATCHD_SLURM_SETTINGS": str(folder / "settings"), "GPUWATCHD_SLURM_WAIT": "0",
            "GPUWATCHCTL": str(world.PROGRAM),
        }  # fmt: skip
        (folder / "settings").write_text(f"PATH={bin_}:$PATH\n")

    def answer(self, name: str, script: str) -> None:
        """Let a program of Slurm do so, after it has written down what it is told."""
        said = f'printf "%s\\n" "$*" >> "{self.folder}/{name}.said"'
        shell_script(self.folder / "bin" / name, f"{said}\n{script}")

    def run(self, name: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run prolog or epilog as slurmd does."""
        return ran([SLURM / name], env={**self.environ, **environ}, timeout=60)

    def said(self, name: str) -> str:
        """Return what a program was told."""
        file = self.folder / f"{name}.said"
        return file.read_text() if file.exists() else ""


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def _process(**changes: Any) -> LiveProcess:
    process = world.process(used_gib=3)
    return msgspec.structs.replace(process, info=msgspec.structs.replace(process.info, **changes))


def _on_the_node(*processes: LiveProcess, age_s: float = -NEXT_S) -> None:
    """Let a daemon that goes on looking see these, also after the job."""
    card, _ = world.state().devices
    device = msgspec.structs.replace(card, processes=processes, finding=None)
    world.write(devices=(device,), alerts=(), taken_at_s=time.time() - age_s)


@pytest.mark.parametrize("name", SCRIPTS)
def test_they_are_clean_shell(name: str) -> None:
    need(shutil.which("shellcheck"), "shellcheck is missing")
    subprocess.run(["bash", "-n", SLURM / name], check=True)
    done = ran(["shellcheck", "-x", name], cwd=SLURM)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_clean_node_is_not_spoken_of(node: Node) -> None:
    _on_the_node()
    for name in ("prolog", "epilog"):
        done = node.run(name)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert node.said("logger") == ""


def test_what_earlier_jobs_left_is_told_and_held_against_nobody(node: Node) -> None:
    _on_the_node(_process(job=None))
    done = node.run("prolog")
    assert done.returncode == 0
    assert "held before it began: GPU 0: python[4711] of alice holds 3072 MiB" in done.stdout
    assert "job 42" in node.said("logger")
    assert node.run("epilog", GPUWATCHD_SLURM_DRAIN="1").stdout == ""
    assert node.said("scontrol") == ""
    assert list(node.marks.iterdir()) == []


def test_a_node_may_refuse_the_job_where_that_is_asked(node: Node) -> None:
    _on_the_node(_process(job=None))
    assert node.run("prolog", GPUWATCHD_SLURM_REFUSE="1").returncode == 1


@pytest.mark.parametrize(
    ("job", "user", "blamed"),
    [("slurm 42 batch", "alice", True), ("slurm 42.0", "bob", True), (None, "alice", True),
     (None, "bob", False), ("slurm 43.0", "alice", False)],
)  # fmt: skip
def test_only_what_is_of_the_job_is_held_against_it(
    job: str | None, user: str, blamed: bool, node: Node
) -> None:
    _on_the_node()
    node.run("prolog")
    _on_the_node(_process(job=job, user=user))
    done = node.run("epilog", GPUWATCHD_SLURM_DRAIN="1")
    assert done.returncode == 0
    assert ("leaked: GPU 0: python[4711]" in done.stdout) is blamed
    told = node.said("scontrol")
    assert ("update NodeName=node7 State=DRAIN Reason=gpuwatchd: job 42" in told) is blamed


def test_nothing_is_drained_unless_asked(node: Node) -> None:
    _on_the_node(_process(job="slurm 42 batch"))
    assert "leaked" in node.run("epilog").stdout
    assert node.said("scontrol") == ""


def test_the_epilog_waits_for_what_is_about_to_end(node: Node) -> None:
    _on_the_node(_process(job="slurm 42 batch"))
    with Child(
        [SLURM / "epilog"], env={**node.environ, "GPUWATCHD_SLURM_WAIT": "20"},
        stdout=subprocess.PIPE, text=True,
    ) as epilog:  # fmt: skip
        time.sleep(1)
        _on_the_node()
        assert epilog.communicate(timeout=30)[0] == ""
    assert epilog.returncode == 0


def test_a_look_from_before_the_end_of_the_job_blames_nobody(node: Node) -> None:
    """The daemon looks every few seconds: what it saw last may have ended since."""
    _on_the_node(_process(job="slurm 42 batch"), age_s=5)
    done = node.run("epilog", GPUWATCHD_SLURM_DRAIN="1")
    assert done.stdout == (
        "gpuwatchd: job 42: not looked at (the daemon has not looked since the job ended)\n"
    )
    assert node.said("scontrol") == ""


def test_it_finds_the_program_although_slurm_sets_no_path(node: Node) -> None:
    (node.folder / "bin" / "gpuwatchctl").symlink_to(world.PROGRAM)
    _on_the_node(_process(job=None, name="pythön"))
    bare = {
        key: value
        for key, value in node.environ.items()
        if key.startswith(("SLURM_", "GPUWATCHD_")) or key == "COVERAGE_PROCESS_START"
    }
    done = ran([SLURM / "prolog"], env=bare, timeout=60)
    assert "held before it began: GPU 0: pythön[4711]" in done.stdout


@pytest.mark.parametrize("said", ["[]", "{}", '{"source": "daemon", "stale_s": 0}', "no JSON", ""])
def test_an_answer_of_another_version_is_one_line(said: str, node: Node, tmp_path: Path) -> None:
    other = shell_script(tmp_path / "other", f"cat <<'E'\n{said}\nE")
    for name in ("prolog", "epilog"):
        done = node.run(name, GPUWATCHCTL=other, GPUWATCHD_SLURM_REFUSE="1")
        assert (done.returncode, done.stdout.count("\n"), done.stderr) == (0, 1, "")
        assert "not looked at (cannot be told: " in done.stdout


def test_a_gpu_is_the_one_of_its_device_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm counts by /dev/nvidiaN; on some boards nvidia-smi has them in another order."""
    loader = importlib.machinery.SourceFileLoader("held", str(SLURM / "held"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    held = types.ModuleType("held")
    loader.exec_module(held)
    for minor, uid in (("1", "GPU-a"), ("0", "GPU-b"), ("2", "GPU-????-not-read-yet")):
        (tmp_path / minor).mkdir()
        (tmp_path / minor / "information").write_text(
            f"Model: \t\t NVIDIA A100\nGPU UUID: \t {uid}\nDevice Minor: \t {minor}\n"
        )
    monkeypatch.setattr(held, "CARDS", str(tmp_path / "*/information"))
    assert [held.named(number) for number in "0123"] == ["GPU-b", "GPU-a", "2", "3"]


def test_what_cannot_be_noted_is_one_line(node: Node) -> None:
    _on_the_node()
    done = node.run("prolog", GPUWATCHD_SLURM_MARKS="/dev/null/marks")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert "not looked at (cannot be told: " in done.stdout


@pytest.mark.parametrize("name", ["prolog", "epilog"])
def test_what_cannot_be_told_fails_no_job(name: str, node: Node, tmp_path: Path) -> None:
    strict = {"GPUWATCHD_SLURM_REFUSE": "1", "GPUWATCHD_SLURM_DRAIN": "1"}
    hung = shell_script(tmp_path / "hung", "exec sleep 60")
    began_s = time.monotonic()
    for program, said in (("/nowhere/gpuwatchctl", "No such file"), (hung, "no answer")):
        done = node.run(name, GPUWATCHCTL=program, GPUWATCHD_SLURM_LIMIT="2", **strict)
        assert (done.returncode, said in done.stdout) == (0, True), done.stdout
    assert time.monotonic() - began_s < 20
    assert "old" in _with_old_state(node, name)
    assert node.said("scontrol") == ""


def _with_old_state(node: Node, name: str) -> str:
    world.write(taken_at_s=time.time() - 600, started_at_s=making.CARD.index or 0.0)
    return node.run(name).stdout


@pytest.mark.parametrize("gpus", ["", "N/A", "GPU-x;touch planted"])
def test_a_job_without_gpus_is_none_of_ours(gpus: str, node: Node) -> None:
    done = node.run("prolog", SLURM_JOB_GPUS=gpus, GPUWATCHCTL="/nowhere")
    assert (done.returncode, done.stdout) == (0, "")
    assert node.run("epilog", SLURM_JOB_ID="x").stdout == ""


def _ghost(*processes: LiveProcess, util_pct: float | None = 0.0, **changes: Any) -> None:
    """Let a daemon list idle memory on GPU 0, where these processes are."""
    card, second = world.state().devices
    seen = msgspec.structs.replace(world.reading(making.CARD.uid, 9), util_pct=util_pct)
    device = msgspec.structs.replace(card, reading=seen, processes=processes, finding=None)
    values: dict[str, Any] = {"kind": "ghost", "device_uid": making.CARD.uid, "held_bytes": 9 << 30}
    holding = Holding(**{**values, **changes})
    world.write(devices=(device, second), alerts=(), holdings=(holding,))


def _drains(node: Node) -> int:
    return node.said("scontrol").count("State=DRAIN")


def test_a_fact_drains_the_node_once_until_it_comes_again(node: Node) -> None:
    for times in (1, 2):
        _ghost()
        assert node.run("health").returncode == 0
        assert _drains(node) == times
        assert (
            "update NodeName=node7 State=DRAIN Reason=gpuwatchd: GPU 0: nobody holds 9216 MiB"
            in (node.said("scontrol"))
        )
        (node.folder / "state").write_text("idle\n")  # as an administrator resumes it
        done = node.run("health")
        assert (done.returncode, done.stdout, _drains(node)) == (0, "", times)
        _on_the_node()
        assert node.run("health").stdout == ""


def test_a_lost_gpu_drains_the_node(node: Node) -> None:
    card, _ = world.state().devices
    lost = world.unread(making.CARD.uid, "lost")
    world.write(devices=(msgspec.structs.replace(card, reading=lost, processes=None),), alerts=())
    node.run("health")
    assert _drains(node) == 1


@pytest.mark.parametrize(
    ("job", "kind", "drained"),
    [(None, "idle", 1), ("slurm 42 batch", "gone", 1), ("slurm 42 batch", "idle", 0)],
)
def test_idle_memory_of_a_job_is_that_jobs_while_it_is_there(
    job: str | None, kind: str, drained: int, node: Node
) -> None:
    process = _process(job=job)
    _ghost(*(() if kind == "gone" else (process,)), kind=kind, process=process.info)
    node.run("health")
    assert _drains(node) == drained


@pytest.mark.parametrize("util_pct", [3.0, None])
def test_a_gpu_that_works_or_may_work_is_no_fact(util_pct: float | None, node: Node) -> None:
    _ghost(util_pct=util_pct)
    assert node.run("health").stdout == ""
    _ghost(_process(job="slurm 43.0"))
    assert node.run("health").stdout == ""
    assert node.said("scontrol") == ""


@pytest.mark.parametrize(
    "state",
    ["echo drained", "echo draining", "echo 'down*'", "echo unknown", "echo 7", "exit 1",
     "echo idle; echo drained", "head -c 1048576 /dev/zero | tr '\\0' i",
     "yes idle,idle", "sleep 60"],
)  # fmt: skip
def test_a_node_is_drained_only_from_a_state_that_allows_it(state: str, node: Node) -> None:
    node.answer("sinfo", state)
    _ghost()
    done = node.run("health", GPUWATCHD_SLURM_LIMIT="3")
    assert (done.returncode, node.said("scontrol")) == (0, "")


@pytest.mark.parametrize("answer", ["exit 1", "exit 0", "sleep 60"])
def test_a_controller_that_fails_or_lies_is_asked_twice_at_most_and_said(
    answer: str, node: Node
) -> None:
    node.answer("scontrol", answer)
    _ghost()
    done = node.run("health", GPUWATCHD_SLURM_LIMIT="3")
    assert (done.returncode, done.stdout.count("\n"), done.stderr) == (0, 2, "")
    assert _drains(node) == (1 if answer == "exit 0" else 2)
    node.answer("scontrol", f"echo drained > {node.folder}/state")
    node.run("health")
    assert (node.folder / "state").read_text() == "drained\n"


def test_only_the_log_where_draining_is_off(node: Node) -> None:
    _ghost()
    off = {"GPUWATCHD_SLURM_HEALTH_DRAIN": "0"}
    assert [node.run("health", **off).stdout.count("\n") for _ in range(2)] == [1, 0]
    assert node.said("scontrol") == ""


def test_without_a_daemon_that_looks_the_node_is_not_judged(node: Node) -> None:
    _ghost()
    for program, said in (("/nowhere/gpuwatchctl", "No such file"), ("/bin/true", "told")):
        done = node.run("health", GPUWATCHCTL=program)
        assert (done.returncode, done.stdout.count("\n"), said in done.stdout) == (0, 1, True)
    world.write(stopped=True)
    assert node.run("health").stdout.count("\n") == 1
    assert "old" in _with_old_state(node, "health")
    assert node.said("scontrol") == ""
