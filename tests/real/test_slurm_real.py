"""Scripts that a real Slurm runs: controller, node and munge, pretended GPUs, a job or two."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.act.checkpoint import Checkpoint
from gpuwatchd.act.reap import Subject
from gpuwatchd.act.steps import Manager, Outcome, Request, manager_of, take
from gpuwatchd.core.codes import ActResult
from gpuwatchd.core.errors import ActionError
from gpuwatchd.core.model import Holding, ProcessInfo
from tests.act.children import booted_at_s, job, key_of
from tests.act.reuse import View
from tests.cli import world
from tests.conftest import ROOT, need, ran
from tests.real.mailserver import free_port
from tests.real.stage import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real_slurm
_HEALTH_S = 3
_PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "scontrol", "sinfo")


class Cluster:
    """One node that is its own controller."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._running: list[subprocess.Popen[bytes]] = []

    def ask(self, *words: str) -> str:
        """Return what a command of Slurm says."""
        return ran(words, env=self.environ, timeout=30).stdout

    def start(self, *words: str) -> None:
        """Start a daemon that stays in the foreground; its words go into a log."""
        with (self.folder / f"{os.path.basename(words[0])}.log").open("wb") as log:  # noqa: PTH119
            self._running.append(
                subprocess.Popen(words, env=self.environ, stdout=log, stderr=subprocess.STDOUT)
            )

    def stop(self) -> None:
        """End what was started, the last first."""
        for one in reversed(self._running):
            one.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(10)
            one.kill()
            one.wait()

    def logs(self) -> str:
        """Return what the daemons said."""
        return "\n".join(file.read_text(errors="replace") for file in self.folder.glob("*.log"))


def _configure(folder: Path, node: str) -> None:
    for number in range(2):
        os.mknod(folder / f"nvidia{number}", 0o600 | stat.S_IFCHR, os.makedev(240, number))
    for name in ("spool", "state"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(secrets.token_bytes(64))
    (folder / "munge.key").chmod(0o600)
    (folder / "gres.conf").write_text(
        f"NodeName={node} Name=gpu Type=h100 File={folder}/nvidia[0-1]\n"
    )
    ours = ROOT / "contrib" / "slurm"
    (folder / "settings").write_text(
        "GPUWATCHD_SLURM_DRAIN=1\nGPUWATCHD_SLURM_WAIT=0\n"
        f"GPUWATCHD_SLURM_MARKS={folder}/marks\nexport GPUWATCHCTL={world.PROGRAM}\n"
        f"PATH=$PATH:{os.path.dirname(shutil.which('scontrol') or '')}\n"  # noqa: PTH120
        f"export SLURM_CONF={folder}/slurm.conf\n"
        f"export GPUWATCHD_RUNTIME_DIR={os.environ['GPUWATCHD_RUNTIME_DIR']}\n"
        f"export GPUWATCHD_STATE_DIR={os.environ['GPUWATCHD_STATE_DIR']}\n"
    )
    for name in ("prolog", "epilog", "health"):
        script = folder / name
        script.write_text(
            f"#!/bin/sh\nenv > {folder}/{name}.env\n"
            f"export GPUWATCHD_SLURM_SETTINGS={folder}/settings\n"
            f'{ours}/{name} >> "{folder}/{name}.said" 2>&1\ncode=$?\n'
            f"echo $code > {folder}/{name}.code\nexit $code\n"
        )
        script.chmod(0o755)
    (folder / "slurm.conf").write_text(
        f"ClusterName=test\nSlurmctldHost={node}(127.0.0.1)\nSlurmUser=root\n"
        f"SlurmctldPort={free_port()}\nSlurmdPort={free_port()}\n"
        f"AuthType=auth/munge\nAuthInfo=socket={folder}/munge.socket\n"
        f"StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool\n"
        f"SlurmctldPidFile={folder}/slurmctld.pid\nSlurmdPidFile={folder}/slurmd.pid\n"
        "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\n"
        "SelectType=select/cons_tres\nGresTypes=gpu\nReturnToService=2\nSchedulerParameters="
        "sched_interval=1\nAccountingStorageType=accounting_storage/none\n"
        "JobAcctGatherType=jobacct_gather/none\n"
        f"PrologFlags=Alloc\nProlog={folder}/prolog\nEpilog={folder}/epilog\n"
        f"HealthCheckProgram={folder}/health\nHealthCheckInterval={_HEALTH_S}\n"
        f"NodeName={node} NodeAddr=127.0.0.1 CPUs=1 Gres=gpu:h100:2 State=UNKNOWN\n"
        f"PartitionName=all Nodes={node} Default=YES State=UP\n"
    )


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start munge, controller and node; end them by their ids."""
    for program in _PROGRAMS:
        need(shutil.which(program), f"{program} is missing (slurmctld slurmd slurm-client munge)")
    need(os.geteuid() == 0, "slurmd wants root")
    folder = tmp_path_factory.mktemp("slurm")
    node = socket.gethostname().partition(".")[0]
    _configure(folder, node)
    made = Cluster(folder)
    try:
        made.start(
            shutil.which("munged") or "", "--foreground", "--force",
            f"--key-file={folder}/munge.key", f"--socket={folder}/munge.socket",
            f"--pid-file={folder}/munge.pid", f"--seed-file={folder}/munge.seed",
            f"--log-file={folder}/munged.log",
        )  # fmt: skip
        until((folder / "munge.socket").exists, 10)
        conf = f"{folder}/slurm.conf"
        made.start(shutil.which("slurmctld") or "", "-D", "-f", conf)
        made.start(shutil.which("slurmd") or "", "-D", "-f", conf, "-N", node)
        until(lambda: "idle" in made.ask("sinfo", "-h", "-o", "%T"), 30)
        yield made
    finally:
        made.stop()


def _held(*, job: str | None) -> None:
    """Let the daemon have seen a process that holds memory on GPU 0; none where job is None."""
    card, _ = world.state().devices
    one = world.process(used_gib=3)
    info = msgspec.structs.replace(one.info, user="root", job=job)
    process = msgspec.structs.replace(one, info=info)
    device = msgspec.structs.replace(
        card, processes=() if job is None else (process,), finding=None
    )
    # As of a daemon that goes on looking: it has seen it after the job too.
    world.write(devices=(device,), alerts=(), taken_at_s=time.time() + 60)


def _ended(folder: Path) -> bool:
    """Say whether the epilog has written its exit code: the file is there a moment earlier."""
    code = folder / "epilog.code"
    return code.exists() and bool(code.read_text())


@pytest.mark.requirement("W14")
def test_slurm_runs_them_and_drains_the_node_of_a_job_that_leaks(cluster: Cluster) -> None:
    folder = cluster.folder
    _held(job=None)
    first = cluster.ask("sbatch", "--parsable", "--gres=gpu:1", "-o", "/dev/null", "--wrap", "true")
    number = first.strip()
    assert number.isdecimal(), cluster.logs()
    until(lambda: _ended(folder), 30)
    for name in ("prolog", "epilog"):
        assert (folder / f"{name}.code").read_text() == "0\n"
        assert (folder / f"{name}.said").read_text() == ""
        assert "SLURM_JOB_GPUS=0" in (folder / f"{name}.env").read_text().split()
    assert "drain" not in cluster.ask("sinfo", "-h", "-o", "%T")
    (folder / "epilog.code").unlink()
    _held(job=f"slurm {int(number) + 1} batch")
    cluster.ask("sbatch", "--gres=gpu:1", "-o", "/dev/null", "--wrap", "true")
    until(lambda: _ended(folder), 30)
    assert (folder / "epilog.code").read_text() == "0\n"
    assert (
        "leaked: GPU 0: python[4711] of root holds 3072 MiB" in (folder / "epilog.said").read_text()
    )
    until(lambda: "drain" in cluster.ask("sinfo", "-h", "-o", "%T"), 10)
    assert f"gpuwatchd: job {int(number) + 1} left memory" in cluster.ask(
        "sinfo", "-R", "-h", "-o", "%E"
    )


def test_slurmd_runs_the_health_check_and_a_fact_drains_the_node_once(cluster: Cluster) -> None:
    folder = cluster.folder
    code = folder / "health.code"

    def another() -> None:
        """Wait until it has run from beginning to end."""
        for _ in range(2):
            code.unlink(missing_ok=True)
            until(lambda: code.exists() and bool(code.read_text()), 30)
        assert code.read_text() == "0\n"

    def state() -> str:
        return cluster.ask("sinfo", "-h", "-o", "%T").strip()

    _held(job=None)
    another()
    assert state() == "idle", (folder / "health.said").read_text()
    card, _ = world.state().devices
    reading = world.reading(card.device.uid, 9)
    holding = Holding(kind="ghost", device_uid=card.device.uid, held_bytes=9 << 30)
    device = msgspec.structs.replace(
        card, reading=msgspec.structs.replace(reading, util_pct=0.0), processes=(), finding=None
    )
    world.write(devices=(device,), alerts=(), holdings=(holding,), taken_at_s=time.time() + 60)
    (folder / "health.said").write_text("")
    until(lambda: state() == "drained", 30)
    assert "gpuwatchd: GPU 0: nobody holds 9216 MiB" in cluster.ask("sinfo", "-R", "-h", "-o", "%E")
    another()
    # An administrator's word counts: it is not drained again for what is known.
    node = cluster.ask("sinfo", "-h", "-o", "%N").strip()
    cluster.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
    another()
    assert state() == "idle"
    cluster.ask("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=repair")
    # Gone, and come again: a new fact, but somebody else has drained the node.
    _held(job=None)
    another()
    world.write(devices=(device,), alerts=(), holdings=(holding,), taken_at_s=time.time() + 60)
    another()
    assert cluster.ask("sinfo", "-R", "-h", "-o", "%E").strip() == "repair"
    said = (folder / "health.said").read_text()
    assert said.count("unfit for jobs") == 1, said
    assert f"SLURMD_NODENAME={node}" in (folder / "health.env").read_text().split()


def test_a_job_that_sleeps_holds_a_gpu_without_a_process_on_it(cluster: Cluster) -> None:
    _held(job=None)
    node = cluster.ask("sinfo", "-h", "-o", "%N").strip()
    submit = ("sbatch", "--parsable", "--gres=gpu:2", "-o", "/dev/null", "--wrap", "sleep 120")
    number = cluster.ask(*submit).strip()
    until(lambda: "R" in cluster.ask("squeue", "-h", "-o", "%t", "-j", number).split(), 30)

    def listed(*extra: str) -> list[tuple[str, str, int, list[str] | None]]:
        environ = {**cluster.environ, "SLURMD_NODENAME": node}
        done = ran([world.PROGRAM, "zombies", "--slurm", "--json", *extra], env=environ, timeout=60)
        jobs = msgspec.json.decode(done.stdout)["data"]["jobs"]
        return [(job["job"], job["user"], job["gpu_count"], job["device_uids"]) for job in jobs]

    uids = [item.device.uid for item in world.state().devices]
    second = msgspec.structs.replace(world.state().devices[1], processes=())
    first = msgspec.structs.replace(second, device=world.state().devices[0].device)
    world.write(devices=(first, second), alerts=(), taken_at_s=time.time() + 60)
    assert listed() == []  # it has just begun
    until(lambda: listed("--grace", "2s") == [(number, "root", 2, uids)], 30)
    process = world.process(used_gib=3)
    info = msgspec.structs.replace(process.info, user="root", job=f"slurm {number} batch")
    process = msgspec.structs.replace(process, info=info)
    first = msgspec.structs.replace(first, processes=(process,))
    world.write(devices=(first, second), alerts=(), taken_at_s=time.time() + 60)
    assert listed("--grace", "2s") == [(number, "root", 2, uids[1:])]
    cluster.ask("scancel", number)
    until(lambda: listed("--grace", "2s") == [], 30)


class Worker:
    """A batch job that runs one program beside the shell of its script."""

    def __init__(self, cluster: Cluster, *words: str, trap: str = "", srun: bool = False) -> None:
        folder = Path(ran(["mktemp", "-d", "-p", str(cluster.folder)]).stdout.strip())
        self.saved, self._pid = folder / "saved", folder / "pid"
        code = f"import os, time; open({str(self._pid)!r}, 'w').write(f'{{os.getpid()}} ')"
        work = shlex.join([sys.executable, "-Sc", f"{code}; time.sleep(600)"])
        handler = f"trap 'echo saved >> {self.saved}' {trap}" if trap else ""
        self.saved.write_text("")
        script = folder / "script"
        script.write_text(
            f"#!/bin/bash\n{handler}\n{'srun ' * srun}{work} &\n"
            "while kill -0 $!; do wait; done 2>/dev/null\n"
        )
        self._cluster = cluster
        submit = ("sbatch", "--parsable", "-o", "/dev/null", *words, str(script))
        self.number = cluster.ask(*submit).strip()
        assert self.number.isdecimal(), cluster.logs()
        self._began()

    def _began(self) -> None:
        began = until(lambda: self._pid.exists() and self._pid.read_text().endswith(" "), 60)
        assert began, self._cluster.logs()
        self.pid = int(self._pid.read_text())
        self._pid.unlink()
        self.key = key_of(self.pid)

    def shown(self, key: str, number: str = "") -> list[str]:
        """Return each value that Slurm shows of the job, or of every task of its array."""
        words = self._cluster.ask("scontrol", "show", "job", "-o", number or self.number).split()
        return [word.partition("=")[2] for word in words if word.startswith(f"{key}=")]

    def again(self) -> None:
        """Let it start soon that it waits to be started again; Slurm itself waits two minutes.

        Not within the second of the requeue: slurmd refuses credentials as old as those it revoked.
        """
        until(lambda: self.shown("JobState") == ["PENDING"], 30)
        self._cluster.ask("scontrol", "update", f"JobId={self.number}", "StartTime=now+2")
        self._began()

    @property
    def manager(self) -> Manager:
        return manager_of(ProcessInfo(key=self.key, name="python"))

    def take(self, step: Any, *, has_checkpoint: bool = True) -> Outcome:
        info = ProcessInfo(key=self.key, name="python")
        # Slurm's jobs and the tests are in one control group here, whichever it is.
        proc: Any = View({"self/cgroup": b"0::/\n"})
        return take(
            Request(step, self.key, self.manager, has_checkpoint=has_checkpoint),
            runner=(),
            checkpoint=Checkpoint("signal", booted_at_s=booted_at_s()),
            grace_s=10.0,
            booted_at_s=booted_at_s(),
            look=lambda: Subject(info, frozenset()),
            proc=proc,
        )

    def refusal(self, step: Any, **more: Any) -> str:
        with pytest.raises(ActionError) as error:
            self.take(step, **more)
        assert Path(f"/proc/{self.pid}").exists()
        return error.value.page


@pytest.fixture
def slurm(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Let our own programs find the cluster; its jobs end with the test."""
    monkeypatch.setenv("SLURM_CONF", cluster.environ["SLURM_CONF"])
    _held(job=None)
    try:
        yield cluster
    finally:
        cluster.ask("scancel", *cluster.ask("squeue", "-h", "-o", "%A").split())
        assert until(lambda: not cluster.ask("squeue", "-h"), 60), "its jobs have ended"


def _reads(file: Path, lines: str) -> bool:
    return file.read_text() == lines


def test_a_job_with_a_handler_saves_and_one_without_gets_no_signal(slurm: Cluster) -> None:
    times = 20
    worker = Worker(slurm, trap="USR1")
    assert worker.manager == Manager("slurm", worker.number)
    for number in range(1, times + 1):
        assert worker.take("checkpoint").result is ActResult.ASKED
        lines = "saved\n" * number
        assert until(functools.partial(_reads, worker.saved, lines), 30)
    assert Path(f"/proc/{worker.pid}").exists()
    assert worker.take("end").result is ActResult.ENDED
    # The handler must be the script's: the process that is looked at is another one.
    for trap in ("USR2", ""):
        worker = Worker(slurm, trap=trap, srun=not trap)
        assert worker.refusal("checkpoint") == "errors#no-handler"
        assert worker.take("end").result is ActResult.ENDED


@pytest.mark.requirement("W15")
def test_a_job_is_requeued_twice_and_not_again(slurm: Cluster) -> None:
    worker = Worker(slurm)
    assert worker.refusal("requeue", has_checkpoint=False) == "errors#no-checkpoint"
    for restarts in ("1", "2"):
        assert worker.take("requeue").result is ActResult.REQUEUED
        assert worker.shown("Restarts") == [restarts]
        assert worker.shown("Comment") == ["gpuwatchd:"]
        worker.again()
    assert worker.refusal("requeue") == "errors#restarts"
    assert worker.take("end").result is ActResult.ENDED
    worker = Worker(slurm, "--no-requeue", "--comment=mine")
    assert worker.refusal("requeue") == "errors#no-requeue"
    assert worker.shown("Comment") == ["mine"]


def test_of_an_array_one_task_ends(slurm: Cluster) -> None:
    worker = Worker(slurm, "--array=1-3")
    assert worker.manager == Manager("slurm", f"{worker.number}_1")
    assert worker.take("end").result is ActResult.ENDED
    task = f"{worker.number}_1"
    until(lambda: worker.shown("JobState", task) in ([], ["CANCELLED"]), 30)
    states = worker.shown("JobState")
    assert sum(state in {"PENDING", "RUNNING"} for state in states) in {1, 2}
    assert worker.shown("ArrayTaskId") != ["1"]


def test_a_job_of_another_user_or_of_other_processes_is_left_alone(
    slurm: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = slurm.ask(
        "sbatch", "--parsable", "--hold", "--uid=65534", "-o", "/dev/null", "--wrap", "true"
    ).strip()
    own = Worker(slurm)
    for number, page in ((held, "not-yours"), (own.number, "manager-changed")):
        # The variable is inherited by what was started within a job and has left it.
        monkeypatch.setenv("SLURM_JOB_ID", number)
        with job() as process:
            stray = Worker.__new__(Worker)
            stray.pid, stray.key = process.pid, key_of(process.pid)
            assert stray.manager == Manager("slurm", number)
            for step in ("checkpoint", "requeue", "end"):
                assert stray.refusal(step) == f"errors#{page}"
    assert own.shown("JobState") == ["RUNNING"]
    assert own.shown("JobState", held) == ["PENDING"]
