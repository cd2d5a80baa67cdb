"""``schema``: what the JSON of each verb has, as a JSON Schema; the files come with the program."""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING

import click

from gpuwatchd.cli import envelope, options, output
from gpuwatchd.core.errors import GpuwatchdError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

FOLDER = "schemas"


def names() -> list[str]:
    """Return the schemas that there are, in order."""
    place = resources.files("gpuwatchd.cli") / FOLDER
    try:
        texts = [traversable.name for traversable in place.iterdir()]
    except OSError:
        texts = []
    return sorted(name.removesuffix(".json") for name in texts if name.endswith(".json"))


def read(name: str) -> str:
    """Return one schema as it is shipped.

    Raises
    ------
    GpuwatchdError
        When it cannot be read.
    """
    try:
        file = resources.files("gpuwatchd.cli") / FOLDER / f"{name}.json"
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise GpuwatchdError(
            f"the schema {name} cannot be read: {error.strerror}",
            hint="reinstall gpuwatchd",
            page="errors#installation",
        ) from error


def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the names of schemas."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415 - only at a TAB

    return [CompletionItem(name) for name in names() if name.startswith(incomplete)]


@click.command("schema", epilog=options.examples("schema", "schema status", "schema error"))
@click.argument("name", required=False, metavar="[VERB]", shell_complete=complete)
def command(name: str | None) -> int:
    """Print the JSON Schema of what a verb answers with --json; without one, list them.

    Besides verbs: error (the failure of any), history-ndjson (its lines), command and ask (what
    the programs of [notify.command] and [act] read).
    """
    known = names()
    if not known:
        raise GpuwatchdError(
            "the schemas were not installed with the program",
            hint="reinstall gpuwatchd",
            page="errors#installation",
        )
    if name is not None:
        if name not in known:
            raise click.BadParameter(f"no schema {name!r}; known: {', '.join(known)}")
        click.echo(read(name), nl=False)
        return 0
    _list(known)
    return 0


def _list(known: list[str]) -> None:
    flags = options.current()
    heads = [json.loads(read(text)) for text in known]
    if flags.json:
        data = [
            {"name": text, "id": head["$id"], "title": head["title"]}
            for text, head in zip(known, heads, strict=True)
        ]
        output.emit_json(envelope.answer("schema", data, source="files"))
        return
    out = output.Out(flags)
    widest = max(map(len, known))
    for text, head in zip(known, heads, strict=True):
        out.line(f"{text:<{widest}}  ", f"{head['title']} ({head['$id']})")
