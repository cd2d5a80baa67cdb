"""Where the state to show comes from, and what is said about it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import msgspec
import pytest

from gpuwatchd.cli import current_state, main, program
from gpuwatchd.cli.flags import Globals
from gpuwatchd.collect.host import Host
from gpuwatchd.core import config
from gpuwatchd.core.errors import SourceUnavailable
from gpuwatchd.core.model import (
    Availability,
    Device,
    DeviceReading,
    Fault,
    ProcessKey,
    ProcessUse,
    Sample,
)
from gpuwatchd.store import driver_release
from gpuwatchd.store.directories import private_directory
from tests import making
from tests.children import Child
from tests.cli import world

HOUR_S = 3600.0


def _codes(view: current_state.View) -> list[str]:
    return [code for code, _ in view.warnings]


class Card:
    """A source with one GPU and one process of our own."""

    name = "nvml"
    pid = os.getpid()

    def probe(self) -> Availability:
        return Availability(ok=True, reason="1 GPU")

    def devices(self) -> tuple[Device, ...]:
        return (making.CARD,)

    def read(self) -> Sample:
        key = ProcessKey(pid=self.pid, started_at_s=None)
        use = ProcessUse(key=key, used_bytes=3 * making.GIB)
        reading = DeviceReading(
            device_uid=making.CARD.uid, used_bytes=4 * making.GIB, free_bytes=76 * making.GIB,
            total_bytes=80 * making.GIB, uses=(use,),
        )  # fmt: skip
        return Sample(
            taken_at_s=time.time(), taken_mono_s=1.0, boot_id="b", readings=(reading,),
            faults=(Fault(where="nvml/GPU-1/power", why="no power", device_uid="GPU-1"),),
        )  # fmt: skip

    def close(self) -> None:
        pass


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the source nvml have a GPU."""
    monkeypatch.setattr("gpuwatchd.collect.SOURCES", {"nvml": f"{__name__}:Card"})
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Card.__module__])


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no source have a GPU."""
    monkeypatch.setenv("GPUWATCHD_SOURCES_ENABLED", "")


def test_a_running_daemon_is_believed_without_a_warning() -> None:
    world.write()
    view = current_state.see(Globals())
    assert (view.source, view.warnings) == ("state-file", [])
    assert view.daemon.running
    assert view.daemon.pid == os.getpid()


def test_a_running_daemon_whose_sample_is_old_is_late() -> None:
    world.write(pid=1, taken_at_s=time.time() - 60)
    assert _codes(current_state.see(Globals())) == ["daemon-late"]


def test_a_stopped_daemon_is_not_running_though_the_pid_lives() -> None:
    world.write(stopped=True)
    view = current_state.see(Globals())
    assert not view.daemon.running
    assert "was stopped" in view.warnings[0][1]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="start times come from /proc")
def test_a_reused_pid_is_not_the_daemon() -> None:
    with Child(["sleep", "60"]) as younger:
        world.write(pid=younger.pid, taken_at_s=time.time() - 120)
        assert _codes(current_state.see(Globals())) == ["daemon-dead"]
        younger.kill()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="zombies are seen in /proc")
def test_a_killed_daemon_that_nobody_reaped_is_dead() -> None:
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    state = world.state(pid=ended.pid, taken_at_s=time.time() + 5)
    assert not current_state.alive(state)
    ended.wait()


def test_an_old_state_gives_way_to_a_direct_look(card: None) -> None:
    world.write(pid=2**22 + 1, taken_at_s=time.time() - 2 * HOUR_S)
    view = current_state.see(Globals())
    assert view.source == "direct"
    assert not view.trend
    assert _codes(view) == ["no-trend", "daemon-absent"]
    assert current_state.see(Globals(), want_trend=True).source == "state-file"


def test_an_old_state_is_better_than_nothing(no_gpu: None) -> None:
    world.write(pid=2**22 + 1, taken_at_s=time.time() - 2 * HOUR_S)
    assert current_state.see(Globals()).source == "state-file"


def test_a_direct_look_knows_processes_but_no_verdict(card: None) -> None:
    (item,) = current_state.see(Globals()).devices
    assert item.processes is not None
    assert item.processes[0].info.key.pid == os.getpid()
    assert item.processes[0].info.name not in {"", "?"}
    assert item.unattributed_bytes == making.GIB
    assert item.finding is None
    assert item.faults == ("no power",)


def _let_go() -> None:
    driver_release.ask(private_directory(config.runtime_dir()), 300.0, time.time())


class Untouchable(Card):
    """The source nvml, which nobody may make."""

    def __init__(self) -> None:
        raise AssertionError("NVML was opened")


class Other(Card):
    """Another source, which may be read."""

    name = "drm"

    def __init__(self, **settings: object) -> None:
        del settings


def test_nothing_is_opened_that_was_let_go(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpuwatchd.collect.SOURCES", {"nvml": f"{__name__}:Untouchable"})
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Card.__module__])
    _let_go()
    for verb in ("status", "predict", "zombies"):
        assert main([verb]) == 1
        said = capsys.readouterr().err
        assert "the GPUs are let go on request until" in said
        assert "gpuwatchctl release --end" in said
    driver_release.end(config.runtime_dir())
    with pytest.raises(AssertionError, match="NVML was opened"):
        current_state.see(Globals())


def test_the_other_gpus_are_shown_while_some_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {"nvml": f"{__name__}:Untouchable", "drm": f"{__name__}:Other"}
    monkeypatch.setattr("gpuwatchd.collect.SOURCES", sources)
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Card.__module__])
    monkeypatch.setenv("GPUWATCHD_SOURCES_ENABLED", "nvml,drm")
    _let_go()
    view = current_state.see(Globals())
    assert len(view.devices) == 1
    (reason,) = [words for code, words in view.warnings if code == "source"]
    assert reason.startswith("the GPUs are let go on request until")
    assert reason.endswith("(gpuwatchctl release --end)")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="start times come from /proc")
def test_a_direct_look_tells_processes_as_the_daemon_does(card: None) -> None:
    def key() -> ProcessKey:
        (item,) = current_state.see(Globals()).devices
        assert item.processes is not None
        return item.processes[0].info.key

    file = private_directory(config.state_dir()) / current_state.BOOT
    first = key()
    assert not file.exists()  # who only looks decides nothing
    if first.started_at_s is None:
        pytest.skip("in a pid namespace of its own no process has a start")
    daemon = Host(anchor=file)
    assert daemon.booted_at_s is not None
    # As if the clock had been set forward by 40 s since the daemon began.
    anchor = {"boot_id": daemon.boot_id, "booted_at_s": daemon.booted_at_s - 40}
    file.write_bytes(msgspec.json.encode(anchor))
    daemon.close()
    assert key() == msgspec.structs.replace(first, started_at_s=first.started_at_s - 40)
    assert msgspec.json.decode(file.read_bytes()) == anchor


def test_a_direct_look_says_on_screen_that_it_has_no_trend(
    card: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status"]) == 0
    shown = capsys.readouterr().out
    assert "no trend" in shown
    assert "stable" not in shown
    assert main(["predict"]) == 1


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": 1}', b"\x00" * 5000, b"[]", b"null"])
def test_a_broken_state_file_is_said_and_passed_over(
    content: bytes, no_gpu: None, capsys: pytest.CaptureFixture[str]
) -> None:
    world.write_raw(content)
    with pytest.raises(SourceUnavailable):
        current_state.see(Globals())
    assert main(["status"]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_a_broken_state_file_does_not_hide_the_gpus(card: None) -> None:
    world.write_raw(b"{")
    assert "state-broken" in _codes(current_state.see(Globals()))


def test_a_state_of_a_later_version_is_not_guessed_at(card: None) -> None:
    world.write(format=99)
    view = current_state.see(Globals())
    assert view.source == "direct"
    assert "state-newer" in _codes(view)


def test_a_daemon_without_gpus_is_exit_1_with_its_reasons(
    capsys: pytest.CaptureFixture[str], no_gpu: None
) -> None:
    world.write(devices=(), alerts=(), problems=("libnvidia-ml.so.1 is missing",))
    assert main(["status"]) == 1
    assert "libnvidia-ml.so.1 is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wish", "indices"),
    [("0", [0]), ("GPU-2", [1]), ("gpu-*", [0, 1]), ("*A100*", [0, 1]), ("nvidia a100", [0, 1])],
)
def test_gpus_are_chosen_by_index_uuid_and_glob(wish: str, indices: list[int]) -> None:
    world.write()
    flags = Globals()
    flags.gpu = [wish]
    assert [item.device.index for item in current_state.see(flags).devices] == indices


def test_alerts_of_other_gpus_are_left_out() -> None:
    world.write()
    flags = Globals()
    flags.gpu = ["1"]
    assert current_state.see(flags).alerts == ()


def test_everything_unknown_is_a_question_mark(capsys: pytest.CaptureFixture[str]) -> None:
    blank = msgspec.structs.replace(
        making.CARD, uid="GPU-1a2b3c4d-5e6f", index=None, memory_total_bytes=None
    )
    item = msgspec.structs.replace(
        world.state().devices[1], device=blank, reading=None, finding=None, recent_bytes=(),
        samples=0, faults=("it fell off the bus",),
    )  # fmt: skip
    world.write(devices=(item,), alerts=())
    assert main(["status"]) == 1  # a GPU that cannot be read is not a good answer
    shown = capsys.readouterr().out
    assert "GPU 1a2b3c4d" in shown
    assert "?/?" in shown
    assert "not readable: it fell off the bus" in shown


def test_the_collecting_of_samples_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    item = msgspec.structs.replace(world.state().devices[1], finding=None, samples=6)
    world.write(devices=(item,), alerts=())
    assert main(["status"]) == 0
    assert "collecting, 6 of 20 samples" in capsys.readouterr().out


def test_runtime_directory_is_that_of_the_configuration() -> None:
    world.write()
    assert (config.runtime_dir() / "state.json").exists()


def test_a_verb_that_cannot_be_loaded_hurts_itself_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The module, not its name in a text: importing it while patched would keep the patch for good.
    table = {"broken": "gpuwatchd.nothing:command", "watch": "gpuwatchd.cli.verbs.watch:command"}
    monkeypatch.setattr(program, "COMMANDS", table)
    monkeypatch.setattr(program, "_loaded", {})
    assert main(["--help"]) == 0
    assert "(cannot be loaded here)" in capsys.readouterr().out
    assert main(["broken"]) == 1
    assert "the verb broken cannot be loaded" in capsys.readouterr().err
    world.write()
    assert main(["watch", "-n", "1"]) == 0


def test_watch_goes_on_when_the_gpus_go_and_come(
    monkeypatch: pytest.MonkeyPatch, no_gpu: None, capsys: pytest.CaptureFixture[str]
) -> None:
    world.write()
    steps = iter(["gone", "back"])

    def sleep(_: float) -> None:
        if next(steps) == "gone":
            world.write_raw(b"{")
        else:
            world.write()

    monkeypatch.setattr("gpuwatchd.cli.panel.time.sleep", sleep)
    assert main(["watch", "-n", "3"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("NVIDIA A100") == 4
    assert shown.count("! no GPU found") == 1


def test_growth_that_slows_down_is_shown_as_the_watch_that_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = making.finding(pattern="plateau", tier="watch", severity="info", eta=None)
    process = world.process(finding=found)
    device = msgspec.structs.replace(world.state().devices[0], finding=found, processes=(process,))
    world.write(devices=(device,))
    for verb in ("status", "predict"):
        assert main([verb]) == 0
        assert "watch plateau" in " ".join(capsys.readouterr().out.split())
