"""The server as a whole: the door before the answers, sockets below, and how it ends."""

from __future__ import annotations

import logging
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Final

import uvicorn

from gpuwatchd.cli import exits
from gpuwatchd.web import auth, connection, listening
from gpuwatchd.web.api import Api

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from gpuwatchd.cli.flags import Globals
    from gpuwatchd.web.tokens import Tokens

_GRACE_S: Final = 1
"""For answers under way at the end; the whole end takes two seconds at most."""


class Page:
    """One server.

    Parameters
    ----------
    flags
        Of the call: ``--config`` and ``--gpu`` hold for every answer, ``-v`` says each request on
        standard error, ``--debug`` errors that nobody foresaw.
    tokens
        Its key.
    hosts
        Names that it has besides those of loopback.
    """

    def __init__(self, flags: Globals, tokens: Tokens, hosts: Sequence[str]) -> None:
        self._flags = flags
        self._tokens = tokens
        self._hosts = tuple(hosts)

    def serve(self, made: Sequence[socket.socket], begun: Callable[[], None]) -> int:
        """Answer until a signal comes, and return the exit code: 130 of Ctrl-C, 0 of SIGTERM.

        Parameters
        ----------
        made
            Bound sockets; they are closed at the end.
        begun
            Called once answers are given.
        """
        config = self._flags.config
        api = Api(
            config=None if config is None else config.absolute(),
            gpu=self._flags.gpu,
            unexpected=self._unexpected,
        )
        guard = auth.Guard(
            api.app(), self._names(made), self._tokens, log=self._log, unexpected=self._unexpected
        )
        left = [listening.file_of(one) for one in made]  # known no more once it is closed
        server = _Server(_settings(guard), begun)
        try:
            server.run(sockets=list(made))
        finally:
            api.close()
            for path in left:
                listening.leave(path)
        return exits.INTERRUPTED if server.ended_by == signal.SIGINT else exits.OK

    def _names(self, made: Sequence[socket.socket]) -> auth.Names:
        where = made[0].getsockname()
        if not isinstance(where, tuple):
            return auth.names(self._hosts, None)
        own = f"[{where[0]}]" if ":" in where[0] else where[0]
        return auth.names(self._hosts, where[1], own)

    def _log(self, words: str) -> None:
        if self._flags.verbose:
            sys.stderr.write(f"{words}\n")

    def _unexpected(self, error: Exception) -> None:
        if self._flags.debug:
            traceback.print_exception(error)
        else:
            words = f"gpuwatchctl web: internal error: {type(error).__name__} (--debug says more)"
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
        http=connection.Connection,
        ws="none",
        lifespan="off",
        loop="asyncio",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # who passes on a name is believed by nothing here
        server_header=False,
        timeout_keep_alive=connection.IDLE_S,
        timeout_graceful_shutdown=_GRACE_S,
        h11_max_incomplete_event_size=auth.MOST_HEAD,
        backlog=64,
    )
