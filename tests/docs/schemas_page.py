"""JSON Schemas, and the page that explains them: both are written from the typed shapes."""

from __future__ import annotations

import ast
import inspect
import json
from functools import cache
from typing import Any

import msgspec

from gpuwatchd.cli import answers as shapes
from gpuwatchd.cli.answers import alerts, base, findings, history, present, program
from gpuwatchd.core.model import alerts as model_told
from gpuwatchd.core.model import findings as model_judged
from gpuwatchd.core.model import readings as model_seen

DRAFT = "https://json-schema.org/draft/2020-12/schema"
NAMES = (*shapes.ANSWERS, *shapes.OTHERS)
_MODULES = (shapes, program, base, findings, history, present, alerts, model_judged, model_seen,
            model_told)  # fmt: skip
_UNITS = (
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
_EPOCH = "_at_s"
_TITLES = {
    "error": "the failure of any verb",
    "history-ndjson": "a line of gpuwatchctl history --format ndjson",
    "ask": "what a program of [act] argv reads on its standard input",
    "command": "what a program of [notify.command] reads on its standard input",
}

INTRODUCTION = """\
Every verb takes `--json` and answers with one object (`watch` and `demo`: one per line). What it
has is written down as a JSON Schema (draft 2020-12) that comes with the program:

```
gpuwatchctl schema              # which there are
gpuwatchctl schema status       # the schema itself
```

A schema is called `gpuwatchd:VERB:VERSION`; the version is `schema_version` of the answer. A key
that is added does not raise it, one that is renamed or changes its type does: **ignore keys that
you do not know**. The schemas allow further keys for that reason; that today's answers have no
others than those below is tested.

* Bytes are whole numbers; durations and rates end in their unit (`_s`, `_bytes_per_s`), shares are
  0 to 1, per cent end in `_pct`, money in `_usd`, watts in `_w`, degrees Celsius in `_c`.
* Instants are `at` or end in `_at`: RFC 3339 in UTC with milliseconds, `2026-11-21T08:44:03.120Z`.
* Unknown is `null`, never 0 or -1; there is no NaN and no infinity.
* A pid stands beside `started_at`: pids are used again. GPUs have a `uid`; the index is for
  display.
* A word of an enumeration is lower case with `-`; those of `check` are a monitoring system's.

A verb that fails has `error` instead of `data` (`analyze`: beside it), see [error](#error) and
[the errors](errors.md). Examples: [how to use the JSON](../how-to/use-the-json.md).
"""


@cache
def notes() -> dict[str, dict[str, str]]:
    """Return class name -> field -> the string that follows it in the source."""
    found: dict[str, dict[str, str]] = {}
    for module in _MODULES:
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.ClassDef):
                mine = found.setdefault(node.name, {})
                for before, after in zip(node.body, node.body[1:], strict=False):
                    if (
                        isinstance(before, ast.AnnAssign)
                        and isinstance(before.target, ast.Name)
                        and isinstance(after, ast.Expr)
                        and isinstance(after.value, ast.Constant)
                    ):
                        mine[before.target.id] = " ".join(str(after.value.value).split())
    return found


def unit_of(key: str) -> str:
    """Return the unit that the name of a key carries; "" for none."""
    if key.endswith(_EPOCH):
        return "seconds since 1970"
    if key == "at" or key.endswith("_at"):
        return "RFC 3339"
    return next((unit for end, unit in _UNITS if key.endswith(end)), "")


def note_of(kind: type[Any], field: str) -> str:
    """Return what is said of a field, by its class or one that it builds on."""
    found = (notes().get(one.__name__, {}).get(field) for one in kind.__mro__)
    return next((note for note in found if note), "")


def types_of(name: str) -> tuple[type[msgspec.Struct], ...]:
    """Return what a schema allows, without the failure that it allows besides."""
    return {**shapes.ANSWERS, **shapes.OTHERS}[name]


@cache
def _components(name: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    kinds = [*types_of(name), *([base.Failure] if name in shapes.ANSWERS else [])]
    tops, parts = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    return list(tops), parts


def structs_of(name: str) -> dict[str, type[msgspec.Struct]]:
    """Return every struct of a schema by its name, in the order in which they are met."""
    found: dict[str, type[msgspec.Struct]] = {}

    def visit(kind: Any) -> None:
        if isinstance(kind, msgspec.inspect.StructType):
            if kind.cls.__name__ not in found:
                found[kind.cls.__name__] = kind.cls
                hidden = _private(kind.cls)
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


def _private(kind: Any) -> set[str]:
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
        for key in _private(kinds[part]):
            content["properties"].pop(key, None)
        content.pop("additionalProperties", None)
        kind: Any = kinds[part]
        fields = {field.encode_name: field.name for field in msgspec.structs.fields(kind)}
        for key, value in content.get("properties", {}).items():
            said = [note_of(kind, fields[key]).rstrip("."), unit_of(key)]
            words = "; ".join(one for one in said if one)
            if words and "description" not in value:
                value["description"] = words
    title = _TITLES.get(name, f"gpuwatchctl {name} --json")
    one = len(tops) == 1
    return {
        "$schema": DRAFT,
        "$id": f"gpuwatchd:{name}:{shapes.VERSION}",
        "title": title,
        **(tops[0] if one else {"anyOf": tops}),
        "$defs": parts,
    }


def written(name: str) -> str:
    """Return a schema as it is shipped."""
    return json.dumps(schema(name), indent=1, ensure_ascii=False) + "\n"


# ---- the page -----------------------------------------------------------------------------------


def _type(value: dict[str, Any]) -> str:
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in value:
        return " or ".join(dict.fromkeys(_type(one) for one in value["anyOf"]))
    if "enum" in value:
        return ", ".join("null" if one is None else f"`{one}`" for one in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    kind = value.get("type", "any")
    if kind == "array":
        return f"list of {_type(value.get('items', {}))}"
    if kind == "object" and "additionalProperties" in value:
        more = value["additionalProperties"]
        return f"object of {_type(more if isinstance(more, dict) else {})}"
    plain: dict[str, str] = {
        "integer": "whole number",
        "string": "text",
        "boolean": "true or false",
    }
    return plain.get(kind, str(kind))


def _table(name: str, kind: type[msgspec.Struct], part: dict[str, Any]) -> list[str]:
    told_of = (kind.__doc__ or "").strip().split("\n\n")
    lines = [f"### {name}", "", *(" ".join(one.split()) + "\n" for one in told_of)]
    lines += ["| key | type | unit | meaning |", "|---|---|---|---|"]
    required = set(part.get("required", ()))
    fields = {field.encode_name: field.name for field in msgspec.structs.fields(kind)}
    for key, value in part["properties"].items():
        note = note_of(kind, fields[key])
        shown = {**value}
        shown.pop("description", None)
        absent = "" if key in required else "; may be absent"
        lines.append(f"| `{key}` | {_type(shown)}{absent} | {unit_of(key)} | {note} |")
    return [*lines, ""]


def page() -> list[str]:
    """Return the lines of docs/reference/json.md."""
    lines = ["# JSON", "", INTRODUCTION]
    lines += ["## The head of every answer", "", *_headlines()]
    lines += ["## Verbs", "", "| verb | `data` | beside it |", "|---|---|---|"]
    seen_parts: dict[str, tuple[type[msgspec.Struct], dict[str, Any]]] = {}
    head = set(_fields_of(base.Answer)) | {"verb", "data"}
    for name in NAMES:
        whole = schema(name)
        for part, kind in structs_of(name).items():
            seen_parts.setdefault(part, (kind, whole["$defs"][part]))
        if name not in shapes.ANSWERS:
            continue
        for kind in types_of(name):
            properties = whole["$defs"][kind.__name__]["properties"]
            beside = [
                f"`{key}`: {_type(_bare(value))}"
                for key, value in properties.items()
                if key not in head
            ]
            title = (kind.__doc__ or "").strip().splitlines()[0].replace("``", "`").rstrip(".")
            data = _type(_bare(properties["data"]))
            lines.append(f"| {title} | {data} | {'<br>'.join(beside)} |")
    lines += ["", "## Error", ""]
    for name in ("Failure", "Fault"):
        lines += _table(name, getattr(base, name), schema("error")["$defs"][name])
        seen_parts.pop(name, None)
    lines += ["## Lines and hooks", ""]
    for name in ("history-ndjson", "command", "ask"):
        refs = ", ".join(_type(one) for one in _tops(name))
        lines.append(f"* `{name}`, {_TITLES[name]}: {refs}")
    lines += ["", "## Parts", ""]
    answers = {kind.__name__ for kinds in shapes.ANSWERS.values() for kind in kinds}
    for name, found in sorted(seen_parts.items()):
        if name not in answers and name not in {"Warned", "DaemonState"}:
            lines += _table(name, *found)
    return lines


def _tops(name: str) -> list[dict[str, Any]]:
    whole = schema(name)
    found: list[dict[str, Any]] = whole.get("anyOf") or [{"$ref": whole["$ref"]}]
    return found


def _bare(value: dict[str, Any]) -> dict[str, Any]:
    return {key: held for key, held in value.items() if key != "description"}


def _fields_of(kind: type[msgspec.Struct]) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(kind)]


def _headlines() -> list[str]:
    parts = schema("doctor")["$defs"]
    lines = ["| key | type | meaning |", "|---|---|---|", "| `verb` | text | who answers |"]
    for key in _fields_of(base.Answer):
        value = parts["Doctor"]["properties"][key]
        unit = unit_of(key)
        note = note_of(base.Answer, key)
        said = "; ".join((note.rstrip("."), unit)) if note and unit else note or unit
        lines.append(f"| `{key}` | {_type(_bare(value))} | {said} |")
    lines += ["| `data` | see below | the payload |", ""]
    for name in ("Warned", "DaemonState"):
        lines += _table(name, getattr(base, name), parts[name])
    return lines
