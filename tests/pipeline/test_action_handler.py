"""A button does what it says, once, and nothing when its alert is over."""

from __future__ import annotations

import shlex
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.act import terminal
from gpuwatchd.core.config import ActSection, Config
from gpuwatchd.core.errors import NotAllowed, NotifyError
from gpuwatchd.core.model import Message, ProcessInfo, Subject
from gpuwatchd.notify import NOTIFIERS
from gpuwatchd.pipeline import messages
from gpuwatchd.pipeline.action_handler import CONFIRM_S, ActionHandler, ActionReply, buttons_for
from gpuwatchd.pipeline.state import ConditionAlert, Settings, State
from gpuwatchd.store import tables
from gpuwatchd.store.tables import Checkpoint
from tests import making
from tests.act.children import booted_at_s, job, key_of
from tests.conftest import ON_LINUX
from tests.making import alert, finding
from tests.store.world import T0, opened
from tests.test_daemon import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.core.model import Alert, Button, ButtonName
    from gpuwatchd.store.writer import History

ASKS = Config(act=ActSection(checkpoint="signal"))


def nothing(*_: object) -> None:
    """Take no step."""


class World:
    """One who presses, and what is said to him."""

    def __init__(self, history: History) -> None:
        self.said: list[Message] = []
        self.windows: list[list[str]] = []
        self.history = history
        self.now_s = T0
        self.state = State(Config(), history)
        self.pressed = ActionHandler(
            self.state,
            shelf=history.shelf,
            say=self.said.append,
            booted_at_s=booted_at_s(),
        )

    def press(self, name: ButtonName, about: Alert, *, known: list[Alert] | None = None) -> None:
        message = messages.compose(about, "firing", now_s=T0)
        self.pressed.put(name, message)
        self.step([about] if known is None else known)

    def step(self, known: list[Alert]) -> None:
        self.state.conditions = {it.key: ConditionAlert(it, self.now_s) for it in known}
        self.pressed.step(nothing, self.now_s)
        wait_for(lambda: not any(thread.is_alive() for thread in self.pressed._running))
        self.pressed.step(nothing, self.now_s)

    def rows(self) -> list[tables.Action]:
        return self.history.shelf.write_now(tables.load_actions) or []


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    history = opened(tmp_path)
    world = World(history)
    yield world
    world.pressed.close()
    history.close()


def _about(process: object, **changes: object) -> Alert:
    subject = Subject(device_uid="GPU-1", process=process)  # type: ignore[arg-type]
    return alert(subject=subject, finding=finding(subject=subject), notices=1, **changes)


def test_snooze_silences_for_an_hour_and_says_so(world: World) -> None:
    world.press("snooze", alert(notices=1))
    (silence,) = world.state.silences.active
    assert silence.matcher.key == "leak:x"
    assert silence.until_at_s == T0 + 3600
    assert silence.row is not None
    assert silence.who
    (said,) = world.said
    assert said.subject.startswith("Snoozed until ")
    assert said.body.endswith("when it becomes critical.")
    assert said.command == f"gpuwatchctl snooze clear {silence.row}"
    assert said.notice == "test"


def test_snooze_silences_all_that_the_notice_was_about(world: World) -> None:
    first, other = alert(notices=1), alert(key="leak:y", notices=1)
    message = messages.compose(first, "firing", now_s=T0, also=(other,))
    world.pressed.put("snooze", message)
    world.step([first, other])
    assert {one.matcher.key for one in world.state.silences.active} == {"leak:x", "leak:y"}


@pytest.mark.parametrize("name", ["snooze", "checkpoint"])
@pytest.mark.parametrize("case", ["over", "resolved", "opened anew"])
def test_a_press_that_comes_too_late_does_nothing_and_says_so(
    world: World, name: ButtonName, case: str
) -> None:
    about = alert(notices=1)
    known = {
        "over": [],
        "resolved": [msgspec.structs.replace(about, state="resolved")],
        "opened anew": [msgspec.structs.replace(about, opened_at_s=about.opened_at_s + 500)],
    }[case]
    world.press(name, about, known=known)
    assert world.state.silences.active == ()
    assert world.rows() == []
    (said,) = world.said
    assert said.subject in {"Not snoozed", "Not asked"}
    assert said.body.endswith("It is resolved already.")


def test_a_double_click_is_one_press(world: World) -> None:
    about = alert(notices=1)
    message = messages.compose(about, "firing", now_s=T0)
    for _ in range(3):
        world.pressed.put("snooze", message)
    world.step([about])
    assert len(world.said) == 1


def test_a_flood_of_presses_neither_holds_up_a_tick_nor_fills_the_log(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = messages.compose(alert(notices=1), "firing", now_s=T0)
    handled = 0

    def begin(*_: object) -> None:
        nonlocal handled
        handled += 1
        assert handled <= 100, "one tick never ends"
        world.pressed.put("snooze", message)

    for _ in range(500):
        world.pressed.put("snooze", message)
    monkeypatch.setattr(world.pressed, "_begin", begin)
    world.pressed.step(nothing, T0)
    assert handled == 32
    assert caplog.text.count("too many buttons") == 1


def test_show_opens_a_terminal_with_the_explanation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Window:
        def poll(self) -> int:
            return 0

    opened_with: list[list[str]] = []

    def show(command: list[str], chosen: object) -> Window:
        opened_with.append(command)
        return Window()

    monkeypatch.setattr(terminal, "show", show)
    world.press("show", alert(notices=1))
    world.press("show", alert(notices=1, key="leak:gone"), known=[])
    # With the file that the daemon was given.
    world.pressed.file = Path("/etc/mine here.toml")
    world.press("show", alert(notices=1, key="leak:here"))
    assert opened_with == [
        ["gpuwatchctl", "explain", "leak:x"],
        ["gpuwatchctl", "alerts", "show", "leak:gone"],
        ["gpuwatchctl", "--config", "/etc/mine here.toml", "explain", "leak:here"],
    ]
    assert world.said == []


def test_without_a_terminal_the_command_is_said(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(command: list[str], chosen: object) -> None:
        raise NotAllowed("no display to open a terminal on")

    monkeypatch.setattr(terminal, "show", show)
    world.pressed.file = Path("/etc/mine.toml")
    world.press("show", alert(notices=1))
    (said,) = world.said
    assert "No display" in said.body
    assert said.command == "gpuwatchctl explain leak:x"


def test_an_answer_that_nobody_can_see_is_no_failure(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def say(message: Message) -> None:
        raise NotifyError("no session bus", permanent=False)

    world.pressed._replies._say = say
    world.press("snooze", alert(notices=1))
    assert len(world.state.silences.active) == 1
    assert "no session bus" in caplog.text


@ON_LINUX
def test_every_rank_that_the_notice_was_about_is_asked(world: World, tmp_path: Path) -> None:
    world.state.settings = Settings(ASKS)
    files = tmp_path / "saved-0", tmp_path / "saved-1"
    with job(files[0]) as first, job(files[1]) as second, job() as deaf:
        ranks = [
            msgspec.structs.replace(_about(key_of(one.pid)), key=f"leak:{n}")
            for n, one in enumerate((first, second, deaf))
        ]
        message = messages.compose(ranks[0], "firing", now_s=T0, also=ranks[1:])
        world.pressed.put("checkpoint", message)
        world.step(ranks)
        wait_for(lambda: all(file.exists() for file in files))
        assert deaf.poll() is None
    assert [file.read_text() for file in files] == ["saved\n"] * 2
    assert [row.phase for row in world.rows()] == ["asked"] * 3 + ["done", "done", "refused"]
    assert {row.verb for row in world.rows()} == {"checkpoint"}
    (who,) = {row.who for row in world.rows()}
    assert who
    assert world.rows()[3].result.endswith("not confirmed")
    assert len(world.said) == 1


@ON_LINUX
def test_a_job_that_would_be_ended_is_not_asked(world: World) -> None:
    world.state.settings = Settings(ASKS)
    with job() as process:
        world.press("checkpoint", _about(key_of(process.pid)))
        assert process.poll() is None
    assert [row.phase for row in world.rows()] == ["asked", "refused"]
    assert world.said[0].subject == "Not asked to save"


def test_a_tick_never_waits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = threading.Event()

    def show(command: list[str], chosen: object) -> None:
        hold.wait(10)
        raise NotAllowed("at last")

    monkeypatch.setattr(terminal, "show", show)
    about = alert(notices=1)
    message = messages.compose(about, "firing", now_s=T0)
    try:
        for n in range(10):
            world.pressed.put("show", msgspec.structs.replace(message, id=str(n)))
        began = time.monotonic()
        world.state.conditions = {about.key: ConditionAlert(about, T0)}
        world.pressed.step(nothing, T0)
        assert time.monotonic() - began < 1
        assert len(world.pressed._running) <= 4
    finally:
        hold.set()
    world.step([about])


def _names(made: tuple[Button, ...]) -> list[str]:
    return [one.name for one in made]


def test_the_buttons_of_a_notice(tmp_path: Path) -> None:
    made = buttons_for(alert(), Config())
    assert _names(made) == ["snooze", "show"]
    assert [shlex.split(one.command)[:2] for one in made] == [
        ["gpuwatchctl", "snooze"],
        ["gpuwatchctl", "explain"],
    ]
    assert made[0].command == "gpuwatchctl snooze 4711 1h"
    device = alert(subject=Subject(device_uid="GPU-1"))
    assert buttons_for(device, Config())[0].command == f"gpuwatchctl snooze {device.code} 1h"
    assert _names(buttons_for(alert(state="resolved"), ASKS)) == ["show"]
    # No such process: it cannot be asked, so nobody is offered to.
    assert _names(buttons_for(alert(), ASKS)) == ["snooze", "show"]


@ON_LINUX
def test_the_button_for_a_checkpoint_is_there_only_where_it_can_work(tmp_path: Path) -> None:
    def names(about: Alert, config: Config, info: ProcessInfo | None = None) -> list[str]:
        return _names(buttons_for(about, config, info, booted_at_s=booted_at_s()))

    with job(tmp_path / "saved") as heeds, job() as deaf:
        about = _about(key_of(heeds.pid))
        assert names(about, ASKS) == ["snooze", "show", "checkpoint"]
        assert len(names(about, Config())) == 2
        assert len(names(_about(key_of(deaf.pid)), ASKS)) == 2
        other = ProcessInfo(key=key_of(heeds.pid), name="x", uid=64_321)
        assert len(names(about, ASKS, other)) == 2
        foreign = ProcessInfo(key=key_of(heeds.pid), name="x", foreign=True)
        assert len(names(about, ASKS, foreign)) == 2
        assert len(buttons_for(about, ASKS)) == 2, "of which boot is unknown"


@ON_LINUX
def test_a_newer_checkpoint_confirms_what_was_asked(world: World, tmp_path: Path) -> None:
    world.state.settings = Settings(ASKS)
    seen = world.state.checkpoints
    with job(tmp_path / "saved") as process:
        key = key_of(process.pid)
        about = _about(key)
        seen.append(Checkpoint(process=key, saved_at_s=T0 - 600, said_by="file", detail="old.ckpt"))
        world.press("checkpoint", about)
        world.step([about])
        assert [row.phase for row in world.rows()] == ["asked", "done"]
        seen.append(Checkpoint(process=key, saved_at_s=T0 + 40, said_by="file", detail="new.ckpt"))
        world.now_s = T0 + 60
        world.step([about])
        world.step([about])
    assert [row.result for row in world.rows()][2:] == ["has saved: new.ckpt"]
    assert [said.subject for said in world.said] == ["Asked to save", "It has saved"]
    assert "new.ckpt" in world.said[1].body


@ON_LINUX
def test_a_checkpoint_of_much_later_is_no_answer(world: World, tmp_path: Path) -> None:
    world.state.settings = Settings(ASKS)
    seen = world.state.checkpoints
    with job(tmp_path / "saved") as process:
        about = _about(key_of(process.pid))
        world.press("checkpoint", about)
        world.now_s = T0 + CONFIRM_S + 1
        world.step([about])
        seen.append(Checkpoint(process=key_of(process.pid), saved_at_s=world.now_s, said_by="file"))
        world.step([about])
    assert [row.phase for row in world.rows()] == ["asked", "done"]


GATE = threading.Event()


class Hung:
    """A desktop whose server does not answer any more."""

    name = "desktop"

    def __init__(self, **_: object) -> None:
        self.lock = threading.Lock()

    def send(self, _: Message) -> str:
        with self.lock:
            GATE.wait(30)
        raise NotifyError("no answer", permanent=False)

    def close(self) -> None:
        with self.lock:
            pass


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    GATE.clear()
    monkeypatch.setitem(NOTIFIERS, "desktop", f"{__name__}:Hung")
    yield
    GATE.set()


@pytest.mark.usefixtures("hung")
def test_an_answer_that_hangs_does_not_hold_up_the_end() -> None:
    speaker = ActionReply(None)
    thread = threading.Thread(target=speaker.send, args=(making.message(),), daemon=True)
    thread.start()
    while speaker._close is None:
        time.sleep(0.002)
    began_s = time.monotonic()
    speaker.close()
    assert time.monotonic() - began_s < 2.0
    GATE.set()
    thread.join(10)
    assert not thread.is_alive()
