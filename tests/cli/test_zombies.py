"""``zombies``: rows that fit, what was checked, one look without a daemon, exit codes, JSON."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.collect.host import procfs
from gpuwatchd.collect.host.procfs import Holder, Holders
from gpuwatchd.core.config import Config
from gpuwatchd.core.model import Holding, ProcessInfo
from gpuwatchd.store.live import LiveDevice
from gpuwatchd.view.queries import direct_holdings
from gpuwatchd.view.queries.current_view import View
from tests import making
from tests.cli import world
from tests.zombies.facts import info

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuwatchd.store.live import LiveProcess
    from tests.cli.calls import Ctl


GIB = making.GIB


def holding(kind: str = "idle", **changes: Any) -> Holding:
    values: dict[str, Any] = {
        "kind": kind,
        "device_uid": making.CARD.uid,
        "process": info(),
        "held_bytes": 24 * GIB,
        "since_s": time.time() - 7500,
        "evidence": "24.0 GiB unchanged, and the GPU did no work for it in any sample",
        "advice": ("ask alice; ending it (SIGTERM first) frees the memory", "a second way"),
        "gib_hours": 50.0,
    }
    return Holding(**{**values, **changes})


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> Callable[[Holders], None]:
    """Let nobody have device files open, or whom a test names."""

    def put(answer: Holders) -> None:
        monkeypatch.setattr(procfs, "scan", lambda: answer)

    put(Holders(looked=10))
    return put


def test_quiet_tells_rows_and_who_alone(ctl: Ctl) -> None:
    world.write(holdings=(holding(),))
    out = ctl("zombies --quiet")
    assert "unchanged" not in out
    assert "python train.py[4711] of alice" in out


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("extra", [(), ("--wide",), ("--ascii",)])
def test_every_line_fits(
    ctl: Ctl,
    monkeypatch: pytest.MonkeyPatch,
    nobody_else: Callable[[Holders], None],
    width: int,
    extra: tuple[str, ...],
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    long = info(name="x" * 20, group="torchrun 7f3a", rank=3, container="docker 0123456789ab")
    nobody_else(
        Holders(
            found=(Holder(pid=1, name="init", nodes=tuple(f"/dev/nvidia{n}" for n in range(16))),),
            looked=1, unreadable=3, whole=False,
        )
    )  # fmt: skip
    world.write(
        holdings=(
            holding(
                "orphaned-runner", since_s=time.time() - 300_000, cost_usd=1234.5, process=long
            ),
            holding("leaked-kv", gib_hours=None, held_bytes=None),
        )
    )
    out = ctl("zombies", *extra)
    assert max(map(len, out.splitlines())) <= width
    assert "orphaned-runner" in out


def test_only_the_gpu_that_is_named(ctl: Ctl) -> None:
    world.write(holdings=(holding(), holding("ghost", device_uid=world.SECOND.uid, process=None)))
    out = ctl("zombies --gpu 1")
    assert "ghost" in out
    assert "idle" not in out


def test_who_has_device_files_open_without_being_listed(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch, nobody_else: Callable[[Holders], None]
) -> None:
    people = {
        11: info(11, name="lost"),
        12: info(12, name="Xorg", framework="display"),
        13: info(13, name="nvidia-persistenced"),
        14: info(14, name="nvitop", argv=()),
    }

    class Known:
        def __init__(self, **_: Any) -> None:
            self.closed = False

        def processes(self, pids: list[int]) -> dict[int, ProcessInfo]:
            return {pid: people[pid] for pid in pids if pid in people}

        def close(self) -> None:
            self.closed = True

    monkeypatch.setattr(direct_holdings, "Host", Known)
    nodes = ("/dev/nvidia-uvm", "/dev/nvidia0")
    nobody_else(
        Holders(
            found=(
                *(Holder(pid=pid, name="x", nodes=nodes) for pid in (11, 12, 13, 4711, 99, 15)),
                Holder(pid=14, name="nvitop", nodes=("/dev/nvidia0", "/dev/nvidiactl")),
            ),
            looked=7,
            unreadable=3,
        )
    )
    world.write()
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert "open files of 3 processes of others: could not be inspected" in ctl("zombies")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    out = ctl("zombies")
    listed = [line for line in out.splitlines() if "/dev/nvidia" in line]
    assert [line.split("[")[0].strip() for line in listed] == ["lost", "nvitop"]
    assert "may compute" in listed[0]
    assert "open files of 3 processes of others: not visible without root" in out
    answer = ctl.json("zombies")
    assert [one["pid"] for one in answer["data"]["open_files"]["holders"]] == [11, 14]


@pytest.mark.parametrize("inside", [False, True])
def test_without_a_daemon_a_container_that_sees_nobody_calls_nothing_a_ghost(
    inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_holdings, "inside_container", lambda *_: inside)
    reading = msgspec.structs.replace(world.reading(making.CARD.uid, 30), util_pct=0.0)
    view = View("direct", 0.0, (LiveDevice(device=making.CARD, reading=reading, processes=()),))
    found = direct_holdings.idle_holdings(view, Config(), None)
    assert [one.kind for one in found] == ([] if inside else ["ghost"])


def test_a_dead_daemons_last_words_are_better_than_nothing(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWATCHD_SOURCES_ENABLED", "")
    world.write(stopped=True, holdings=(holding(),))
    out = ctl("zombies")
    assert "! the daemon was stopped" in out
    assert "idle" in out


def test_one_look_at_a_simulated_world_claims_nothing_of_local_pids(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWATCHD_SOURCES_ENABLED", "simulate:mixed-8x8")
    out = ctl("zombies")
    assert "idleness needs a running daemon" in " ".join(out.split())
    assert "checked, once" in out


DETAIL = "     Nodes={} CPU_IDs=0 Mem=1 GRES={}"


class Slurm:
    """A squeue and a scontrol that answer what a test wants."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs("42|alice|1:00:00|gres:gpu:1")
        self.gives("gpu:h100:1(IDX:0)")

    def script(self, name: str, words: str) -> None:
        program = self.folder / name
        program.write_text(f"#!/bin/sh\n{words}\n")
        program.chmod(0o755)

    def jobs(self, *lines: str) -> None:
        (self.folder / "jobs").write_text("".join(f"{line}\n" for line in lines))
        self.script("squeue", f"cat {self.folder}/jobs")

    def gives(self, gres: str, nodes: str = "node7") -> None:
        (self.folder / "detail").write_text(DETAIL.format(nodes, gres) + "\n")
        self.script("scontrol", f'echo "JobId=$4 JobName=x"; cat {self.folder}/detail')


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("SLURMD_NODENAME", "node7")
    monkeypatch.setattr(procfs, "scan", lambda: Holders(looked=1))
    return Slurm(folder)


def _world(*processes: LiveProcess, known: bool = True, second_known: bool = True) -> None:
    first, second = world.state().devices
    first = msgspec.structs.replace(first, processes=processes if known else None, finding=None)
    second = msgspec.structs.replace(second, processes=() if second_known else None)
    world.write(devices=(first, second), alerts=())


def _process(**changes: Any) -> LiveProcess:
    process = world.process(used_gib=3)
    return msgspec.structs.replace(process, info=msgspec.structs.replace(process.info, **changes))


def _listed(ctl: Ctl, *extra: str) -> list[tuple[str, int, list[str] | None]]:
    answer = ctl.json("zombies --slurm", *extra)
    return [(job["job"], job["gpu_count"], job["device_uids"]) for job in answer["data"]["jobs"]]


def test_a_job_is_listed_with_the_gpus_that_it_does_not_use(ctl: Ctl, slurm: Slurm) -> None:
    _world()
    slurm.gives("gpu:h100:2(IDX:0-1),shard:0")
    assert _listed(ctl) == [("42", 2, ["GPU-1", "GPU-2"])]
    assert "scancel 42" in ctl("zombies --slurm")
    assert ctl("zombies --slurm --exit-code", code=3)
    _world(_process(job="slurm 42 batch"))
    assert _listed(ctl) == [("42", 2, ["GPU-2"])]
    slurm.gives("gpu:h100:1(IDX:0)")
    assert _listed(ctl) == []
    assert ctl.json("zombies")["data"]["jobs"] is None


@pytest.mark.parametrize(
    ("changes", "listed"),
    [({"job": "slurm 42.0"}, False), ({"job": "slurm 421.0"}, True), ({"job": None}, False),
     ({"job": None, "user": "bob"}, True), ({"job": None, "user": None}, False)],
)  # fmt: skip
def test_what_may_be_of_the_job_is_held_to_be_so(
    changes: dict[str, Any], listed: bool, ctl: Ctl, slurm: Slurm
) -> None:
    _world(_process(**changes))
    assert bool(_listed(ctl)) is listed


def test_a_gpu_whose_list_is_unknown_is_never_called_unused(ctl: Ctl, slurm: Slurm) -> None:
    _world(known=False)
    assert _listed(ctl) == []
    slurm.script("scontrol", "exit 1")
    assert _listed(ctl) == []


@pytest.mark.parametrize(
    ("used", "listed"),
    [("9:59", False), ("10:00", True), ("1-00:00:00", True), ("INVALID", False), ("0:01", False)],
)
def test_only_jobs_that_have_run_for_a_while(
    used: str, listed: bool, ctl: Ctl, slurm: Slurm
) -> None:
    _world()
    slurm.jobs(f"42|alice|{used}|gres:gpu:1")
    assert bool(_listed(ctl)) is listed
    assert bool(_listed(ctl, "--grace", "1s")) is (used != "INVALID")


@pytest.mark.parametrize(
    "said",
    ["exit 1", "echo JobId=44; echo '     Nodes=node7 CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:1)'",
     "echo JobId=42; echo '     Nodes=node7 CPU_IDs=0 Mem=1 GRES=gpu:2(IDX:1)'",
     "echo JobId=42; echo '     Nodes=node7 CPU_IDs=0 Mem=1 GRES=gpu:h100:1'",
     "echo JobId=42; echo '     Nodes=node8 CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:1)'",
     "echo JobId=42; yes", "sleep 60", "echo JobId=42; echo gpu:1(IDX:99999999)", "printf '\\377'"],
)  # fmt: skip
def test_without_a_detail_that_can_be_believed_the_count_alone_is_known(
    said: str, ctl: Ctl, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_holdings, "_LIMIT_S", 2.0)
    slurm.script("scontrol", said)
    slurm.jobs("42|alice|1:00:00|gres:gpu:h100:2", "43|alice|1:00:00|N/A")
    _world()
    assert _listed(ctl) == [("42", 2, None)]
    _world(_process(job="slurm 42.0"))
    assert _listed(ctl) == []


@pytest.mark.parametrize(
    ("hosts", "covered"),
    [("node7", True), ("node[1-3,7]", True), ("node[001-003],node7", True), ("node[8-9]", False),
     ("node", False), ("node70", False), ("login,node[7]", True), ("node[7-", False)],
)  # fmt: skip
def test_the_node_is_found_in_the_form_of_slurm(
    hosts: str, covered: bool, ctl: Ctl, slurm: Slurm
) -> None:
    _world()
    slurm.gives("gpu:1(IDX:1)", nodes=hosts)
    assert _listed(ctl) == [("42", 1, ["GPU-2"] if covered else None)]


def test_slurm_counts_by_device_files(
    ctl: Ctl, slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for minor, uid in ((1, "GPU-1"), (0, "GPU-2")):
        (tmp_path / uid).mkdir()
        (tmp_path / uid / "information").write_text(
            f"GPU UUID: \t {uid}\nDevice Minor: \t {minor}\n"
        )
    monkeypatch.setattr(direct_holdings, "_CARDS", tmp_path)
    _world()
    assert _listed(ctl) == [("42", 1, ["GPU-2"])]


def test_users_and_gpus_that_are_named(ctl: Ctl, slurm: Slurm) -> None:
    _world()
    slurm.gives("gpu:h100:2(IDX:0-1)")
    assert _listed(ctl, "--user", "bob") == []
    assert _listed(ctl, "--user", "alice", "--gpu", "1") == [("42", 2, ["GPU-2"])]


@pytest.mark.parametrize(
    "said",
    ["exit 1", "echo 'squeue: error: Invalid node name' >&2; exit 1", "sleep 60", "yes",
     "yes '42|alice|1:00:00|gres:gpu:1'", "head -c 1048577 /dev/zero | tr '\\0' x",
     "exec kill -9 $$",
     "echo '42|alice|1:00:00'", "echo 'x|alice|1:00:00|N/A'", "echo '42|alice|soon|N/A'",
     "echo '-1|alice|1:00:00|N/A'", "echo '42|alice|-1:00|N/A'", "echo '4.2|alice|1:00|N/A'",
     "echo '{\"jobs\": []}'", "printf '\\377\\n'", "(sleep 60) & echo '42|alice|1:00|N/A'",
     "yes x >&2"],
)  # fmt: skip
def test_a_squeue_that_fails_lies_hangs_or_floods_is_one_error(
    said: str, ctl: Ctl, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_holdings, "_LIMIT_S", 2.0)
    _world()
    slurm.script("squeue", said)
    began_s = time.monotonic()
    answer = ctl.json("zombies --slurm", code=1)
    assert (answer["error"]["page"], answer["error"]["exit_code"]) == ("errors#slurm", 1)
    assert answer["error"]["hint"]
    assert time.monotonic() - began_s < 30


def test_without_slurm_there_is_one_line_a_hint_and_an_exit_code(
    ctl: Ctl, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    _world()
    (slurm.folder / "squeue").unlink()
    monkeypatch.setenv("PATH", str(slurm.folder))
    assert len(ctl.err("zombies --slurm", code=1).splitlines()) == 3
    assert ctl.json("zombies --slurm", code=1)["error"]["page"] == "errors#slurm"


def test_the_settings_of_a_user_do_not_change_what_squeue_is_asked(
    ctl: Ctl, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUEUE_STATES", "PENDING")
    slurm.script("squeue", f"env > {slurm.folder}/env; printf '%s\\n' \"$@\" > {slurm.folder}/said")
    _world()
    assert _listed(ctl) == []
    assert "SQUEUE_" not in (slurm.folder / "env").read_text()
    assert "--nodelist=node7" in (slurm.folder / "said").read_text().split()
    assert os.environ["SQUEUE_STATES"] == "PENDING"


def test_a_state_that_is_not_of_now_proves_nothing(
    ctl: Ctl, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWATCHD_SOURCES_ENABLED", "")
    world.write(stopped=True)
    assert ctl.json("zombies --slurm", code=1)["error"]["page"] == "errors#slurm"
