"""What is asked beside the tick and never waited for: serving engines, and declared sizes."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from gpuwatchd.analysis.declared import Declared
from gpuwatchd.analysis.frameworks import engine_addresses
from gpuwatchd.analysis.frameworks.engine_addresses import PORTS
from gpuwatchd.collect.engines import ENDPOINTS, http
from gpuwatchd.collect.host import declarations, program
from gpuwatchd.core.errors import EndpointError
from gpuwatchd.core.model import ProcessKey, ServedModel, ServerReading
from gpuwatchd.core.registry import load
from gpuwatchd.pipeline.state import Server

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.analysis.declared import Setting
    from gpuwatchd.analysis.frameworks.engine_addresses import Address
    from gpuwatchd.collect.host import Host
    from gpuwatchd.core.model import ProcessInfo
    from gpuwatchd.core.ports import Endpoint
    from gpuwatchd.pipeline.state import State

    News = tuple[tuple[ProcessInfo, ...], tuple[ServerReading, ...], int]

# The thread that asks serving engines: one question after another, nobody waits for it.

MOST_ENGINES: Final = 64
"""Of so many servers what was learnt is kept: jobs come and go, each on a port of its own."""


class Find(NamedTuple):
    """Find out where the engine of a process listens."""

    kind: str
    key: ProcessKey
    booted_at_s: float | None = None
    address: Address | None = None
    """Where it listens, once that was looked up; None: nowhere."""


class Ask(NamedTuple):
    """Ask one server."""

    kind: str
    url: str
    timeout_s: float
    reading: ServerReading | None = None
    """What it said, once it was asked."""
    questions: int = 1
    """How many that took."""


class ReadSizes(NamedTuple):
    """Read what a process was told of sizes."""

    info: ProcessInfo
    booted_at_s: float | None = None
    settings: tuple[Setting, ...] | None = None
    """What that was, once it was read."""


Job = Find | Ask | ReadSizes


class Asker:
    """Does jobs in a thread of its own, which sleeps otherwise and starts with the first job."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._engines: dict[tuple[str, str], Endpoint] = {}
        self._thread: threading.Thread | None = None

    def put(self, job: Job) -> None:
        """Have a job done some time."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="ask-servers", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def take(self) -> list[Job]:
        """Return the jobs that have been done since, with their results; never waits."""
        done: list[Job] = []
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
            self._done.put(self._answer(job) if isinstance(job, Ask) else self._looked_up(job))

    @staticmethod
    def _looked_up(job: Find | ReadSizes) -> Job:
        try:
            if isinstance(job, ReadSizes):
                return job._replace(settings=declarations.settings(job.info, job.booted_at_s))
            launches = program.launches(job.key, job.booted_at_s)
            return job._replace(address=engine_addresses.address(job.kind, launches))
        except Exception:  # noqa: BLE001 - a process may do anything to its own command line
            return job

    def _answer(self, job: Ask) -> Ask:
        questions = 0

        def get(path: str) -> bytes:
            nonlocal questions
            questions += 1
            return http.get(job.url, path, timeout_s=job.timeout_s)

        try:
            engine = self._engine(job)
            reading = engine.ask(get, job.url, time.time())
        except EndpointError as error:
            reading = self._silence(job, error.message)
        except Exception as error:  # noqa: BLE001 - what a server sends may not end this thread
            reading = self._silence(job, f"what it answers is not understood: {error!r}"[:200])
        return job._replace(reading=reading, questions=max(1, questions))

    def _engine(self, job: Ask) -> Endpoint:
        key = (job.kind, job.url)
        if key not in self._engines:
            self._engines[key] = load(ENDPOINTS, job.kind)()
        # Now the last: the first is the one not asked for longest.
        engine = self._engines[key] = self._engines.pop(key)
        if len(self._engines) > MOST_ENGINES:
            del self._engines[next(iter(self._engines))]
        return engine

    def _silence(self, job: Ask, why: str) -> ServerReading:
        return ServerReading(kind=job.kind, url=job.url, at_s=time.time(), ok=False, why=why)


GONE_S: Final = 120.0
"""A server none of whose processes was on a GPU for so long is forgotten."""
FIND_AGAIN_S: Final = 60.0
"""Where a process listens is looked up once more after this: it may have been starting."""
MOST: Final = 64
"""Servers that are found by themselves and asked."""
_SLOWEST: Final = 8.0
"""A server that does not answer is asked at most so many times more rarely."""


class _Sought(msgspec.Struct, kw_only=True, eq=False):
    """Where a process on a GPU listens, or whom it works for."""

    asked_s: float
    seen_s: float
    pending: bool = True
    where: Address | None = None


class Serving:
    """Keeps the newest answers of the serving engines on this machine."""

    def __init__(
        self,
        state: State,
        host: Host | None = None,
        *,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._host = host
        self.problems: tuple[str, ...] = ()
        """What is wrong with the servers of the configuration, one sentence each."""
        self.active = True
        """Whether there is a server, or may be: else only new processes or settings matter."""
        self._mono = mono
        self._asker = Asker()
        self.engines = state.engines
        self._servers = state.engines.servers
        self._sought: dict[ProcessKey, _Sought] = {}
        self._urls: tuple[str, ...] | None = None
        self._misread: tuple[str, ...] = ()
        self._processes: tuple[ProcessInfo, ...] = ()
        self._engines: list[ProcessInfo] = []
        """Those of them that serve models."""

    def step(self, processes: tuple[ProcessInfo, ...]) -> None:
        """Take over what has been answered, and ask whoever is due. Never waits."""
        section = self._state.settings.config.endpoints
        self.active = True
        if not section.enabled:
            if self._servers or self._sought:
                self._forget_all()
            self.active = False
            return
        now = self._mono()
        changed = False
        for done in self._asker.take():
            changed = True
            self._take(done, now)
        if section.urls != self._urls:
            changed = self._configure(section.urls)
        self._attend(processes, now)
        changed |= self._drop(now)
        if changed:
            self._publish()
        for server in self._servers.values():
            if not server.pending and now >= server.due_s:
                server.pending = True
                self._asker.put(Ask(server.kind, server.url, section.timeout))
        self.active = bool(self._servers or self._sought)

    def close(self) -> None:
        """Ask nobody any more."""
        self._asker.close()

    def _configure(self, urls: tuple[str, ...]) -> bool:
        """Take over the servers of the configuration."""
        self._urls = urls
        read = [engine_addresses.configured(text) for text in urls]
        self._misread = engine_addresses.misread(urls)
        wanted = {pair[1]: pair[0] for pair in read if pair is not None}
        for server in self._servers.values():
            server.configured = server.url in wanted
        for url, kind in wanted.items():
            known = self._servers.get(url)
            if known is None or known.kind != kind:
                self._servers[url] = Server(kind=kind, url=url, configured=True)
        return True

    def _attend(self, processes: tuple[ProcessInfo, ...], now: float) -> None:
        """Find the servers of the processes that are on a GPU."""
        if processes is not self._processes:
            self._processes = processes
            self._engines = [
                info
                for info in processes
                if info.framework in PORTS
                and not info.foreign
                and info.key.started_at_s is not None
            ]
        for info in self._engines:
            sought = self._sought.get(info.key)
            if sought is None:
                self._sought[info.key] = _Sought(asked_s=now, seen_s=now)
                self._find(info)
                continue
            sought.seen_s = now
            if sought.where is not None:
                self._belongs(info, sought.where, now)
            elif not sought.pending and now - sought.asked_s > FIND_AGAIN_S:
                sought.asked_s, sought.pending = now, True
                self._find(info)

    def _find(self, info: ProcessInfo) -> None:
        booted_at_s = None if self._host is None else self._host.booted_at_s
        self._asker.put(Find(info.framework or "", info.key, booted_at_s))

    def _belongs(self, info: ProcessInfo, where: Address, now: float) -> None:
        server = self._servers.get(where.url)
        if server is None:
            if len(self._servers) >= MOST:
                return
            server = Server(kind=info.framework or "", url=where.url)
            self._servers[where.url] = server
        if server.kind != info.framework:
            return
        server.seen_s = now
        if info.container is None and info.pod is None:
            # In a container the port may be one of another network: what answers there is told,
            # without saying that it is this process.
            server.address = where
            server.members[info.key] = now
            if info.key not in server.runs and info.framework == "Ollama":
                model = engine_addresses.runner_model(info.argv)
                if model is not None:
                    server.runs[info.key] = model

    def _drop(self, now: float) -> bool:
        """Forget servers whose processes have gone, and processes that have."""
        lost = False
        for server in list(self._servers.values()):
            for key in [key for key, seen in server.members.items() if now - seen > GONE_S]:
                del server.members[key]
                server.runs.pop(key, None)
                lost = True
            if not server.configured and now - server.seen_s > GONE_S:
                del self._servers[server.url]
                lost = True
        for key in [key for key, sought in self._sought.items() if now - sought.seen_s > GONE_S]:
            del self._sought[key]
        return lost

    def _forget_all(self) -> None:
        self._servers.clear()
        self._sought.clear()
        self._urls, self._misread = None, ()
        self._publish()

    def _take(self, done: Job, now: float) -> None:
        if isinstance(done, Find) and (sought := self._sought.get(done.key)) is not None:
            sought.pending, sought.where = False, done.address
        if not isinstance(done, Ask):
            return
        server, reading = self._servers.get(done.url), done.reading
        if server is None or server.kind != done.kind or reading is None:
            return
        every_s = float(self._state.settings.config.endpoints.every)
        where = server.address
        server.pending = False
        server.failures = 0 if reading.ok else server.failures + 1
        slower = min(2.0 ** max(0, server.failures - 1), _SLOWEST)
        # One question per "every", on average: an answer that took two pays for both.
        server.due_s = now + every_s * done.questions * slower
        if where is not None:
            changes: dict[str, object] = {"pid": where.pid}
            if reading.ok and reading.models is None and where.model:
                changes["models"] = (ServedModel(name=where.model),)
            if reading.pool_share is None and where.pool_share is not None:
                changes["pool_share"] = where.pool_share
            reading = msgspec.structs.replace(reading, **changes)
        server.past.append(reading)

    def _publish(self) -> None:
        """Bring what others use up to date."""
        servers = [server for server in self._servers.values() if server.past]
        self.engines.publish(servers)
        self.problems = (
            *self._misread,
            *(
                f"{server.kind} at {server.url}: {server.past[-1].why}"
                for server in servers
                if server.configured and not server.past[-1].ok
            ),
        )


DEADLINE_S: Final = 30.0
"""A look that takes longer is given up: its file system does not answer."""
MOST_STUCK: Final = 4
"""After so many of them nobody is looked at any more: each keeps a thread."""


class DeclaredSizes:
    """Looks once at each process on a GPU, in a thread of its own: a file may never be read."""

    def __init__(
        self,
        state: State,
        host: Host | None,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mono = mono
        self._state = state
        self._host = host
        self._asker = Asker()
        self._settings: dict[ProcessKey, tuple[Setting, ...] | None] = {}
        self.news: News = ((), (), -1)
        """By what the tracks were last brought up to date: no need to come for the same again."""
        self.waiting: dict[ProcessKey, ReadSizes] = {}
        """Looks that have not been answered; the thread is at the first of them."""
        self._begun_s = mono()
        """When it came to that."""
        self._stuck = 0

    def step(self, news: News) -> bool:
        """Take over what was found, and have those looked at who are new. Never waits.

        ``news``: who is on a device, what servers say, and how many tracks there have been. Says
        whether somebody has come or gone, or was told something: while a thousand processes become
        known one by one, most looks bring nothing of that.
        """
        looks = [done for done in self._asker.take() if isinstance(done, ReadSizes)]
        for look in looks:
            self.waiting.pop(look.info.key, None)
            self._begun_s = self._mono()
        if self.waiting and self._mono() - self._begun_s > DEADLINE_S:
            self._give_up()
        if not looks and news == self.news:
            return False
        before, self.news, (present, readings, created) = self.news, news, news
        self._meet(present)
        for look in looks:
            if look.info.key in self._settings:
                self._settings[look.info.key] = look.settings
        served = {
            key: Declared(engine=self._answered(reading), model=self._state.engines.named.get(key))
            for reading in readings
            for key in self._state.engines.members(reading.url)
        }
        changed = (len(before[0]), before[2]) != (len(present), created)
        for device in self._state.devices.values():
            for key, track in (*device.processes.items(), *device.host_tracks.items()):
                settings, sizes = self._settings.get(key), track.sizes
                if key not in served and sizes == Declared(settings=settings):
                    continue
                changed |= settings != sizes.settings
                track.declare(served.get(key, Declared())._replace(settings=settings))
        return changed

    def _answered(self, reading: ServerReading) -> ServerReading:
        """Return the last answer of the same process: a busy server keeps its pool."""
        past = reversed(self._state.engines.recent(reading.url)) if not reading.ok else ()
        return next((one for one in past if one.ok and one.pid == reading.pid), reading)

    def _meet(self, present: tuple[ProcessInfo, ...]) -> None:
        known, self._settings = self._settings, {}
        for info in present:
            key = info.key
            if self._host is None or info.foreign or key.started_at_s is None:
                continue
            if key not in known and key not in self._settings:
                self._put(ReadSizes(info, self._host.booted_at_s))
            self._settings[key] = known.get(key)

    def _put(self, look: ReadSizes) -> None:
        if self._stuck < MOST_STUCK:
            self._begun_s = self._begun_s if self.waiting else self._mono()
            self.waiting[look.info.key] = look
            self._asker.put(look)

    def _give_up(self) -> None:
        """Leave the thread at its look, and have the others looked at by another one."""
        _, *others = self.waiting.values()
        self._asker.close()
        self._asker, self.waiting, self._stuck = Asker(), {}, self._stuck + 1
        for look in others:
            self._put(look)

    def close(self) -> None:
        """Read for nobody any more."""
        self._asker.close()
