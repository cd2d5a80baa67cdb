"""Chat services, against servers of our own on loopback; Apprise itself is the real one."""

from __future__ import annotations

import gzip
import json
import logging
import re
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.core.errors import NotifyError
from gpuwatchd.notify.channels import chat
from gpuwatchd.notify.channels.chat import ChatNotifier
from tests.notify.conftest import HOSTILE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuwatchd.core.model import Message

SECRET = "T0kenOfThirtySixCharactersXYZ0123456"


class Got(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Service:
    """A service on loopback; ``status`` is what it answers."""

    def __init__(self) -> None:
        self.got: list[Got] = []
        self.status = 200
        self.wait = threading.Event()
        self.hangs = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                outer.got.append(Got(self.path, dict(self.headers), body))
                if outer.hangs:
                    outer.wait.wait(30)
                self.send_response(outer.status)
                self.end_headers()
                self.wfile.write(b"ok" if outer.status < 300 else SECRET.encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.at = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.wait.set()
        self._server.shutdown()
        self._server.server_close()


def _served() -> Iterator[Service]:
    found = Service()
    yield found
    found.close()


service, second = pytest.fixture(_served), pytest.fixture(_served)


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (chat.VARIABLE, "CREDENTIALS_DIRECTORY", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(chat, "_MEMORY", chat._Memory())


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def written(*urls: str, mode: int = 0o600) -> str:
        file = tmp_path / "urls"
        file.write_text("# ours\n\n" + "\n".join(urls) + "\n")
        file.chmod(mode)
        return str(file)

    return written


# Loading Apprise's services warns of what other libraries will drop one day.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_json_gets_title_text_and_severity(write: Any, service: Service, message: Message) -> None:
    said = ChatNotifier(write(f"json://{service.at}/in")).send(message)
    assert said == "accepted by json at 127.0.0.1"
    (got,) = service.got
    assert got.path == "/in"
    assert got.json["title"] == message.subject
    assert got.json["type"] == "warning"
    lines = got.json["message"].split("\n")
    assert lines[:2] == message.body.split("\n")
    assert "Rate: 12.4 MB/min" in lines
    assert lines[-1] == f"-> {message.command}"


@pytest.mark.parametrize(
    ("notice", "severity", "kind"),
    [
        ("firing", "info", "info"),
        ("firing", "critical", "failure"),
        ("resolved", "info", "success"),
        # It probably ran out of memory: a page stays open.
        ("resolved", "warning", "failure"),
        ("resolved", "critical", "failure"),
    ],
)
def test_severity_is_the_type(
    write: Any, service: Service, message: Message, notice: Any, severity: Any, kind: str
) -> None:
    changed = msgspec.structs.replace(message, notice=notice, severity=severity)
    ChatNotifier(write(f"json://{service.at}")).send(changed)
    assert service.got[0].json["type"] == kind


def test_discord(
    write: Any, service: Service, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    from apprise.plugins.discord import NotifyDiscord

    monkeypatch.setattr(NotifyDiscord, "notify_url", f"http://{service.at}/api/webhooks")
    url = f"discord://4174216298/{SECRET}"
    long = msgspec.structs.replace(message, body="long line\n" * 900)
    assert ChatNotifier(write(url)).send(long) == "accepted by discord (address 1)"
    (got,) = service.got
    assert got.path.startswith(f"/api/webhooks/4174216298/{SECRET}")
    content = got.json["content"]
    assert len(content) <= 2000
    assert message.command in content


def test_pagerduty_knows_the_incident_again(
    write: Any, service: Service, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    from apprise.plugins import pagerduty

    lookup = dict.fromkeys(pagerduty.PAGERDUTY_API_LOOKUP, f"http://{service.at}/v2/enqueue")
    monkeypatch.setattr(pagerduty, "PAGERDUTY_API_LOOKUP", lookup)
    service.status = 202
    notifier = ChatNotifier(write(f"pagerduty://{SECRET}@apikey?action=map"))
    notifier.send(message)
    over = msgspec.structs.replace(
        message, id="z9", notice="resolved", severity="info", thread=message.id
    )
    notifier.send(over)
    # Where others are open that it told of in the same breath, the incident goes on.
    notifier.send(msgspec.structs.replace(over, id="z10", others_open=True))
    notifier.send(msgspec.structs.replace(over, id="z11", severity="critical"))
    first, last, one_of_them, crash = (got.json for got in service.got)
    assert (crash["event_action"], crash["dedup_key"]) == ("trigger", message.id)
    assert one_of_them["dedup_key"] == "z10"
    assert first["routing_key"] == SECRET
    assert first["payload"]["severity"] == "warning"
    assert message.subject in first["payload"]["summary"]
    assert (first["event_action"], last["event_action"]) == ("trigger", "resolve")
    assert first["dedup_key"] == last["dedup_key"] == message.id


@pytest.mark.parametrize(
    "url",
    [
        "ntfys://ntfy.sh/topic",
        "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#gpu",
        "https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ",
        f"discord://4174216298/{SECRET}",
        f"https://discord.com/api/webhooks/4174216298/{SECRET}",
        "workflow://prod-1.westeurope.logic.azure.com:443/643e69f83c8944/wv2q6UqQ2eZ0aBcDeFg/",
        f"pagerduty://{SECRET}@apikey?action=map",
    ],
)
def test_the_addresses_of_the_documentation_are_understood(url: str) -> None:
    (address,) = chat.parse(url)
    assert chat._service(chat._apprise(), address, 5.0) is not None


def test_hostile_words_call_nobody(write: Any, service: Service, message: Message) -> None:
    rude = f"@everyone <!channel> <@U1> [x](http://evil) {HOSTILE}"
    bad = msgspec.structs.replace(message, subject=rude, body=rude, facts={rude: rude})
    ChatNotifier(write(f"json://{service.at}")).send(bad)
    content = service.got[0].json
    for words in (content["title"], content["message"]):
        assert "\x1b" not in words
        assert "\u202e" not in words
        for mark in ("@everyone", "<!channel", "<@U1", "](http"):
            assert mark not in words


def test_a_retry_goes_to_those_that_failed_alone(
    write: Any, service: Service, second: Service, message: Message
) -> None:
    second.status = 503
    notifier = ChatNotifier(write(f"json://{service.at}", f"xml://{second.at}"))
    with pytest.raises(NotifyError) as caught:
        notifier.send(message)
    assert not caught.value.permanent
    assert caught.value.message == "xml at 127.0.0.1: answered 503 (1 of 2 have it)"
    second.status = 200
    said = notifier.send(message)
    assert said == "accepted by json at 127.0.0.1, xml at 127.0.0.1"
    assert (len(service.got), len(second.got)) == (1, 2)
    notifier.send(msgspec.structs.replace(message, id="another"))
    assert len(service.got) == 2


def test_what_is_refused_for_good_costs_the_others_nothing(
    write: Any, service: Service, second: Service, message: Message
) -> None:
    second.status = 404
    notifier = ChatNotifier(write(f"json://{service.at}", f"xml://{second.at}", "nonsense"))
    said = notifier.send(message)
    assert said == (
        "accepted by json at 127.0.0.1; not by xml at 127.0.0.1: answered 404; "
        "address 3: not understood as an address"
    )
    for status, permanent in ((401, True), (422, True), (423, False), (429, False), (503, False)):
        service.status = status
        with pytest.raises(NotifyError) as caught:
            notifier.send(msgspec.structs.replace(message, id=f"answered {status}"))
        assert caught.value.permanent is permanent


@pytest.mark.slow
def test_nobody_there_is_tried_again(write: Any, service: Service, message: Message) -> None:
    service.close()
    with pytest.raises(NotifyError, match="cannot be reached") as caught:
        ChatNotifier(write(f"json://{service.at}")).send(message)
    assert not caught.value.permanent


@pytest.mark.slow
def test_a_service_that_hangs_costs_its_deadline_and_one_thread(
    write: Any, service: Service, second: Service, message: Message
) -> None:
    service.hangs = True
    urls = write(f"json://{service.at}?rto=60", f"xml://{second.at}")
    notifier = ChatNotifier(urls, timeout=0.4)
    notifier._try_all(chat._apprise(), (), message)  # the import is not what is measured
    before = time.monotonic()
    with pytest.raises(NotifyError) as caught:
        notifier.send(message)
    assert time.monotonic() - before < 5
    assert not caught.value.permanent
    assert "(1 of 2 have it)" in caught.value.message
    assert len(second.got) == 1


def test_what_a_slow_service_took_after_all_is_not_sent_again(
    write: Any, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, tried = threading.Event(), []

    def slow(_: Any, address: Any, sent: Message, *__: Any) -> Any:
        tried.append(sent.id)
        gate.wait(30)
        return chat._Result(address, "sent")

    monkeypatch.setattr(chat, "_try_one", slow)
    notifier = ChatNotifier(write("json://127.0.0.1:9"), timeout=0.05)
    with pytest.raises(NotifyError, match="no answer within"):
        notifier.send(message)
    gate.set()
    for thread in threading.enumerate():
        if thread.name == "chat":
            thread.join(10)
    assert notifier.send(message) == "accepted by json at 127.0.0.1"
    assert tried == [message.id]


def test_settings_that_are_read_anew_forget_nobody_who_has_it(
    write: Any, service: Service, second: Service, message: Message
) -> None:
    second.status = 503
    urls = write(f"json://{service.at}", f"xml://{second.at}")
    with pytest.raises(NotifyError, match="1 of 2 have it"):
        ChatNotifier(urls).send(message)
    second.status = 200
    assert ChatNotifier(urls).send(message).startswith("accepted by json at 127.0.0.1, xml")
    assert (len(service.got), len(second.got)) == (1, 2)


def test_at_most_one_thread_waits_for_a_service_that_never_answers(
    write: Any, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    forever = threading.Event()

    def hang(_: Any, address: Any, *__: Any) -> Any:
        forever.wait(60)
        return chat._Result(address, "failed")

    monkeypatch.setattr(chat, "_try_one", hang)
    notifier = ChatNotifier(write("json://127.0.0.1:9"), timeout=0.05)
    said = []
    for _ in range(4):
        with pytest.raises(NotifyError) as caught:
            notifier.send(message)
        said.append(caught.value.message)
    assert sum(thread.name == "chat" for thread in threading.enumerate()) == 1
    assert "an earlier attempt still hangs" in said[-1]
    forever.set()


def test_a_missing_extra_says_what_to_install(
    write: Any, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(NotifyError, match="not installed") as caught:
        ChatNotifier(write("json://127.0.0.1:9")).send(message)
    assert caught.value.permanent
    assert caught.value.hint == f"{sys.executable} -m pip install 'gpuwatchd[chat]'"


def test_nothing_of_an_address_reaches_the_log(
    write: Any, service: Service, message: Message
) -> None:
    # Not by caplog: it listens also where nothing is passed on.
    logging.getLogger("urllib3").setLevel(logging.DEBUG)
    service.status = 403
    heard: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    root = logging.getLogger()
    ear = Ear(0)
    root.addHandler(ear)
    level = root.level
    root.setLevel(logging.DEBUG)
    try:
        url = f"json://me:{SECRET}@{service.at}/{SECRET}?+X={SECRET}"
        logging.getLogger("somebody").debug("is heard")
        with pytest.raises(NotifyError) as caught:
            ChatNotifier(write(url, f"slack://{SECRET}")).send(message)
    finally:
        root.removeHandler(ear)
        root.setLevel(level)
        logging.getLogger("urllib3").setLevel(logging.NOTSET)
    assert "is heard" in heard
    words = [caught.value.message, caught.value.hint, *heard]
    assert SECRET not in "\n".join(words)
    assert caught.value.__cause__ is None
    assert len(service.got) == 1


def test_probe_imports_nothing_large(write: Any) -> None:
    import subprocess

    code = (
        "import sys; from gpuwatchd.notify.channels.chat import ChatNotifier;"
        f"print(ChatNotifier({write('ntfys://ntfy.sh/x')!r}).probe().ok, 'apprise' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_what_is_cut_is_what_matters_least(message: Message) -> None:
    whole = chat._body(message, 10_000).splitlines()
    assert whole[1] == "Full in 47 min."
    for room in range(len("\n".join([*whole[:2], whole[-1]])), len("\n".join(whole)) + 1):
        body = chat._body(message, room)
        lines = body.splitlines()
        assert len(body) <= room
        # As many facts as fit, none of them cut, and the command after them.
        assert lines == [*whole[: len(lines) - 1], whole[-1]]
        assert len(lines) == len(whole) or len(body) + len(whole[len(lines) - 1]) + 1 > room


def test_a_file_that_others_can_read_is_refused(write: Any, message: Message) -> None:
    notifier = ChatNotifier(write(f"slack://{SECRET}/B/C", mode=0o644))
    available = notifier.probe()
    assert not available.ok
    assert available.hint.startswith("chmod 600 ")
    with pytest.raises(NotifyError, match="others can read it") as caught:
        notifier.send(message)
    assert caught.value.permanent


@pytest.mark.parametrize("content", [b"", b"# none\n", b"\xff\xfe\x00"])
def test_a_file_without_addresses_is_told(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "urls"
    file.write_bytes(content)
    file.chmod(0o600)
    available = ChatNotifier(str(file)).probe()
    assert not available.ok
    assert "address" in available.reason


def test_a_pipe_in_place_of_the_file_hangs_nobody(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "urls", 0o600)
    assert not ChatNotifier(str(tmp_path / "urls")).probe().ok
    assert "No such file" in ChatNotifier(str(tmp_path / "none")).probe().reason


def test_credential_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not ChatNotifier().probe().ok
    monkeypatch.setenv(chat.VARIABLE, "ntfy://127.0.0.1/gpu slack://A/B/C")
    assert ChatNotifier().probe().reason == "ntfy at 127.0.0.1, slack (address 2)"
    (tmp_path / chat.CREDENTIAL).write_text("json://localhost/x\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert ChatNotifier().probe().reason == "json at localhost"


def test_addresses_that_were_taken_out_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from gpuwatchd.notify import credentials

    monkeypatch.setattr(credentials, "_withheld", {})
    monkeypatch.setenv(chat.VARIABLE, "ntfy://127.0.0.1/gpu")
    credentials.withhold()
    assert chat.VARIABLE not in os.environ
    assert ChatNotifier().probe().ok


SECRETIVE = [
    f"slack://{SECRET}/B1/C2",
    f"discord://4174216298/{SECRET}",
    f"pagerduty://{SECRET}@{SECRET}",
    f"ntfy://{SECRET.lower()}",
    f"ntfys://me:{SECRET}@ntfy.example.org/{SECRET}",
    f"tgram://123456789:{SECRET}/12315544/",
    f"sendgrid://SG.{SECRET}.{SECRET}:me@example.org",
    f"https://hooks.slack.com/services/T1/B1/{SECRET}",
    f"json://user:{SECRET}@127.0.0.1:8/{SECRET}?{SECRET}=1",
    f"json://{SECRET}.{SECRET}.org/",
    f"{SECRET}",
    f"x y://{SECRET}",
    f"json://[{SECRET}",
]


@pytest.mark.parametrize("url", SECRETIVE)
def test_no_secret_is_in_the_name_of_an_address(url: str) -> None:
    (address,) = chat.parse(url)
    for shown in (address.name, repr(address), f"{[address]}", address.fingerprint):
        assert SECRET.lower() not in shown.lower()


@given(st.text(min_size=1, max_size=40))
def test_every_line_has_a_name(line: str) -> None:
    for address in chat.parse(line):
        assert re.fullmatch(r"[a-z0-9+.-]* ?(at [0-9a-z.:-]+|\(?address \d+\)?)", address.name)


requests = pytest.importorskip("requests")
ENDLESS = b"HTTP/1.1 403 no\r\n\r\n"
BOMB = gzip.compress(bytes(64 << 20))


class _Server:
    """Answers each request with a head, then with the same bytes for ever."""

    def __init__(self, head: bytes, more: bytes) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"
        self.sent = 0
        threading.Thread(target=self._serve, args=(head, more), daemon=True).start()

    def _serve(self, head: bytes, more: bytes) -> None:
        try:
            while True:
                line, _ = self._socket.accept()
                with line:
                    line.recv(65536)
                    line.sendall(head)
                    while self.sent < 256 << 20:
                        line.sendall(more)
                        self.sent += len(more)
        except OSError:
            pass

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["endless", "bomb"])
def server(request: pytest.FixtureRequest) -> Iterator[_Server]:
    head, more = ENDLESS, b"A" * 65536
    if request.param == "bomb":
        head = b"HTTP/1.1 403 no\r\nContent-Encoding: gzip\r\n\r\n" + BOMB
    found = _Server(head, more)
    yield found
    found.close()


def test_it_is_read_to_a_bound_and_its_status_counts(server: _Server) -> None:
    chat._apprise()
    answer = requests.post(server.url, data=b"x", timeout=10)
    assert answer.status_code == 403
    assert chat.MOST_BYTES <= len(answer.content) < 2 * chat.MOST_BYTES


def test_a_short_answer_is_whole_and_a_second_time_changes_nothing() -> None:
    class Response:
        def iter_content(self) -> Iterator[bytes]:
            yield from (b"a", b"b")

        def close(self) -> None:
            raise AssertionError("it has come to its end")

    chat.bound_reads(Response)
    once = Response.iter_content
    chat.bound_reads(Response)
    assert Response.iter_content is once
    assert b"".join(Response().iter_content()) == b"ab"
