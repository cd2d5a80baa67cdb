"""``notify add``: from nothing to a message in a chat or a mailbox on loopback, in one line."""

from __future__ import annotations

import io
import stat
import sys
import tempfile
import unittest.mock
from typing import TYPE_CHECKING, Any

import click
import pytest

from gpuwatchd.cli import channel_setup
from gpuwatchd.core import config
from gpuwatchd.core.config import channels
from gpuwatchd.core.errors import ConfigError
from gpuwatchd.core.model import Availability
from gpuwatchd.notify.channels import chat
from gpuwatchd.view.queries import state_location
from tests.cli.calls import Ctl, Terminal
from tests.conftest import need
from tests.notify.test_chat import Service
from tests.real import mailserver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
HOOK = "https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"
BOT = "123456789:AAabcdefghijklmnopqrstuvwxyz012345678"
MAIL = '[notify.email]\nhost = "localhost"\nto = ["a@example.org"]\n'
HALF = '[notify.email]\nhost = "localhost"\n'
PROGRAM = '[notify.command]\nargv = ["true"]\n'


@pytest.fixture
def ctl(capsys: pytest.CaptureFixture[str]) -> Ctl:
    return Ctl(capsys)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the configuration will be, on a machine without anything, nobody logged in."""
    for name in ("CONFIG", "STATE", "RUNTIME"):
        monkeypatch.setenv(f"XDG_{name}_{'DIR' if name == 'RUNTIME' else 'HOME'}", str(tmp_path))
    for name in ("GPUWATCHD_CONFIG", "GPUWATCHD_STATE_DIR", "GPUWATCHD_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nonexistent")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(chat, "_MEMORY", chat._Memory())
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    return tmp_path / "gpuwatchd"


@pytest.fixture
def slack(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    from apprise.plugins.slack import NotifySlack

    server = Service()
    monkeypatch.setattr(NotifySlack, "webhook_url", f"http://{server.at}")
    yield server
    server.close()


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_a_second_service_joins_it_and_hears_its_test_alone(
    folder: Path, slack: Service, ctl: Ctl
) -> None:
    ctl("notify add telegram --no-test --chat-id 7 --token", BOT)
    added = ctl.data("notify add slack --url", HOOK)
    assert slack.got[0].path == HOOK.removeprefix("https://hooks.slack.com/services")
    assert (added["channels"], added["test"]["result"]) == (["chat"], "arrived")
    assert added["daemon"] == "not-running"
    assert {mode(file) for file in folder.iterdir()} == {0o600}
    ctl("notify add slack --url", HOOK)
    assert (folder / "chat-urls").read_text() == f"tgram://{BOT}/7\n{HOOK}\n"
    assert len(slack.got) == 2
    other = HOOK.replace("T1JJ3T3L2", "T2JJ3T3L2")
    ctl("notify add slack --force --no-test --url", other)
    assert (folder / "chat-urls").read_text() == f"tgram://{BOT}/7\n{other}\n"


def test_addresses_outside_the_file_go_on_to_work(
    folder: Path, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWATCHD_POLICY_CHANNELS", "chat")
    ctl.err("notify add slack --no-test --url", HOOK)  # what only the daemon is given
    assert not folder.exists()
    ctl("notify add slack --no-test --force --url", HOOK)
    assert (folder / "chat-urls").read_text() == f"{HOOK}\n"


def test_a_test_that_fails_is_told_by_the_code_and_leaves_all_as_it_was(
    folder: Path, slack: Service, ctl: Ctl
) -> None:
    slack.status = 404
    added = ctl.data("notify add slack --url", HOOK, code=1)
    assert (added["test"]["result"], added["daemon"]) == ("failed", "unchanged")
    assert not list(folder.iterdir())
    ctl("notify add telegram --no-test --chat-id 7 --token", BOT)
    email = "notify add email --to a@example.org --host 127.0.0.1 --username me --password pw"
    before = {file: (file.read_bytes(), mode(file)) for file in folder.iterdir()}
    for line in (email, f"notify add slack --url {HOOK}"):  # nothing listens on port 25
        assert "nothing is kept" in ctl(line, code=1)
        assert {file: (file.read_bytes(), mode(file)) for file in folder.iterdir()} == before
    ctl(email, "--no-test")
    assert {file.name for file in folder.iterdir()} > {"smtp-password"}


@pytest.mark.parametrize("name", channels.ADDED)
def test_without_a_terminal_what_is_missing_is_named(name: str, folder: Path, ctl: Ctl) -> None:
    option = "--to" if name == "email" else channels.CHAT_SERVICES[name].option
    assert option in ctl.err(f"notify add {name}", code=2)
    assert not folder.exists()


def test_a_secret_comes_from_standard_input_or_the_terminal(
    folder: Path, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{HOOK}\n"))
    ctl("notify add slack --no-test --url -")
    asked: list[bool] = []
    monkeypatch.setattr(sys, "stdin", Terminal())

    def prompt(_: str, *, hide_input: bool, **__: object) -> str:
        asked.append(hide_input)
        return "gpu7"

    monkeypatch.setattr(click, "prompt", prompt)
    ctl("notify add ntfy --no-test")
    assert asked == [True]
    assert (folder / "chat-urls").read_text() == f"{HOOK}\nntfys://ntfy.sh/gpu7\n"


@pytest.mark.parametrize("secret", ["one\ntwo", "\udcff", "x" * 5000])
def test_a_secret_is_one_short_line(secret: str, folder: Path, ctl: Ctl) -> None:
    email = "notify add email --to a@example.org --host localhost --username u --password"
    assert secret not in ctl.err(email, secret, code=2)
    assert not folder.exists()


def test_what_is_edited_while_a_question_stands_is_kept(
    folder: Path, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prompt(*_: object, **__: object) -> str:
        folder.mkdir()
        (folder / "config.toml").write_text(f'{PROGRAM}[policy]\nchannels = ["command"]\n')
        (folder / "kept").touch(0o600)
        (folder / "chat-urls").symlink_to("kept")
        return HOOK

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(click, "prompt", prompt)
    ctl("notify add slack --no-test")
    assert config.load().config.policy.channels == ("command", "chat")
    assert (folder / "chat-urls").is_symlink()
    assert (folder / "kept").read_text() == f"{HOOK}\n"


def test_what_is_no_address_of_the_service_is_refused(folder: Path, ctl: Ctl) -> None:
    ctl.err("notify add discord --url", HOOK, code=2)
    ctl.err("notify add email --host localhost --to nobody", code=2)
    ctl.err("notify add email --host localhost --to a@example.org --password x", code=2)
    ctl.err("notify add slack --to a@example.org --url", HOOK, code=2)
    assert not folder.exists()


def test_a_missing_library_is_named_before_anything_is_asked(
    folder: Path, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    assert chat.EXTRA in ctl.err("notify add slack")
    assert not folder.exists()


def test_mail_to_a_server_on_loopback(folder: Path, ctl: Ctl) -> None:
    need(mailserver.start, "aiosmtpd is missing")
    box = mailserver.Mailbox()
    server = mailserver.start(box, None)
    try:
        line = f"notify add email --host 127.0.0.1 --port {server.port} --to me@example.org"
        assert ctl.data(line)["channels"] == ["email"]
        assert [mail["to"] for mail in box.mails] == ["me@example.org"]
        ctl.err(line)
        more = "--force --no-test --username me --security tls --password pw"
        ctl(line.replace("127.0.0.1", "mail.example.org"), *more.split())
    finally:
        server.stop()
    section = config.load(environ={"XDG_CONFIG_HOME": str(folder.parent)}).config.notify.email
    assert (section.security, section.username) == ("tls", "me")
    assert (folder / "smtp-password").read_text() == "pw\n"
    assert mode(folder / "smtp-password") == 0o600


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", ["desktop"]),
        (MAIL, ["desktop", "email"]),
        (MAIL + PROGRAM, ["desktop", "email", "command"]),
        (HALF, ["desktop"]),
        (MAIL + '[policy]\ndigest = "daily"\n', ["desktop"]),
        (MAIL + '[policy]\nfallback = ["email"]\n', ["desktop"]),
        (MAIL + '[policy]\nchannels = ["desktop"]\n', ["desktop"]),
        (PROGRAM + '[policy]\npreset = "shared"\n', ["command"]),
        (MAIL + '[policy]\npreset = "ci"\n', []),
    ],
)
def test_what_is_set_up_is_used_unless_channels_says_otherwise(
    text: str, wanted: list[str], tmp_path: Path
) -> None:
    (tmp_path / "c.toml").write_text(text)
    loaded = config.load(tmp_path / "c.toml", environ={})
    assert list(loaded.config.policy.channels) == wanted
    vain = loaded.channels_chosen or "ci" in text or text == HALF
    assert len(channels.unused(loaded.config)) == vain


def test_validate_and_doctor_warn_of_a_channel_that_nothing_uses(
    tmp_path: Path, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.toml").write_text(MAIL + '[policy]\nchannels = ["desktop"]\n')
    monkeypatch.setenv("GPUWATCHD_CONFIG", str(tmp_path / "c.toml"))
    assert len(ctl.data("config validate")["consequences"]) == 1
    found = ctl.data("doctor channel-unused --offline", code=None)
    assert "channel-unused" in [check["id"] for check in found]


@pytest.mark.parametrize(
    "text", ["[notify.slack]\nurl = 'x'\n", "[policy]\nchannels = ['slack']\n"]
)
def test_slack_as_a_channel_says_what_to_write(text: str, tmp_path: Path, ctl: Ctl) -> None:
    (tmp_path / "c.toml").write_text(text)
    said = ctl.err("config validate", str(tmp_path / "c.toml"), code=5)
    assert "gpuwatchctl notify add slack" in said


AFTER = (
    '# mine\n[policy] # p\nconfirm = 4\nchannels = ["a", "b"] # why\n'
    '[ notify.chat ]\nurls-file = "/x"\ntimeout = "5s"\n#x\n'
)
CHANGES: channel_setup.Changes = {
    "notify.chat": {"urls-file": "/x", "timeout": "5s"},
    "policy": {"channels": ["a", "b"]},
}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "",
            '[notify.chat]\nurls-file = "/x"\ntimeout = "5s"\n\n[policy]\nchannels = ["a", "b"]\n',
        ),
        (
            "# mine\n[policy] # p\nconfirm = 4\nchannels = [ '#', ] # why\n[ notify.chat ]\n#x\n",
            AFTER,
        ),
        (
            "[policy]\nchannels = [\n  'z',\n]\n[notify]\nchat.timeout = 4\n[store]\n",
            None,
        ),
        (
            "[policy]\r\nchannels = ['z']\r\n[notify.chat]\r\n",
            (
                '[policy]\r\nchannels = ["a", "b"]\r\n[notify.chat]\r\nurls-file = "/x"\n'
                'timeout = "5s"\n'
            ),
        ),
        ("[policy]\nchannels = [\n 'z',\n]\n", None),
        ("policy = { confirm = 4 }\n", None),
        ("[policy]\nchannels = [\n 'z', # mine\n]\n", None),
        ("x = '''\n[policy]\n'''\n", None),
    ],
)
def test_a_file_is_changed_in_place_or_not_at_all(
    before: str, after: str | None, tmp_path: Path
) -> None:
    if after is not None:
        assert channel_setup.edited(before, CHANGES, tmp_path) == after
    else:
        with pytest.raises(ConfigError):
            channel_setup.edited(before, CHANGES, tmp_path)


def test_an_own_list_is_added_to_and_comments_stay(folder: Path, ctl: Ctl) -> None:
    folder.mkdir()
    file = folder / "config.toml"
    file.write_text('# mine\n[policy]\nchannels = ["desktop"]  # me\n\n[store]\nraw = "1d"\n')
    file.chmod(0o640)
    assert "gpuwatchctl notify add ntfy" in ctl.err("notify test ntfy", code=2)
    ctl("notify add ntfy --no-test --topic gpu7")
    assert "gpuwatchctl notify test chat" in ctl.err("notify test ntfy", code=2)
    text = file.read_text()
    assert 'channels = ["desktop", "chat"]  # me\n' in text
    assert text.startswith("# mine\n")
    assert mode(file) == 0o640


@pytest.mark.parametrize("user", [0, 1000])
def test_where_the_machines_service_watches_its_file_is_meant(
    user: int, tmp_path: Path, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    whose = state_location.Place("system", tmp_path, tmp_path)
    monkeypatch.setattr(state_location, "chosen", lambda: whose)
    monkeypatch.setattr(config, "SYSTEM_FILE", tmp_path / "etc" / "config.toml")
    monkeypatch.setattr("os.geteuid", lambda: user)
    ctl.both("notify add ntfy --no-test --topic gpu7", code=int(user > 0))
    modes = {file.name: mode(file) for file in (tmp_path / "etc").glob("*")}
    assert modes == ({} if user else {"config.toml": 0o644, "chat-urls": 0o600})


def test_a_password_that_lies_there_stays_until_all_can_be_written(
    folder: Path, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    (folder / "smtp-password").write_text("mine\n")
    email = "notify add email --no-test --to a@example.org --host localhost --username me"
    ctl.err(email, "--password", "pw")
    disk = unittest.mock.Mock(side_effect=[tempfile.mkstemp(dir=folder), OSError(28, "full")])
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkstemp", disk)
        ctl.err(email, "--force", "--password", "pw")
    assert [file.read_text() for file in folder.iterdir()] == ["mine\n"]
    ctl(email, "--force", "--password", "pw")
    assert (folder / "smtp-password").read_text() == "pw\n"


def test_what_root_writes_for_a_user_is_that_users(
    tmp_path: Path, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "c.toml"
    file.touch()
    owners: list[tuple[int, int]] = []
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("os.fchown", lambda _, *owner: owners.append(owner))
    ctl("notify add ntfy --no-test --topic gpu7 --config", str(file))
    assert owners == [(file.stat().st_uid, file.stat().st_gid)] * 2


class Installed:
    """A service manager that has installed what it was asked to."""

    def __init__(self, *, system: bool = False) -> None:
        pass

    def probe(self) -> Availability:
        return Availability(ok=True, reason="")

    def install(self, **_: Any) -> list[str]:
        return ["installed"]


def test_an_install_without_a_session_asks_for_an_address(
    folder: Path, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = dict.fromkeys(("systemd", "launchd"), f"{__name__}:Installed")
    monkeypatch.setattr("gpuwatchd.cli.verbs.service.MANAGERS", table)
    assert len(ctl.data("service install")["done"]) == 2
    monkeypatch.setattr(sys, "stdin", Terminal())
    answers = iter(["me@example.org", "localhost", "me@example.org", ""])
    monkeypatch.setattr(click, "prompt", lambda *_, **__: next(answers))
    ctl("service install")
    loaded = config.load(folder / "config.toml", environ={})
    assert loaded.config.policy.channels == ("email",)
    assert loaded.config.notify.email.to == ("me@example.org",)
    assert len(ctl.data("service install")["done"]) == 1
    digest = '[policy]\ndigest = "daily"\ndigest-channels = ["email"]\n'
    (folder / "config.toml").write_text(MAIL + digest)
    assert len(ctl.data("service install")["done"]) == 2
    ctl("service install")  # asks nothing: mail is set up, for the digest alone
