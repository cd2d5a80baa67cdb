"""A server in the place of an Alertmanager: it keeps alerts as one does, or fails as told."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from tests.fleet.fake import running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
Labels = dict[str, str]


class Member:
    """What it has been sent, and how it answers."""

    def __init__(self) -> None:
        self.port = 0
        self.status = 200
        self.location = ""
        self.cut = self.hang = False
        self.ahead_s = 0.0
        """Its clock is so far ahead of ours."""
        self.posts: list[list[dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.alerts: dict[str, dict[str, Any]] = {}
        self.stop = threading.Event()
        self._changed = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/prefix"

    def now_s(self) -> float:
        return time.time() + self.ahead_s

    def active(self) -> list[dict[str, Any]]:
        return [one for one in self.alerts.values() if _at(one["endsAt"]) > self.now_s()]

    def labels(self) -> list[Labels]:
        """Return the labels of what is active, in order."""
        return sorted((one["labels"] for one in self.active()), key=json.dumps)

    def until(self, condition: Callable[[], object], within_s: float = 30.0) -> None:
        """Wait until it has been sent something that makes a condition true."""
        with self._changed:
            assert self._changed.wait_for(condition, within_s), self.posts[-3:]

    def post(self, body: list[dict[str, Any]], headers: dict[str, str]) -> int:
        """Take what is good in it, as the interface does: 400 says that something else was not."""
        good = [one for one in body if all(map(_NAME.fullmatch, one["labels"]))]
        with self._changed:
            self.posts.append(body)
            self.headers.append(headers)
            for one in good if self.status == 200 else ():
                self._keep(one)
            self._changed.notify_all()
        return 400 if len(good) < len(body) and self.status == 200 else self.status

    def _keep(self, alert: dict[str, Any]) -> None:
        before = self.alerts.get(json.dumps(alert["labels"], sort_keys=True))
        resolved = _at(alert["endsAt"]) <= self.now_s()
        if before is not None and _at(before["endsAt"]) > self.now_s() and not resolved:
            # A later end stays: it is never shortened, only by a resolve.
            alert = {**alert, "endsAt": max(alert["endsAt"], before["endsAt"], key=_at)}
        self.alerts[json.dumps(alert["labels"], sort_keys=True)] = alert


def _at(text: str) -> float:
    return datetime.fromisoformat(text).astimezone(UTC).timestamp()


@contextlib.contextmanager
def member() -> Iterator[Member]:
    """Answer until the block is left."""
    state = Member()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            listed = self.path.startswith("/prefix/api/v2/alerts?")
            self._answer(state.status, json.dumps(state.active() if listed else {}).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.path == "/prefix/api/v2/alerts"
            self._answer(state.post(body, dict(self.headers.items())), b'"no: Bearer s3cret"')

        def _answer(self, status: int, body: bytes) -> None:
            if state.hang:
                state.stop.wait(60)
            self.send_response_only(status)
            self.send_header("Date", formatdate(state.now_s(), usegmt=True))
            if state.location:
                self.send_header("Location", state.location)
            self.send_header("Content-Length", str(len(body) + (10 if state.cut else 0)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with running(server, state.stop) as state.port:
        yield state
