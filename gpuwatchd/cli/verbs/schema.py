"""``schema``: what the JSON of each verb has, as a JSON Schema."""

from __future__ import annotations

import json

import click

from gpuwatchd.cli import options, output
from gpuwatchd.view.answers import schema
from gpuwatchd.view.answers.program import SchemaName, Schemas


@click.command("schema", epilog=options.examples("schema", "schema status", "schema error"))
@click.argument(
    "name",
    required=False,
    metavar="[VERB]",
    shell_complete=options.complete_from(lambda: schema.NAMES),
)
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
    rows = [
        SchemaName(name=name, id=schema.schema_id(name), title=schema.title(name))
        for name in schema.NAMES
    ]
    if flags.json:
        output.emit_answer(Schemas, rows, source="files")
        return
    out = output.Out(flags)
    widest = max(map(len, schema.NAMES))
    for row in rows:
        out.line(f"{row.name:<{widest}}  ", f"{row.title} ({row.id})")
