"""From the decision to a real mail and a real pop-up, while servers and buses come and go.

Real history, post, message_dispatcher and channels; only the clock is moved by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core.model import Button
from gpuwatchd.notify.channels.desktop.channel import DesktopNotifier
from gpuwatchd.notify.channels.email.channel import EmailNotifier
from tests.conftest import need
from tests.promises.post_office import Office
from tests.promises.test_delivery_daemon import World
from tests.real import desk, mailserver
from tests.real.stage import Stage, until
from tests.test_daemon import state_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOUR_S = 3600.0


class Mail:
    """A mail server that can be away, and the channel to it."""

    def __init__(self) -> None:
        self.box = mailserver.Mailbox()
        self.port = mailserver.free_port()
        self.channel = EmailNotifier(
            host="127.0.0.1", port=self.port, security="none", sender="gpu@example.org",
            to=("a@example.org",), timeout=5.0, chart=False,
        )  # fmt: skip
        self._server: object = None

    def up(self) -> None:
        self._server = mailserver.start(self.box, None, port=self.port)

    def down(self) -> None:
        if self._server is not None:
            self._server.stop(no_assert=True)  # type: ignore[attr-defined]
        self._server = None

    @property
    def subjects(self) -> list[str]:
        return [str(mail["Subject"]) for mail in self.box.mails]


@pytest.fixture
def mail() -> Iterator[Mail]:
    made = Mail()
    yield made
    made.down()


@pytest.mark.real_smtp
def test_hours_without_a_mail_server_end_in_one_mail(tmp_path: Path, mail: Mail) -> None:
    office = Office(tmp_path, [mail.channel])
    try:
        for number in range(24):
            office.tell(f"n{number}")
            office.turn(1200)
            if number == 11:  # half-way, the daemon is killed
                office.die()
                office.begin()
        assert mail.box.mails == []
        assert len(office.waiting()) == 24
        assert len(office.post.reach.untold()) == 24
        (health,) = office.post.channel_health()
        assert (health.ok, health.waiting) == (False, 24)
        mail.up()
        office.step(HOUR_S)
        assert until(lambda: mail.box.mails)
        office.die()  # between sending and noting it
        office.begin()
        office.turn()
    finally:
        office.close()
    # The same mail again: its id says so.
    assert mail.subjects == ["gpuwatchd: 24 messages that could not be delivered earlier"] * 2
    assert len({str(one["Message-ID"]) for one in mail.box.mails}) == 1
    lines = mail.box.mails[0].get_body(("plain",)).get_content().splitlines()
    told = [line.rpartition("about ")[2] for line in lines if "about n" in line]
    assert told == [f"n{number}" for number in range(24)]
    assert {office.rows(f"n{number}")[0].state for number in range(24)} == {"sent"}


@pytest.mark.real_smtp
def test_a_mail_server_that_is_busy_or_refuses(tmp_path: Path, mail: Mail) -> None:
    mail.up()
    office = Office(tmp_path, [mail.channel])
    try:
        mail.box.answers = ["451 4.3.0 try later", "554 5.7.1 not wanted"]
        office.tell("a")
        office.turn()
        (row,) = office.rows("a")
        assert (row.state, office.waiting()) == ("pending", {"a": 30.0})
        assert "451" in (row.error or "")
        office.turn(30)
        (row,) = office.rows("a")
        assert (row.state, row.attempts) == ("failed", 2)
        assert office.post.reach.untold() == ("a",)
        office.tell("a worse", thread="a", notice="escalated")
        office.turn()
        assert office.post.reach.untold() == ()
    finally:
        office.close()
    assert mail.subjects == ["about a worse"]
    assert "accepted by 127.0.0.1" in office.rows("a")[1].known


@pytest.mark.real_smtp
@pytest.mark.real_dbus
def test_without_a_session_it_is_a_mail_and_with_one_a_popup(
    tmp_path: Path, mail: Mail, stage: Stage
) -> None:
    mail.up()
    rules = {"channels": ("desktop",), "fallback": ("email",)}
    office = Office(tmp_path, [DesktopNotifier(timeout=10), mail.channel], rules)
    try:
        office.tell("a")
        office.turn()
        assert office.post.problems()[0].startswith(
            "channel desktop does not deliver: no session bus"
        )
        assert office.post.reach.untold() == ("a",)
        office.turn(120)
        assert (mail.subjects, office.post.reach.untold()) == (["about a"], ())
        # The session begins: what a mail has told is not told again.
        stage.start_bus()
        stage.start_server()
        office.turn(HOUR_S)
        assert stage.count() == 0
        office.tell("b")
        office.turn()
        assert [one["summary"] for one in stage.take()] == ["about b"]
        # The notification server dies, and comes back after the mail.
        stage.stop_server()
        office.tell("c")
        office.turn()
        office.turn(120)
        assert mail.subjects == ["about a", "about c"]
        stage.start_server()
        # It is back in time: no mail.
        office.tell("d")
        office.turn()
        assert [one["summary"] for one in stage.take()] == ["about d"]
        # The whole bus dies and comes back within the two minutes.
        stage.stop_server()
        stage.stop_bus()
        office.tell("e")
        office.turn()
        assert office.post.reach.untold() == ("e",)
        stage.start_bus()
        stage.start_server()
        office.turn(30)
        assert [one["summary"] for one in stage.take()] == ["about e"]
        assert (mail.subjects, office.post.reach.untold()) == (["about a", "about c"], ())
    finally:
        office.close()


@pytest.mark.real_smtp
@pytest.mark.real_dbus
def test_a_server_without_actions_that_comes_late(
    tmp_path: Path, mail: Mail, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(not desk.missing(), f"missing on this machine: {', '.join(desk.missing())}")
    folder = tmp_path / "desk"
    folder.mkdir()
    plain = desk.Desk(folder)
    for key in ("DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(key, plain.environ[key])
    mail.up()
    rules = {"channels": ("desktop",), "fallback": ("email",)}
    office = Office(tmp_path, [DesktopNotifier(timeout=10), mail.channel], rules)
    snooze = Button(name="snooze", label="Snooze 1 h", command="gpuwatchctl snooze 1 1h")
    try:
        plain.start_bus()
        office.tell("a", buttons=(snooze,))
        office.turn()
        (health, _) = office.post.channel_health()
        assert health.why.startswith("no notification server on the session bus")
        plain.start_plain()
        office.turn(30)
        assert mail.box.mails == []
        (told,) = plain.plain()
        assert told["summary"] == "about a"
        assert snooze.label not in told["actions"]
        assert "accepted by Plain" in office.rows("a")[0].known
        assert (office.post.reach.untold(), office.post.problems()) == ((), [])
    finally:
        office.close()
        plain.close()


@pytest.mark.real_smtp
@pytest.mark.real_dbus
@pytest.mark.timeout(120)
def test_the_whole_daemon_mails_without_a_session_and_pops_up_in_one(
    tmp_path: Path, mail: Mail, stage: Stage
) -> None:
    mail.up()
    world = World(tmp_path)
    world.policy = (
        "channels = ['desktop']\nfallback = ['email']\nfallback-after = '0.5s'\n"
        "cooldown = '1s'\nrepeat = ['60s']\n"
        f"[notify.email]\nhost = '127.0.0.1'\nport = {mail.port}\nsecurity = 'none'\n"
        "sender = 'gpu@example.org'\nto = ['a@example.org']\nchart = false\n"
    )
    world.extra = {key: stage.environ[key] for key in ("DBUS_SESSION_BUS_ADDRESS", "DISPLAY")}
    world.configure(world.hook("heard"))
    with world.daemon() as process:
        assert until(lambda: mail.box.mails, 40)
        assert until(lambda: not state_of(tmp_path).untold)
        desktop, email = state_of(tmp_path).channels
        assert (desktop.ok, email.ok) == (False, True)
        assert desktop.why.startswith("no session bus")
        stage.start_bus()
        stage.start_server()
        assert until(lambda: stage.count() > 0, 40)  # the next reminder
        before = len(mail.box.mails)
        assert until(lambda: state_of(tmp_path).channels[0].ok)
        world.ticks(40)
        assert len(mail.box.mails) == before
        (shown,) = stage.take()[-1:]
        assert shown["summary"].startswith("Still CRITICAL: GPU 0: finetune_")
        assert world.stop(process) < 5.0
