"""The verbs of ``gpuwatchctl``, asked within this program: the same answers, the same refusals."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from gpuwatchd.cli import envelope, exits, output, program
from gpuwatchd.cli.flags import Globals
from gpuwatchd.core.errors import GpuwatchdError, NotAllowed, StoreBusy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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


class VerbResponse:
    """What a verb answered.

    Attributes
    ----------
    status
        Of HTTP.
    code
        The exit code that the verb would have had.
    answer
        Its one JSON object.
    """

    __slots__ = ("answer", "code", "status")

    def __init__(self, status: int, code: int, answer: dict[str, Any]) -> None:
        self.status = status
        self.code = code
        self.answer = answer


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
        with output.handed_over(words) as emitted:
            code = _call([verb, "--json", *words[1:]])
        return VerbResponse(OK, code, emitted[0])
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else exits.NAME
        message = error.format_message().replace("\n", " ")
        return _refused(verb, error, message, f"{path} --help", exits.USAGE, BAD_REQUEST)
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
            "gpuwatchctl web --debug says more",
            exits.FAILED,
            BROKEN,
            "errors#internal",
        )
    return response


def _call(words: list[str]) -> int:
    with program.program.make_context(exits.NAME, words, obj=Globals()) as context:
        result = program.program.invoke(context)
    return result if isinstance(result, int) else exits.OK


def status(error: GpuwatchdError) -> int:
    """Return the status of HTTP that an error is told with."""
    if isinstance(error, StoreBusy):
        return UNAVAILABLE
    if isinstance(error, NotAllowed):
        return FORBIDDEN
    return _BY_PAGE.get(error.page, UNAVAILABLE)


def _refused(  # noqa: PLR0917 - one argument per part of the answer
    verb: str,
    error: Exception,
    message: str,
    hint: str,
    code: int,
    status: int,
    page: str = "",
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
