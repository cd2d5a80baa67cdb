"""The page on the JSON API, from the OpenAPI document that the server itself hands out."""

from __future__ import annotations

from typing import Any

import msgspec

from gpuwatchd.web import openapi

_HEAD = """\
# The JSON API

[`gpuwatchctl web`](../how-to/live-page.md) serves it, on loopback, to whoever has the token:

```
gpuwatchctl web --token | sed 's/^/Authorization: Bearer /' | curl -H @- http://127.0.0.1:9753/api/v1/status
```

{about}
What the answers consist of: [the JSON of the verbs](json.md). The same as an OpenAPI 3.1
document: `/api/v1/openapi.json`, which needs no token. Addresses below `/api/v1/page` belong to the
live page and may change with it.
"""


def page() -> list[str]:
    """Return the lines of the page."""
    document = openapi.document()
    lines = [_HEAD.format(about=document["info"]["description"])]
    for path, methods in document["paths"].items():
        for method, one in methods.items():
            lines += [f"## {method.upper()} {path}", "", one["summary"], ""]
            lines += _parameters(one) + _body(one)
    lines += ["## When it refuses", "", "| status | means |", "|---|---|"]
    refused = document["components"]["responses"]
    lines += [f"| {code} | {each['description']} |" for code, each in refused.items()]
    lines += ["", "`Retry-After` says after how many seconds it is worth asking again (429, 503)."]
    return lines


def _parameters(one: dict[str, Any]) -> list[str]:
    known = one.get("parameters", [])
    if not known:
        return []
    rows = [
        f"| `{each['name']}` | {each['in']} | {_kind(each['schema'])} | {each['description']} |"
        for each in known
    ]
    return ["| parameter | in | is | means |", "|---|---|---|---|", *rows, ""]


def _kind(schema: dict[str, Any]) -> str:
    if schema.get("type") == "array":
        return f"{_kind(schema['items'])}, repeatable"
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    return {"boolean": "`true` or `false`", "integer": "number"}.get(schema["type"], "text")


def _body(one: dict[str, Any]) -> list[str]:
    if "requestBody" not in one:
        return []
    content = one["requestBody"]["content"]["application/json"]
    name = content["schema"]["$ref"].rpartition("/")[2]
    schema = openapi.document()["components"]["schemas"][name]
    needed = set(schema.get("required", []))
    keys = [f"`{key}`{'' if key in needed else ' (may be absent)'}" for key in schema["properties"]]
    example = msgspec.json.encode(content["example"]).decode()
    return [f"Body: {', '.join(keys)}. Such as:", "", "```json", example, "```", ""]
