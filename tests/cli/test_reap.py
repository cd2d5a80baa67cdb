"""``reap`` on the command line: what it shows, what it does, what is written of it, bad input."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import click
import pytest

from gpuwatchd.act import reap
from gpuwatchd.collect.host import process_identity
from gpuwatchd.store import live
from gpuwatchd.view.queries import reaping
from tests.act.test_reap import NOTES
from tests.children import Child
from tests.cli.calls import Terminal
from tests.conftest import ON_LINUX, need, present
from tests.fakenvml import FakeNvml
from tests.store.world import opened, rows
from tests.test_daemon import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.calls import Ctl

pytestmark = ON_LINUX

CARD = "gpu 0 uuid=GPU-aaa name=NVIDIA_A100 total=80G base=400M reserved=600M util=0"
OTHER = "gpu 1 uuid=GPU-bbb name=NVIDIA_A100 total=80G base=400M reserved=600M util=0"
ACTIONS = "SELECT phase, code, result, who FROM action WHERE verb = 'reap' ORDER BY id"


class Stage:
    """A holder of idle memory, a stand-in for its driver, and a daemon that lists it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.fake = FakeNvml(folder)
        self.env = {
            **self.fake.env(),
            "GPUWATCHD_ZOMBIES_IDLE_AFTER": "1s",
            "GPUWATCHD_COST_USD_PER_GPU_HOUR": "2.5",
            "DBUS_SESSION_BUS_ADDRESS": "unix:path=/nonexistent",
        }
        for name, value in self.env.items():
            if name.startswith("GPUWATCHD_"):
                monkeypatch.setenv(name, value)
        monkeypatch.setattr(reaping, "BACK_S", 30.0)
        # The tests may run in a unit or a session, which their children are in as well.
        monkeypatch.setattr(reap, "read", lambda *_: b"")
        monkeypatch.setattr(process_identity, "place_of", lambda _: process_identity.Place())

    @contextlib.contextmanager
    def holder(self, *handled: str, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
        """Run a job whose memory the driver lists."""
        argv = [sys.executable, "-c", NOTES, "python", str(self.folder / "notes"), *handled]
        with Child[bytes](argv, stdout=subprocess.PIPE, **more) as process:
            assert present(process.stdout).readline() == b"ready\n"
            self.fake.write(CARD, OTHER, f"proc 0 pid={process.pid} mem=20G type=C")
            try:
                yield process
            finally:
                process.kill()

    @contextlib.contextmanager
    def daemon(self) -> Iterator[None]:
        argv = [sys.executable, "-m", "gpuwatchd", "--source", "nvml", "--interval", "0.1"]
        with (self.folder / "log").open("a") as log, Child[bytes](argv, env=self.env, stderr=log):
            yield

    def listed(self, *kinds: str) -> None:
        """Wait until just this is listed."""

        def now() -> bool:
            state = live.read(self.folder / "run")
            return state is not None and [one.kind for one in state.holdings] == [*kinds]

        wait_for(now)

    @contextlib.contextmanager
    def driver(self, process: subprocess.Popen[bytes], *then: str) -> Iterator[None]:
        """Let the driver list this once the process has ended."""

        def follow() -> None:
            process.wait()
            self.fake.write(*then)

        thread = threading.Thread(target=follow)
        thread.start()
        yield
        process.kill()
        thread.join()


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    need(FakeNvml.available(), "a C compiler for the stand-in of the NVIDIA library")
    return Stage(tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.usefixtures("own_pids")
@pytest.mark.requirement("W16", "W20")
def test_it_shows_then_ends_then_says_what_came_back(stage: Stage, ctl: Ctl) -> None:
    with stage.holder("SIGTERM", "SIGINT") as job, stage.daemon():
        stage.listed("idle")
        shown = ctl.data("reap", str(job.pid))
        text = ctl("reap", str(job.pid))
        assert "SIGTERM" in text
        assert (shown["result"], shown["sent"], shown["signals"]) == (None, [], ["SIGTERM"])
        (holding,) = shown["holdings"]
        assert (holding["kind"], holding["held_bytes"]) == ("idle", 20 * 2**30)
        assert holding["since_at"]
        assert holding["cost_usd"] is not None
        assert job.poll() is None
        assert rows(stage.folder / "state", ACTIONS) == []
        with stage.driver(job, CARD, OTHER):
            done = ctl.data("reap", str(job.pid), "--yes")
        assert (done["result"], done["sent"]) == ("ended", ["SIGTERM"])
        assert done["still_held_bytes"] == 0
        assert (stage.folder / "notes").read_text() == "SIGTERM\n"
        before, after = rows(stage.folder / "state", ACTIONS)
        assert before[:2] == ("asked", "idle")
        assert "SIGTERM" in before[2]
        assert after[:2] == ("done", "ended")
        assert before[3] == after[3]
    # The daemon has written which GPUs there are as it stopped.
    first, _ = ctl.data("history", "--events")
    kinds = [event["kind"] for event in first["events"] if "reap" in event["kind"]]
    assert kinds == ["reaping", "reaped"]


@pytest.mark.slow
@pytest.mark.usefixtures("own_pids")
def test_memory_that_does_not_come_back_is_said(
    stage: Stage, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaping, "BACK_S", 3.0)
    with stage.holder() as job, stage.daemon():
        stage.listed("idle")
        with stage.driver(job, CARD.replace("base=400M", "base=3574M"), OTHER):
            done = ctl.data("reap", str(job.pid), "--yes", code=3)
    assert (done["result"], done["sent"]) == ("ended", ["SIGINT"])
    assert done["still_held_bytes"] == pytest.approx(3.1 * 2**30, rel=0.01)
    # So that nothing counts as freed.
    assert rows(stage.folder / "state", ACTIONS)[-1][:2] == ("done", "still-held")


@pytest.mark.slow
@pytest.mark.usefixtures("own_pids")
def test_what_is_not_listed_is_refused_and_written(stage: Stage, ctl: Ctl) -> None:
    """Healthy training, memory in use on another GPU, and a job of Slurm."""
    env = {**os.environ, "SLURM_JOB_ID": "4711"}
    with stage.holder("SIGTERM", env=env) as job, stage.daemon():
        line = f"proc 0 pid={job.pid} mem=20G type=C"
        stage.listed("idle")
        answer = ctl.json("reap", str(job.pid), "--yes", code=1)
        assert answer["error"]["page"] == "errors#managed"
        assert answer["error"]["hint"] == "scancel -b --signal=TERM 4711"
        stage.fake.write(CARD, OTHER, line, f"proc 1 pid={job.pid} mem=5G type=C sm=80")

        def refused(page: str) -> bool:
            answer = ctl.json("reap", str(job.pid), "--yes", code=1)
            return bool(answer["error"]["page"] == page)

        wait_for(lambda: refused("errors#not-idle"))
        stage.fake.write(CARD.replace("util=0", "util=97"), OTHER, f"{line} sm=80")
        stage.listed()
        assert refused("errors#not-idle")
        assert job.poll() is None
        assert not (stage.folder / "notes").exists()
        found = rows(stage.folder / "state", ACTIONS)
        assert {(phase, code) for phase, code, *_ in found} == {
            ("refused", "managed"), ("refused", "not-idle"),
        }  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("own_pids")
def test_ctrl_c_ends_the_waiting_and_is_written(stage: Stage, ctl: Ctl) -> None:
    waits, notes = present(threading.main_thread().ident), stage.folder / "notes"

    def press() -> None:
        wait_for(notes.exists)
        signal.pthread_kill(waits, signal.SIGINT)

    with stage.holder("SIGTERM", "stay") as job, stage.daemon():
        stage.listed("idle")
        pressing = threading.Thread(target=press)
        # A daemon that a test has run in this process leaves its own handler.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            pressing.start()
            done = ctl.data("reap", str(job.pid), "--yes", "--kill", "--grace", "1h", code=130)
            pressing.join()
        finally:
            signal.signal(signal.SIGINT, before)
        assert (done["result"], done["sent"]) == ("interrupted", ["SIGTERM"])
        assert job.poll() is None
        assert [row[:2] for row in rows(stage.folder / "state", ACTIONS)] == [
            ("asked", "idle"), ("done", "interrupted"),
        ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("own_pids")
def test_one_that_still_runs_is_told_and_killed_only_on_request(
    stage: Stage, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage.holder("ignore") as job, stage.daemon():
        stage.listed("idle")
        words = ("reap", str(job.pid), "--yes", "--grace", "0.5s")
        assert ctl.data(*words, code=1)["result"] == "still-running"
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", Terminal())
            patch.setattr(click, "confirm", lambda *_, **__: False)
            assert ctl.data(*words, "--kill", code=1)["sent"] == ["SIGTERM"]
        assert job.poll() is None
        with stage.driver(job, CARD, OTHER):
            done = ctl.data(*words, "--kill")
        assert (done["result"], done["sent"]) == ("ended", ["SIGTERM", "SIGKILL"])


@pytest.mark.slow
@pytest.mark.usefixtures("own_pids")
def test_what_a_daemon_saw_that_has_stopped_is_no_list_of_now(stage: Stage, ctl: Ctl) -> None:
    with stage.holder() as job:
        with stage.daemon():
            stage.listed("idle")
        stage.listed("idle")
        answer = ctl.json("reap", str(job.pid), "--yes", code=1)
        assert answer["error"]["page"] == "errors#not-idle"
        assert job.poll() is None
    assert [row[:2] for row in rows(stage.folder / "state", ACTIONS)] == [("refused", "not-idle")]


@pytest.mark.usefixtures("own_pids")
def test_without_a_daemon_nothing_is_known_to_be_idle(stage: Stage, ctl: Ctl) -> None:
    opened(stage.folder / "state").close()
    with stage.holder() as job:
        answer = ctl.json("reap", str(job.pid), "--yes", code=1)
        assert job.poll() is None
    assert answer["error"]["kind"] in {"NotAllowed", "SourceUnavailable"}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("0",), 2),
        (("-1",), 2),
        (("nobody",), 1),
        ((str(2**40),), 1),
        ((str(10**30),), 1),
        ((str(os.getpid()), "--yes"), 1),
        (("1", "--yes"), 1),
        (("4711", "--grace", "0"), 2),
        (("4711", "--grace", "-1"), 2),
        (("4711", "--grace", "99999d"), 2),
        (("4711", "--grace", "soon"), 2),
        ((), 2),
    ],
)
def test_bad_input_is_refused_and_nothing_sent(
    stage: Stage, ctl: Ctl, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int
) -> None:
    sent: list[int] = []
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *given: sent.append(given[1]))
    stage.fake.write(CARD, OTHER)
    ctl("reap", *words, code=code)
    assert sent == []
