"""What the server says in its own name: refusals as the verbs word them, one header for all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import Response

from gpuwatchd.cli import envelope, exits

if TYPE_CHECKING:
    from collections.abc import Mapping

CODE_HEADER: Final = "gpuwatchctl-exit-code"
_JSON: Final = "application/json"
_WORDS: Final = {
    400: ("BadRequest", "this request cannot be understood", "errors#web-request"),
    401: ("Unauthorized", "this needs the token", "errors#web-token"),
    403: ("Forbidden", "only this page itself may do that", "errors#web-request"),
    404: ("NotFound", "there is no such address", "errors#web-request"),
    405: ("MethodNotAllowed", "this address has no such method", "errors#web-request"),
    408: ("Timeout", "the request took too long", "errors#web-request"),
    413: ("TooLarge", "the request is too large", "errors#web-request"),
    415: ("NotJson", "a body must be application/json", "errors#web-request"),
    421: ("ForeignHost", "this name is not one of this server's", "errors#web-host"),
    429: ("TooMany", "too many wrong tokens", "errors#web-token"),
    500: ("Internal", "internal error", "errors#internal"),
    503: ("Busy", "too much is asked at once", "errors#web-request"),
}
_HINTS: Final = {
    401: "gpuwatchctl web --token prints it; send it as Authorization: Bearer TOKEN",
    404: "the addresses: /api/v1/openapi.json",
    405: "the addresses and their methods: /api/v1/openapi.json",
    421: '[web] hosts = ["NAME"] adds one',
    429: "wait a little",
    500: "gpuwatchctl web --debug says more",
    503: "ask again in a second",
}


def json_response(
    status: int, value: Any, code: int, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an answer of JSON with the exit code that goes with it."""
    body = msgspec.json.encode(value) + b"\n"
    return Response(body, status, {CODE_HEADER: str(code), **(headers or {})}, media_type=_JSON)


def refusal(status: int, why: str = "", hint: str | None = None) -> Response:
    """Return a refusal; nothing of the request is repeated in it."""
    kind, words, page = _WORDS[status]
    code = exits.USAGE if status in {400, 404, 405, 413, 415} else exits.FAILED
    answer = envelope.failure(
        "web", kind, why or words, hint=_HINTS.get(status, "") if hint is None else hint,
        exit_code=code, page=page,
    )  # fmt: skip
    headers = {}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    elif status in {429, 503}:
        headers["retry-after"] = "1"
    return json_response(status, answer, code, headers)
