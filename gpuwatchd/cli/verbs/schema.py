"""``schema``: what the JSON of each verb has, as a JSON Schema."""

from __future__ import annotations

import json

import click

from gpuwatchd.cli import options, output
from gpuwatchd.view.answers import schema


def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Offer the names of schemas."""
    return [name for name in schema.NAMES if name.startswith(incomplete)]


@click.command("schema", epilog=options.examples("schema", "schema status", "schema error"))
@click.argument("name", required=False, metavar="[VERB]", shell_complete=complete)
def command(name: str | None) -> int:
    """Print the JSON Schema of what a verb answers with --json; without one, list them.

    Besides verbs: error (the failure of any), history-ndjson (its lines), command and ask (what
    the programs of [notify.command] and [act] read).
    """
    if name is None:
        _list()
    elif name not in schema.NAMES:
        raise click.BadParameter(f"no schema {name!r}; known: {', '.join(schema.NAMES)}")
    else:
        click.echo(json.dumps(schema.schema(name), indent=1, ensure_ascii=False))
    return 0


def _list() -> None:
    flags = options.current()
    rows = [(name, schema.schema_id(name), schema.title(name)) for name in schema.NAMES]
    if flags.json:
        data = [dict(zip(("name", "id", "title"), row, strict=True)) for row in rows]
        output.emit("schema", data, source="files")
        return
    out = output.Out(flags)
    widest = max(map(len, schema.NAMES))
    for name, identifier, title in rows:
        out.line(f"{name:<{widest}}  ", f"{title} ({identifier})")
