"""The thread that asks serving engines: one question after another, nobody waits for it."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.analysis.frameworks import addresses
from gpuwatchd.collect.engines import ENDPOINTS, http
from gpuwatchd.collect.host import servers
from gpuwatchd.core.errors import EndpointError
from gpuwatchd.core.model import ProcessKey, ServerReading
from gpuwatchd.core.registry import load

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.analysis.frameworks.addresses import Address
    from gpuwatchd.core.ports import Endpoint


MOST_ENGINES: Final = 64
"""Of so many servers what was learnt is kept: jobs come and go, each on a port of its own."""


class Find(NamedTuple):
    """Find out where the engine of a process listens."""

    kind: str
    key: ProcessKey
    booted_at_s: float | None = None


class Ask(NamedTuple):
    """Ask one server."""

    kind: str
    url: str
    timeout_s: float


class EngineAddress(NamedTuple):
    """Where an engine listens; None: nowhere."""

    find: Find
    address: Address | None


class Answer(NamedTuple):
    """What a server said, and how many questions it took."""

    ask: Ask
    reading: ServerReading
    questions: int


class Asker:
    """Does jobs in a thread of its own, which sleeps otherwise and starts with the first job.

    Parameters
    ----------
    wall
        Clock of the answers, epoch seconds.
    """

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._jobs: queue.SimpleQueue[Find | Ask | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[EngineAddress | Answer] = queue.SimpleQueue()
        self._engines: dict[tuple[str, str], Endpoint] = {}
        self._thread: threading.Thread | None = None

    def put(self, job: Find | Ask) -> None:
        """Have a job done some time."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="ask-servers", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def take(self) -> list[EngineAddress | Answer]:
        """Return what has been done since; never waits."""
        done: list[EngineAddress | Answer] = []
        while not self._done.empty():
            done.append(self._done.get_nowait())
        return done

    def close(self) -> None:
        """Do no further job; a question under way is left to its deadline."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread = None

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._done.put(self._address(job) if isinstance(job, Find) else self._answer(job))

    @staticmethod
    def _address(job: Find) -> EngineAddress:
        try:
            return EngineAddress(
                job, addresses.address(job.kind, servers.launches(job.key, job.booted_at_s))
            )
        except Exception:  # noqa: BLE001 - a process may do anything to its own command line
            return EngineAddress(job, None)

    def _answer(self, job: Ask) -> Answer:
        questions = 0

        def get(path: str) -> bytes:
            nonlocal questions
            questions += 1
            return http.get(job.url, path, timeout_s=job.timeout_s)

        try:
            engine = self._engine(job)
            reading = engine.ask(get, job.url, self._wall())
        except EndpointError as error:
            reading = self._silence(job, error.message)
        except Exception as error:  # noqa: BLE001 - what a server sends may not end this thread
            reading = self._silence(job, f"what it answers is not understood: {error!r}"[:200])
        return Answer(job, reading, max(1, questions))

    def _engine(self, job: Ask) -> Endpoint:
        key = (job.kind, job.url)
        engine = self._engines.pop(key, None)
        if engine is None:
            made: Endpoint = load(ENDPOINTS, job.kind)()
            engine = made
        self._engines[key] = engine  # now the last: the first is the one not asked for longest
        if len(self._engines) > MOST_ENGINES:
            del self._engines[next(iter(self._engines))]
        return engine

    def _silence(self, job: Ask, why: str) -> ServerReading:
        return ServerReading(kind=job.kind, url=job.url, at_s=self._wall(), ok=False, why=why)
