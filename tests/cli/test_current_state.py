"""Where the state to show comes from, and what is said about it."""

from __future__ import annotations

import os
import re
import subprocess
import time
from typing import TYPE_CHECKING
from unittest import mock

import msgspec
import pytest

from gpuwatchd.cli import command_line, demo_screen, main
from gpuwatchd.cli.global_flags import Globals
from gpuwatchd.collect.host import BootAnchor, Host
from gpuwatchd.core import config
from gpuwatchd.core.errors import SourceUnavailable
from gpuwatchd.core.model import EtaRange, ProcessKey, Subject
from gpuwatchd.store import live
from gpuwatchd.store.private_files import private_directory
from gpuwatchd.tui import theme
from gpuwatchd.tui.widgets import gpus
from gpuwatchd.view.queries import current_state
from gpuwatchd.view.text import headline, prediction, verdict_text
from gpuwatchd.web import pages
from tests import making
from tests.children import Child
from tests.cli import world
from tests.cli.sick import Card
from tests.conftest import ON_LINUX, not_here
from tests.docs import screens
from tests.making import GIB, present
from tests.tui import world as machines

if TYPE_CHECKING:
    from gpuwatchd.core.model import Alert
    from gpuwatchd.view.queries.current_view import View
    from tests.cli.calls import Ctl


HOUR_S = 3600.0


def _codes(view: View) -> list[str]:
    return [code for code, _ in view.warnings]


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no source have a GPU."""
    monkeypatch.setenv("GPUWATCHD_SOURCES_ENABLED", "")


def test_a_running_daemon_is_believed_without_a_warning() -> None:
    world.write()
    view = current_state.load_view(Globals())
    assert (view.source, view.warnings) == ("state-file", [])
    assert view.daemon.running
    assert view.daemon.pid == os.getpid()


def test_a_running_daemon_whose_sample_is_old_is_late() -> None:
    world.write(pid=1, taken_at_s=time.time() - 60)
    assert _codes(current_state.load_view(Globals())) == ["daemon-late"]


def test_a_stopped_daemon_is_not_running_though_the_pid_lives() -> None:
    world.write(stopped=True)
    view = current_state.load_view(Globals())
    assert not view.daemon.running
    assert "was stopped" in view.warnings[0][1]


@ON_LINUX
def test_a_reused_pid_is_not_the_daemon() -> None:
    with Child(["sleep", "60"]) as younger:
        world.write(pid=younger.pid, taken_at_s=time.time() - 120)
        assert _codes(current_state.load_view(Globals())) == ["daemon-dead"]
        younger.kill()


@ON_LINUX
def test_a_killed_daemon_that_nobody_reaped_is_dead() -> None:
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    state = world.state(pid=ended.pid, taken_at_s=time.time() + 5)
    assert not current_state.alive(state)
    ended.wait()


def test_an_old_state_gives_way_to_a_direct_look(card: None) -> None:
    world.write(pid=2**22 + 1, taken_at_s=time.time() - 2 * HOUR_S)
    view = current_state.load_view(Globals())
    assert view.source == "direct"
    assert not view.trend
    assert _codes(view) == ["no-trend", "daemon-absent"]
    assert current_state.load_view(Globals(), want_trend=True).source == "state-file"


def test_an_old_state_is_better_than_nothing(no_gpu: None) -> None:
    world.write(pid=2**22 + 1, taken_at_s=time.time() - 2 * HOUR_S)
    assert current_state.load_view(Globals()).source == "state-file"


def test_a_direct_look_knows_processes_but_no_verdict(card: None) -> None:
    (item,) = current_state.load_view(Globals()).devices
    assert item.processes is not None
    assert item.processes[0].info.key.pid == os.getpid()
    assert item.processes[0].info.name not in {"", "?"}
    assert item.unattributed_bytes == making.GIB
    assert item.finding is None
    assert item.faults == ("no power",)


def _let_go() -> None:
    live.ask_release(private_directory(config.runtime_dir()), 300.0, time.time())


class Untouchable(Card):
    """The source nvml, which nobody may make."""

    def __init__(self) -> None:
        raise AssertionError("NVML was opened")


class Other(Card):
    """Another source, which may be read."""

    name = "drm"

    def __init__(self, **settings: object) -> None:
        del settings


def test_nothing_is_opened_that_was_let_go(monkeypatch: pytest.MonkeyPatch, ctl: Ctl) -> None:
    monkeypatch.setattr("gpuwatchd.collect.SOURCES", {"nvml": f"{__name__}:Untouchable"})
    _let_go()
    for verb in ("status", "predict", "zombies"):
        said = ctl.err(verb)
        assert "the GPUs are released on request until" in said
        assert "gpuwatchctl release --end" in said
    live.end_release(config.runtime_dir())
    with pytest.raises(AssertionError, match="NVML was opened"):
        current_state.load_view(Globals())


def test_the_other_gpus_are_shown_while_some_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {"nvml": f"{__name__}:Untouchable", "drm": f"{__name__}:Other"}
    monkeypatch.setattr("gpuwatchd.collect.SOURCES", sources)
    monkeypatch.setenv("GPUWATCHD_SOURCES_ENABLED", "nvml,drm")
    _let_go()
    view = current_state.load_view(Globals())
    assert len(view.devices) == 1
    (reason,) = [words for code, words in view.warnings if code == "source"]
    assert reason.startswith("the GPUs are released on request until")
    assert reason.endswith("(gpuwatchctl release --end)")


@ON_LINUX
def test_a_direct_look_tells_processes_as_the_daemon_does(card: None) -> None:
    def key() -> ProcessKey:
        (item,) = current_state.load_view(Globals()).devices
        assert item.processes is not None
        return item.processes[0].info.key

    file = private_directory(config.state_dir()) / current_state.BOOT
    first = key()
    assert not file.exists()  # who only looks decides nothing
    if first.started_at_s is None:
        not_here("in a pid namespace of its own no process has a start")
    daemon = Host(anchor=BootAnchor(file))
    assert daemon.booted_at_s is not None
    # As if the clock had been set forward by 40 s since the daemon began.
    anchor = {"boot_id": daemon.boot_id, "booted_at_s": daemon.booted_at_s - 40}
    file.write_bytes(msgspec.json.encode(anchor))
    daemon.close()
    assert key() == msgspec.structs.replace(first, started_at_s=first.started_at_s - 40)
    assert msgspec.json.decode(file.read_bytes()) == anchor


def test_a_direct_look_says_on_screen_that_it_has_no_trend(card: None, ctl: Ctl) -> None:
    shown = ctl("status")
    assert "no trend" in shown
    assert "stable" not in shown
    assert main(["predict"]) == 1


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": 1}', b"\x00" * 5000, b"[]", b"null"])
def test_a_broken_state_file_is_said_and_passed_over(
    content: bytes, no_gpu: None, ctl: Ctl
) -> None:
    world.write_raw(content)
    with pytest.raises(SourceUnavailable):
        current_state.load_view(Globals())
    assert "Traceback" not in ctl.err("status")


def test_who_reads_again_gets_the_very_processes_that_have_not_changed() -> None:
    known: dict[bytes, live.LiveProcess] = {}
    reads = []
    for used_gib in (1.0, 2.0):
        processes = world.process(), world.process(99, used_gib=used_gib)
        one = msgspec.structs.replace(world.state().devices[0], processes=processes)
        world.write(devices=(one,), coded=True)
        reads.append(present(live.read(config.runtime_dir(), known)).devices[0].processes or ())
        assert reads[-1] == processes
    assert reads[1][0] is reads[0][0]
    assert len(known) == 2


def test_a_broken_state_file_does_not_hide_the_gpus(card: None) -> None:
    world.write_raw(b"{")
    assert "state-broken" in _codes(current_state.load_view(Globals()))


def test_a_state_of_a_later_version_is_not_guessed_at(card: None) -> None:
    world.write(format=99)
    view = current_state.load_view(Globals())
    assert view.source == "direct"
    assert "state-newer" in _codes(view)


def test_a_daemon_without_gpus_is_exit_1_with_its_reasons(ctl: Ctl, no_gpu: None) -> None:
    world.write(devices=(), alerts=(), problems=("libnvidia-ml.so.1 is missing",))
    assert "libnvidia-ml.so.1 is missing" in ctl.err("status")


def test_everything_unknown_is_a_question_mark(ctl: Ctl) -> None:
    blank = msgspec.structs.replace(
        making.CARD, uid="GPU-1a2b3c4d-5e6f", index=None, memory_total_bytes=None
    )
    item = msgspec.structs.replace(
        world.state().devices[1], device=blank, reading=None, finding=None, recent_bytes=(),
        samples=0, faults=("it fell off the bus",),
    )  # fmt: skip
    world.write(devices=(item,), alerts=())
    shown = ctl("status", code=1)
    assert "GPU 1a2b3c4d" in shown
    assert "?/?" in shown


def test_a_verb_that_cannot_be_loaded_hurts_itself_alone(
    monkeypatch: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    # The module, not its name in a text: importing it while patched would keep the patch for good.
    table = {"broken": "gpuwatchd.nothing:command", "watch": "gpuwatchd.cli.verbs.watch:command"}
    monkeypatch.setattr(command_line, "COMMANDS", table)
    monkeypatch.setattr(command_line, "_loaded", {})
    assert "  status " in ctl("--help")
    assert "the verb broken cannot be loaded" in ctl.err("broken")
    world.write()
    assert main(["watch", "-n", "1"]) == 0


def test_watch_goes_on_when_the_gpus_go_and_come(
    monkeypatch: pytest.MonkeyPatch, no_gpu: None, ctl: Ctl
) -> None:
    world.write()
    steps = iter(["gone", "back"])

    def sleep(_: float) -> None:
        if next(steps) == "gone":
            world.write_raw(b"{")
        else:
            world.write()

    monkeypatch.setattr("time.sleep", sleep)
    shown = ctl("watch -n 3")
    assert shown.count("NVIDIA A100") == 4
    assert shown.count("! no GPU found") == 1


def alert(name: str, left_s: float, opened_s: float, **changes: object) -> Alert:
    eta = EtaRange(low_s=left_s, mid_s=left_s, high_s=left_s)
    found = world.leak(eta=eta)
    return world.firing(
        key=f"leak:GPU-1/{name}", title=name, finding=found, opened_at_s=opened_s, **changes
    )


def crowd() -> tuple[Alert, ...]:
    now_s = time.time()
    return (
        alert("five-watch", 60.0, now_s - 9000, state="watch"),
        alert("four-late", 9000.0, now_s - 5000, severity="warning"),
        alert("three-soon", 600.0, now_s - 4000, severity="warning"),
        alert("one-soon", 900.0, now_s - 3000, severity="critical"),
        alert("two-stopped", 1.0, now_s - 1000, severity="critical",
              clear_since_s=now_s - 60),
    )  # fmt: skip


ORDER = ["one-soon", "two-stopped", "three-soon", "four-late", "five-watch"]


def test_the_worst_comes_first_then_the_soonest_to_be_full_everywhere() -> None:
    world.write(alerts=crowd())
    flags = Globals()
    assert [
        one.title for one in current_state.shown(current_state.load_view(flags).alerts)
    ] == ORDER
    for name, key in (("overview", "alerts"), ("alerts", "open")):
        shown = getattr(pages.ANSWERS[name](flags, {}), key)
        assert [alert.title for alert in shown] == ORDER
    for verb in ("status", "alerts"):
        shown = world.run(verb).stdout
        at = [shown.index(name) for name in ORDER]
        assert at == sorted(at), verb


def test_what_is_over_is_listed_the_newest_first() -> None:
    past = [
        world.firing(key=name, title=name, state="resolved", opened_at_s=float(at), severity=how)
        for name, at, how in (("old", 10, "critical"), ("new", 30, "info"), ("mid", 20, "info"))
    ]
    found = current_state.ordered([*past, crowd()[0]])
    assert [one.title for one in found] == ["five-watch", "new", "mid", "old"]


def test_all_verbs_have_the_same_now_where_a_simulation_runs_ahead(ctl: Ctl) -> None:
    """After 36 seconds at 60 times the speed the world is 35 minutes ahead of the clock."""
    now_at = "2026-11-21T14:36:00.000Z"
    with (
        screens.world("one-leak", 36.0),
        mock.patch("time.time", return_value=screens.EPOCH_S + 36.0),
    ):
        [silence] = ctl.data("snooze", "latest", "1h")
        assert (silence["from_at"], silence["until_at"]) == (now_at, "2026-11-21T15:36:00.000Z")
        shown = ctl.data("alerts", "show", "latest")
        assert shown["silence"]["from_at"] == now_at
        assert ctl.data("alerts")[0]["silence"] == shown["silence"]
        [device] = ctl.data("history", "--since", "10m")
        times = [row["at"] for row in device["rows"]]
        assert (times[0], times[-1]) == ("2026-11-21T14:26:00.000Z", now_at)
        assert ctl.json("cost", "--since", "10m")["since_at"] == "2026-11-21T14:26:00.000Z"
        assert ctl.data("backtest")["settings"][0]["alerts"] == 1
        assert "cannot be recognised" not in ctl("explain", "4200000")


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("ascii_only", ["", "--ascii"])
def test_eight_gpus_are_a_sentence_and_a_line_for_each_that_leaks(
    columns: int, ascii_only: str, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    world.write(machines.state(at_s=time.time(), pid=os.getpid()))
    text = ctl(f"status {ascii_only}")
    first, *rest = text.splitlines()
    assert re.findall(r"\d+", first)[:3] == ["8", "1", "2"]
    assert first.endswith("VLLM::EngineCore of bob")
    # The worst first, of equals what is full first; the others are folded, and every line is one.
    assert [line.split()[1] for line in rest if line.startswith("GPU")] == ["0", "3", "6"]
    assert [line.split()[2] for line in rest[:2]] == ["VLLM::EngineCore[4001]", "jupyter[7001]"]
    assert rest[3].startswith("5 ")
    assert max(map(len, text.splitlines())) <= columns
    assert text.isascii() or not ascii_only
    listed = [line for line in ctl("status --all").splitlines() if line.startswith("GPU")]
    assert len(listed) == 8
    assert "NVIDIA" in ctl("status -v")


def test_what_leaks_on_a_calm_gpu_is_not_folded(ctl: Ctl) -> None:
    state = machines.state(at_s=time.time(), pid=os.getpid())
    leaky = msgspec.structs.replace(state.devices[3], finding=world.calm())
    devices = (*state.devices[:3], leaky, *state.devices[4:])
    places = headline.standings(devices)
    assert [place.item.device.index for place in places[:3]] == [0, 3, 6]
    assert places[1].badge.kind == "leak"
    calm = [place.item for place in places if place.badge.kind == "calm"]
    world.write(msgspec.structs.replace(state, devices=tuple(calm), alerts=()))
    # Where nothing is wrong there is nothing to fold them behind.
    assert ctl("status").count("\nGPU") == len(calm) == 5


@pytest.mark.parametrize("how", ["unread", "asleep", "unknown", "milder"])
def test_an_alert_is_shown_whatever_the_line_of_its_gpu_says(how: str, ctl: Ctl) -> None:
    state = machines.state(at_s=time.time(), pid=os.getpid())
    item = state.devices[4]
    found = world.leak(subject=Subject(device_uid=item.device.uid))
    alert = world.firing(
        subject=found.subject, finding=found, title="GPU 4: it", severity="critical"
    )
    quiet: dict[str, dict[str, object]] = {
        "unread": {"reading": None},
        "asleep": {"reading": world.unread(item.device.uid, "asleep")},
        "unknown": {"finding": msgspec.structs.replace(found, pattern="unknown", tier="none")},
        "milder": {"finding": msgspec.structs.replace(found, tier="watch")},
    }
    item = msgspec.structs.replace(item, **{"finding": found, **quiet[how]})
    devices = (*state.devices[:4], item, *state.devices[5:])
    world.write(msgspec.structs.replace(state, devices=devices, alerts=(alert,)))
    lines = ctl("status").splitlines()
    assert any(line.startswith("critical since") and "GPU 4: it" in line for line in lines)
    assert "4" in [line.split()[1] for line in lines if line.startswith("GPU")][:2]


def test_a_watch_has_no_percentage_and_a_plateau_no_rate(ctl: Ctl) -> None:
    found = world.leak(tier="watch", eta=None)
    words, _ = verdict_text.verdict(found)
    assert verdict_text.SUSPICION in words
    assert "%" not in words
    flat = msgspec.structs.replace(found, pattern="plateau")
    assert "MB/min" not in demo_screen.event_of(world.firing(finding=flat), 0.0).words
    watch = world.firing(finding=flat, state="watch", firing_at_s=None)
    item = world.state().devices[0]
    process = msgspec.structs.replace(world.process(finding=flat), used_bytes=GIB)
    item = msgspec.structs.replace(item, finding=flat, processes=(process,))
    world.write(devices=(item,), alerts=(watch,))
    verbs = ("status", "status -v", "predict", "predict -v", "explain 0", "alerts", "check",
             f"alerts show {watch.code}")  # fmt: skip
    for verb in verbs:
        text = ctl(verb)
        assert "MB/min" not in text, verb
        assert "plateau" in text or verb == "check"
    page = msgspec.json.encode(pages.ANSWERS["overview"](Globals(), {})).decode()
    assert "plateau" in page
    assert "MB/min" not in page


def test_the_suspect_stands_first_in_predict(ctl: Ctl) -> None:
    state = machines.state(at_s=time.time(), pid=os.getpid())
    world.write(state)
    lines = ctl("predict").splitlines()
    assert [line.split()[1] for line in lines if line.startswith("GPU")][:3] == ["0", "3", "6"]
    assert "[4001]" in lines[1]
    item = state.devices[0]
    leak = next(one for one in item.processes or () if one.finding and one.finding.tier == "alert")
    assert leak.finding is not None
    assert prediction.facts(item, leak.finding, leak)[0][0] == "suspect"
    painter = theme.Painter("never", environ={})
    view = current_state.load_view(Globals())
    row = "".join(part[0] for part in gpus.second(painter, view, item, 120))
    assert row.index("[4001]") < row.index("NVIDIA")
