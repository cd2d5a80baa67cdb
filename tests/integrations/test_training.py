"""What a training is told of itself, and tells: once per change, of its own process alone."""

from __future__ import annotations

import copy
import logging
import os
import time
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
import pytest

from gpuwatchd.core import config
from gpuwatchd.core.codes import Hold
from gpuwatchd.core.model import Blame, ProcessInfo, ProcessKey, Subject
from gpuwatchd.integrations import jupyter, training
from gpuwatchd.integrations.training import Training
from gpuwatchd.store.live import LiveDevice, LiveProcess
from gpuwatchd.store.reader import Reader
from gpuwatchd.view.queries import user_filter
from tests import making
from tests.cli import world

if TYPE_CHECKING:
    from gpuwatchd.core.model import Alert
    from gpuwatchd.store.tables import Checkpoint

CARD = making.CARD


def key_of(pid: int) -> ProcessKey:
    return ProcessKey(pid=pid, started_at_s=psutil.Process(pid).create_time())


def state_of(pid: int, *alerts: Alert, key: ProcessKey | None = None, **changes: Any) -> None:
    """Write the state of a daemon that sees a process leak on GPU 0, and has these alerts."""
    key = key or key_of(pid)
    info = ProcessInfo(key=key, name="python", user="alice", argv=("python", "train.py"))
    finding = world.leak(subject=Subject(device_uid=CARD.uid, process=key))
    process = LiveProcess(
        info=info, used_bytes=50 * world.GIB, host_bytes=world.GIB, finding=finding
    )
    card = msgspec.structs.replace(CARD, source=changes.pop("source", "nvml"))
    device = LiveDevice(device=card, reading=world.reading(CARD.uid, 52), processes=(process,))
    world.write(**{"devices": (device,), "alerts": alerts, **changes})


def alert_on(pid: int, **changes: Any) -> Alert:
    """Return an open alert on a process that leaks on GPU 0."""
    subject = Subject(device_uid=CARD.uid, process=key_of(pid))
    values = {"subject": subject, "finding": world.leak(subject=subject), "title": f"python[{pid}]"}
    return world.firing(**{"key": f"leak:{pid}", **values, **changes})


def checkpoints() -> list[Checkpoint]:
    with Reader.open(config.state_dir()) as reader:
        return reader.checkpoints()


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "READ_EVERY_S", 0.0)
    with world.history():
        pass


ME = os.getpid()


def test_an_alert_is_shown_once_and_when_it_changes() -> None:
    lines: list[str] = []
    watch, mine = Training(lines.append), alert_on(ME)
    for alerts in ([], [mine], [mine], [alert_on(ME, severity="critical")], [], []):
        state_of(ME, *alerts)
        watch.step()
    assert [line.split(": ")[1] for line in lines] == ["warning", "critical", "over"]
    facts = "gradual, +12.4 MB/min, full in 47 min (39 to 62 min)"
    assert lines[0].endswith(f"python[{ME}]: {facts} (gpuwatchctl explain {mine.code})")


def test_one_that_is_not_about_this_process_or_not_sent_is_not_shown() -> None:
    lines: list[str] = []
    other = os.getppid()
    blame = (
        Blame(process=key_of(other), name="python", share=0.8, rate_bytes_per_s=1.0),
        Blame(process=key_of(ME), name="python", share=0.2, rate_bytes_per_s=1.0),
    )
    card = Subject(device_uid=CARD.uid)
    state_of(
        ME,
        alert_on(other),
        alert_on(ME, state="watch", key="a"),
        alert_on(ME, held_code=Hold.SILENCED, key="b"),
        world.firing(key="c", subject=card, finding=world.leak(subject=card, blame=blame)),
        world.firing(key="d", subject=card, kind="gpu", finding=world.leak(subject=card)),
    )
    watch = Training(lines.append)
    watch.step()
    assert lines == []
    mine = world.leak(subject=card, blame=blame[1:])
    state_of(ME, world.firing(key="c", subject=card, finding=mine))
    watch.step()
    assert len(lines) == 1


def test_a_checkpoint_is_written_with_its_step_and_counts_for_this_process() -> None:
    state_of(ME)
    watch = Training(print)
    watch.saved("step 1200 of my-run")
    watch.end()
    watch.saved("step 1300\x1b of my-run", at_s=time.time() - 5.0)
    watch.end()
    first, second = checkpoints()[::-1]
    assert (first.process.pid, first.detail) == (ME, "step 1200 of my-run")
    assert second.detail == "step 1300 of my-run"
    assert first.saved_at_s - second.saved_at_s == pytest.approx(5.0, abs=2.0)


def test_of_two_that_follow_at_once_the_first_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    state_of(ME)
    watch = Training(print)
    watch.step()
    monkeypatch.setattr(training, "READ_EVERY_S", 1e6)
    for step in range(3):
        watch.saved(f"step {step}")
        watch.end()
    assert [point.detail for point in checkpoints()] == ["step 0"]


ELSEWHERE: dict[str, dict[str, Any]] = {
    "no-daemon": {"stopped": True},
    "simulated": {"source": "simulate"},
    "another-of-this-pid": {"key": ProcessKey(pid=ME, started_at_s=1000.0)},
    "on-no-gpu": {"devices": ()},
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_where_this_process_is_not_watched_nothing_happens(name: str) -> None:
    state_of(ME, **ELSEWHERE[name])
    watch = Training(print)
    watch.saved("step 1")
    watch.end()
    assert (watch.figures(), checkpoints()) == ({}, [])


def test_where_no_list_of_processes_is_known_a_checkpoint_is_reported() -> None:
    state_of(ME, devices=(LiveDevice(device=CARD, reading=None, processes=None),))
    watch = Training(print)
    watch.saved("step 1")
    watch.end()
    assert (len(checkpoints()), watch.figures()) == (1, {"gpuwatchd/alerts": 0})


def test_the_figures_of_this_process() -> None:
    state_of(ME, alert_on(ME))
    assert Training(print).figures() == {
        "gpuwatchd/alerts": 1,
        "gpuwatchd/gpu0_used_bytes": 50 * world.GIB,
        "gpuwatchd/host_bytes": world.GIB,
        "gpuwatchd/gpu0_left_s": 2820,
        "gpuwatchd/gpu0_growth_bytes_per_s": 206_667.0,
    }


@pytest.mark.parametrize("content", [b"", b"{", b'{"pid": "x"}', b"\xff" * 20])
def test_nothing_is_raised_into_a_training(
    content: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise OSError("broken")

    caplog.set_level(logging.DEBUG, "gpuwatchd")
    watch = Training(broken)
    world.write_raw(content)
    watch.saved("step 1")
    state_of(ME, alert_on(ME))
    watch.step()
    assert "part=training" in caplog.text
    monkeypatch.setattr(user_filter, "write_checkpoint", broken)
    watch.saved("step 2")
    watch.end()
    assert "part=checkpoint" in caplog.text
    assert checkpoints() == []


def test_the_history_of_another_user_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    state_of(ME)
    owner = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: owner)
    watch = Training(print)
    watch.saved("step 1")
    watch.end()
    assert checkpoints() == []


def test_a_copy_and_a_fork_begin_anew() -> None:
    state_of(ME, alert_on(ME))
    watch = Training(print)
    watch.saved("step 1")
    watch.end()
    assert copy.deepcopy(watch).figures() == watch.figures()
    child = os.fork()
    if child == 0:
        os._exit(0 if watch.figures() == {} else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_the_magic_prints_the_status_of_this_process(capsys: pytest.CaptureFixture[str]) -> None:
    state_of(ME, alert_on(ME))
    jupyter.gpuwatch()
    out = capsys.readouterr().out
    assert all(fact in out for fact in (str(ME), "50.0 GiB", "full in 47 min")), out
    state_of(os.getppid())
    jupyter.gpuwatch()
    assert capsys.readouterr().out == f"gpuwatchd: pid {ME} is on no GPU here\n"
    state_of(ME, stopped=True)
    jupyter.gpuwatch()
    assert "not running\nhint: " in capsys.readouterr().out
