"""What the server says in its own name: refusals as the verbs word them, one header for all."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from starlette.responses import Response

from gpuwatchd.charts import page
from gpuwatchd.core import errors
from gpuwatchd.view.answers import base

if TYPE_CHECKING:
    from collections.abc import Mapping

CODE_HEADER: Final = "gpuwatchctl-exit-code"
_JSON: Final = "application/json"
_ADDRESSES: Final = "the addresses: /api/v1/openapi.json"
_TOKEN: Final = "gpuwatchctl web --token prints it; send it as Authorization: Bearer TOKEN"  # noqa: S105
_REFUSALS: Final = {
    400: ("BadRequest", "this request cannot be understood", "errors#web-request", ""),
    401: ("Unauthorized", "this needs the token", "errors#web-token", _TOKEN),
    403: ("Forbidden", "only this page itself may do that", "errors#web-request", ""),
    404: ("NotFound", "there is no such address", "errors#web-request", _ADDRESSES),
    405: (
        "MethodNotAllowed", "this address has no such method", "errors#web-request",
        "the addresses and their methods: /api/v1/openapi.json",
    ),
    408: ("Timeout", "the request took too long", "errors#web-request", ""),
    413: ("TooLarge", "the request is too large", "errors#web-request", ""),
    415: ("NotJson", "a body must be application/json", "errors#web-request", ""),
    421: (
        "ForeignHost", "this name is not one of this server's", "errors#web-host",
        '[web] hosts = ["NAME"] adds one',
    ),
    429: ("TooMany", "too many wrong tokens", "errors#web-token", "wait a little"),
    500: ("Internal", "internal error", "errors#internal", "gpuwatchctl web --debug shows more"),
    503: ("Busy", "too many requests at once", "errors#web-request", "ask again in a second"),
}  # fmt: skip
"""Status -> kind, words, page, hint."""


def json_response(
    status: int, value: Any, code: int, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an answer of JSON with the exit code that goes with it."""
    body = msgspec.json.encode(value) + b"\n"
    return Response(body, status, {CODE_HEADER: str(code), **(headers or {})}, media_type=_JSON)


def refused_response(status: int, why: str = "") -> Response:
    """Return a refusal; nothing of the request is repeated in it."""
    kind, words, page, hint = _REFUSALS[status]
    code = errors.USAGE if status in {400, 404, 405, 413, 415} else errors.FAILED
    answer = base.failure("web", kind, why or words, hint=hint, exit_code=code, page=page)
    headers = {}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    elif status in {429, 503}:
        headers["retry-after"] = "1"
    return json_response(status, answer, code, headers)


# The files of the live page: known by name, read once, so that no address leads elsewhere.

INDEX: Final = "index.html"
PREFIX: Final = "/static/"
_SCRIPT: Final = "text/javascript; charset=utf-8"
_STYLE: Final = "text/css; charset=utf-8"
_TYPES: Final = {".html": "text/html; charset=utf-8", ".css": _STYLE, ".js": _SCRIPT}
"""What has another ending is not served."""


class Page(NamedTuple):
    """One file as it is answered."""

    body: bytes
    media_type: str
    tag: str
    """For If-None-Match."""


def pages() -> dict[str, Page]:
    """Return address -> file: ``/`` and what is below :data:`PREFIX`."""
    files = {
        f"{PREFIX}chart.js": page_of(page.page_script().encode(), _SCRIPT),
        f"{PREFIX}page.css": page_of(page.page_style().encode(), _STYLE),
        f"{PREFIX}uPlot.LICENSE": page_of(
            page.plotting_terms().encode(), "text/plain; charset=utf-8"
        ),
    }
    for file in (resources.files("gpuwatchd.web") / "pages").iterdir():
        media_type = _TYPES.get(f".{file.name.rpartition('.')[2]}")
        if media_type is not None:
            address = "/" if file.name == INDEX else PREFIX + file.name
            files[address] = page_of(file.read_bytes(), media_type)
    return files


def page_of(body: bytes, media_type: str) -> Page:
    """Return a file with the tag of its content."""
    return Page(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
