"""macOS without an app bundle: text is never a script, and a failure is known."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.core.errors import NotifyError
from gpuwatchd.core.model import Button
from gpuwatchd.notify.channels.desktop import channel, connection
from gpuwatchd.notify.channels.desktop.channel import DesktopNotifier

if TYPE_CHECKING:
    from gpuwatchd.core.model import Message

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


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell")
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

    monkeypatch.setattr(channel, "_build", Dummy)
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
