"""One connection of HTTP: bounded in number, in time and in size, whatever its other end does."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpuwatchd.web import auth, listening, responses

if TYPE_CHECKING:
    import asyncio

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
            peer is not None
            and peer.family == socket.AF_UNIX
            and not listening.may_connect(peer)
        )  # fmt: skip
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
        refused = responses.refusal(400)
        headers: list[tuple[Any, Any]] = [
            *refused.raw_headers, *auth.HEADERS,
            (b"cache-control", b"no-store"), (b"connection", b"close"),
        ]  # fmt: skip
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
            connection for connection in self.connections
            if isinstance(connection, Connection) and connection is not self
            and not connection.is_known()
        ]  # fmt: skip
        if not strangers:
            return False
        oldest = min(strangers, key=lambda one: one.since_s)
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
