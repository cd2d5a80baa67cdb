"""What the live page and its API answer, asked as a browser does but without a socket."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from tests.recordings import places
from tests.recordings.calling import Failed
from tests.recordings.items import Item, listed
from tests.recordings.worlds import INCIDENTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.recordings.worlds import Stage

WRITTEN: Final[tuple[tuple[str, str, Any], ...]] = (
    ("POST", "snoozes", {"alert": "latest", "for": "1h", "why": "known"}),
    ("GET", "snoozes", None),
    ("DELETE", "snoozes/1", None),
    ("DELETE", "snoozes/77", None),
    ("POST", "snoozes", {"user": "ali*", "kind": "leak", "for": "2d", "even_critical": True}),
    ("POST", "snoozes", {}),
    ("POST", "snoozes", {"alert": "latest", "for": "soon"}),
    ("POST", "snoozes", {"alert": "latest", "for": "1h", "x": 1}),
    ("POST", "snoozes", []),
    ("POST", "feedback", {"alert": "latest", "word": "normal", "why": "cache"}),
    ("POST", "feedback", {"alert": "latest", "verdict": "normal"}),
    ("GET", "feedback", None),
    ("DELETE", "feedback/latest", None),
    ("PUT", "status", None),
    ("POST", "status", {}),
)
_VOLATILE: Final = {"etag", "date"}
_HOST: Final = "127.0.0.1:9753"


def items(stage: Stage) -> Iterator[Item]:
    """Yield what each address answers."""
    views = tuple(f"page/{name}" for name in places.PAGE_VIEWS)
    for world in ("leak", "forty", "none", "odd", *INCIDENTS):
        for path in (*listed("addresses"), *views):
            telling = world == "leak" and path in {"page/overview", "page/predict", "alerts/latest"}
            yield Item(f"web/{world}/{path}", partial(_read, stage, world, path), telling)
    yield Item("web/leak/written", partial(_written, stage))
    for address in places.responses.pages():
        yield Item(f"web/files{address}", partial(_file, stage, address))
    yield Item("web/guard", partial(_guarded, stage), whole=True)


class _Server:
    """One server, with its door before it."""

    def __init__(self, place: Any) -> None:
        file = place / "state" / places.security.FILE_NAME
        kept = places.security.Tokens(file)
        self.token = places.security.kept(file)
        self.wrong: list[Exception] = []
        self.app = places.security.Guard(
            places.Api(places.Query()).app(),
            places.security.names((), 9753, "127.0.0.1"),
            kept,
            log=lambda words: None,
            unexpected=self.wrong.append,
        )

    def ask(self, method: str, address: str, body: Any = None, **changed: str | None) -> str:
        """Return status, headers and body of an answer."""
        given: dict[str, str | None] = {"host": _HOST, "authorization": f"Bearer {self.token}"}
        content = b"" if body is None else json.dumps(body).encode()
        if body is not None:
            given["content-type"] = "application/json"
        given |= {name.replace("_", "-"): value for name, value in changed.items()}
        said = asyncio.run(self._ask(method, address, content, given))
        if self.wrong:
            raise Failed(repr(self.wrong[0]))
        return said

    async def _ask(
        self, method: str, address: str, content: bytes, given: dict[str, str | None]
    ) -> str:
        parts = urlsplit(address)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": parts.path,
            "raw_path": parts.path.encode(),
            "query_string": parts.query.encode(),
            "root_path": "",
            "server": ("127.0.0.1", 9753),
            "client": ("127.0.0.1", 40000),
            "headers": [
                (name.encode(), value.encode())
                for name, value in given.items()
                if value is not None
            ],
        }
        sent: list[Any] = []
        waiting = [{"type": "http.request", "body": content, "more_body": False}]

        async def receive() -> Any:
            return waiting.pop() if waiting else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        head = sent[0]
        rows = [
            f"{name.decode()}: {value.decode()}"
            for name, value in head["headers"]
            if name.decode().lower() not in _VOLATILE
        ]
        body = b"".join(one.get("body", b"") for one in sent[1:])
        return "\n".join(
            [
                f"{method} {address} -> {head['status']}",
                *sorted(rows),
                "",
                body.decode("utf-8", "replace"),
            ]
        )


def _read(stage: Stage, world: str, path: str) -> str:
    with stage.before(world, copied=True) as place:
        return _Server(place).ask("GET", f"/api/v1/{path}")


def _written(stage: Stage) -> str:
    with stage.before("leak", copied=True) as place:
        server = _Server(place)
        return "\n=====\n".join(
            server.ask(method, f"/api/v1/{path}", body) for method, path, body in WRITTEN
        )


def _file(stage: Stage, address: str) -> str:
    with stage.before("none", copied=True) as place:
        return _Server(place).ask("GET", address, authorization=None)


def _guarded(stage: Stage) -> str:
    with stage.before("leak", copied=True) as place:
        server = _Server(place)
        return "\n=====\n".join(
            [
                server.ask("GET", "/api/v1/status", authorization=None),
                server.ask("GET", "/api/v1/status", authorization="Bearer wrong"),
                server.ask("GET", "/api/v1/status", host="evil.example.org"),
                server.ask("GET", "/api/v1/status", origin="http://evil.example.org"),
                server.ask("GET", "/healthz", authorization=None),
                server.ask("GET", "/nonsense", authorization=None),
                server.ask("POST", "/healthz", {}),
                server.ask("TRACE", "/api/v1/status"),
                server.ask("GET", f"/api/v1/status?gpu={'x' * 9000}"),
                server.ask("POST", "/api/v1/snoozes", {}, content_type="text/plain"),
            ]
        )
