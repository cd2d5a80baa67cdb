"""Where a secret is looked for, in which order, and that nobody else gets to see it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.core import config
from gpuwatchd.core.errors import NotifyError
from gpuwatchd.notify import credentials
from tests.conftest import need

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VARIABLE = "GPUWATCHD_SMTP_PASSWORD"


@pytest.fixture(autouse=True)
def _nothing_withheld() -> Iterator[None]:
    credentials._withheld.clear()
    yield
    credentials._withheld.clear()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text("of-the-file\r\nsecond line\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "credentials" / "smtp-password"
    path.parent.mkdir()
    path.write_text("of-the-manager")
    path.chmod(0o440)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(path.parent))
    return path


def _read(**changes: Any) -> str | None:
    return credentials.read(**({"credential": "smtp-password", "variable": VARIABLE} | changes))


def test_the_order(file: Path, credential: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "of-the-environment")
    monkeypatch.setattr(credentials, "ask_keyring", lambda service, user: f"of {service} {user}")
    everything: dict[str, Any] = {"file": str(file), "keyring": ("gpuwatchd", "me")}
    assert _read(**everything) == "of-the-manager"
    credential.unlink()
    assert _read(**everything) == "of-the-file"
    assert _read(keyring=("gpuwatchd", "me")) == "of-the-environment"
    monkeypatch.setenv(VARIABLE, "")
    assert _read(keyring=("gpuwatchd", "me")) == "of gpuwatchd me"
    assert _read() is None


def test_a_file_that_is_set_and_cannot_be_read_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "of-the-environment")
    with pytest.raises(NotifyError, match="No such file"):
        _read(file=str(tmp_path / "missing"))
    with pytest.raises(NotifyError, match="password file"):
        _read(file="/nowhere\0")


@pytest.mark.parametrize("mode", [0o640, 0o620, 0o610, 0o604, 0o602, 0o601])
def test_a_secret_that_others_can_get_at_is_refused(file: Path, mode: int) -> None:
    for own in (0o600, 0o700):
        file.chmod(own)
        assert credentials.read_secret(file, guarded=False) == "of-the-file"
    file.chmod(mode)
    with pytest.raises(NotifyError, match=f"mode {mode:04o}") as caught:
        credentials.read_secret(file, guarded=False)
    assert (caught.value.permanent, caught.value.hint) == (True, f"chmod 600 {file}")
    assert credentials.read_secret(file, guarded=True) == "of-the-file"


def test_of_a_file_no_more_is_read_than_is_asked_for(file: Path) -> None:
    assert credentials.read_private(file, 6, guarded=False, name="it", hint="") == b"of-the"


def test_what_is_withheld_is_no_longer_in_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "hush")
    credentials.withhold()
    assert VARIABLE not in os.environ
    assert _read() == "hush"
    assert credentials.environment()[VARIABLE] == "hush"
    seen = subprocess.run(["env"], capture_output=True, text=True, check=True)
    assert "hush" not in seen.stdout


def test_children_get_none_of_it() -> None:
    ours = {VARIABLE: "hush", "GPUWATCHD_CHAT_URLS": "hush", "NOTIFY_SOCKET": "/s", "PATH": "/bin"}
    assert credentials.for_children(ours) == {"PATH": "/bin"}


def test_the_variable_is_no_unknown_setting_and_is_not_shown() -> None:
    loaded = config.load(environ={VARIABLE: "hush", "GPUWATCHD_SMTP_PASSWRD": "hush"})
    (warning,) = loaded.warnings
    assert warning.startswith("unknown environment variable GPUWATCHD_SMTP_PASSWRD")
    assert warning.endswith("did you mean GPUWATCHD_SMTP_PASSWORD?")
    assert "hush" not in str(loaded)


BACK_END = """
import keyring.backend
class Keyring(keyring.backend.KeyringBackend):
    priority = 99
    def get_password(self, service, username):
        {body}
    def set_password(self, service, username, password): pass
    def delete_password(self, service, username): pass
"""


@pytest.fixture
def keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    need(find_spec("keyring"), "the extra keyring is not installed")

    def use(body: str) -> None:
        (tmp_path / "ours_for_tests.py").write_text(BACK_END.format(body=body))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "ours_for_tests.Keyring")

    return use


def test_a_keyring_answers(keyring: Any) -> None:
    keyring("return {('gpuwatchd', 'me@example.org'): 'of-the-ring'}.get((service, username))")
    assert credentials.ask_keyring("gpuwatchd", "me@example.org", timeout_s=20.0) == "of-the-ring"
    with pytest.raises(NotifyError, match="no password of you in it") as caught:
        credentials.ask_keyring("gpuwatchd", "you", timeout_s=20.0)
    assert caught.value.permanent
    assert caught.value.hint == "keyring set gpuwatchd you"


@pytest.mark.slow
def test_a_keyring_that_hangs_is_left(keyring: Any) -> None:
    keyring("import time; time.sleep(60)")
    begun_s = time.monotonic()
    with pytest.raises(NotifyError, match="no answer within 1 s") as caught:
        credentials.ask_keyring("gpuwatchd", "me", timeout_s=1.0)
    assert not caught.value.permanent
    assert time.monotonic() - begun_s < 4.0


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("raise ValueError('hush')", r"it failed .ValueError."),
        ("import keyring.errors; raise keyring.errors.KeyringLocked('hush')", "it is locked"),
        ("import keyring.errors; raise keyring.errors.NoKeyringError('hush')", "there is none"),
        ("import os; os.abort()", "its library failed"),
        ("print('hush')", "its library failed"),
    ],
)
def test_a_keyring_that_fails_says_so_without_its_words(
    keyring: Any, body: str, expected: str, capfd: pytest.CaptureFixture[str]
) -> None:
    keyring(body)
    with pytest.raises(NotifyError, match=expected) as caught:
        credentials.ask_keyring("gpuwatchd", "me", timeout_s=20.0)
    assert "hush" not in str(caught.value)
    assert "hush" not in "".join(capfd.readouterr())


def test_without_the_extra_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NotifyError, match="keyring is not installed") as caught:
        credentials.ask_keyring("gpuwatchd", "me")
    assert caught.value.permanent
    assert caught.value.hint == f"{sys.executable} -m pip install 'gpuwatchd[keyring]'"


def test_a_keyring_that_cannot_be_asked_says_why(
    keyring: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyring("return None")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(NotifyError, match="No such file"):
        credentials.ask_keyring("gpuwatchd", "me")


def test_an_answer_does_not_show_itself() -> None:
    assert repr(credentials.Answer(secret="hush")) == "Answer(****)"


def test_the_real_keyring_library_without_a_back_end() -> None:
    need(find_spec("keyring"), "the extra keyring is not installed")
    environ = {"PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-m", "gpuwatchd.notify.keyring_ask"], input=b'["gpuwatchd", "me"]',
        env=environ, capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == b'{"secret":null,"why":"there is none here"}'
