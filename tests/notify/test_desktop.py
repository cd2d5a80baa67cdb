"""The pop-up channel against a library that behaves like the real one, also when it fails."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import msgspec
import pytest
from desktop_notifier import Capability

from gpuwatchd.core.errors import NotifyError
from gpuwatchd.core.model import Button
from gpuwatchd.notify.channels.desktop import channel, connection
from gpuwatchd.notify.channels.desktop.channel import DesktopNotifier
from gpuwatchd.notify.channels.desktop.connection import REBUILD_AFTER, title
from tests.conftest import ON_LINUX, only_where
from tests.test_daemon import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from desktop_notifier import Notification

    from gpuwatchd.core.model import Message

LIBRARY_LOG = logging.getLogger("desktop_notifier.backends.base")


class DBusError(Exception):
    """As dbus-fast's: the kind is in ``type``."""

    def __init__(self, kind: str) -> None:
        super().__init__("a text of the bus")
        self.type = f"org.freedesktop.DBus.Error.{kind}"


class World:
    """The desktop behind the library."""

    def __init__(self, message: Message) -> None:
        self.built = 0
        self.shown: list[Notification] = []
        self.cleared: list[str] = []
        self.failures: list[Exception] = []
        self.capabilities: frozenset[object] = frozenset({"TITLE"})
        self.probe_error: Exception | None = None
        self.hang: threading.Event | None = None
        self.silent = False
        self.warn = ""

        self.notifier = DesktopNotifier(timeout=5)
        self.message = message

    def library(self) -> Library:
        self.built += 1
        return Library(self)

    def send(self) -> str:
        return self.notifier.send(self.message)


class Library:
    """What desktop-notifier does: it never raises from a send."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cache: list[str] = []

    async def get_capabilities(self) -> frozenset[object]:
        if self.world.probe_error is not None:
            raise self.world.probe_error
        return self.world.capabilities

    async def send_notification(self, notification: Notification) -> str:
        if self.world.hang is not None:
            self.world.hang.wait(20)
        if self.world.failures:
            LIBRARY_LOG.warning("Notification failed", exc_info=self.world.failures.pop(0))
            return notification.identifier
        if self.world.warn:
            LIBRARY_LOG.warning(self.world.warn)
        if self.world.silent:
            return notification.identifier
        self.world.shown.append(notification)
        self.cache.append(notification.identifier)
        if notification.on_dispatched is not None:
            notification.on_dispatched()
        return notification.identifier

    async def get_current_notifications(self) -> list[str]:
        return list(self.cache)

    async def clear(self, identifier: str) -> None:
        self.cache.remove(identifier)
        self.world.cleared.append(identifier)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, message: Message) -> Iterator[World]:
    world = World(message)
    monkeypatch.setattr(channel._Library, "build", world.library)
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere")
    yield world
    world.notifier.close()


def test_one_failure_is_mended_by_a_new_connection(world: World) -> None:
    world.send()
    world.failures = [OSError(9, "Bad file descriptor")]
    assert world.send()
    assert world.built == 2
    assert len(world.shown) == 2


def test_what_a_button_does_is_in_the_text_where_there_are_no_buttons(world: World) -> None:
    press = Button(name="snooze", label="Snooze 1 h", command="gpuwatchctl snooze 4711 1h")
    world.message = msgspec.structs.replace(world.message, buttons=(press,))
    typed = []
    for capabilities in (frozenset({"TITLE"}), frozenset({Capability.BUTTONS})):
        world.capabilities = capabilities
        world.notifier.close()
        world.notifier = DesktopNotifier(timeout=5)
        world.send()
        (shown,) = world.shown
        typed.append((press.command in shown.message, [one.title for one in shown.buttons]))
        world.shown.clear()
    assert typed == [(True, []), (False, ["Snooze 1 h"])]


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (FileNotFoundError(2, "no such file"), "no session bus"),
        (DBusError("ServiceUnknown"), "no notification server on the session bus"),
        (DBusError("Spawn.ChildSignaled"), "no notification server on the session bus"),
        (ValueError("odd\x1b[2J"), "the pop-up failed: odd"),
    ],
)
def test_two_failures_are_a_transient_error(world: World, cause: Exception, expected: str) -> None:
    world.failures = [cause, cause]
    with pytest.raises(NotifyError) as caught:
        world.send()
    assert caught.value.message == expected
    assert not caught.value.permanent
    assert world.built == 2
    assert world.send()


def test_what_nobody_saw_and_what_was_warned_of_is_a_failure(world: World) -> None:
    world.silent = True
    with pytest.raises(NotifyError, match="was not dispatched"):
        world.send()
    world.silent, world.warn = False, "Notification server not supported"
    with pytest.raises(NotifyError, match="Notification server not supported"):
        world.send()


def test_a_warning_of_another_thread_is_not_ours(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Library.get_current_notifications

    async def meanwhile(self: Library) -> list[str]:
        other = threading.Thread(target=lambda: LIBRARY_LOG.warning("something else"))
        other.start()
        other.join()
        return await original(self)

    monkeypatch.setattr(Library, "get_current_notifications", meanwhile)
    assert world.send()


def test_the_dummy_backend_is_no_channel(world: World) -> None:
    world.capabilities = frozenset()
    available = world.notifier.probe()
    assert not available.ok
    assert available.hint
    with pytest.raises(NotifyError) as caught:
        world.send()
    assert caught.value.permanent
    assert world.shown == []


def test_probe_says_what_is_missing(world: World) -> None:
    assert world.notifier.probe().ok
    world.probe_error = DBusError("ServiceUnknown")
    available = world.notifier.probe()
    assert (available.ok, "notification server" in available.reason) == (False, True)


def test_a_probe_leaves_the_connection_alone(world: World) -> None:
    world.send()
    world.notifier.probe()
    world.send()
    assert world.built == 2
    assert world.cleared == [world.shown[0].identifier]


def test_the_library_object_is_rebuilt_before_it_grows(world: World) -> None:
    for _ in range(REBUILD_AFTER):
        world.send()
    assert world.built == 1
    world.send()
    assert world.built == 2


def test_only_the_same_incident_is_replaced(world: World) -> None:
    later = msgspec.structs.replace(
        world.message, id="m2", thread=world.message.id, notice="resolved"
    )
    other = msgspec.structs.replace(world.message, id="m3")
    for one in (world.message, other, later):
        world.notifier.send(one)
    assert world.cleared == [world.shown[0].identifier]


@pytest.mark.slow
def test_a_hang_ends_in_time_and_leaves_a_bounded_number_of_threads(
    world: World, message: Message
) -> None:
    notifier = DesktopNotifier(timeout=0.2)
    world.hang = threading.Event()
    before = threading.active_count()
    try:
        began = time.monotonic()
        failures: list[NotifyError] = []
        for _ in range(4):
            with pytest.raises(NotifyError) as caught:
                notifier.send(message)
            failures.append(caught.value)
        assert time.monotonic() - began < 15
        assert threading.active_count() - before <= 2
        assert not any(failure.permanent for failure in failures)
        assert "did not answer within 0.2 s" in failures[0].message
        assert failures[-1].message == "the session bus hangs"
    finally:
        world.hang.set()
    wait_for(lambda: threading.active_count() <= before)
    world.hang = None
    assert notifier.send(message)
    notifier.close()
    assert threading.active_count() <= before


def test_a_title_of_nothing_but_control_signs_is_our_name(message: Message) -> None:
    assert title(msgspec.structs.replace(message, subject="\x1b[2J")) == "gpuwatchd"


@pytest.mark.parametrize(
    ("subject", "shown"),
    [
        ("CRITICAL: full soon", "full soon"),
        ("Now CRITICAL: full", "Now: full"),
        ("it grows", "it grows"),
    ],
)
def test_a_title_leaves_to_its_picture_how_bad_it_is(
    message: Message, subject: str, shown: str
) -> None:
    assert title(msgspec.structs.replace(message, subject=subject)) == shown


def test_close_may_come_twice_and_a_send_starts_anew(world: World) -> None:
    world.notifier.close()
    world.send()
    world.notifier.close()
    world.notifier.close()
    world.send()
    assert world.built == 2


@ON_LINUX
def test_without_a_bus_the_real_library_is_found_out(
    message: Message,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in ("DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    notifier = DesktopNotifier(timeout=5)
    assert notifier.probe().reason == "no session bus"
    with pytest.raises(NotifyError, match="no session bus"):
        notifier.send(message)
    notifier.close()
    # No traceback of the library in our log.
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


HOSTILE = '" & (do shell script "touch x") & "'


def test_text_is_an_argument_and_no_part_of_the_script() -> None:
    words = connection.argv(HOSTILE, "-e\nbody")
    assert words[0] == "/usr/bin/osascript"
    scripts = [words[n + 1] for n, word in enumerate(words[:-2]) if word == "-e"]
    assert scripts[0] == "on run argv"
    assert not any("touch" in script for script in scripts)
    assert words[-2:] == [HOSTILE, " -e\nbody"]


@pytest.mark.parametrize(
    ("answer", "permanent", "expected"),
    [
        ((1, "execution error: Not authorised (-1743)\n"), True, "Not authorised"),
        ((64, ""), True, "exit code 64"),
        (FileNotFoundError(2, "No such file or directory"), True, "No such file"),
        (subprocess.TimeoutExpired(["osascript"], 5), False, "in time"),
    ],
)
def test_a_failure_is_known(
    monkeypatch: pytest.MonkeyPatch, answer: object, permanent: bool, expected: str
) -> None:
    def call(words: list[str], timeout_s: float) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(connection, "_call", call)
    with pytest.raises(NotifyError, match=expected) as caught:
        connection.show("t", "b", 5)
    assert caught.value.permanent is permanent


@only_where(sys.platform != "win32", "needs a shell")
def test_the_exit_code_of_the_real_call_counts() -> None:
    assert connection._call(["sh", "-c", "echo no >&2; exit 3"], 5) == (3, "no\n")


def test_the_dummy_of_macos_is_known_and_the_script_used(
    monkeypatch: pytest.MonkeyPatch, message: Message
) -> None:
    class Dummy:
        """As the library's: it has no abilities, and says that all went well."""

        async def get_capabilities(self) -> frozenset[str]:
            return frozenset()

    calls: list[list[str]] = []

    def call(words: list[str], timeout_s: float) -> tuple[int, str]:
        calls.append(words)
        return 0, ""

    monkeypatch.setattr(channel._Library, "build", Dummy)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(connection, "_call", call)
    snooze = Button(name="snooze", label="Snooze 1 h", command="gpuwatchctl snooze 4711 1h")
    notifier = DesktopNotifier(timeout=5)
    try:
        assert notifier.probe().reason == "macOS"
        said = notifier.send(msgspec.structs.replace(message, buttons=(snooze,)))
    finally:
        notifier.close()
    assert said == "accepted by macOS"
    (words,) = calls
    assert words[-2] == message.subject
    assert words[-1].splitlines()[-1] == "Snooze 1 h: gpuwatchctl snooze 4711 1h"
