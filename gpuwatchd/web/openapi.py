"""Addresses and request bodies of the API, and its description (OpenAPI 3.1) made of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from gpuwatchd import __version__
from gpuwatchd.core import typed
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.view.answers import by_verb
from gpuwatchd.view.answers.base import Failure

if TYPE_CHECKING:
    from collections.abc import Iterable

# Which address of the API asks which verb, and with which parameters: one table.

PREFIX: Final = "/api/v1"
LONGEST_VALUE: Final = 512
MOST_VALUES: Final = 64


class BadQuery(GpuwatchdError):
    """A parameter that an address does not have, or that cannot have this value."""

    exit_code = 2
    default_page = "errors#web-request"


class Parameter(NamedTuple):
    """One parameter of a query: the option of the verb that has its name."""

    name: str
    about: str
    kind: Literal["text", "flag", "number"] = "text"
    many: bool = False
    choices: tuple[str, ...] = ()
    example: str = ""


class Endpoint(NamedTuple):
    """One address that is read."""

    path: str
    """Below :data:`PREFIX`; ``{id}`` is one word."""
    verb: str
    about: str
    words: tuple[str, ...] = ()
    """After the verb, before what is asked for."""
    parameters: tuple[Parameter, ...] = ()
    target: str = ""
    """Name of the parameter that is no option but a word of its own: in the path, or a query."""
    shape: int = 0
    """Which of the verb's shapes answers."""


_GPU = Parameter("gpu", "Only this GPU: index, name, UUID or glob.", many=True, example="0")
_PID = Parameter("pid", "Only this process.", kind="number", many=True, example="4711")
_USER = Parameter("user", "Only processes of this user: name, glob or number.", many=True)
_SINCE = Parameter(
    "since", "From when on: 2h (ago), today, yesterday, 2026-11-21T08:00.", example="24h"
)
_UNTIL = Parameter("until", "Until when, written the same way; by default now.")
_ALL = Parameter("all", "Also what has expired or was cleared.", kind="flag")

ENDPOINTS: Final = (
    Endpoint(
        "/status", "status", "Every GPU now: used, growth, time left, who; open alerts; health.",
        ("--exit-code",), (_GPU, _PID, _USER),
    ),
    Endpoint(
        "/predict", "predict", "The same, with a verdict in any case: without a live state from "
        "the history.", ("--exit-code",), (_GPU, _PID, _USER),
    ),
    Endpoint(
        "/alerts", "alerts", "Open alerts, or all since an instant; the newest first.",
        ("--exit-code",),
        (
            Parameter("all", "Also the resolved ones.", kind="flag"),
            _SINCE,
            Parameter(
                "severity", "This severity and above.", choices=("info", "warning", "critical")
            ),
            _GPU, _USER,
        ),
    ),
    Endpoint(
        "/alerts/{id}", "alerts", "One alert: why, what was decided, where it was delivered.",
        ("show",), target="id", shape=1,
    ),
    Endpoint(
        "/zombies", "zombies", "Idle memory, and what would free it.",
        ("--exit-code",), (_GPU, _USER),
    ),
    Endpoint(
        "/history", "history", "Memory over time and what happened; of processes with pid or user.",
        (),
        (
            _SINCE, _UNTIL,
            Parameter("bucket", "Join samples: a duration such as 5m.", example="5m"),
            _GPU, _PID, _USER,
            Parameter("events", "What happened, instead of memory.", kind="flag"),
        ),
    ),
    Endpoint(
        "/pictures", "plot", "The same as pictures: what a chart of it consists of, with fit and "
        "forecast.", (), (_SINCE, _UNTIL, _GPU, _PID, _USER),
    ),
    Endpoint(
        "/cost", "cost", "What leaks and idle memory cost.", (),
        (
            _SINCE,
            Parameter(
                "by", "What it is added up by.", choices=("gpu", "user", "job", "incident")
            ),
            _GPU, _USER,
        ),
    ),
    Endpoint(
        "/explain", "explain", "The whole reasoning of one verdict, and what to do next.",
        (), (Parameter("target", "A GPU, a pid or an alert; by default the worst verdict."),),
        target="target",
    ),
    Endpoint("/snoozes", "snooze", "What is snoozed, the newest first.", ("list",), (_ALL,)),
    Endpoint("/feedback", "feedback", "The labels of alerts, newest first.", ("list",), (_ALL,)),
)  # fmt: skip


def words(endpoint: Endpoint, query: Iterable[tuple[str, str]], target: str | None) -> list[str]:
    """Return the words to ask the verb with.

    Parameters
    ----------
    query
        Names and values, decoded.
    target
        What stands in the path; None where nothing does.

    Raises
    ------
    BadQuery
        When a parameter is unknown, too long, or given twice.
    """
    parameters = {parameter.name: parameter for parameter in endpoint.parameters}
    out = [endpoint.verb, *endpoint.words]
    names: set[str] = set()
    for count, (name, value) in enumerate(query):
        parameter = parameters.get(name)
        if parameter is None:
            has = ", ".join(parameters) or "none"
            raise BadQuery("no such parameter", hint=f"parameters: {has}")
        if len(value) > LONGEST_VALUE or count >= MOST_VALUES:
            raise BadQuery(f"{name}: too long, or too many", hint=f"{LONGEST_VALUE} characters")
        if name in names and not parameter.many:
            raise BadQuery(f"{name}: given twice")
        names.add(name)
        if name == endpoint.target:
            target = value
        elif parameter.kind != "flag":
            out.append(f"--{name}={value}")
        elif _is_set(name, value):
            out.append(f"--{name}")
    return out if target is None else [*out, "--", target]


def _is_set(name: str, value: str) -> bool:
    if value in {"true", "1"}:
        return True
    if value in {"false", "0"}:
        return False
    raise BadQuery(f"{name}: true or false")


# What is written through the API: the bodies of requests, and the words of the verbs for them.

Text = Annotated[str, Meta(max_length=LONGEST_VALUE)]
_RULE = ("gpu", "user", "process", "framework", "job", "kind")


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
    kind: Literal["leak", "gpu", "held"] | None = None


class FeedbackBody(RequestBody, frozen=True, kw_only=True):
    """Mark an alert as normal or as a leak."""

    alert: Text
    word: Literal["normal", "leak"]
    why: Text | None = None


def snooze(body: bytes) -> list[str]:
    """Return the words that set a silence.

    Raises
    ------
    BadQuery
        When the body is not what is wanted.
    """
    wish = _decoded(body, SnoozeBody)
    given = [f"--{name}={value}" for name in _RULE if (value := getattr(wish, name)) is not None]
    if wish.why:
        given.append(f"--why={wish.why}")
    if wish.even_critical:
        given.append("--even-critical")
    named = [] if wish.alert is None else [wish.alert]
    return ["snooze", "set", *given, "--", *named, wish.for_]


def feedback(body: bytes) -> list[str]:
    """Return the words that say what an alert is.

    Raises
    ------
    BadQuery
        When the body is not what is wanted.
    """
    wish = _decoded(body, FeedbackBody)
    why = [f"--why={wish.why}"] if wish.why else []
    return ["feedback", "say", *why, "--", wish.alert, wish.word]


def _decoded(body: bytes, kind: type[Any]) -> Any:
    try:
        return typed.decode(body, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        text = str(error) if isinstance(error, msgspec.ValidationError) else "no JSON object"
        raise BadQuery(f"the body: {text}", hint="see /api/v1/openapi.json") from None


_WRITTEN: Final = (
    (
        "/snoozes",
        "post",
        "snooze",
        SnoozeBody,
        "Silence an alert, or what matches a rule, for a while.",
        {"alert": "latest", "for": "1h", "why": "known"},
    ),
    ("/snoozes/{id}", "delete", "snooze", None, "Take it back: by its number, or its alert.", None),
    (
        "/feedback",
        "post",
        "feedback",
        FeedbackBody,
        "Mark an alert as normal or as a leak.",
        {"alert": "latest", "word": "normal", "why": "fills its cache"},
    ),
    ("/feedback/{id}", "delete", "feedback", None, "Remove the label of an alert.", None),
)
_REFUSED: Final = {
    "400": "A parameter or a body that cannot be (exit code 2).",
    "401": "Without the token, or with a wrong one.",
    "403": "Not from this origin, or this user may not write (exit code 1).",
    "404": "No such object, or no data (exit code 1).",
    "405": "This address has no such method.",
    "408": "A body that has not come whole within 10 seconds.",
    "409": "Ambiguous, or too late (exit code 1).",
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
    kinds: set[type[Any]] = {Failure, SnoozeBody, FeedbackBody}
    kinds |= {kind for endpoint in ENDPOINTS for kind in by_verb.ANSWERS[endpoint.verb]}
    ordered = sorted(kinds, key=lambda one: one.__name__)
    _, parts = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    paths: dict[str, Any] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(PREFIX + endpoint.path, {})["get"] = _read(endpoint)
    for path, method, verb, body, about, example in _WRITTEN:
        paths.setdefault(PREFIX + path, {})[method] = _write(
            path, method, verb, body, about, example
        )
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


def _read(endpoint: Endpoint) -> dict[str, Any]:
    kinds = by_verb.ANSWERS[endpoint.verb]
    if endpoint.verb == "alerts":
        kinds = (kinds[endpoint.shape],)
    parameters = [_parameter(each) for each in endpoint.parameters]
    if endpoint.target == "id":
        parameters.append(_id("The alert: id, key, a part of it, a pid, or latest."))
    if endpoint.path == "/status":
        parameters.append(
            {
                "name": "If-None-Match",
                "in": "header",
                "schema": {"type": "string"},
                "description": "The ETag of the last answer: 304 while nothing has changed.",
            }
        )
    more = {"304": {"description": "Nothing has changed."}} if endpoint.path == "/status" else {}
    return {
        "operationId": _name("get", endpoint.path),
        "summary": endpoint.about,
        "tags": [endpoint.verb],
        "parameters": parameters,
        "responses": {"200": _answer(kinds), **more, **_refused("400", "404", "405", "409")},
    }


def _write(  # noqa: PLR0917 - one argument per column of the table
    path: str, method: str, verb: str, body: type[Any] | None, about: str, example: Any
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": _name(method, path),
        "summary": about,
        "tags": [verb],
        "responses": {
            "200" if method == "delete" else "201": _answer(by_verb.ANSWERS[verb]),
            **_refused("400", "404", "405", "409", "413", "415", *(["408"] if body else [])),
        },
    }
    if body is None:
        found["parameters"] = [_id("The number of the silence, or the alert.")]
    else:
        content = {"schema": _ref(body), "example": example}
        found["requestBody"] = {"required": True, "content": {"application/json": content}}
    return found


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
    elif parameter.kind == "number":
        schema = {"type": "integer", "minimum": 1}
    elif parameter.choices:
        schema = {"type": "string", "enum": list(parameter.choices)}
    found: dict[str, Any] = {"name": parameter.name, "in": "query", "description": parameter.about}
    found["schema"] = {"type": "array", "items": schema} if parameter.many else schema
    if parameter.many:
        found |= {"style": "form", "explode": True}
    if parameter.example:
        value: Any = int(parameter.example) if parameter.kind == "number" else parameter.example
        found["example"] = [value] if parameter.many else value
    return found


def _id(about: str) -> dict[str, Any]:
    schema = {"type": "string"}
    return {"name": "id", "in": "path", "required": True, "description": about, "schema": schema}


def _answer(kinds: tuple[type[Any], ...]) -> dict[str, Any]:
    schema = _ref(kinds[0]) if len(kinds) == 1 else {"anyOf": [_ref(kind) for kind in kinds]}
    code = {"description": "Of the verb.", "schema": {"type": "integer"}}
    return {
        "description": "As the verb prints it.",
        "headers": {"gpuwatchctl-exit-code": code},
        "content": _json(schema),
    }


def _refused(*codes: str) -> dict[str, Any]:
    always = ("401", "403", "421", "429", "500", "503")
    return {code: {"$ref": f"#/components/responses/{code}"} for code in sorted({*codes, *always})}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _ref(kind: type[Any]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _name(method: str, path: str) -> str:
    words = [word.strip("{}").capitalize() for word in path.split("/") if word]
    return method + "".join(words)
