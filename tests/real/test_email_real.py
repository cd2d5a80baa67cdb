"""Mail over real TLS to a real server on the loopback."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.core.model import Delivery, Message
from gpuwatchd.notify.backlog import plan
from gpuwatchd.notify.dispatcher import MessageDispatcher, retry_at
from tests.real.mailserver import free_port, outcomes, refused

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.core.errors import NotifyError
    from gpuwatchd.notify.channels.email.channel import EmailNotifier
    from tests.real.mailserver import Post

pytestmark = pytest.mark.real_smtp

MESSAGE = Message(
    id="m1",
    notice="firing",
    severity="critical",
    subject="GPU 0: python[4711] füllt den Speicher",
    body="It grows 12.4 MB/min.",
    facts={"Rate": "12.4 MB/min"},
    command="gpuwatchctl explain 4711",
)


def _refused(channel: EmailNotifier, match: str) -> NotifyError:
    return refused(channel, MESSAGE, match)


def test_a_mail_arrives_over_starttls_with_a_login(post: Post) -> None:
    channel = post.channel()
    assert channel.probe().ok
    assert channel.send(MESSAGE) == "accepted by 127.0.0.1 for 2 of 2"
    (mail,) = post.box.mails
    assert post.box.encrypted == [True]
    assert mail["Subject"] == MESSAGE.subject
    assert mail["Message-ID"] == "<m1@example.org>"
    assert "Rate: 12.4 MB/min" in mail.get_body(("plain",)).get_content()
    assert "explain 4711" in mail.get_body(("html",)).get_content()


def test_a_wrong_password_is_permanent(post: Post, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("guess-me-not")
    wrong.chmod(0o600)
    channel = post.channel(password_file=str(wrong))
    error = _refused(channel, "login refused: 535")
    assert error.permanent
    assert "guess-me-not" not in str(error)
    assert post.box.mails == []


def test_a_server_that_wants_a_login_says_so(post: Post) -> None:
    channel = post.channel(username="")
    error = _refused(channel, "wants a login: 530")
    assert error.permanent
    assert "username" in error.hint


@pytest.mark.parametrize("certificate", ["other", "wrong-name"])
def test_a_certificate_that_is_not_trusted_is_never_worked_around(
    post: Post, certificate: str
) -> None:
    trusted = post.settings["ca_file"]
    if certificate == "wrong-name":
        trusted = trusted.replace("good", "wrong-name")
    channel = post.channel(post.start(certificate=certificate), ca_file=trusted)
    error = _refused(channel, "certificate is not trusted")
    assert error.permanent
    assert "ca-file" in error.hint
    assert post.box.mails == []


def test_the_system_does_not_trust_our_certificate(post: Post) -> None:
    assert _refused(post.channel(ca_file=""), "certificate is not trusted: self").permanent


def test_a_server_without_tls_gets_neither_mail_nor_password(post: Post) -> None:
    port = post.start(certificate="")
    assert _refused(post.channel(port), "does not offer STARTTLS").permanent
    tls = post.channel(port, security="tls")
    assert _refused(tls, "does not speak TLS here").permanent
    assert post.box.mails == []


def test_plain_to_the_loopback(post: Post) -> None:
    port = post.start(certificate="")
    plain = post.channel(port, username="", password_file="", security="none")
    assert plain.send(MESSAGE)
    assert post.box.encrypted == [False]


def test_busy_is_tried_again_with_the_same_message_id(post: Post) -> None:
    channel = post.channel()
    post.box.answers = ["451 4.3.0 mailbox busy"]
    assert not _refused(channel, "451 4.3.0 mailbox busy").permanent
    channel.send(MESSAGE)
    # A crash between sending and noting it sends once more: the id shows it is the same mail.
    channel.send(MESSAGE)
    assert [mail["Message-ID"] for mail in post.box.mails] == ["<m1@example.org>"] * 2


def test_recipients(post: Post) -> None:
    channel = post.channel()
    post.box.recipient_answers = {"a@example.org": "550 no such user"}
    assert channel.send(MESSAGE) == (
        "accepted by 127.0.0.1 for 1 of 2; a@example.org refused: 550 no such user"
    )
    post.box.recipient_answers["b@example.org"] = "450 greylisted"
    assert not _refused(channel, "recipient refused").permanent
    post.box.recipient_answers["b@example.org"] = "550 no such user"
    assert _refused(channel, "recipient refused").permanent


def test_the_server_is_down_then_up_through_the_courier(post: Post) -> None:
    port = free_port()
    now_s = [1000.0]
    courier = MessageDispatcher({"email": post.channel(port)}, clock=lambda: now_s[0])
    pending = Delivery(
        alert_key="k",
        channel="email",
        message=MESSAGE,
        state="pending",
        attempts=0,
        created_at_s=1000.0,
        row=1,
    )

    def attempt(delivery: Delivery) -> Delivery:
        assert courier.submit(delivery)
        return outcomes(courier)[0]

    try:
        # Eight hours without a server: the schedule, on a clock of our own.
        while now_s[0] < 1000.0 + 8 * 3600:
            pending = attempt(pending)
            assert pending.state == "pending"
            assert "connection refused" in (pending.error or "")
            assert pending.next_try_at_s == retry_at(pending.attempts, 1000.0, now_s[0])
            now_s[0] = pending.next_try_at_s or 0.0
        assert 12 <= pending.attempts <= 16
        post.start(port=port)
        sent = attempt(pending)
        assert (sent.state, sent.error) == ("sent", None)
        assert len(post.box.mails) == 1
    finally:
        courier.close()


class Outbox:
    """What the daemon does about deliveries, on a clock of our own."""

    def __init__(self, channel: EmailNotifier) -> None:
        self.now_s = 1_000_000.0
        self.courier = MessageDispatcher({"email": channel}, clock=lambda: self.now_s)
        self.waiting: dict[str, Delivery] = {}

    def tell(self, n: int, notice: str, thread: str | None = None) -> None:
        name = f"{n}-{notice}"
        self.waiting[name] = Delivery(
            alert_key=str(n),
            channel="email",
            message=msgspec.structs.replace(
                MESSAGE,
                id=name,
                notice=notice,
                severity="info" if notice == "resolved" else MESSAGE.severity,
                subject=f"incident {n}",
                thread=thread,
            ),
            state="pending",
            attempts=0,
            created_at_s=self.now_s,
        )

    def turn(self) -> None:
        planned = plan(self.waiting.values(), self.now_s)
        for delivery in planned.submit:
            assert self.courier.submit(delivery)
        results = outcomes(self.courier, len(planned.submit))
        for delivery in planned.drop + results:
            del self.waiting[delivery.message.id]
        self.waiting |= {one.message.id: one for one in results if one.state == "pending"}


def test_eight_hours_without_a_server_end_in_one_mail(post: Post) -> None:
    port = free_port()
    outbox = Outbox(post.channel(port))
    for n in range(40):
        outbox.tell(n, "firing")
        if n % 4 == 0:  # a quarter of them is over soon
            outbox.tell(n, "resolved", thread=f"{n}-firing")
    ended_s = outbox.now_s + 8 * 3600
    turns = 0
    try:
        while outbox.now_s < ended_s:
            outbox.turn()
            turns += 1
            outbox.now_s = min(one.next_try_at_s or 0.0 for one in outbox.waiting.values())
        assert turns <= 16
        post.start(port=port)
        outbox.turn()
    finally:
        outbox.courier.close()
    (mail,) = post.box.mails
    assert outbox.waiting == {}
    assert mail["Subject"] == "gpuwatchd: 30 messages that could not be delivered earlier"
    text = mail.get_body(("plain",)).get_content()
    assert "incident 39" in text
    assert "incident 4\n" not in text


def test_a_silent_server_is_given_up_in_time(post: Post) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        channel = post.channel(deaf.getsockname()[1], timeout=0.3)
        assert not _refused(channel, r"no answer within 0\.3 s").permanent


def test_a_thread_of_mails(post: Post) -> None:
    channel = post.channel()
    channel.send(MESSAGE)
    channel.send(msgspec.structs.replace(MESSAGE, id="m2", notice="resolved", thread="m1"))
    first, second = post.box.mails
    assert second["In-Reply-To"] == first["Message-ID"]
