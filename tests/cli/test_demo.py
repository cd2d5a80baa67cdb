"""The demo: the real pipeline finds what was planted, and nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.cli import demo_screen, main
from gpuwatchd.cli.demo_screen import event_of
from gpuwatchd.cli.verbs import demo
from gpuwatchd.collect.scenarios.worlds import SCENARIOS
from gpuwatchd.collect.simulate import Planted
from gpuwatchd.core.model import Alert, AlertState, Delivery, EtaRange, ProcessKey, Subject
from tests import making
from tests.children import Child
from tests.cli import world
from tests.cli.calls import on_a_terminal

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.view.answers.program import Scored
    from tests.cli.calls import Ctl

pytestmark = pytest.mark.slow

FAST = ("--speed", "1e9")
RUN = "import sys; from gpuwatchd.cli import main; sys.exit(main(sys.argv[1:]))"
DEMO = (sys.executable, "-c", RUN, "demo", "--no-notify")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Send temporary files to a folder that can be looked into."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "DBUS_SESSION_BUS_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    return folder


def _objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_what_was_planted_is_found_and_nothing_else(scratch: Path, ctl: Ctl) -> None:
    answer = ctl.both("demo", *FAST, "--no-notify", "--json")
    assert answer.err == ""
    lines = _objects(answer.out)
    assert {line["verb"] for line in lines} == {"demo"}
    assert {line["schema_version"] for line in lines} == {1}
    events = [line["data"] for line in lines]
    assert events[0]["event"] == "started"
    summary = events[-1]
    assert summary["event"] == "summary"
    rows = {row["program"]: row for row in summary["rows"]}
    assert len(rows) == 7
    assert all(row["right"] for row in rows.values()), rows
    for row in rows.values():  # the pattern too, of the harmless ones as well
        assert row["found"].split()[0] == row["planted"].split()[0]
    leaks = [row for row in rows.values() if row["leak"]]
    assert [row["program"] for row in leaks] == ["GPU 0: finetune_lora.py", "GPU 1: uvicorn"]
    # Within a minute of wall time at the default speed.
    assert min(row["alert_s"] for row in leaks) <= 60 * demo.SPEED
    for row in leaks:
        assert row["found"].endswith("ALERT")
        assert row["eta"]["low_s"] <= row["true_eta_s"] <= row["eta"]["high_s"]
        assert row["eta"]["mid_s"] == pytest.approx(row["true_eta_s"], rel=0.15)
    # Leaks first, in the table and on the screen; what is only suspected has no percentage.
    assert [row["leak"] for row in summary["rows"]] == [True, True, *[False] * 5]
    watches = [event for event in events if event["event"] == "watch"]
    assert [event["device"]["index"] for event in watches[:2]] == [0, 1]
    assert not any("%" in event["text"] for event in watches)
    kinds = [event["event"] for event in events]
    assert kinds.index("watch") < kinds.index("alert") < kinds.index("crashed")
    assert kinds.count("recovered") == 1
    assert list(scratch.iterdir()) == []


def test_an_idle_process_is_told_of_twice_and_then_ended_in_simulation_alone(
    scratch: Path, ctl: Ctl
) -> None:
    out = ctl("demo", *FAST, "--json", "--scenario", "idle", "--duration", "155m")
    events = [line["data"] for line in _objects(out)]
    seen = [
        (it["event"], it["world_s"]) for it in events if it["event"] in {"alert", "message", "step"}
    ]
    assert [kind for kind, _ in seen] == ["alert", "message", "message", "step", "message"]
    at_s = [at_s for _, at_s in seen]
    # Two hours of idleness, a quarter of an hour twice, and on to the whole minute.
    assert at_s[0] >= 7200.0
    assert at_s[2] - at_s[1] >= 900.0
    assert 900.0 <= at_s[3] - at_s[2] <= 960.0 + 5.0
    assert list(scratch.iterdir()) == []


def test_the_quiet_world_raises_no_alert(scratch: Path, ctl: Ctl) -> None:
    line = "demo --no-notify --json --scenario quiet --duration 1h"
    events = [line["data"] for line in _objects(ctl(line, *FAST))]
    assert not [event for event in events if event["event"] == "alert"]
    assert all(row["right"] for row in events[-1]["rows"])
    assert list(scratch.iterdir()) == []


def test_the_same_seed_tells_the_same_story(scratch: Path, ctl: Ctl) -> None:
    line = "demo --no-notify --plain --duration 25m --seed 11"
    stories = [ctl(line, *FAST) for _ in range(2)]
    assert stories[0] == stories[1]
    # One clock: simulated minutes, in a column.
    clocks = [line for line in stories[0].splitlines() if "  watch  " in line]
    assert clocks
    assert all(re.match(r"[ +\d]{4} min  ", line) for line in clocks)


def _spawn(*flags: str, **rest: Any) -> Child[bytes]:
    return Child([*DEMO, *flags], **rest)


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_pipe_gets_no_escape_sequences(scratch: Path, flags: tuple[str, ...]) -> None:
    with _spawn(*FAST, "--duration", "25m", *flags, stdout=-1, stderr=-1) as process:
        out, err = process.communicate(timeout=90)
    assert process.returncode == 0
    assert b"\x1b" not in out
    assert err == b""
    assert b"watch" in out
    if not flags:
        assert b"Next: gpuwatchctl doctor" in out


def _on_terminal(*flags: str, **variables: str) -> tuple[int, str]:
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **variables}
    return on_a_terminal([*DEMO, *flags], environment)


def test_a_terminal_gets_a_live_table(scratch: Path) -> None:
    code, seen = _on_terminal(*FAST, "--duration", "15m")
    assert code == 0
    assert "GPU / process" in seen
    assert "finetune_lora.py" in seen
    # The cursor is hidden while the table lives, and comes back.
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    "variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"]
)
def test_a_terminal_without_colour_gets_no_escape_byte(
    scratch: Path, variables: dict[str, str]
) -> None:
    code, seen = _on_terminal(*FAST, "--duration", "15m", "--ascii", **variables)
    assert code == 0
    assert "\x1b" not in seen
    assert seen.isascii()
    assert "finetune_lora.py" in seen


@pytest.mark.parametrize(
    ("number", "code", "form"),
    [(signal.SIGINT, 130, "--plain"), (signal.SIGTERM, 143, "--json"), (signal.SIGHUP, 129, "-v")],
)
def test_stopped_at_any_time_it_leaves_nothing(
    scratch: Path, number: signal.Signals, code: int, form: str
) -> None:
    with _spawn("--speed", "600", form, stdout=-1, stderr=-1) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        assert len(list(scratch.iterdir())) == 1
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert b"Traceback" not in err
    assert err.count(b"\n") == (number == signal.SIGINT)
    assert list(scratch.iterdir()) == []


def test_a_closed_pipe_ends_it_silently(scratch: Path) -> None:
    with _spawn(*FAST, "--plain", stdout=-1, stderr=-1) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 141
    assert list(scratch.iterdir()) == []


def test_without_a_session_bus_it_says_so_and_goes_on(
    scratch: Path, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", f"unix:path={scratch}/none")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(scratch))
    assert "No pop-ups here: " in ctl("demo", *FAST, "--plain", "--duration", "5m")


def test_every_scenario_can_be_named() -> None:
    assert tuple(SCENARIOS) == demo.SCENARIO_NAMES


def test_quiet_writes_the_result_only(scratch: Path, ctl: Ctl) -> None:
    first, *rest = ctl("demo", *FAST, "--no-notify", "-q", "--duration", "15m").strip().splitlines()
    assert first.startswith("GPU, program")
    assert not [line for line in rest if line.startswith("+")]


def test_a_named_configuration_is_tried_out(scratch: Path, ctl: Ctl) -> None:
    file = scratch / "own.toml"
    file.write_text('[detection]\nminimum-growth-mib = 100000\n[policy]\nchannels = ["email"]\n')
    flags = ("--no-notify", "--json", "--duration", "65m", "--config", str(file))
    summary = _objects(ctl("demo", *FAST, *flags))[-1]["data"]
    # No growth is large enough for this file, so nothing may alert.
    assert [row["alert_s"] for row in summary["rows"] if row["leak"]] == [None, None]
    file.write_text("[detection]\nnonsense = 1\n")
    assert main(["demo", *flags]) == 5


@pytest.mark.parametrize("speed", ["nan", "0", "x"])
def test_a_speed_that_is_none_is_refused(ctl: Ctl, speed: str) -> None:
    assert "--speed" in ctl.err("demo --speed", speed, code=2)


class _FakeCourier:
    def __init__(self) -> None:
        self.taken: list[Delivery] = []

    def submit(self, delivery: Delivery) -> bool:
        self.taken.append(delivery)
        return True

    def results(self) -> list[Delivery]:
        return self.taken


def test_at_most_two_popups_and_each_says_that_it_is_a_demo() -> None:
    message_dispatcher = _FakeCourier()
    popups = demo.Popups(message_dispatcher)  # type: ignore[arg-type]
    for number in range(4):
        message = world.message(id=str(number), subject="x" * 78)
        assert popups.submit(world.delivery(f"leak:{number}", "desktop", 0.0, message=message))
    assert [delivery.dry_run for delivery in message_dispatcher.taken] == [False, False, True, True]
    for delivery in message_dispatcher.taken:
        assert delivery.message.subject.startswith("Demo: ")
        assert len(delivery.message.subject) <= 78
        assert "Simulated" in delivery.message.body
    assert popups.results() == message_dispatcher.taken
    assert [event.kind for event in popups.news(1.0)] == ["pop-up"] * 2
    assert popups.news(1.0) == []


def _subject(pid: int | None) -> Subject:
    key = None if pid is None else ProcessKey(pid=pid, started_at_s=0.0)
    return Subject(device_uid="gpu0", process=key)


def _planted(pid: int, *, leak: bool) -> Planted:
    return Planted(
        subject=_subject(pid),
        title="GPU 0: a of b",
        program="GPU 0: a.py",
        leak=leak,
        pattern="gradual" if leak else "stable",
        onset_at_s=0.0 if leak else None,
        rate_bytes_per_s=1.0 if leak else 0.0,
        oom_at_s=1000.0 if leak else None,
    )


def _alert(subject: Subject, state: AlertState, at_s: float) -> Alert:
    eta = EtaRange(low_s=500.0, mid_s=600.0, high_s=None)
    return making.alert(
        key=f"leak:{subject.id}", subject=subject, state=state, opened_at_s=at_s,
        finding=making.finding(subject=subject, judged_at_s=at_s, eta=eta), changed_at_s=at_s,
        watch_at_s=at_s, firing_at_s=at_s if state == "firing" else None,
    )  # fmt: skip


def _score(planted: list[Planted], *alerts: Alert) -> list[Scored]:
    ledger = demo_screen.DemoScore(100.0)
    for alert in alerts:
        ledger.note({alert.subject.id: alert.finding}, [alert])
    return ledger.rows(planted)


@pytest.mark.parametrize(
    ("leak", "state", "at_s", "right"),
    [
        (True, "firing", 400.0, True),
        (True, "firing", 1001.0, False),  # after the crash
        (True, "watch", 400.0, False),
        (True, None, 0.0, False),
        (False, "firing", 400.0, False),
    ],
)
def test_only_an_alert_before_the_crash_of_a_leak_is_right(
    leak: bool, state: AlertState | None, at_s: float, right: bool
) -> None:
    alerts = [] if state is None else [_alert(_subject(1), state, at_s)]
    [row] = _score([_planted(1, leak=leak)], *alerts)
    assert row.right is right
    if right:
        assert (row.alert_s, row.true_eta_s) == (300.0, 600.0)
    line = demo_screen.verdict_line([row], simulated_s=60)
    assert line.startswith(f"{right:d} of {leak:d} leaks found") or not leak
    assert ("1 false alarm" in line) is (not leak)


def test_a_restart_belongs_to_the_same_program() -> None:
    runs = [_planted(1, leak=False), _planted(2, leak=False)]
    [row] = _score(runs, _alert(_subject(2), "firing", 400.0))
    assert not row.right


def test_a_whole_card_may_alert_only_where_something_leaks() -> None:
    card = _alert(_subject(None), "firing", 400.0)
    harmless = _score([_planted(1, leak=False)], card)
    assert [row.right for row in harmless] == [True, False]
    assert harmless[1].planted == "nothing"
    assert len(_score([_planted(1, leak=True)], card)) == 1


def test_what_was_only_watched_does_not_recover() -> None:
    watched = _alert(_subject(1), "resolved", 400.0)
    assert event_of(watched, 1.0).kind == "cleared"
