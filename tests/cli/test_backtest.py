"""``backtest``: the user's own history in words and as JSON; and work on many things at once."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from typing import TYPE_CHECKING

import psutil
import pytest

from gpuwatchd.cli import parallel
from gpuwatchd.core import config
from tests.children import Child
from tests.cli import world
from tests.pipeline import recorded
from tests.pipeline.recorded import Run, ramp
from tests.test_daemon import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.calls import Ctl

pytestmark = pytest.mark.slow


def dead(devices: int = 1, *, hours: float = 2.0) -> None:
    """Write a history in which a process fills the memory and dies."""
    now_s = time.time()
    config.state_dir().mkdir(exist_ok=True)
    begin_s = now_s - hours * 3600.0
    run = Run(pid=4711, begin_s=begin_s + 300, used=ramp(75, 19.3))
    recorded.write(config.state_dir(), [run], begin_s, now_s, devices=devices)


def test_a_death_is_told_with_its_alert(ctl: Ctl) -> None:
    dead()
    data = ctl.data("backtest", "--since", "3h")
    (device,) = data["devices"]
    (case,) = [one for one in device["cases"] if one["alert_at"] is not None]
    assert (case["pid"], case["came"], case["true"]) == (4711, "filled", True)
    assert case["process_ended"]
    assert case["memory_share"] == pytest.approx(0.99, abs=0.01)
    assert 1800 < case["lead_s"] < 4500
    present = data["settings"][0]
    assert (present["name"], present["alerts"], present["precision"]) == ("as it is", 1, 1.0)
    assert (present["deaths"], present["deaths_missed"]) == (1, 0)
    early = [float(case["lead_s"] >= 60.0 * least) for least in (10, 30, 60)]
    assert [present[f"left_{least}_min_share"] for least in (10, 30, 60)] == early
    assert (present["filled"], early[:2]) == (1, [1.0, 1.0])


def test_several_gpus_are_played_by_several_processes(ctl: Ctl) -> None:
    dead(devices=2, hours=1.7)
    data = ctl.data("backtest", "--since", "3h")
    assert [one["device"]["uid"] for one in data["devices"]] == ["GPU-0", "GPU-1"]
    first, second = (one["cases"] for one in data["devices"])
    assert [case["alert_at"] for case in first] == [case["alert_at"] for case in second]
    chosen = ctl.data("backtest", "--since", "3h", "--gpu", "1")
    assert [one["device"]["uid"] for one in chosen["devices"]] == ["GPU-1"]


def test_an_empty_time_is_one_line(ctl: Ctl) -> None:
    now_s = time.time()
    config.state_dir().mkdir()
    recorded.write(config.state_dir(), [], now_s - 9e6, now_s - 9e6 + 600)
    told = ctl.both("backtest --since 2h", code=1)
    assert told.out == ""
    assert told.err.startswith("gpuwatchctl: no data since ")
    assert told.err.splitlines()[2:] == ["see: gpuwatchctl docs errors#nothing-recorded"]


def test_other_settings_cannot_be_tried(ctl: Ctl) -> None:
    ctl.err("backtest --set notify.email.host=x", code=2)


def test_steps_on_leaks_of_a_history_and_what_they_would_have_come_to(ctl: Ctl) -> None:
    dead()
    file = config.state_dir().parent / "steps.toml"
    file.write_text('[act]\nmode = "auto"\nleak-steps = ["end"]\n')
    data = ctl.data("--config", str(file), "backtest", "--since", "3h", "--act")
    act = data["act"]
    assert (act["mode"], act["steps"], act["hold"], act["idle_judged"]) == (
        "auto", ["end"], None, True,
    )  # fmt: skip
    (case,) = act["cases"]
    assert (case["pid"], case["step"], case["hold"]) == (4711, "end", None)
    assert (case["outcome"], case["right"]) == ("died", True)
    assert case["left_s"] > 0
    assert (act["alerts"], act["taken"], act["right"], act["wrong"]) == (1, 1, 1, 0)
    (rule,) = act["rules"]
    assert (rule["since_at"], rule["acts_from_at"]) == (None, None)
    # How busy the GPU was is not recorded here.
    assert (act["idle"]["taken"], act["idle"]["steps"]) == (0, ["end"])
    assert ctl.both(f"--config {file} backtest --since 3h --act").out


def test_steps_on_idle_memory_of_a_history(ctl: Ctl) -> None:
    begin_s = time.time() // 60 * 60 - 5 * 3600.0
    used = recorded.ramp(0, 0.0, then_minutes=240.0)
    where = config.state_dir()
    where.mkdir()
    recorded.write(
        where, [recorded.Run(pid=4711, begin_s=begin_s, used=used)], begin_s, begin_s + 5 * 3600.0,
        busy=[(begin_s, begin_s + 1800.0)],
    )  # fmt: skip
    file = where.parent / "steps.toml"
    file.write_text('[act]\nrunner = ["/bin/true"]\n')  # whoever the tests run as
    line = f"--config {file} backtest --since 6h --act"
    idle = ctl.data(*line.split())["act"]["idle"]
    assert (idle["hold"], idle["taken"], idle["right"], idle["not_judged"]) == (None, 1, 1, 0)
    (case,) = idle["cases"]
    assert (case["pid"], case["step"], case["outcome"], case["right"]) == (
        4711, "end", "ended", True,
    )  # fmt: skip
    assert case["freed_s"] > 0
    assert "4711" in ctl.both(line).out


@pytest.mark.parametrize(
    ("settings", "hold"),
    [('mode = "observe"', "observe"), ("leak-steps = []", "no-step")],
    ids=["observe", "no-step"],
)
def test_settings_that_do_nothing_are_one_line(settings: str, hold: str, ctl: Ctl) -> None:
    dead()
    file = config.state_dir().parent / "steps.toml"
    file.write_text(f"[act]\n{settings}\n")
    act = ctl.data("--config", str(file), "backtest", "--act")["act"]
    assert (act["hold"], act["taken"], act["cases"]) == (hold, 0, [])


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ("backtest nowhere.csv", 2),
        ("backtest --act --set confirm=5", 2),
        ("backtest --act --since 2h nowhere.csv", 2),
        ("backtest --act nowhere.csv", 5),
    ],
)
def test_bad_input_of_act_is_short(flags: str, code: int, ctl: Ctl) -> None:
    told = ctl.both(flags, code=code)
    assert "Traceback" not in told.err
    assert len(told.err.splitlines()) <= 4


def begun() -> Child[str]:
    """Return the program over a long history, as soon as its workers are there."""
    dead(devices=3, hours=48)
    started = Child(
        [world.PROGRAM, "backtest"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for(psutil.Process(started.pid).children)
    return started


def test_control_c_ends_it_at_once() -> None:
    with begun() as started:
        os.killpg(started.pid, signal.SIGINT)
        out, err = started.communicate(timeout=60)
    assert started.returncode == 130
    assert out == ""
    assert "Traceback" not in err


def test_damage_is_not_taken_for_too_little_memory(ctl: Ctl) -> None:
    dead()
    with closing(sqlite3.connect(config.state_dir() / "history.db")) as connection:
        connection.execute("DROP TABLE feedback")
    shown = ctl.err("backtest --since 3h")
    assert "could not be replayed" in shown
    assert "hint: gpuwatchctl doctor" in shown


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_workers_do_not_outlive_the_program(how: signal.Signals) -> None:
    with begun() as started:
        started.send_signal(how)
        try:
            # The workers hold the pipe open for as long as they live.
            started.communicate(timeout=60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
    assert started.returncode == -how


def double(item: int, tell: Callable[[float], None]) -> int:
    tell(0.5)
    if item == 13:
        raise ValueError("unlucky")
    if item == 99:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * item


@pytest.mark.parametrize("cores", [1, 3])
def test_results_keep_their_order_and_a_bad_one_costs_no_other(cores: int) -> None:
    found = parallel.spread(
        double, [5, 13, 1, 3], str, shown=False, weights=[1.0, 9.0, 2.0, 3.0], cores=cores
    )
    assert found == [10, parallel.Lost("ValueError: unlucky"), 2, 6]


def test_a_killed_worker_costs_only_its_own_result() -> None:
    found = parallel.spread(double, [1, 99, 2, 3], str, shown=False, cores=2)
    assert [found[0], *found[2:]] == [2, 4, 6]
    assert isinstance(found[1], parallel.Lost)
    assert "killed" in found[1].why


@pytest.mark.parametrize("cores", [1, 2])
def test_the_bar_counts_what_is_done(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(parallel.Bar, "show", lambda _, __, words: shown.append(words))
    parallel.spread(double, [1, 2], str, shown=False, cores=cores)
    assert " of 2  " in shown[0]


def test_the_bar_shows_share_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    assert parallel.on_terminal()
    with parallel.Bar(shown=True) as bar:
        bar.show(0.25, "RTX [bold]4090\x1b[2J")
    written = stream.getvalue()
    assert "25%" in written
    assert "RTX [bold]4090" in written
    assert "\x1b[2J" not in written
    monkeypatch.setenv("TERM", "dumb")
    assert not parallel.on_terminal()
