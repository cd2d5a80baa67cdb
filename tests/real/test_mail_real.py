"""Mails with pictures over real TLS: what arrives, and what a server may do to it."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.charts import drawing_process
from gpuwatchd.cli.doctor import channels
from tests import making
from tests.cli.sick import Machine
from tests.conftest import need
from tests.real import mail_picture, mailserver
from tests.real.mailserver import PASSWORD, refused

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.cli.doctor import Check
    from gpuwatchd.core.errors import NotifyError
    from gpuwatchd.core.model import Message
    from gpuwatchd.notify.channels.email.channel import EmailNotifier
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
    need(drawing_process.available(), "the extra charts is not installed")
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


def test_pictures_can_be_switched_off(
    post: Post, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: object, **options: object) -> Any:
        raise AssertionError("nothing is to be drawn")

    monkeypatch.setattr(subprocess, "Popen", never)
    assert post.channel(chart=False).send(message)
    assert "▁" in post.box.mails[0].get_body(("html",)).get_content()


MESSAGE = making.message(
    subject="GPU 0: python[4711] füllt den Speicher", facts={"Rate": "12.4 MB/min"}
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
    assert _refused(tls, "does not offer TLS here").permanent
    assert post.box.mails == []


def test_plain_to_the_loopback(post: Post) -> None:
    port = post.start(certificate="")
    plain = post.channel(port, username="", password_file="", security="none")
    assert plain.send(MESSAGE)
    assert post.box.encrypted == [False]


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


class Server:
    """What a machine is told to send its mail through."""

    def __init__(self, folder: Path, post: mailserver.Post) -> None:
        self.machine = Machine(folder)
        self.values = {**post.settings, "to": ["a@example.org"]}
        self.values.pop("timeout")

    def ask(self, **changes: Any) -> Check:
        """Return what doctor says of it."""
        lines = [f"{key.replace('_', '-')} = {value!r}"
                 for key, value in {**self.values, **changes}.items()]  # fmt: skip
        self.machine.settings = "\n".join(
            ["[policy]", "channels = ['email']", "[notify.email]", *lines]
        )
        (found,) = self.machine.ask("mail")
        return found


@pytest.fixture
def server(tmp_path: Path, post: mailserver.Post) -> Server:
    return Server(tmp_path, post)


def test_a_server_that_answers_is_well_and_gets_nothing(
    server: Server, post: mailserver.Post
) -> None:
    found = server.ask(port=post.start())
    assert (found.level, found.id) == ("ok", "mail")
    assert "login offered" in found.text
    assert post.box.mails == []
    assert mailserver.PASSWORD not in found.text


@pytest.mark.parametrize("certificate", ["other", "wrong-name"])
def test_a_certificate_that_is_not_trusted(
    certificate: str, server: Server, post: mailserver.Post
) -> None:
    found = server.ask(port=post.start(certificate=certificate))
    assert found.id == "mail-certificate"
    assert "ca-file" in found.hint


def test_a_server_without_tls_and_one_without_a_login(
    server: Server, post: mailserver.Post
) -> None:
    plain = post.start(certificate="")
    assert server.ask(port=plain).id == "mail-tls"
    assert server.ask(port=plain, security="none").id == "mail-login"
    found = server.ask(port=plain, security="none", username="")
    assert (found.level, "answers" in found.text) == ("ok", True)


def test_a_port_where_nobody_listens_and_a_name_that_nobody_has(server: Server) -> None:
    assert server.ask(port=mailserver.free_port()).id == "mail-unreachable"
    began_s = time.monotonic()
    assert server.ask(host="mail.invalid").id in {"mail-name", "mail-unreachable"}
    assert time.monotonic() - began_s < channels.WITHIN_S + channels.NAMES_S + 2


def test_a_server_that_never_says_a_word_is_left_in_time(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "WITHIN_S", 0.4)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        began_s = time.monotonic()
        found = server.ask(port=mute.getsockname()[1])
    assert found.id == "mail-unreachable"
    assert time.monotonic() - began_s < 3


def test_offline_asks_nobody(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as watched:
        server.machine.offline = True
        found = server.ask(port=watched.getsockname()[1])
        watched.setblocking(False)
        with pytest.raises(BlockingIOError):
            watched.accept()
    assert (found.level, "--offline" in found.text) == ("ok", True)
