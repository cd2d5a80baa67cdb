"""The verbs of ``gpuwatchctl``, asked within this program: the same answers, the same refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

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
