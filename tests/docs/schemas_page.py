"""The page that explains the JSON of every verb, from the schemas."""

from __future__ import annotations

from typing import Any

import msgspec

from gpuwatchd.core import codes
from gpuwatchd.view.answers import base
from gpuwatchd.view.answers import schema as by_verb
from gpuwatchd.view.answers.schema import (
    NAMES,
    TITLES,
    note_of,
    schema,
    structs_of,
    types_of,
    unit_of,
)

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


def _type(value: dict[str, Any]) -> str:
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        if words := getattr(codes, name, None):
            return _type({"enum": [*words]})
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
        if name not in by_verb.ANSWERS:
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
        lines.append(f"* `{name}`, {TITLES[name]}: {refs}")
    lines += ["", "## Parts", ""]
    tops = {kind.__name__ for kinds in by_verb.ANSWERS.values() for kind in kinds}
    for name, found in sorted(seen_parts.items()):
        if name not in tops and name not in {"Warned", "DaemonState"}:
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
