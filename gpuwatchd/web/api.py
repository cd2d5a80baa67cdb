"""What is answered: addresses, the verbs behind them, the views of the page, and its files."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import queue
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click
from starlette.responses import Response
from starlette.routing import Route, Router

from gpuwatchd.cli import exits, output, program
from gpuwatchd.core import errors
from gpuwatchd.core.errors import GpuwatchdError, NotAllowed, StoreBusy
from gpuwatchd.store import live
from gpuwatchd.view.answers import envelope
from gpuwatchd.view.queries import state_location
from gpuwatchd.view.query import Query
from gpuwatchd.web import openapi, responses
from gpuwatchd.web import pages as views
from gpuwatchd.web.openapi import ENDPOINTS, PREFIX, BadQuery, Endpoint, words

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    Handler = Callable[[Request], Awaitable[Response]]

_LATE_S: Final = 10.0
"""A live state that does not change any more is told again so often: its age is part of it."""


class Api:
    """Answers for one server.

    Parameters
    ----------
    config, gpu
        ``--config`` and ``--gpu`` of the server; the GPUs are those that are meant where a
        request names none.
    unexpected
        Is told of errors that nobody foresaw.
    """

    def __init__(
        self, *, config: Path | None, gpu: Sequence[str], unexpected: Callable[[Exception], None]
    ) -> None:
        self._config = config
        self._gpu = tuple(gpu)
        self._unexpected = unexpected
        self._workers = Workers()
        described = responses.page_of(openapi.encoded(), "application/json")
        self._files = {**responses.pages(), f"{PREFIX}/openapi.json": described}

    def app(self) -> ASGIApp:
        """Return what answers requests."""
        routes = [  # the key of an alert may have a slash in it
            Route(
                PREFIX + endpoint.path.replace("{id}", "{id:path}"),
                self._reading(endpoint),
                methods=["GET"],
            )
            for endpoint in ENDPOINTS
        ]
        routes += [
            Route(f"{PREFIX}/snoozes", self._writing(openapi.snooze), methods=["POST"]),
            Route(
                f"{PREFIX}/snoozes/{{id:path}}",
                self._taking("snooze", "clear"),
                methods=["DELETE"],
            ),
            Route(f"{PREFIX}/feedback", self._writing(openapi.feedback), methods=["POST"]),
            Route(
                f"{PREFIX}/feedback/{{id:path}}",
                self._taking("feedback", "undo"),
                methods=["DELETE"],
            ),
            Route(f"{PREFIX}/page/{{name}}", self._view, methods=["GET"]),
            Route("/healthz", _healthy, methods=["GET"]),
            *(Route(address, self._file, methods=["GET"]) for address in self._files),
        ]
        return _Table(routes)

    def close(self) -> None:
        """Begin nothing any more."""
        self._workers.close()

    # ---- reading

    def _reading(self, endpoint: Endpoint) -> Handler:
        async def handle(request: Request) -> Response:
            try:
                wanted = words(
                    endpoint, request.query_params.multi_items(), request.path_params.get("id")
                )
            except BadQuery as error:
                return _failed(endpoint.verb, error, BAD_REQUEST)
            whole = self._defaults(endpoint, wanted)
            if endpoint.path != "/status":
                return await self._ask(whole)
            tag = _tag(whole)
            if tag and tag in request.headers.get("if-none-match", ""):
                return Response(status_code=304, headers={"etag": tag})
            return await self._ask(whole, {"etag": tag} if tag else {})

        return handle

    def _defaults(self, endpoint: Endpoint, wanted: list[str]) -> list[str]:
        """Return the words with the flags of the server behind the verb."""
        more = [] if self._config is None else [f"--config={self._config}"]
        has_gpu = any(parameter.name == "gpu" for parameter in endpoint.parameters)
        if has_gpu and not any(word.startswith("--gpu=") for word in wanted):
            more += [f"--gpu={text}" for text in self._gpu]
        at = 1 + len(endpoint.words)
        return [*wanted[:at], *more, *wanted[at:]]

    async def _ask(
        self,
        wanted: list[str],
        headers: dict[str, str] | None = None,
        *,
        writes: bool = False,
        done: int = 200,
    ) -> Response:
        try:
            response = await self._workers.do(lambda: ask(wanted, self._unexpected), writes=writes)
        except Busy:
            return responses.refused_response(503)
        if response.status != OK:
            more = {"retry-after": "1"} if response.status == UNAVAILABLE else {}
            return responses.json_response(response.status, response.answer, response.code, more)
        return responses.json_response(done, response.answer, response.code, headers)

    async def _view(self, request: Request) -> Response:
        name, query = request.path_params["name"], dict(request.query_params)
        if name not in views.ANSWERS:
            return responses.refused_response(404)
        flags = Query()
        flags.config, flags.gpu = self._config, list(self._gpu)
        try:
            found = await self._workers.do(lambda: views.answer(name, flags, query))
        except Busy:
            return responses.refused_response(503)
        except GpuwatchdError as error:
            return _failed("web", error, status(error))
        return responses.json_response(200, found, 0)

    # ---- writing

    def _writing(self, put: Callable[[bytes], list[str]]) -> Handler:
        async def handle(request: Request) -> Response:
            if request.query_params:
                return responses.refused_response(400, "no parameters are known here")
            try:
                wanted = put(await request.body())
            except BadQuery as error:
                verb = "snooze" if put is openapi.snooze else "feedback"
                return _failed(verb, error, BAD_REQUEST)
            return await self._ask(wanted, writes=True, done=201)

        return handle

    def _taking(self, *verb: str) -> Handler:
        async def handle(request: Request) -> Response:
            return await self._ask([*verb, "--", request.path_params["id"]], writes=True)

        return handle

    # ---- files

    async def _file(self, request: Request) -> Response:
        page = self._files[request.url.path]
        headers = {"etag": page.tag, "cache-control": "no-cache"}
        if page.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(page.body, 200, headers, media_type=page.media_type)


class _Table:
    """The addresses; what is none of them is refused in our own words."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._router = Router(routes, redirect_slashes=False, default=_unknown)
        self._known = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.routing import Match  # noqa: PLC0415 - beside its use

        fits = [route.matches(scope)[0] for route in self._known]
        if Match.PARTIAL in fits and Match.FULL not in fits:
            names = {
                method
                for route, fit in zip(self._known, fits, strict=True)
                if fit == Match.PARTIAL
                for method in route.methods or ()
            }
            refused = responses.refused_response(405)
            refused.headers["allow"] = ", ".join(sorted(names))
            await refused(scope, receive, send)
            return
        await self._router(scope, receive, send)


async def _unknown(scope: Scope, receive: Receive, send: Send) -> None:
    await responses.refused_response(404)(scope, receive, send)


async def _healthy(_: Request) -> Response:
    return responses.json_response(200, {"status": "ok"}, 0)


def _failed(verb: str, error: GpuwatchdError, status: int) -> Response:
    failed = _refused(verb, error, error.message, error.hint, error.exit_code, status, error.page)
    return responses.json_response(status, failed.answer, failed.code)


def _tag(wanted: Sequence[str]) -> str:
    """Return what stays the same as long as ``status`` has nothing new to say; "" is never."""
    place = state_location.chosen()
    try:
        stat_result = (place.runtime_dir / live.FILE_NAME).lstat()
    except OSError:
        return ""
    age = int(max(0.0, time.time() - stat_result.st_mtime) // _LATE_S)
    running = state_location.runs(place.runtime_dir)
    file = (stat_result.st_ino, stat_result.st_mtime_ns, stat_result.st_size)
    facts: list[Any] = [place.scope, *file, age, running, *wanted]
    return f'W/"{hashlib.sha256(repr(facts).encode()).hexdigest()[:32]}"'


# The verbs of ``gpuwatchctl``, asked within this program: the same answers, the same refusals.

OK, BAD_REQUEST, FORBIDDEN, NOT_FOUND, CONFLICT = 200, 400, 403, 404, 409
BROKEN, UNAVAILABLE = 500, 503
_BY_PAGE: Final = {
    "errors#no-such-gpu": NOT_FOUND,
    "errors#no-such-process": NOT_FOUND,
    "errors#no-such-alert": NOT_FOUND,
    "errors#not-snoozed": NOT_FOUND,
    "errors#nothing-said": NOT_FOUND,
    "errors#nothing-recorded": NOT_FOUND,
    "errors#ambiguous": CONFLICT,
    "errors#already-over": CONFLICT,
    "errors#nothing-to-learn": CONFLICT,
    "errors#not-a-reader": FORBIDDEN,
    "errors#configuration": BROKEN,
}
"""Page of the documentation about an error -> status; of any other: it cannot be had now."""


class VerbResponse(NamedTuple):
    """What a verb answered."""

    status: int
    """Of HTTP."""
    code: int
    """The exit code that the verb would have had."""
    answer: Any
    """Its one JSON object."""


def ask(words: Sequence[str], unexpected: Callable[[Exception], None]) -> VerbResponse:
    """Return what a verb says to these words and ``--json``. Raises nothing.

    Parameters
    ----------
    words
        As on a command line, the verb first; never from a stranger as they are: values belong
        behind "=" or "--".
    unexpected
        Is told of an error that nobody foresaw.
    """
    verb = words[0]
    try:
        with output.capture_json(words) as emitted:
            code = _call([verb, "--json", *words[1:]])
        return VerbResponse(OK, code, emitted[0])
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else exits.NAME
        message = error.format_message().replace("\n", " ")
        return _refused(verb, error, message, f"{path} --help", errors.USAGE, BAD_REQUEST)
    except GpuwatchdError as error:
        response = _refused(
            verb, error, error.message, error.hint, error.exit_code, status(error), error.page
        )
    except Exception as error:  # noqa: BLE001 - no request may end the server, or see a traceback
        unexpected(error)
        response = _refused(
            verb,
            error,
            f"internal error: {type(error).__name__}",
            "gpuwatchctl web --debug shows more",
            errors.FAILED,
            BROKEN,
            "errors#internal",
        )
    return response


def _call(words: list[str]) -> int:
    with program.program.make_context(exits.NAME, words, obj=Query()) as context:
        result = program.program.invoke(context)
    return result if isinstance(result, int) else errors.OK


def status(error: GpuwatchdError) -> int:
    """Return the status of HTTP that an error is told with."""
    if isinstance(error, StoreBusy):
        return UNAVAILABLE
    if isinstance(error, NotAllowed):
        return FORBIDDEN
    return _BY_PAGE.get(error.page, UNAVAILABLE)


def _refused(  # noqa: PLR0917 - one argument per part of the answer
    verb: str, error: Exception, message: str, hint: str, code: int, status: int, page: str = ""
) -> VerbResponse:
    kind = type(error).__name__
    answer = envelope.failure(verb, kind, message, hint=hint, exit_code=code, page=page)
    return VerbResponse(status, code, answer)


# Questions to the verbs, asked in a few threads: what is slow keeps nothing else waiting.

THREADS: Final = 4
MOST_WAITING: Final = 32
LONGEST_S: Final = 30.0
Answer = TypeVar("Answer")


class Busy(Exception):
    """More was asked at once than will be answered."""


class _Threads:
    """Threads that the end of the program does not wait for.

    Those of the standard library's executor are joined at exit: a writer that waits for a locked
    history would hold up Ctrl-C for as long. SQLite takes back what was not committed.
    """

    def __init__(self, number: int, name: str) -> None:
        self._number = number
        self._name = name
        self._begun: list[threading.Thread] = []
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )

    def submit(self, work: Callable[[], Answer]) -> Future[Answer]:
        future: Future[Answer] = Future()
        if len(self._begun) < self._number:
            thread = threading.Thread(
                target=self._run, name=f"{self._name}-{len(self._begun)}", daemon=True
            )
            self._begun.append(thread)
            thread.start()
        self._work.put((future, work))
        return future

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, work = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                found = work()
            except BaseException as error:  # noqa: BLE001 - whoever asked gets it
                future.set_exception(error)
            else:
                future.set_result(found)
            del item, future, work  # else the last answer is kept until the next question

    def close(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._work.get_nowait()
                if item is not None:
                    item[0].cancel()
        for _ in self._begun:
            self._work.put(None)


class Workers:
    """A few threads, and one more for what writes.

    Writing is done one after the other: root writes as the owner of the history, and these rights
    are the whole program's.
    """

    def __init__(self) -> None:
        self._readers = _Threads(THREADS, "web-read")
        self._writer = _Threads(1, "web-write")
        self._asked = 0

    async def do(self, work: Callable[[], Answer], *, writes: bool = False) -> Answer:
        """Return what the work returns.

        Raises
        ------
        Busy
            When too much waits already, or it takes too long; it is then done all the same.
        """
        if self._asked >= THREADS + MOST_WAITING:
            raise Busy
        self._asked += 1
        pool = self._writer if writes else self._readers
        future = asyncio.wrap_future(pool.submit(work))
        future.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(asyncio.shield(future), LONGEST_S)
        except TimeoutError:
            raise Busy from None

    def _done(self, future: asyncio.Future[Answer]) -> None:
        self._asked -= 1
        if not future.cancelled():
            future.exception()  # whoever waited has it; who gave up must not be told again

    def close(self) -> None:
        """Begin nothing any more; what is under way is waited for by nobody."""
        self._readers.close()
        self._writer.close()
