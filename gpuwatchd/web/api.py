"""What is answered: the addresses of the API, the views of the page, and its files."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from starlette.responses import Response
from starlette.routing import Match, Route

from gpuwatchd.core import errors
from gpuwatchd.core.errors import GpuwatchdError, NotAllowed, StoreBusy
from gpuwatchd.store import live
from gpuwatchd.view.answers import base
from gpuwatchd.view.answers.base import Answered
from gpuwatchd.view.queries import alert_changes, recorded_answers, state_location
from gpuwatchd.view.query import Query
from gpuwatchd.web import openapi, pages, responses
from gpuwatchd.web.openapi import ENDPOINTS, PREFIX, BadQuery

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gpuwatchd.web.openapi import Endpoint

    Handler = Callable[[Request], Awaitable[Response]]

_LATE_S: Final = 10.0
"""A live state that does not change any more is answered again so often: its age is part of it."""
BAD_REQUEST, FORBIDDEN, NOT_FOUND, CONFLICT = 400, 403, 404, 409
BROKEN, UNAVAILABLE = 500, 503
_BY_PAGE: Final = {
    "errors#no-such-gpu": NOT_FOUND,
    "errors#no-such-process": NOT_FOUND,
    "errors#no-such-alert": NOT_FOUND,
    "errors#not-snoozed": NOT_FOUND,
    "errors#nothing-said": NOT_FOUND,
    "errors#nothing-recorded": NOT_FOUND,
    "errors#process-gone": NOT_FOUND,
    "errors#process-changed": CONFLICT,
    "errors#action": CONFLICT,
    "errors#ambiguous": CONFLICT,
    "errors#already-over": CONFLICT,
    "errors#nothing-to-learn": CONFLICT,
    "errors#not-a-reader": FORBIDDEN,
    "errors#configuration": BROKEN,
}
"""Page of the documentation about an error -> status; of any other: it cannot be had now."""


class Api:
    """Answers for one server; its query has the GPUs that are meant where a request names none."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._workers = Workers()
        described = responses.page_of(openapi.encoded(), "application/json")
        self._files = {**responses.pages(), f"{PREFIX}/openapi.json": described}

    def app(self) -> ASGIApp:
        """Return what answers requests."""
        return _Table(
            [
                *(  # the key of an alert may have a slash in it
                    Route(
                        PREFIX + endpoint.path.replace("{id}", "{id:path}"),
                        self._handler(endpoint),
                        methods=[endpoint.method],
                    )
                    for endpoint in ENDPOINTS
                ),
                Route(f"{PREFIX}/page/{{name}}", self._view),
                Route("/healthz", _healthy),
                *(Route(address, self._file) for address in self._files),
            ]
        )

    def _handler(self, endpoint: Endpoint) -> Handler:
        async def handle(request: Request) -> Response:
            if endpoint.body and request.query_params:
                return responses.refused_response(400, "no parameters are known here")
            values: dict[str, Any] = {}
            try:
                if endpoint.body:
                    values = openapi.decoded_body(await request.body(), endpoint.body)
                elif endpoint.method == "GET":
                    values = openapi.read(endpoint, request.query_params.multi_items())
            except BadQuery as error:
                return _failed(endpoint.verb, error)
            query = Query(config=self._query.config)
            if openapi.GPU in endpoint.parameters:
                query.gpu = list(values.pop("gpu", self._query.gpu))
                query.user = list(values.pop("user", ()))
            tag = _tag(query, values) if openapi.TAG in endpoint.parameters else ""
            headers = {"etag": tag} if tag else {}
            if tag and tag in request.headers.get("if-none-match", ""):
                return Response(status_code=304, headers=headers)
            work = partial(endpoint.ask, query, *request.path_params.values(), **values)
            return await self._answer(
                endpoint.verb, work, headers,
                writes=endpoint.method != "GET", done=201 if endpoint.body else 200,
            )  # fmt: skip

        return handle

    async def _view(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in pages.ANSWERS:
            return responses.refused_response(404)
        work = partial(pages.ANSWERS[name], self._query, dict(request.query_params))
        return await self._answer("web", lambda: Answered(work()))

    async def _answer(
        self,
        verb: str,
        work: Callable[[], Answered],
        headers: Mapping[str, str] | None = None,
        *,
        writes: bool = False,
        done: int = 200,
    ) -> Response:
        try:
            answer, code = await self._workers.do(work, writes=writes)
        except Busy:
            return responses.refused_response(503)
        except (alert_changes.BadRequest, recorded_answers.EmptySpan) as error:
            return _failed(verb, BadQuery(str(error), hint="see /api/v1/openapi.json"))
        except GpuwatchdError as error:
            return _failed(verb, error)
        return responses.json_response(done, answer, code, headers)

    async def _file(self, request: Request) -> Response:
        page = self._files[request.url.path]
        headers = {"etag": page.tag, "cache-control": "no-cache"}
        if page.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(page.body, 200, headers, media_type=page.media_type)


class _Table:
    """The addresses; what is none of them is refused in our own words."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        methods: set[str] = set()
        for route in self._routes:
            match, more = route.matches(scope)
            if match is Match.FULL:
                scope.update(more)
                await route.handle(scope, receive, send)
                return
            if match is Match.PARTIAL:
                methods |= route.methods or set()
        refused = responses.refused_response(405 if methods else 404)
        if methods:
            refused.headers["allow"] = ", ".join(sorted(methods))
        await refused(scope, receive, send)


async def _healthy(_: Request) -> Response:
    return responses.json_response(200, {"status": "ok"}, 0)


def _failed(verb: str, error: GpuwatchdError) -> Response:
    code = status(error)
    answer = base.failure(
        verb, type(error).__name__, error.message,
        hint=error.hint, exit_code=error.exit_code, page=error.page,
    )  # fmt: skip
    more = {"retry-after": "1"} if code == UNAVAILABLE and verb != "web" else {}
    return responses.json_response(code, answer, error.exit_code, more)


def status(error: GpuwatchdError) -> int:
    """Return the status of HTTP that an error is answered with."""
    if error.exit_code == errors.USAGE:
        return BAD_REQUEST
    if isinstance(error, StoreBusy):
        return UNAVAILABLE
    if isinstance(error, NotAllowed):
        return FORBIDDEN
    return _BY_PAGE.get(error.page, UNAVAILABLE)


def _tag(query: Query, values: Mapping[str, Any]) -> str:
    """Return what stays the same as long as ``status`` has nothing new to say; "" is never."""
    place = state_location.chosen()
    try:
        stat_result = (place.runtime_dir / live.FILE_NAME).lstat()
    except OSError:
        return ""
    age = int(max(0.0, time.time() - stat_result.st_mtime) // _LATE_S)
    running = state_location.runs(place.runtime_dir)
    file = (stat_result.st_ino, stat_result.st_mtime_ns, stat_result.st_size)
    facts = (place.scope, file, age, running, query.config, query.gpu, query.user, values)
    return f'W/"{hashlib.sha256(repr(facts).encode()).hexdigest()[:32]}"'


# Questions, asked in a few threads: what is slow keeps nothing else waiting.

THREADS: Final = 4
MOST_WAITING: Final = 32
LONGEST_S: Final = 30.0
Result = TypeVar("Result")


class Busy(Exception):
    """More was asked at once than will be answered."""


class Workers:
    """A few threads for what reads, and one for what writes.

    Writing is done one after the other: root writes as the owner of the history, and these rights
    are the whole program's.

    Each question has a thread of its own that the end of the program does not wait for: those of
    ``concurrent.futures`` and of anyio are joined at exit, so that a writer that waits for a locked
    history held up Ctrl-C for the five seconds that it waits. SQLite takes back what was not
    committed.
    """

    def __init__(self) -> None:
        self._readers = asyncio.Semaphore(THREADS)
        self._writer = asyncio.Semaphore(1)
        self._asked = 0

    async def do(self, work: Callable[[], Result], *, writes: bool = False) -> Result:
        """Return what the work returns.

        Raises
        ------
        Busy
            When too much waits already, or it takes too long; it is then done all the same.
        """
        if self._asked >= THREADS + MOST_WAITING:
            raise Busy
        self._asked += 1
        task = asyncio.ensure_future(_run(work, self._writer if writes else self._readers))
        task.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(asyncio.shield(task), LONGEST_S)
        except TimeoutError:
            raise Busy from None

    def _done(self, task: asyncio.Future[Any]) -> None:
        self._asked -= 1
        if not task.cancelled():
            task.exception()  # whoever waited has it; who gave up must not be told again


async def _run(work: Callable[[], Result], slots: asyncio.Semaphore) -> Result:
    async with slots:
        future: Future[Result] = Future()
        future.set_running_or_notify_cancel()  # from now on nobody can cancel it
        threading.Thread(target=_finish, args=(future, work), daemon=True).start()
        return await asyncio.wrap_future(future)


def _finish(future: Future[Result], work: Callable[[], Result]) -> None:
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - whoever asked gets it
        future.set_exception(error)
    else:
        future.set_result(result)
