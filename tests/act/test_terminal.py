"""A terminal is found, started so that it outlives us, and told what to run as arguments."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.act import terminal
from gpuwatchd.core.errors import NotAllowed
from tests.children import shell_script

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A display, and a PATH with nothing but a shell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sh").symlink_to("/bin/sh")
    (folder / "sleep").symlink_to("/bin/sleep")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("DISPLAY", ":77")
    for name in ("WAYLAND_DISPLAY", "INVOCATION_ID", "TERMINAL"):
        monkeypatch.delenv(name, raising=False)
    return folder


def test_hostile_words_stay_words(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shell_script(place / "xterm", f'printf "%s\\n" "$@" > {out}')
    hostile = ["explain", "$(touch x)", "`id`", "; rm -rf /", "a b"]
    terminal.show(["gpuwatchctl", *hostile]).wait()
    words = out.read_text().splitlines()
    assert words[:3] == ["-e", "sh", "-c"]
    assert words[-5:] == hostile
    assert "$" in words[3]
    assert not any(word in words[3] for word in hostile)


def test_the_users_choice_comes_first_and_one_that_fails_is_passed_over(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    shell_script(place / "mine", "exit 1")
    shell_script(place / "kitty", f"echo kitty > {out}")
    shell_script(place / "xterm", f"echo xterm > {out}")
    monkeypatch.setenv("TERMINAL", "xterm")
    found = terminal.candidates(["mine", "--hold"], {"PATH": str(place), "TERMINAL": "xterm"})
    assert [one[1:] for one in found] == [["--hold"], ["-e"], [], ["-e"]]
    terminal.show(["gpuwatchctl", "status"], ["mine", "--hold"]).wait()
    assert out.read_text() == "xterm\n"


@pytest.mark.slow
def test_a_window_that_stays_is_not_waited_for(place: Path) -> None:
    shell_script(place / "xterm", "sleep 30")
    began = time.monotonic()
    process = terminal.show(["gpuwatchctl", "status"])
    try:
        assert time.monotonic() - began < 5
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_without_a_display_or_a_terminal_it_says_so(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotAllowed, match="no terminal was found") as caught:
        terminal.show(["gpuwatchctl", "status"])
    assert "[notify.desktop] terminal" in caught.value.hint
    monkeypatch.delenv("DISPLAY")
    with pytest.raises(NotAllowed, match="no display"):
        terminal.show(["gpuwatchctl", "status"])


def test_a_service_lets_systemd_start_it(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    shell_script(place / "xterm", "exit 0")
    shell_script(place / "systemd-run", f'printf "%s\\n" "$@" > {out}')
    monkeypatch.setenv("INVOCATION_ID", "abc")
    monkeypatch.setenv("GPUWATCHD_STATE_DIR", "/s")
    monkeypatch.setenv("SOME_SECRET", "x")
    terminal.show(["gpuwatchctl", "status"]).wait()
    words = out.read_text().splitlines()
    assert words[:3] == ["--user", "--collect", "--quiet"]
    assert "--setenv=DISPLAY=:77" in words
    assert "--setenv=GPUWATCHD_STATE_DIR=/s" in words
    assert words[words.index("--") + 1] == str(place / "xterm")
    assert not any("SECRET" in word for word in words)


def test_where_systemd_cannot_it_is_started_here(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    shell_script(place / "xterm", f"echo here > {out}")
    shell_script(place / "systemd-run", "exit 1")
    monkeypatch.setenv("INVOCATION_ID", "abc")
    terminal.show(["gpuwatchctl", "status"]).wait()
    assert out.read_text() == "here\n"


def test_the_display_of_the_session_is_asked_for(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell_script(place / "systemctl", "echo DISPLAY=:5; echo TOKEN=secret; echo XAUTHORITY=/run/x")
    monkeypatch.delenv("DISPLAY")
    found = terminal.environment()
    assert (found["DISPLAY"], found["XAUTHORITY"]) == (":5", "/run/x")
    assert "TOKEN" not in found
    shell_script(place / "systemctl", "echo DISPLAY=:5; exit 1")
    assert not terminal.has_display(terminal.environment())


def test_our_own_command_is_found_beside_the_interpreter() -> None:
    words = terminal.resolve(["gpuwatchctl", "explain", "x"])
    assert words[-2:] == ["explain", "x"]
    assert words[0] == sys.executable or words[0].endswith("/gpuwatchctl")
    assert terminal.resolve(["other", "x"]) == ["other", "x"]


OURS = {
    "DISPLAY": ":1", "GPUWATCHD_SMTP_PASSWORD": "hush", "GPUWATCHD_CHAT_URLS": "hush",
    "GPUWATCHD_STATE_DIR": "/s",
}  # fmt: skip


def test_a_terminal_has_none_and_shows_none() -> None:
    assert terminal.environment(OURS) == {"DISPLAY": ":1", "GPUWATCHD_STATE_DIR": "/s"}
    argv = terminal.outside(["xterm"], OURS, service=True)
    assert "--setenv=GPUWATCHD_STATE_DIR=/s" in argv
    assert "hush" not in " ".join(argv)
