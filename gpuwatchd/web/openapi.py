"""Addresses and request bodies of the API, and its description (OpenAPI 3.1) made of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from gpuwatchd import __version__
from gpuwatchd.core import decoding, units
from gpuwatchd.core.errors import USAGE, GpuwatchdError
from gpuwatchd.view.answers import alerts
from gpuwatchd.view.answers import schema as by_verb
from gpuwatchd.view.answers.base import Failure
from gpuwatchd.view.queries import live_answers, reaping, recorded_answers, state_location

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuwatchd.view.answers.base import Answer, Answered

# Which address of the API asks which question, and with which parameters: one table.

PREFIX: Final = "/api/v1"
LONGEST_VALUE: Final = 512
MOST_VALUES: Final = 64

_DESCRIBED: Final = "see /api/v1/openapi.json"


class BadQuery(GpuwatchdError):
    """A parameter that an address does not have, or that cannot have this value."""

    exit_code = USAGE
    default_page = "errors#web-request"


class Parameter(NamedTuple):
    """One parameter, of the query but for those in the path or in a header."""

    name: str
    about: str
    kind: Literal["text", "user", "flag", "pid", "instant", "duration", "path", "header"] = "text"
    key: str = ""
    """Its name in Python, where it is another one."""
    many: bool = False
    choices: tuple[str, ...] = ()
    example: str = ""


Text = Annotated[str, Meta(max_length=LONGEST_VALUE)]


class RequestBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every body."""


class SnoozeBody(RequestBody, frozen=True, kw_only=True):
    """Tell nobody of an alert, or of whatever fits a rule, for a while."""

    alert: Text | None = None
    """Its id or key, a pid, or "latest"; absent where a rule is given."""
    for_: Text = msgspec.field(name="for")
    """A duration such as 1h or 2d, at most 30d; of an alert also "until-resolved"."""
    why: Text | None = None
    even_critical: bool = False
    """Also keep still when it is critical."""
    gpu: Text | None = None
    user: Text | None = None
    process: Text | None = None
    framework: Text | None = None
    job: Text | None = None
    kind: Literal["leak", "gpu", "held", "limit"] | None = None


class FeedbackBody(RequestBody, frozen=True, kw_only=True):
    """Mark an alert as normal or as a leak."""

    alert: Text
    word: Literal["normal", "leak"]
    why: Text | None = None


class ReapBody(RequestBody, frozen=True, kw_only=True):
    """End a process: the one that was shown, named by what the answer said of it."""

    pid: Annotated[int, Meta(ge=1, lt=2**31)]
    started_at: Text
    """As the answer said it."""
    grace: Text = "30s"
    """How long each signal is given, at most 1h."""


class Endpoint(NamedTuple):
    """One address, and what is done there."""

    path: str
    """Below :data:`PREFIX`; ``{id}`` is one word."""
    verb: str
    """Whose ``--json`` is the same."""
    about: str
    ask: Callable[..., Answered]
    """Query, the ``{id}`` of the path, parameters or fields of the body by their names."""
    parameters: tuple[Parameter, ...] = ()
    answer: type[Answer] | None = None
    """Where it is one of those of the verb."""
    method: Literal["GET", "POST", "DELETE"] = "GET"
    body: type[RequestBody] | None = None
    example: Any = None
    """Of a body."""


GPU = Parameter("gpu", "Only this GPU: index, name, UUID or glob.", many=True, example="0")
_PID = Parameter("pid", "Only this process.", "pid", "pids", many=True, example="4711")
_USER = Parameter("user", "Only processes of this user: name, glob or number.", "user", many=True)
_SINCE = Parameter(
    "since", "From when on: 2h (ago), today, yesterday, 2026-11-21T08:00.", "instant", "since_s",
    example="24h",
)  # fmt: skip
_UNTIL = Parameter(
    "until", "Until when, written the same way; by default now.", "instant", "until_s"
)
_ALL = Parameter("all", "Also what has expired or was cleared.", "flag", "every")
_ALERT = Parameter("id", "The alert: id, key, a part of it, a pid, or latest.", "path")
_TAKEN = Parameter("id", "The number of the silence, or the alert.", "path")
TAG = Parameter(
    "If-None-Match", "The ETag of the last answer: 304 while nothing has changed.", "header"
)


ENDPOINTS: Final = (
    Endpoint(
        "/status", "status", "Every GPU now: used, growth, time left, who; open alerts; health.",
        live_answers.status, (GPU, _PID, _USER, TAG),
    ),
    Endpoint(
        "/predict", "predict", "The same, with a verdict in any case: without a live state from "
        "the history.", live_answers.predict, (GPU, _PID, _USER),
    ),
    Endpoint(
        "/alerts", "alerts", "Open alerts, or all since an instant; the newest first.",
        live_answers.alerts,
        (
            _ALL._replace(about="Also the resolved ones."),
            _SINCE,
            Parameter(
                "severity", "This severity and above.", choices=("info", "warning", "critical")
            ),
            GPU, _USER,
        ),
        alerts.Alerts,
    ),
    Endpoint(
        "/alerts/{id}", "alerts", "One alert: why, what was decided, where it was delivered.",
        live_answers.alert, (_ALERT,), alerts.AlertShown,
    ),
    Endpoint(
        "/zombies", "zombies", "Idle memory, and what would free it.", live_answers.idle_memory,
        (GPU, _USER),
    ),
    Endpoint(
        "/reaps/{id}", "reap", "What ending this process would send; once that has begun here, "
        "what has come of it.", reaping.lookup,
        (
            Parameter("id", "The pid.", "path"),
            Parameter("anew", "What would be sent, also after it was tried.", "flag"),
        ),
    ),
    Endpoint(
        "/history", "history", "Memory over time and what happened; of processes with pid or user.",
        recorded_answers.history,
        (
            _SINCE, _UNTIL,
            Parameter(
                "bucket", "Join samples: a duration such as 5m.", "duration", "bucket_s",
                example="5m",
            ),
            GPU, _PID, _USER,
            Parameter("events", "What happened, instead of memory.", "flag"),
        ),
    ),
    Endpoint(
        "/pictures", "plot", "The same as pictures: what a chart of it consists of, with fit and "
        "forecast.", recorded_answers.pictures, (_SINCE, _UNTIL, GPU, _PID, _USER),
    ),
    Endpoint(
        "/cost", "cost", "What leaks and idle memory cost.", recorded_answers.cost,
        (
            _SINCE,
            Parameter(
                "by", "Group totals by.", choices=("gpu", "user", "job", "incident")
            ),
            GPU, _USER,
        ),
    ),
    Endpoint(
        "/explain", "explain", "The whole reasoning of one verdict, and what to do next.",
        live_answers.explain,
        (Parameter("target", "A GPU, a pid or an alert; by default the worst verdict."),),
    ),
    Endpoint(
        "/snoozes", "snooze", "What is snoozed, the newest first.", live_answers.snoozes, (_ALL,)
    ),
    Endpoint(
        "/feedback", "feedback", "The labels of alerts, newest first.", live_answers.labels, (_ALL,)
    ),
    Endpoint(
        "/snoozes", "snooze", "Silence an alert, or what matches a rule, for a while.",
        live_answers.snooze, method="POST", body=SnoozeBody,
        example={"alert": "latest", "for": "1h", "why": "known"},
    ),
    Endpoint(
        "/snoozes/{id}", "snooze", "Take it back: by its number, or its alert.",
        live_answers.unsnooze, (_TAKEN,), method="DELETE",
    ),
    Endpoint(
        "/feedback", "feedback", "Mark an alert as normal or as a leak.", live_answers.label,
        method="POST", body=FeedbackBody,
        example={"alert": "latest", "word": "normal", "why": "fills its cache"},
    ),
    Endpoint(
        "/feedback/{id}", "feedback", "Remove the label of an alert.", live_answers.unlabel,
        (_TAKEN,), method="DELETE",
    ),
    Endpoint(
        "/reaps", "reap", "Begin to end a process of your own that has idle memory, the one that "
        "was shown: never by KILL. What comes of it is at its own address.",
        reaping.request, method="POST", body=ReapBody,
        example={"pid": 4711, "started_at": "2026-11-21T08:00:00.120Z"},
    ),
)  # fmt: skip


def read(endpoint: Endpoint, given: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the parameters of a request by their names in Python.

    Raises
    ------
    BadQuery
        When a parameter is unknown, too long or given twice, or cannot have its value.
    """
    asked = (each for each in endpoint.parameters if each.kind not in {"path", "header"})
    parameters = {parameter.name: parameter for parameter in asked}
    texts: dict[str, list[str]] = {}
    for count, (name, text) in enumerate(given):
        if name not in parameters:
            has = ", ".join(parameters) or "none"
            raise BadQuery("no such parameter", hint=f"parameters: {has}")
        if len(text) > LONGEST_VALUE or count >= MOST_VALUES:
            raise BadQuery(f"{name}: too long, or too many", hint=f"{LONGEST_VALUE} characters")
        texts.setdefault(name, []).append(text)
        if len(texts[name]) > 1 and not parameters[name].many:
            raise BadQuery(f"{name}: given twice", hint=_DESCRIBED)
    keywords: dict[str, Any] = {}
    for name, each in texts.items():
        parameter = parameters[name]
        try:
            values = tuple(_value(parameter, text) for text in each)
        except ValueError as error:
            raise BadQuery(f"{name}: {error}", hint=_DESCRIBED) from None
        keywords[parameter.key or name] = values if parameter.many else values[0]
    return keywords


def _value(parameter: Parameter, text: str) -> Any:
    """Return the value that a text means; ValueError with a reason where it means none."""
    if parameter.kind == "instant":
        return units.parse_instant(text, now_s=state_location.now_s())
    if parameter.kind == "duration":
        return _positive(units.parse_duration(text), "must be more than zero")
    if parameter.kind == "pid":
        return _positive(int(text) if units.is_number(text) else 0, "a number, 1 or more")
    choices = {"true": True, "1": True, "false": False, "0": False}
    if parameter.kind == "flag" and text not in choices:
        raise ValueError("true or false")
    if parameter.choices and text not in parameter.choices:
        raise ValueError(f"one of {', '.join(parameter.choices)}")
    if parameter.kind == "user" and not text.strip():
        raise ValueError("names no user: write a name, a glob, a number, or me")
    return choices[text] if parameter.kind == "flag" else text


def _positive(number: float, why: str) -> float:
    if number <= 0:
        raise ValueError(why)
    return number


def decoded_body(body: bytes, kind: type[RequestBody]) -> dict[str, Any]:
    """Return the fields of a body by their names in Python.

    Raises
    ------
    BadQuery
        When the body is not what is wanted.
    """
    try:
        return msgspec.structs.asdict(decoding.decode(body, kind))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        text = str(error) if isinstance(error, msgspec.ValidationError) else "no JSON object"
        raise BadQuery(f"the body: {text}", hint=_DESCRIBED) from None


_REFUSED: Final = {
    "400": "A parameter or a body that cannot be (exit code 2).",
    "401": "Without the token, or with a wrong one.",
    "403": "Not from this origin, or this user may not write or end it (exit code 1).",
    "404": "No such object, or no data (exit code 1).",
    "405": "This address has no such method.",
    "408": "A body that has not come whole within 10 seconds.",
    "409": "Ambiguous, too late, another process, or under way already (exit code 1).",
    "413": "A body or a query that is too large.",
    "415": "A body that is not application/json.",
    "421": "A Host header that does not name this server.",
    "429": "Too many wrong tokens.",
    "500": "An error of the configuration (exit code 5), or an internal one.",
    "503": "It cannot be known now: no GPU, no history, or too much is asked (exit code 1).",
}
_ABOUT: Final = """\
Every answer is what the verb of `gpuwatchctl` prints with `--json`; the header
`gpuwatchctl-exit-code` has the code that it would have ended with: 0 done, 1 failed, 2 usage,
3 findings (a leak, a firing alert, idle memory), 5 bad configuration. A failure has
`error` in place of `data`. Readers ignore keys that they do not know.
"""


def document() -> dict[str, Any]:
    """Return the whole description."""
    kinds: set[type[Any]] = {Failure, SnoozeBody, FeedbackBody, ReapBody}
    kinds |= {kind for endpoint in ENDPOINTS for kind in by_verb.ANSWERS[endpoint.verb]}
    ordered = sorted(kinds, key=lambda kind: kind.__name__)
    _, parts = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    paths: dict[str, Any] = {}
    for endpoint in ENDPOINTS:
        operations = paths.setdefault(PREFIX + endpoint.path, {})
        operations[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "gpuwatchd",
            "version": __version__,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:9753"}],
        "security": [{"token": []}],
        "paths": {**paths, "/healthz": {"get": _health()}},
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "`gpuwatchctl web --token` prints it.",
                }
            },
            "schemas": parts,
            "responses": {
                code: {"description": words, "content": _json(_ref(Failure))}
                for code, words in _REFUSED.items()
            },
        },
    }


def encoded() -> bytes:
    """Return the description as it is served."""
    return msgspec.json.encode(document())


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    kinds = (endpoint.answer,) if endpoint.answer else by_verb.ANSWERS[endpoint.verb]
    words = [word.strip("{}").capitalize() for word in endpoint.path.split("/") if word]
    responses = {"201" if endpoint.body else "200": _answer(kinds)}
    if TAG in endpoint.parameters:
        responses["304"] = {"description": "Nothing has changed."}
    codes = {"400", "401", "403", "404", "405", "409", "421", "429", "500", "503"}
    codes |= {"413", "415"} if endpoint.method != "GET" else set()
    codes |= {"408"} if endpoint.body else set()
    operation: dict[str, Any] = {
        "operationId": "".join([endpoint.method.lower(), *words]),
        "summary": endpoint.about,
        "tags": [endpoint.verb],
        "parameters": [_parameter(each) for each in endpoint.parameters],
        "responses": responses
        | {code: {"$ref": f"#/components/responses/{code}"} for code in sorted(codes)},
    }
    if endpoint.body:
        content = {"schema": _ref(endpoint.body), "example": endpoint.example}
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    return operation


def _health() -> dict[str, Any]:
    schema = {"type": "object", "properties": {"status": {"const": "ok"}}, "required": ["status"]}
    return {
        "operationId": "getHealthz",
        "summary": "Whether this server answers; it does not cover the GPUs.",
        "security": [],
        "responses": {"200": {"description": "It does.", "content": _json(schema)}},
    }


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "maxLength": 512}
    if parameter.kind == "flag":
        schema = {"type": "boolean", "default": False}
    elif parameter.kind == "pid":
        schema = {"type": "integer", "minimum": 1}
    elif parameter.choices:
        schema = {"type": "string", "enum": list(parameter.choices)}
    entry: dict[str, Any] = {"name": parameter.name, "in": "query", "description": parameter.about}
    if parameter.kind in {"path", "header"}:
        entry |= {"in": parameter.kind, "required": parameter.kind == "path"}
        schema = {"type": "string"}
    entry["schema"] = {"type": "array", "items": schema} if parameter.many else schema
    if parameter.many:
        entry |= {"style": "form", "explode": True}
    if parameter.example:
        value: Any = int(parameter.example) if parameter.kind == "pid" else parameter.example
        entry["example"] = [value] if parameter.many else value
    return entry


def _answer(kinds: tuple[type[Any], ...]) -> dict[str, Any]:
    schema = _ref(kinds[0]) if len(kinds) == 1 else {"anyOf": [_ref(kind) for kind in kinds]}
    code = {"description": "Of the verb.", "schema": {"type": "integer"}}
    return {
        "description": "As the verb prints it.",
        "headers": {"gpuwatchctl-exit-code": code},
        "content": _json(schema),
    }


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _ref(kind: type[Any]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}
