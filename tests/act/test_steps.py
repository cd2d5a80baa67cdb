"""Steps through a manager: who is asked, what refuses a step, and what came of it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.act import reap, steps
from gpuwatchd.act.checkpoint import Checkpoint
from gpuwatchd.act.steps import Manager, Request, command_for, manager_of, opted_in, take
from gpuwatchd.core.codes import ActHold, ActResult
from gpuwatchd.core.config import SECRET_VARIABLES
from gpuwatchd.core.errors import ActionError, NotAllowed, TargetChanged, TargetGone
from gpuwatchd.core.model import ProcessInfo
from tests.act.children import booted_at_s, job, key_of
from tests.act.reuse import View
from tests.children import shell_script
from tests.conftest import ON_LINUX, need, present

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = ON_LINUX

UNIT = "train.service"
GROUP = "0::/user.slice/user-{0}.slice/user@{0}.service/app.slice/{1}\n"
SLURM, USER_UNIT, BARE = Manager("slurm", "4711"), Manager("user-unit", UNIT), Manager("bare")
FACTS = {
    "UserId": f"somebody({os.getuid()})", "JobState": "RUNNING", "Requeue": "1", "Restarts": "0",
    "BatchFlag": "1", "NumNodes": "1", "StartTime": "2020-01-01T00:00:00",
}  # fmt: skip


def job_line(head: str = "JobId=4711 JobName=train", **changes: str) -> str:
    return " ".join([head, *(f"{key}={value}" for key, value in (FACTS | changes).items())]) + "\n"


class Programs:
    """Programs of a manager that only write down how they were called, unless a test says more."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answer("show job", job_line())
        for name in ("scontrol", "scancel", "systemctl"):
            self.does(name, "")

    def answer(self, to: str, said: str) -> None:
        (self.folder / to).write_text(said)

    def does(self, name: str, more: str) -> None:
        """Let a program run these lines of shell before it answers what it is asked."""
        shell_script(
            self.folder / name,
            f'cd {self.folder}; echo "{name} $*" >> calls; {more}\n'
            'case "$*" in "show job"*) cat "show job";; *listpids*) cat listpids;; esac\n'
            'case "$*" in *MainPID*) cat MainPID;; *ActiveState*) cat state;; *" cat "*) cat unit;;'
            " esac\nexit 0",
        )

    @property
    def calls(self) -> list[str]:
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def acted(self) -> list[str]:
        """Return the calls that were no question."""
        asks = re.compile(r"scontrol (show|listpids) |systemctl --user (show|cat) ")
        return [call for call in self.calls if not asks.match(call)]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(steps, "CONFIRM_S", 0.5)
    return Programs(folder)


class Job:
    """A process that a manager is said to have started."""

    def __init__(self, pid: int, manager: Manager, programs: Programs) -> None:
        self.pid, self.manager = pid, manager
        self.info: dict[str, Any] = {}
        uid, group = os.getuid(), b"0::/\n"
        if manager.kind == "user-unit":
            group = GROUP.format(uid, manager.name).encode()
            programs.answer("MainPID", f"MainPID={pid}\n")
        if manager.kind == "slurm":
            self.info["job"] = "slurm 4711 batch"
            programs.answer("listpids", f"PID JOBID STEPID\n{pid}  4711  batch  0  0  \n")
        self.files: dict[str, Any] = {"self/cgroup": b"0::/\n", f"{pid}/cgroup": group}
        self.seen: dict[str, Any] = {}

    def look(self) -> reap.Subject:
        info = ProcessInfo(key=key_of(self.pid), name="python", **self.info)
        return reap.Subject(info, **({"kinds": frozenset({"idle"})} | self.seen))

    def take(self, step: Any, *, runner: Any = (), way: Any = "signal", **more: Any) -> Any:
        proc: Any = View(self.files)
        return take(
            Request(step, key_of(self.pid), self.manager, **({"has_checkpoint": True} | more)),
            runner=runner,
            checkpoint=Checkpoint(way, booted_at_s=booted_at_s(), proc=proc),
            grace_s=10.0,
            booted_at_s=booted_at_s(),
            look=self.look,
            proc=proc,
        )

    def refusal(self, step: Any, **more: Any) -> str:
        with pytest.raises(ActionError) as error:
            self.take(step, **more)
        assert Path(f"/proc/{self.pid}").exists()
        return error.value.page


@contextlib.contextmanager
def running(
    manager: Manager, programs: Programs, saves_to: Path | None = None, **env: Any
) -> Iterator[Job]:
    with job(saves_to, **env) as process:
        yield Job(process.pid, manager, programs)


def test_every_manager_has_its_command() -> None:
    key = key_of(os.getpid())
    other = Manager("other", command="docker restart 6ff8daebd14c")
    nasty = Manager("user-unit", "-x;y.service")
    all_steps: list[Any] = ["checkpoint", "restart", "requeue", "end"]
    found = [[command_for(step, it, key) for step in all_steps] for it in (SLURM, USER_UNIT, BARE)]
    again, pid = ("scontrol requeue 4711", f"systemctl --user restart {UNIT}"), key.pid
    assert found == [
        ["scancel -b --signal=USR1 4711", again[0], again[0], "scancel 4711"],
        [
            f"systemctl --user kill --kill-who=main --signal=USR1 {UNIT}",
            again[1], again[1], f"systemctl --user stop {UNIT}",
        ],
        [f"gpuwatchctl ask-checkpoint {pid} --yes", "", "", f"gpuwatchctl reap {pid} --yes"],
    ]  # fmt: skip
    assert [command_for(step, other, key) for step in all_steps] == ["", *[other.command] * 3]
    assert command_for("end", nasty, key) == "systemctl --user stop -- '-x;y.service'"


@pytest.mark.parametrize("found", ["team-a trainer-0", ""])
def test_the_command_for_a_pod_deletes_the_one_with_its_uid(found: str, tmp_path: Path) -> None:
    uid = "12345678-1234-1234-1234-123456789abc"
    manager = manager_of(ProcessInfo(key=key_of(os.getpid()), name="python", pod=uid))
    shell_script(
        tmp_path / "kubectl",
        f'case "$1" in get) case "$*" in *\'@.metadata.uid=="{uid}"\'*) printf "{found}";; esac;;\n'
        '*) echo "$*";; esac',
    )
    argv = ["sh", "-c", command_for("end", manager, key_of(os.getpid()))]
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(argv, env={"PATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == (["delete", "pod", "-n", *found.split()] if found else [])


@pytest.mark.parametrize(
    ("info", "environ", "group", "expected"),
    [
        ({}, "SLURM_JOB_ID=4712", "", ("slurm", "4712")),
        # The number of the last task of an array is that of the whole array.
        (
            {"job": "slurm 4711 batch"},
            "SLURM_JOB_ID=4711\0SLURM_ARRAY_JOB_ID=4711\0SLURM_ARRAY_TASK_ID=3",
            "",
            ("slurm", "4711_3"),
        ),
        ({"unit": "a-b.service"}, "", GROUP.format(os.getuid(), "a\\x2db.service"),
         ("user-unit", "a\\x2db.service")),
        ({}, "", GROUP.format(os.getuid(), "_memory.service/sub"), ("user-unit", "memory.service")),
        ({"unit": "*.service"}, "", GROUP.format(os.getuid(), "*.service"), ("other", "")),
        ({"unit": UNIT}, "", GROUP.format(os.getuid() + 1, UNIT), ("other", "")),
        ({"unit": UNIT}, "", "0::/system.slice/train.service", ("other", "")),
        ({"unit": "tmux.scope"}, "", GROUP.format(os.getuid(), "tmux.scope"), ("bare", "")),
        ({"foreign": True}, "SLURM_JOB_ID=4712", "", ("other", "")),
    ],
)  # fmt: skip
def test_who_manages_it(
    info: dict[str, Any], environ: str, group: str, expected: tuple[str, str]
) -> None:
    files = {"environ": environ.encode(), "cgroup": group.encode(), "status": b"NSpid:\t7\n"}
    proc: Any = View({f"7/{name}": content for name, content in files.items()})
    key = key_of(os.getpid()).__class__(pid=7, started_at_s=0.0)
    assert manager_of(ProcessInfo(key=key, name="python", **info), proc=proc)[:2] == expected


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("[Unit]\nX-GpuWatchd=act\n", True),
        ("[Service]\n X-GpuWatchd = act \n", True),
        ("# a.service\nX-GpuWatchd=act\n# drop-in\nX-GpuWatchd=no\n", False),
        ("#X-GpuWatchd=act\n", False),
        ("ExecStart=/bin/x \\\nX-GpuWatchd=act\n", False),
    ],
)
def test_who_has_opted_in(programs: Programs, unit: str, expected: object) -> None:
    with running(BARE, programs, GPUWATCHD_ACT="1") as it, running(BARE, programs) as main:
        info = it.look().info
        assert opted_in(info, BARE)
        assert not opted_in(main.look().info, BARE)
        # Of a unit its main process counts: one that a shell in it has started is not asked.
        programs.answer("MainPID", f"MainPID={main.pid}\n")
        programs.answer("unit", unit)
        assert opted_in(info, USER_UNIT) is expected
        programs.answer("MainPID", f"MainPID={it.pid}\n")
        assert opted_in(info, USER_UNIT)


@pytest.mark.parametrize("runner", [(), ("true",)])
@pytest.mark.parametrize("manager", [BARE, USER_UNIT])
def test_who_does_not_opt_in_any_more_is_left_alone(
    programs: Programs, manager: Manager, runner: tuple[str, ...]
) -> None:
    with running(manager, programs) as it:
        programs.answer("unit", "[Unit]\nX-GpuWatchd=no\n")
        page = it.refusal("end", kinds=frozenset({"idle"}), by_consent=True, runner=runner)
        assert (page, programs.acted) == ("errors#not-opted-in", [])


@pytest.mark.parametrize(
    ("line", "page"),
    [
        (job_line(UserId="other(64321)"), "not-yours"),
        (job_line(UserId="root"), "manager-answer"),
        (job_line(f"JobId=4711 JobName=x UserId=me({os.getuid()})"), "manager-answer"),
        (job_line(JobState="COMPLETING"), "manager-changed"),
        (job_line(StartTime="2099-01-01T00:00:00"), "manager-changed"),
        (job_line(StartTime="soon"), "manager-answer"),
        (job_line(StartTime="9-9"), "manager-changed"),
        (job_line("JobId=4712 JobName=train"), "manager-answer"),
        (job_line("JobId=4711 HetJobId=4711 HetJobOffset=0 JobName=x"), "manager-answer"),
        (job_line("JobId=4711 ArrayJobId=4711 ArrayTaskId=2-3 JobName=x"), "manager-answer"),
        (job_line() * 2, "manager-answer"),
        ("\0" * 99, "manager-answer"),
        ("", "manager-answer"),
    ],
)
def test_what_slurm_says_of_a_job_refuses_the_step(
    programs: Programs, line: str, page: str
) -> None:
    programs.answer("show job", line)
    with running(SLURM, programs) as it:
        assert it.refusal("end") == f"errors#{page}"
    assert programs.acted == []


@pytest.mark.parametrize(
    "rows", ["", "1 4711 batch 0 0\n", "{pid} 4712 batch 0 0\n", "{pid} 4711\n"]
)
def test_a_process_that_slurm_does_not_list_is_not_of_the_job(
    programs: Programs, rows: str
) -> None:
    with running(SLURM, programs) as it:
        programs.answer("listpids", rows.format(pid=it.pid))
        assert it.refusal("end") == "errors#manager-changed"
    assert programs.acted == []


def test_one_task_of_an_array_is_meant_alone(programs: Programs) -> None:
    task = job_line("JobId=4713 ArrayJobId=4711 ArrayTaskId=3 JobName=x")
    programs.answer("show job", job_line("JobId=4711 ArrayJobId=4711 ArrayTaskId=5-9 JobName=x"))
    with running(Manager("slurm", "4711_3"), programs) as it:
        it.files[f"{it.pid}/environ"] = (
            b"SLURM_JOB_ID=4713\0SLURM_ARRAY_JOB_ID=4711\0SLURM_ARRAY_TASK_ID=3"
        )
        it.info["job"] = "slurm 4713 batch"
        assert it.refusal("end") == "errors#manager-answer"
        programs.answer("show job", task)
        assert it.refusal("end") == "errors#manager-changed"
        programs.answer("listpids", f"{it.pid} 4713 batch 0 0\n")
        programs.does("scancel", f"kill {it.pid}")
        assert it.take("end").result is ActResult.ENDED
    assert programs.acted == ["scancel 4711_3"]


@pytest.mark.parametrize(
    ("program", "more", "called"),
    [("scontrol", "sleep 60", 2), ("scontrol", "head -c 10485760 /dev/zero", 2),
     ("scontrol", "exit 3", 1), ("scancel", "sleep 60", 2), ("scancel", "exit 3", 1)],
)  # fmt: skip
def test_a_program_that_hangs_floods_or_fails(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, program: str, more: str, called: int
) -> None:
    monkeypatch.setattr(steps, "_LIMIT_S", 1.0)
    programs.does(program, more)
    began = time.monotonic()
    with running(SLURM, programs) as it:
        assert it.take("end").result is ActResult.FAILED
    assert sum(call.startswith(program) for call in programs.calls) == called
    assert time.monotonic() - began < 30
    assert [call for call in programs.acted if program == "scontrol"] == []


def test_a_program_that_hangs_once_it_is_done_is_not_run_again(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "_LIMIT_S", 1.0)
    with running(USER_UNIT, programs) as it:
        programs.does("systemctl", f'case "$*" in *restart*) kill {it.pid}; sleep 60;; esac')
        assert it.take("restart").result is ActResult.FAILED
    assert programs.acted == [f"systemctl --user --no-block restart {UNIT}"]


@pytest.mark.parametrize("nodes", ["2", "1K"])
def test_of_a_job_on_other_nodes_only_a_rank_decides(programs: Programs, nodes: str) -> None:
    programs.answer("show job", job_line(NumNodes=nodes))
    with running(SLURM, programs) as it:
        assert it.refusal("end", kinds=frozenset({"idle"})) == "errors#managed"
        assert programs.acted == []
        programs.does("scancel", f"kill {it.pid}")
        more: dict[str, Any] = {"kinds": frozenset({"idle"}), "knows_ranks": True}
        assert it.take("end", **more).result is ActResult.ENDED


def test_a_program_that_is_not_there(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(SLURM, programs) as it:
        monkeypatch.setenv("PATH", f"{programs.folder}/none")
        assert it.take("end").result is ActResult.FAILED


def test_a_manager_that_says_yes_and_does_nothing_is_not_believed(programs: Programs) -> None:
    for manager in (SLURM, USER_UNIT):
        with running(manager, programs) as it:
            assert it.take("end").result is ActResult.UNCONFIRMED
    assert programs.acted == ["scancel 4711", f"systemctl --user --no-block stop {UNIT}"]


@pytest.mark.parametrize(
    ("changes", "has_checkpoint", "code"),
    [
        ({"Requeue": "0"}, True, ActHold.NO_REQUEUE),
        ({"BatchFlag": "0"}, True, ActHold.NO_REQUEUE),
        ({"Restarts": "2"}, True, ActHold.RESTARTS),
        ({}, False, ActHold.NO_CHECKPOINT),
        ({"Restarts": "few"}, True, "manager-answer"),
        ({"Restarts": "9" * 40}, True, "manager-answer"),
        ({"Requeue": "9"}, True, "manager-answer"),
    ],
)
def test_when_a_job_is_not_requeued(
    programs: Programs, changes: dict[str, str], has_checkpoint: object, code: str
) -> None:
    programs.answer("show job", job_line(**changes))
    with running(SLURM, programs) as it:
        assert it.refusal("requeue", has_checkpoint=has_checkpoint) == f"errors#{code}"
    assert programs.acted == []


@pytest.mark.parametrize("comment", ["", " Comment=mine"])
@pytest.mark.parametrize("restarts", [0, 1])
def test_a_requeue_counts_where_slurm_counts_it(
    programs: Programs, comment: str, restarts: int
) -> None:
    programs.answer("show job", job_line(BatchFlag=f"1{comment}"))
    programs.answer("after", job_line(JobState="PENDING", Restarts=f"{restarts}"))
    with running(SLURM, programs) as it:
        then = f"kill {it.pid}; cp after 'show job'"
        programs.does("scontrol", f'case "$1" in requeue) {then};; esac')
        expected = ActResult.REQUEUED if restarts else ActResult.FAILED
        assert it.take("restart").result is expected
    *before, last = programs.acted
    assert last == "scontrol requeue 4711"
    # A comment that is not ours stays.
    written = [call.startswith("scontrol update JobId=4711 Comment=gpuwatchd") for call in before]
    assert written == ([] if comment else [True])


@pytest.mark.parametrize("manager", [SLURM, USER_UNIT])
def test_only_a_process_with_a_handler_gets_the_signal(
    programs: Programs, tmp_path: Path, manager: Manager
) -> None:
    with running(manager, programs) as it, running(BARE, programs, tmp_path / "saved") as shell:
        assert it.refusal("checkpoint") == "errors#no-handler"
        assert it.refusal("checkpoint", way="off") == "errors#asking-off"
        programs.answer("MainPID", "MainPID=0\n")
        programs.answer("listpids", f"{it.pid} 4711 0 0 0\n")
        assert it.refusal("checkpoint") == "errors#no-handler"
        assert programs.acted == []
        # What gets it is not the process itself: the shell of the batch script, the main process.
        programs.answer("MainPID", f"MainPID={shell.pid}\n")
        programs.answer("listpids", f"{it.pid} 4711 batch - -\n{shell.pid} 4711 batch 0 0\n")
        assert it.take("checkpoint").result is ActResult.ASKED
        assert programs.acted == [command_for("checkpoint", manager, key_of(it.pid))]


@pytest.mark.parametrize("state", ["active", "failed"])
def test_a_unit_counts_as_restarted_where_systemd_says_that_it_runs(
    programs: Programs, state: str
) -> None:
    programs.answer("state", f"ActiveState={state}\n")
    with running(USER_UNIT, programs) as it:
        programs.does("systemctl", f'case "$*" in *restart*) kill {it.pid};; esac')
        expected = ActResult.RESTARTED if state == "active" else ActResult.FAILED
        assert it.take("requeue").result is expected
    assert programs.acted == [f"systemctl --user --no-block restart {UNIT}"]


def test_a_process_that_belongs_elsewhere_now_is_left_alone(programs: Programs) -> None:
    for manager, moved in itertools.product(
        (SLURM, USER_UNIT, BARE), (GROUP.format(os.getuid(), "b.service"), "0::/x.scope\n")
    ):
        with running(manager, programs) as it:
            it.info.clear()
            it.files[f"{it.pid}/cgroup"] = moved.encode()
            if (manager.kind, moved) != ("bare", "0::/x.scope\n"):
                assert it.refusal("restart") == "errors#manager-changed"
            with pytest.raises(TargetChanged):
                take_later(it)
    assert programs.acted == []


@pytest.mark.parametrize("manager", [SLURM, USER_UNIT])
def test_nothing_is_sent_where_it_ends_while_the_manager_is_asked(
    programs: Programs, tmp_path: Path, manager: Manager
) -> None:
    with running(manager, programs, tmp_path / "saved") as it:
        for program, asked in (("scontrol", "listpids"), ("systemctl", "show")):
            programs.does(program, f'case "$*" in *{asked}*) kill {it.pid}; sleep 0.5;; esac')
        with pytest.raises(ActionError) as error:
            it.take("checkpoint")
        assert error.value.page in {"errors#process-gone", "errors#no-handler"}
    assert programs.acted == []


def take_later(it: Job) -> None:
    """Take a step on the pid as it was an hour earlier."""
    key = key_of(it.pid)
    before = key.__class__(pid=key.pid, started_at_s=present(key.started_at_s) - 3600)
    take(
        Request("end", before, it.manager), runner=(), checkpoint=Checkpoint(), grace_s=1.0,
        booted_at_s=booted_at_s(), look=it.look,
    )  # fmt: skip


def test_of_two_daemons_one_takes_the_step_and_the_other_sends_nothing(
    programs: Programs, tmp_path: Path
) -> None:
    """The machine's by its runner, the user's by itself, at the same moment."""
    begun, go_on = tmp_path / "begun", tmp_path / "go on"
    os.mkfifo(begun)
    os.mkfifo(go_on)
    runner = shell_script(
        tmp_path / "take-step", f'echo > "{begun}"; cat "{go_on}"; cat >/dev/null; exit 0'
    )
    with running(BARE, programs) as it, ThreadPoolExecutor(1) as pool:
        first = pool.submit(it.take, "end", runner=[runner], kinds=frozenset({"idle"}))
        begun.read_text()  # it is being taken
        assert it.refusal("end", kinds=frozenset({"idle"})) == "errors#step-under-way"
        go_on.write_text("")
        assert first.result().result is ActResult.HANDED_OVER
        # Afterwards the other one may, and a third sees that it has gone.
        assert it.take("end", kinds=frozenset({"idle"})).result is ActResult.ENDED
        with pytest.raises(TargetGone):
            it.take("end", runner=[runner], kinds=frozenset({"idle"}))


_CLAIMS = """
import sys
from gpuwatchd.act.target import Target
from tests.act.children import booted_at_s, key_of
with Target(key_of(int(sys.argv[1])), booted_at_s=booted_at_s()) as target:
    target.claim()
    print("claimed", flush=True)
    sys.stdin.read()
"""


def test_a_program_of_the_site_ends_it_by_gpuwatchd_and_whoever_else_has_it_is_named(
    programs: Programs, tmp_path: Path
) -> None:
    root = Path(__file__).parents[2]
    with running(BARE, programs) as it:
        argv = [sys.executable, "-c", _CLAIMS, f"{it.pid}"]
        script = shell_script(tmp_path / "take-step", f"cd {root}; {shlex.join(argv)}")
        assert it.take("end", runner=[script]).result is ActResult.HANDED_OVER
        with subprocess.Popen(
            argv, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as other:
            assert present(other.stdout).readline() == b"claimed\n"
            with pytest.raises(NotAllowed) as error:
                it.take("end", kinds=frozenset({"idle"}))
            other.communicate(b"")
        assert f"pid {other.pid}" in error.value.message


@pytest.mark.parametrize("manager", [SLURM, USER_UNIT, BARE])
@pytest.mark.parametrize("runner", [(), ("true",)])
def test_who_is_never_ended_is_not_ended_through_a_manager(
    programs: Programs, manager: Manager, runner: tuple[str, ...]
) -> None:
    with running(manager, programs) as it:
        own = it.files[f"{it.pid}/cgroup"]
        status = Path(f"/proc/{it.pid}/status").read_bytes()
        for files in (
            {f"{it.pid}/cgroup": own.replace(b"/\n", b"/a.scope\n"),
             "self/cgroup": own.replace(b"/\n", b"/a.scope\n")},
            {f"{it.pid}/status": status.replace(b"TracerPid:\t0", b"TracerPid:\t7")},
        ):  # fmt: skip
            kept, it.files = it.files, it.files | files
            assert it.refusal("end", runner=runner) == "errors#never-ended"
            it.files = kept
        it.seen = {"busy_on": "GPU 1"}
        kinds = frozenset({"idle"})
        assert it.refusal("end", runner=runner, kinds=kinds) == "errors#not-idle"
        it.seen = {"kinds": frozenset({"ghost"})}
        assert it.refusal("end", runner=runner, kinds=kinds) == "errors#no-signal-frees"
    assert programs.acted == []


def test_what_nobody_manages(programs: Programs, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    with running(BARE, programs, saved) as it:
        assert it.refusal("restart") == "errors#no-step"
        assert it.take("checkpoint").result is ActResult.ASKED
        assert it.take("end", kinds=frozenset({"idle"})).result is ActResult.ENDED
    with running(BARE, programs) as it:
        assert it.refusal("checkpoint") == "errors#no-handler"
        it.info["container"] = "docker 6ff8daebd14c"
        it.manager = manager_of(it.look().info)
        assert it.refusal("end") == "errors#managed"
    assert programs.calls == []


def test_a_program_of_the_sites_takes_every_step_itself(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWATCHD_SMTP_PASSWORD", "x")
    assert "GPUWATCHD_SMTP_PASSWORD" in SECRET_VARIABLES
    runner = (shell_script(tmp_path / "runner", f"cat > {tmp_path}/got; env > {tmp_path}/env"),)
    for manager, step in ((SLURM, "requeue"), (BARE, "end")):
        with running(manager, programs) as it:
            evidence = {"idle_s": 7200}
            done = it.take(step, runner=runner, command="scontrol requeue 1", evidence=evidence)
            assert done.result is ActResult.HANDED_OVER
        got = json.loads((tmp_path / "got").read_text())
        assert got["process"] | {"started_at_s": 0} == {
            "pid": it.pid, "started_at_s": 0, "name": f"{Path(sys.executable).name}[{it.pid}]",
        }  # fmt: skip
        assert got | {"process": 0} == {
            "schema_version": 1, "ask": step, "process": 0, "command": "scontrol requeue 1",
            "manager": {"kind": manager.kind, "name": manager.name}, "evidence": evidence,
        }  # fmt: skip
    assert programs.calls == []
    assert "GPUWATCHD_SMTP_PASSWORD" not in (tmp_path / "env").read_text()


@pytest.mark.parametrize(
    ("does", "kept"),
    [
        ("sleep 60", ""),
        ("head -c 1073741824 /dev/zero; exit 3", ""),
        ("head -c 104857600 /dev/zero >&2; exit 3", ""),
        ("printf 'API_KEY=abc Bearer: \\033[2Jhf_aaaaaaaaaaaaaaaaaaaaaa' >&2; exit 3", "API_KEY="),
    ],
)
def test_a_program_of_the_sites_that_hangs_floods_or_tells_secrets(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, kept: str
) -> None:
    monkeypatch.setattr(steps, "RUNNER_S", 0.3 if does == "sleep 60" else 10.0)
    runner = (shell_script(tmp_path / "runner", does),)
    with running(SLURM, programs) as it:
        done = it.take("end", runner=runner)
    assert done.result is ActResult.FAILED
    assert kept in done.text
    assert not {"abc", "\033", "hf_aaaaaaaaaaaaaaaaaaaaaa"} & {*re.split(r"[= ]", done.text)}
    assert done.text.isprintable()
    with running(SLURM, programs) as it:
        assert it.refusal("end", runner=(str(tmp_path / "none"),)) == "errors#runner"


def test_a_program_of_the_sites_gets_the_processes_of_others_too(
    programs: Programs, tmp_path: Path
) -> None:
    need(os.getuid() == 0, "root, to be another user")
    runner = (shell_script(tmp_path / "runner", "cat > /dev/null"),)
    with running(BARE, programs) as it:
        status = Path(f"/proc/{it.pid}/status").read_bytes()
        other = re.sub(rb"Uid:.*", b"Uid:\t64321\t64321\t64321\t64321", status)
        it.files[f"{it.pid}/status"] = other
        assert it.take("end", runner=runner).result is ActResult.HANDED_OVER
        for step in ("end", "checkpoint"):
            with pytest.raises(NotAllowed) as error:
                it.take(step)
            assert error.value.page == "errors#not-yours"
