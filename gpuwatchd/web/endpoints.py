"""Which address of the API asks which verb, and with which parameters: one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from gpuwatchd.core.errors import GpuwatchdError

if TYPE_CHECKING:
    from collections.abc import Iterable

PREFIX: Final = "/api/v1"
LONGEST_VALUE: Final = 512
MOST_VALUES: Final = 64


class BadQuery(GpuwatchdError):
    """A parameter that an address does not have, or that cannot have this value."""

    exit_code = 2


class Parameter(NamedTuple):
    """One parameter of a query: an option of the verb."""

    name: str
    about: str
    kind: Literal["text", "flag", "number"] = "text"
    many: bool = False
    choices: tuple[str, ...] = ()
    example: str = ""
    option: str = ""
    """By default the same name."""

    @property
    def flag(self) -> str:
        """Return the option as the verb has it."""
        return self.option or f"--{self.name}"


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
_ALL = Parameter("all", "Also what is over or was taken back.", kind="flag")

ENDPOINTS: Final = (
    Endpoint(
        "/status", "status", "Every GPU now: used, growth, time left, who; open alerts; health.",
        ("--exit-code",), (_GPU, _PID, _USER),
    ),
    Endpoint(
        "/predict", "predict", "The same, with a judgement in any case: without a live state from "
        "the history.", ("--exit-code",), (_GPU, _PID, _USER),
    ),
    Endpoint(
        "/alerts", "alerts", "Open alerts, or all since an instant; the newest first.",
        ("--exit-code",),
        (
            Parameter("all", "Also those that are over.", kind="flag"),
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
        "/zombies", "zombies", "Memory that is held without work, and what would free it.",
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
    Endpoint("/feedback", "feedback", "What was said of alerts, newest first.", ("list",), (_ALL,)),
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
            out.append(f"{parameter.flag}={value}")
        elif _is_set(name, value):
            out.append(parameter.flag)
    return out if target is None else [*out, "--", target]


def _is_set(name: str, value: str) -> bool:
    if value in {"true", "1"}:
        return True
    if value in {"false", "0"}:
        return False
    raise BadQuery(f"{name}: true or false")
