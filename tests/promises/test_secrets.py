"""Promise 19: a secret is in no file, no log, no output and no child of the whole daemon."""

from __future__ import annotations

import base64
import contextlib
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from tests.children import Child
from tests.conftest import ROOT
from tests.test_daemon import environ, state_of, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PASSWORD = "planted-password-7f3a"
TOKEN = "planted-token-91bc"
_CTL = "import sys; from gpuwatchd.cli import main; sys.exit(main())"
QUESTIONS = (
    "status", "status --json", "alerts --all", "alerts --all --json", "config print",
    "config print --origin", "config validate", "doctor", "doctor --json", "notify list",
    "notify list --json", "notify test email", "--debug notify test email", "notify test chat",
    "notify test --json", "-v notify test email",
)  # fmt: skip


class RudeServer:
    """Takes every login, refuses it, and repeats the password in its answer."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.logins = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._talk, args=(client,), daemon=True).start()

    def _talk(self, client: socket.socket) -> None:
        with client, client.makefile("rwb") as line, contextlib.suppress(OSError, ValueError):
            self._say(line, b"220 rude")
            for command in line:
                word = command.split()[0].upper() if command.split() else b""
                if word == b"AUTH":
                    said = base64.b64decode(command.split()[-1]).replace(b"\0", b" ")
                    self.logins += 1
                    self._say(line, b"535 5.7.8 I do not know " + said)
                elif word == b"QUIT":
                    self._say(line, b"221 bye")
                    return
                else:
                    self._say(line, b"250-rude\r\n250 AUTH PLAIN")

    @staticmethod
    def _say(line: object, words: bytes) -> None:
        line.write(words + b"\r\n")  # type: ignore[attr-defined]
        line.flush()  # type: ignore[attr-defined]

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def server() -> Iterator[RudeServer]:
    running = RudeServer()
    yield running
    running.close()


def _configure(folder: Path, port: int) -> Path:
    urls = folder / "secrets" / "urls"
    urls.parent.mkdir()
    urls.write_text(f"json://me:{TOKEN}@127.0.0.1:1/{TOKEN}\n")
    urls.chmod(0o600)
    hook = f"cat > /dev/null; env > '{folder}/hook-environment'"
    file = folder / "c.toml"
    file.write_text(
        "[daemon]\ninterval = '0.1s'\nlog-level = 'debug'\n"
        "[sources]\nenabled = ['simulate:one-leak']\n[sources.simulate]\nspeed = 400\n"
        "[policy]\nchannels = ['email', 'chat', 'command']\nflap-hold = '0s'\n"
        f"[notify.command]\nargv = ['sh', '-c', \"{hook}\"]\n"
        f"[notify.chat]\nurls-file = '{urls}'\ntimeout = '3s'\n"
        f"[notify.email]\nhost = '127.0.0.1'\nport = {port}\nsecurity = 'none'\n"
        "username = 'gpu'\nsender = 'gpu@example.org'\nto = ['a@example.org']\n"
    )
    return file


@pytest.mark.timeout(180)
def test_a_planted_secret_turns_up_nowhere(tmp_path: Path, server: RudeServer) -> None:
    file = _configure(tmp_path, server.port)
    around = environ(tmp_path, GPUWATCHD_SMTP_PASSWORD=PASSWORD, PYTHONPATH=str(ROOT))
    answers: dict[str, str] = {}
    argv = [sys.executable, "-m", "gpuwatchd", "--config", str(file)]
    with (
        (tmp_path / "log").open("w") as log,
        Child(argv, env=around, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT),
    ):
        wait_for(lambda: server.logins > 0 and (tmp_path / "hook-environment").exists(), 60)
        wait_for(lambda: {"email", "chat"} <= _failing(tmp_path), 30)
        for question in QUESTIONS:
            done = subprocess.run(
                [sys.executable, "-c", _CTL, "--config", str(file), *question.split()],
                env=around, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
            )  # fmt: skip
            answers[question] = done.stdout + done.stderr
            assert done.returncode != 2, (question, done.stderr)
    assert server.logins >= 3  # the secret was really used
    for question, said in answers.items():
        assert said, question
        assert PASSWORD not in said, question
        assert TOKEN not in said, question
    assert "refused" in answers["notify test email"]
    files = [path for path in tmp_path.rglob("*") if path.is_file() and "secrets" not in path.parts]
    names = {path.name for path in files}
    assert {"log", "hook-environment", "c.toml"} <= names
    assert any(name.endswith((".sqlite", ".db", ".sqlite3")) for name in names), names
    for path in files:
        content = path.read_bytes()
        assert PASSWORD.encode() not in content, path
        assert base64.b64encode(PASSWORD.encode()).rstrip(b"=") not in content, path
        assert TOKEN.encode() not in content, path


def _failing(folder: Path) -> set[str]:
    """Return the channels that the daemon knows to fail."""
    return {one.name for one in state_of(folder).channels if one.ok is False}
