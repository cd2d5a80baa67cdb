"""The JSON Schema of an answer: made from its Struct, and from the notes beside its fields."""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
from functools import cache
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gpuwatchd.core.model import Finding, Message
from gpuwatchd.view.answers import (
    alerts,
    base,
    current,
    explanation,
    fleet,
    history,
    inspection,
    program,
    report,
)
from gpuwatchd.view.answers.base import Failure, Shape


class CommandInput(msgspec.Struct, frozen=True, kw_only=True):
    """What a program of ``[notify.command]`` reads on its standard input: one object.

    Names are those of the daemon: instants are epoch seconds (`_at_s`), unknown is null.
    """

    schema_version: int
    message: Message
    """Without its finding, which stands beside it."""
    finding: Finding | None
    """The judgement that the message is about."""


class AskedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The job that is asked to save its work."""

    pid: int
    started_at_s: float | None
    name: str


class AskInput(msgspec.Struct, frozen=True, kw_only=True):
    """What the program of ``[act] argv`` reads on its standard input: one object.

    Names are those of the daemon: instants are epoch seconds (`_at_s`), unknown is null.
    """

    schema_version: int
    ask: Literal["checkpoint"]
    process: AskedProcess
    finding: Finding | UnsetType = UNSET
    """The judgement that is the reason; absent where a person asks without one."""


ANSWERS: Final[dict[str, tuple[type[Shape], ...]]] = {
    "status": (current.Status,),
    "watch": (current.Watch,),
    "predict": (current.Predict,),
    "explain": (explanation.Explain,),
    "zombies": (current.IdleMemory,),
    "plot": (history.Plot,),
    "history": (history.History, history.HistoryOfProcesses, history.HistoryQueries),
    "report": (report.Report,),
    "alerts": (alerts.Alerts, alerts.AlertShown),
    "snooze": (alerts.Snooze,),
    "feedback": (alerts.Feedback,),
    "cost": (report.Cost,),
    "checkpointed": (program.Checkpointed,),
    "inspect": (inspection.Inspect,),
    "analyze": (history.Analyze,),
    "backtest": (history.Backtest,),
    "export": (history.Export,),
    "web": (program.Web,),
    "doctor": (program.Doctor,),
    "ask-checkpoint": (program.AskCheckpoint,),
    "reap": (current.Reap,),
    "hold": (program.ProcessHolds,),
    "release": (program.DriverRelease,),
    "config": (program.ConfigPath, program.ConfigPrint, program.ConfigInit, program.ConfigValidate),
    "policy": (alerts.PolicyShown, alerts.PolicyTested),
    "notify": (alerts.Notify, alerts.NotifyAdded, alerts.NotifyDigest),
    "check": (program.Check,),
    "metrics": (program.Metrics,),
    "service": (program.ServiceStatus, program.ServicePrint, program.ServiceDone),
    "demo": (program.DemoBegins, program.DemoGoesOn, program.DemoEnds),
    "completion": (program.Completion,),
    "docs": (program.PageShown, program.Pages, program.PagesFound),
    "schema": (program.Schemas,),
    "fleet": (fleet.FleetStatus, fleet.FleetExplain),
}
"""Verb -> what it may answer; besides, any of them may fail (``Failure``)."""
OTHERS: Final[dict[str, tuple[type[msgspec.Struct], ...]]] = {
    "error": (Failure,),
    "history-ndjson": (history.DeviceRow, history.ProcessRow, history.EventRow),
    "command": (CommandInput,),
    "ask": (AskInput,),
    "fleet-round": (fleet.FleetRound,),
}
"""What is JSON and no answer: the failure of any verb, lines without a head, what hooks read."""


NAMES: Final = tuple(sorted((*ANSWERS, *OTHERS)))
_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_UNITS: Final = (
    ("_bytes_per_s", "bytes per second"),
    ("_bytes", "bytes"),
    ("_gpu_hours", "GPU-hours"),
    ("gpu_hours", "GPU-hours"),
    ("gib_hours", "GiB-hours"),
    ("_hours", "hours"),
    ("_per_s", "per second"),
    ("_s", "seconds"),
    ("_j", "joules"),
    ("_w", "watts"),
    ("_c", "degrees Celsius"),
    ("_pct", "per cent"),
    ("_usd", "US dollars"),
    ("_days", "days"),
    ("share", "0 to 1"),
    ("confidence", "0 to 1"),
)
_EPOCH: Final = "_at_s"
TITLES: Final = {
    "error": "the failure of any verb",
    "history-ndjson": "a line of gpuwatchctl history --format ndjson",
    "ask": "what a program of [act] argv reads on its standard input",
    "fleet-round": "a line of gpuwatchd fleet",
    "command": "what a program of [notify.command] reads on its standard input",
}


@cache
def notes(module: str) -> dict[str, dict[str, str]]:
    """Return class name -> field -> the string that follows it, of a module that is loaded."""
    return {
        node.name: {
            before.target.id: inspect.cleandoc(str(after.value.value))
            for before, after in itertools.pairwise(node.body)
            if isinstance(before, ast.AnnAssign)
            and isinstance(before.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        }
        for node in ast.parse(inspect.getsource(sys.modules[module])).body
        if isinstance(node, ast.ClassDef)
    }


def unit_of(key: str) -> str:
    """Return the unit that the name of a key carries; "" for none."""
    if key.endswith(_EPOCH):
        return "seconds since 1970"
    if key == "at" or key.endswith("_at"):
        return "RFC 3339"
    return next((unit for end, unit in _UNITS if key.endswith(end)), "")


def schema_id(name: str) -> str:
    """Return the identifier of a schema, which carries the version of the answers."""
    return f"gpuwatchd:{name}:{base.SCHEMA_VERSION}"


def title(name: str) -> str:
    """Return what a schema describes."""
    return TITLES.get(name, f"gpuwatchctl {name} --json")


def note_of(kind: type[Any], field: str) -> str:
    """Return what is said of a field, by its class or one that it builds on."""
    classes = [one for one in kind.__mro__ if one.__module__.startswith("gpuwatchd.")]
    texts = (notes(one.__module__).get(one.__name__, {}).get(field) for one in classes)
    return " ".join(next((note for note in texts if note), "").split())


def types_of(name: str) -> tuple[type[msgspec.Struct], ...]:
    """Return what a schema allows, without the failure that it allows besides."""
    return {**ANSWERS, **OTHERS}[name]


@cache
def _components(name: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    kinds = [*types_of(name), *([base.Failure] if name in ANSWERS else [])]
    tops, parts = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    return list(tops), parts


def structs_of(name: str) -> dict[str, type[msgspec.Struct]]:
    """Return every struct of a schema by its name, in the order in which they are met."""
    found: dict[str, type[msgspec.Struct]] = {}

    def visit(kind: Any) -> None:
        if isinstance(kind, msgspec.inspect.StructType):
            if kind.cls.__name__ not in found:
                found[kind.cls.__name__] = kind.cls
                hidden = _internal(kind.cls)
                for field in (one for one in kind.fields if one.encode_name not in hidden):
                    visit(field.type)
            return
        for part in ("types", "item_types"):
            for inner in getattr(kind, part, ()):
                visit(inner)
        for part in ("item_type", "key_type", "value_type"):
            inner = getattr(kind, part, None)
            if inner is not None:
                visit(inner)

    for kind in types_of(name):
        visit(msgspec.inspect.type_info(kind))
    return found


def _internal(kind: Any) -> set[str]:
    """Return the fields of a value that leave this program never: they are unset then."""
    model = kind.__module__.startswith("gpuwatchd.core.model")
    fields = msgspec.structs.fields(kind)
    return {one.encode_name for one in fields if model and one.default is msgspec.UNSET}


def schema(name: str) -> dict[str, Any]:
    """Return one JSON Schema."""
    tops, every = _components(name)
    kinds = {**structs_of(name), "Failure": base.Failure, "Fault": base.Fault}
    parts = {part: content for part, content in every.items() if part in kinds}
    for part, content in parts.items():
        for key in _internal(kinds[part]):
            content["properties"].pop(key, None)
        content.pop("additionalProperties", None)
        kind: Any = kinds[part]
        fields = {field.encode_name: field.name for field in msgspec.structs.fields(kind)}
        for key, value in content.get("properties", {}).items():
            said = [note_of(kind, fields[key]).rstrip("."), unit_of(key)]
            words = "; ".join(one for one in said if one)
            if words and "description" not in value:
                value["description"] = words
    one = len(tops) == 1
    return {
        "$schema": _DRAFT,
        "$id": schema_id(name),
        "title": title(name),
        **(tops[0] if one else {"anyOf": tops}),
        "$defs": parts,
    }
