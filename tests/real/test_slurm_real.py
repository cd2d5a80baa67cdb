"""Scripts that a real Slurm runs: controller, node and munge, pretended GPUs, a job or two."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import stat
import subprocess
import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.core.model import Holding
from tests.cli import world
from tests.conftest import ROOT, need, ran
from tests.real.mailserver import free_port
from tests.real.stage import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
