"""Mails with pictures over real TLS: what arrives, and what a server may do to it."""

from __future__ import annotations

import io
import re
import socket
import subprocess
import threading
import time
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.charts import child_process
from gpuwatchd.core.model import Delivery
from gpuwatchd.notify.dispatcher import MessageDispatcher
from tests.conftest import need
from tests.real import mail_picture
from tests.real.mailserver import PASSWORD, free_port, outcomes, refused

if TYPE_CHECKING:
    from gpuwatchd.core.model import Message
    from tests.real.mailserver import Post

pytestmark = pytest.mark.real_smtp
NOW_S = 1_795_313_220.0


@pytest.fixture
def post(post: Post) -> Post:
    """Leave pictures the time that they have by default."""
    post.settings["timeout"] = 40.0
    return post


@pytest.fixture(scope="module")
def message() -> Message:
    need(child_process.available(), "the extra charts is not installed")
    return mail_picture.letter(NOW_S)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.images: list[dict[str, str | None]] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.images.append(dict(attrs))
        self.links += [str(value) for name, value in attrs if name in {"href", "src"}]


def test_a_mail_and_its_picture_arrive(post: Post, message: Message) -> None:
    assert post.channel().send(message)
    (mail,) = post.box.mails
    assert mail.get_content_type() == "multipart/alternative"
    plain, related = mail.iter_parts()
    assert (plain.get_content_type(), related.get_content_type()) == (
        "text/plain", "multipart/related",
    )  # fmt: skip
    html, image = related.iter_parts()
    assert (html.get_content_type(), image.get_content_type()) == ("text/html", "image/png")
    assert image.get_content_disposition() == "inline"
    assert image.get_content().startswith(b"\x89PNG")
    page = _Page()
    page.feed(html.get_content())
    (shown,) = page.images
    # The only thing that is loaded is in the mail itself, and says in words what it shows.
    assert page.links == [f"cid:{image['Content-ID'].strip('<>')}"]
    assert "limit of 23.6 GiB" in str(shown["alt"])
    assert not re.search(r"https?:|url\(|@import", html.get_content())


def test_the_text_alone_is_enough_to_act_on(post: Post, message: Message) -> None:
    post.channel().send(message)
    text = post.box.mails[0].get_body(("plain",)).get_content()
    for needed in (
        "python train.py[4711] of alice", "MB/min", "Full in", "of 23.6 GiB", "$25.28",
        "gpuwatchctl explain 4711", "gpuwatchctl snooze", "gpuwatchctl ask-checkpoint 4711",
    ):  # fmt: skip
        assert needed in text
    assert re.search("[▁▂▃▄▅▆▇█]{20}", text)
    assert max(map(len, text.splitlines())) <= 80


def test_every_byte_has_seven_bits_and_every_line_is_short(post: Post, message: Message) -> None:
    raw: list[bytes] = []
    keep = post.box.handle_DATA

    async def look(server: object, session: Any, envelope: Any) -> str:
        raw.append(envelope.content)
        return await keep(server, session, envelope)

    post.box.handle_DATA = look  # type: ignore[method-assign]
    wide = msgspec.structs.replace(message, subject="ü" * 78, body=f"{'ö ' * 900}\n{'x' * 1999}")
    post.channel().send(wide)
    assert raw[0].isascii()
    assert max(map(len, raw[0].split(b"\r\n"))) <= 998
    assert raw[0].count(b"\n") == raw[0].count(b"\r\n")
    assert post.box.mails[0]["Subject"] == "ü" * 78


def test_a_thread_holds_together_over_days(post: Post, message: Message) -> None:
    port = post.start()
    for notice, name, thread in (
        ("firing", "m1", None), ("escalated", "m2", "m1"), ("repeat", "m3", "m1"),
        ("resolved", "m4", "m1"), ("digest", "m5", None),
    ):  # fmt: skip
        # Another process, after a restart: nothing of it is remembered here.
        one = msgspec.structs.replace(message, id=name, notice=notice, thread=thread, chart=None)
        if notice == "resolved":  # what has recovered is told as information
            one = msgspec.structs.replace(one, severity="info")
        post.channel(port).send(one)
    ids = [mail["Message-ID"] for mail in post.box.mails]
    assert len(set(ids)) == 5
    assert [mail["References"] for mail in post.box.mails] == [None, *ids[:1] * 3, None]
    assert {mail["Auto-Submitted"] for mail in post.box.mails} == {"auto-generated"}
    assert post.box.mails[3]["X-Priority"].startswith("5")


@pytest.mark.parametrize("limit", [30_000, None])
def test_too_large_a_mail_goes_without_its_picture(
    post: Post, message: Message, limit: int | None
) -> None:
    if limit is None:  # found out only when it has all been sent
        post.box.answers = ["552 5.3.4 message too big"]
    port = post.start(data_size_limit=limit)
    assert post.channel(port).send(message).startswith("accepted by")
    (mail,) = post.box.mails
    assert "image/png" not in [part.get_content_type() for part in mail.walk()]
    page = mail.get_body(("html",)).get_content()
    assert "<img" not in page
    assert "▁" in page
    assert mail["Message-ID"] == f"<{message.id.replace('@', '-')}@example.org>"


def test_too_large_even_so_is_for_good(post: Post, message: Message) -> None:
    error = refused(post.channel(post.start(data_size_limit=500)), message, "552")
    assert error.permanent


def test_greylisting_then_the_same_mail(post: Post, message: Message) -> None:
    post.box.recipient_answers = dict.fromkeys(post.settings["to"], "450 4.2.0 greylisted")
    now_s = [1000.0]
    channel = post.channel()
    courier = MessageDispatcher({"email": channel}, clock=lambda: now_s[0])
    waiting = Delivery(
        alert_key="k", channel="email", message=message, state="pending", attempts=0,
        created_at_s=1000.0, row=1,
    )  # fmt: skip
    try:
        assert courier.submit(waiting)
        (first,) = outcomes(courier)
        assert (first.state, first.attempts) == ("pending", 1)
        assert "greylisted" in str(first.error)
        post.box.recipient_answers = {}
        now_s[0] = first.next_try_at_s or 0.0
        assert courier.submit(first)
        assert outcomes(courier)[0].state == "sent"
    finally:
        courier.close()
    (mail,) = post.box.mails
    assert mail["Message-ID"] == f"<{message.id.replace('@', '-')}@example.org>"


@pytest.mark.parametrize("mechanisms", [{"PLAIN"}, {"LOGIN"}, {"PLAIN", "LOGIN"}])
def test_the_ways_to_log_in(post: Post, message: Message, mechanisms: set[str]) -> None:
    without = {"PLAIN", "LOGIN"} - mechanisms
    port = post.start(auth_exclude_mechanism=without)
    bare = msgspec.structs.replace(message, chart=None)
    assert post.channel(port).send(bare)
    assert post.box.encrypted == [True]


def test_no_way_to_log_in_that_is_known(post: Post, message: Message) -> None:
    port = post.start(auth_exclude_mechanism={"PLAIN", "LOGIN"})
    error = refused(post.channel(port), message, "no login")
    assert error.permanent
    assert PASSWORD not in str(error)


def test_the_password_never_leaves_before_tls(post: Post, message: Message) -> None:
    # The server would take a login only after TLS; on the loopback we were told to go without.
    error = refused(post.channel(security="none"), message, "no login here")
    assert error.permanent


def test_addresses_with_other_letters(post: Post, message: Message) -> None:
    bare = msgspec.structs.replace(message, chart=None)
    assert post.channel(to=("a@müller.example",)).send(bare)
    assert post.box.mails[0]["To"] == "a@xn--mller-kva.example"
    local = ("jürgen@example.org",)
    assert post.channel(post.start(enable_SMTPUTF8=True), to=local).send(bare)
    assert post.box.mails[1]["To"] == "jürgen@example.org"
    without = post.channel(post.start(enable_SMTPUTF8=False), to=local)
    error = refused(without, bare, "other letters")
    assert error.permanent


def test_a_slow_server_is_left_after_the_time_for_all_of_it(post: Post, message: Message) -> None:
    over = threading.Event()

    def crawl(listener: socket.socket) -> None:
        """Answer each command after most of the time that a single one might take."""
        client, _ = listener.accept()
        with client, io.BytesIO():
            client.sendall(b"220 hello\r\n")
            while not over.is_set() and client.recv(1000):
                if over.wait(0.7):
                    return
                client.sendall(b"250 ok\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=crawl, args=(listener,), daemon=True)
        thread.start()
        plain = {"security": "none", "username": "", "timeout": 1.0, "chart": False}
        begun_s = time.monotonic()
        channel = post.channel(listener.getsockname()[1], **plain)
        error = refused(channel, message, r"no answer within 1 s")
        assert time.monotonic() - begun_s < 2.5
        assert not error.permanent
        over.set()
        thread.join(5.0)


def test_a_picture_that_cannot_be_had_loses_no_mail(
    post: Post, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "PROGRAM", ("-c", "import time; time.sleep(60)"))
    monkeypatch.setattr(child_process, "DEADLINE_S", 0.4)
    begun_s = time.monotonic()
    assert post.channel().send(message)
    assert time.monotonic() - begun_s < 5.0
    (mail,) = post.box.mails
    assert "image/png" not in [part.get_content_type() for part in mail.walk()]
    assert "▁" in mail.get_body(("plain",)).get_content()


def test_pictures_can_be_switched_off(
    post: Post, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: object, **options: object) -> Any:
        raise AssertionError("nothing is to be drawn")

    monkeypatch.setattr(subprocess, "Popen", never)
    assert post.channel(chart=False).send(message)
    assert "▁" in post.box.mails[0].get_body(("html",)).get_content()


def test_a_server_that_is_gone_is_tried_again(post: Post, message: Message) -> None:
    bare = msgspec.structs.replace(message, chart=None)
    error = refused(post.channel(free_port()), bare, "refused")
    assert not error.permanent
