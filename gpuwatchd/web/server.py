"""The server as a whole: the door before the answers, sockets below, and how it ends."""

from __future__ import annotations

import logging
import signal
import socket
import sys
import traceback
from typing import TYPE_CHECKING, Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpuwatchd.core import errors, text
from gpuwatchd.core.config import expanded, listening, state_dir
from gpuwatchd.service import sockets
from gpuwatchd.service.sockets import CannotListen
from gpuwatchd.view.query import Query
from gpuwatchd.web import auth, responses
from gpuwatchd.web.api import Api

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from gpuwatchd.core.config import WebSection
    from gpuwatchd.core.config.listening import Address


def parse(words: str, *, remote: bool) -> Address:
    """Return the address that a text means; see :func:`gpuwatchd.core.config.listening.parse`.

    Raises
    ------
    CannotListen
        When it is none, or not loopback without leave.
    """
    try:
        address = listening.parse(words, remote=remote)
    except listening.NoAddress as error:
        raise CannotListen(str(error), hint=error.hint) from None
    if address.path is not None and not address.path.is_absolute():
        value = text.clean(str(address.path))
        raise CannotListen(f"unix:{value}: not a whole path", hint="unix:/PATH")
    return address


_GRACE_S: Final = 1
"""For answers under way at the end; the whole end takes two seconds at most."""


class WebServer:
    """The live page and the API of one user; the query's configuration and GPUs hold for all.

    ``verbose`` writes each request on standard error, ``debug`` errors that nobody foresaw.
    """

    def __init__(
        self, query: Query, section: WebSection, *, verbose: bool = False, debug: bool = False
    ) -> None:
        config = None if query.config is None else query.config.absolute()
        self._query = Query(config=config, gpu=query.gpu)
        self._section = section
        self._verbose = verbose
        self._debug = debug
        path = expanded(section.token_file) if section.token_file else state_dir() / auth.FILE_NAME
        self.token_file = path

    def token(self, *, renew: bool = False) -> str:
        """Return the token, or a new one that the old one is worthless beside."""
        return auth.renew(self.token_file) if renew else auth.kept(self.token_file)

    def serve(self, listen: str, port: int | None, begun: Callable[[str], None]) -> int:
        """Answer until a signal comes, and return the exit code: 130 of Ctrl-C, 0 of SIGTERM.

        ``begun`` is called with the address once answers are given.

        Raises
        ------
        CannotListen
            When the address is none, or cannot be had.
        """
        address = parse(listen, remote=self._section.remote)
        if port is not None:
            address = address._replace(port=port)
        made = sockets.sockets(address)
        where = sockets.named(made[0], address)
        guard = auth.Guard(
            Api(self._query).app(), self._names(made[0]), auth.Tokens(self.token_file),
            log=self._log, unexpected=self._unexpected,
        )  # fmt: skip
        left = [sockets.file_of(each) for each in made]  # known no more once it is closed
        server = _Server(_settings(guard), lambda: begun(where))
        try:
            server.run(sockets=made)
        finally:
            for path in left:
                sockets.leave(path)
        return errors.INTERRUPTED if server.ended_by == signal.SIGINT else errors.OK

    def _names(self, made: socket.socket) -> auth.Names:
        at = made.getsockname()
        if not isinstance(at, tuple):
            return auth.names(self._section.hosts, None)
        return auth.names(self._section.hosts, at[1], f"[{at[0]}]" if ":" in at[0] else at[0])

    def _log(self, words: str) -> None:
        if self._verbose:
            sys.stderr.write(f"{words}\n")

    def _unexpected(self, error: Exception) -> None:
        if self._debug:
            traceback.print_exception(error)
        else:
            words = f"gpuwatchctl web: internal error: {type(error).__name__} (--debug shows more)"
            sys.stderr.write(f"{words}\n")


class _Server(uvicorn.Server):
    """Says when it has begun, and by which signal it ended."""

    def __init__(self, config: uvicorn.Config, begun: Callable[[], None]) -> None:
        super().__init__(config)
        self._begun = begun
        self.ended_by: int = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._begun()

    def handle_exit(self, sig: int, frame: object) -> None:  # noqa: ARG002 - uvicorn's signature
        """Note the signal; the library would send it again at the end."""
        if self.should_exit:
            self.force_exit = True
        self.ended_by = self.ended_by or sig
        self.should_exit = True


def _settings(app: auth.Guard) -> uvicorn.Config:
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers = [logging.NullHandler()]
        logger.propagate = False  # it would write what strangers send
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        loop="asyncio",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # who passes on a name is believed by nothing here
        server_header=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=_GRACE_S,
        h11_max_incomplete_event_size=auth.MOST_HEAD,
        backlog=64,
    )


# One connection of HTTP: bounded in number, in time and in size, whatever its other end does.

MOST: Final = 64
"""Connections at once; one that never showed the token gives way to a new one."""
HEAD_S: Final = 10.0
"""From the first byte, or from the last answer's end of patience, to a whole head."""
WHOLE_S: Final = 60.0
"""From the head of a request to the last byte of its answer."""
IDLE_S: Final = 15


class Connection(H11Protocol):
    """What uvicorn reads and writes with, and a clock beside it."""

    _deadline: asyncio.TimerHandle | None = None
    _known = False
    since_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, or end at once what is too much or from a stranger."""
        super().connection_made(transport)
        peer = transport.get_extra_info("socket")
        strange = (
            peer is not None and peer.family == socket.AF_UNIX and not sockets.may_connect(peer)
        )
        self.since_s = self.loop.time()
        if strange or (len(self.connections) > MOST and not self._make_room()):
            transport.abort()
            return
        self._within(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Read what has come; a whole head sets the clock anew."""
        before = self.cycle
        super().handle_events()
        cycle = self.cycle
        if cycle is not None and cycle is not before and not cycle.response_complete:
            self._within(WHOLE_S)

    def on_response_complete(self) -> None:
        """Wait for the next request, not for ever."""
        self._known = self.is_known()
        self._within(IDLE_S + HEAD_S)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature
        """Refuse what is no HTTP, in the words of every other refusal."""
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self.transport.abort()  # in the middle of an answer: nothing can be said any more
            return
        refused = responses.refused_response(400)
        headers: list[tuple[Any, Any]] = [
            *refused.raw_headers,
            *auth.HEADERS,
            (b"cache-control", b"no-store"),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=bytes(refused.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _make_room(self) -> bool:
        """End the oldest of those that never showed the token; False where all of them have.

        Else any user of this machine could keep out its owner by holding all connections.
        """
        strangers = [
            connection
            for connection in self.connections
            if isinstance(connection, Connection)
            and connection is not self
            and not connection.is_known()
        ]
        if not strangers:
            return False
        oldest = min(strangers, key=lambda stranger: stranger.since_s)
        self.connections.discard(oldest)  # now: the loop tells of its end later
        oldest.transport.abort()
        return True

    def is_known(self) -> bool:
        """Say whether a request of this connection, also one under way, has had the token."""
        return self._known or auth.is_known(self.scope)

    def _within(self, seconds: float) -> None:
        self._stop()
        if self.transport is not None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
