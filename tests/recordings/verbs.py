"""What every verb answers on every machine."""

from __future__ import annotations

import contextlib
import re
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from tests.recordings import places
from tests.recordings.calling import ASCII, COLOUR, JSON, LOOKS, NARROW, PLAIN, WIDE, call, ctl
from tests.recordings.frozen import FOREIGN
from tests.recordings.items import Item, listed
from tests.recordings.worlds import INCIDENTS, WORLDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.recordings.calling import Form
    from tests.recordings.worlds import Stage

RICH: Final = ("leak", "forty", "odd", *INCIDENTS)
LOOKED_ON: Final = ("leak", "forty", "odd")
DEMO: Final = "demo --plain --no-notify --speed 1000000000 --duration 10m --scenario quiet"
_WHOLE: Final = {
    "status",
    "predict",
    "explain",
    "zombies",
    "alerts --all",
    "alerts show latest",
    "cost --by user",
    "check",
    "policy test",
    "history --events",
}


def items(stage: Stage) -> Iterator[Item]:
    """Yield what the verbs answer."""
    yield from _everywhere(stage)
    yield from _looks(stage)
    for world in ("leak", "forty"):
        for line in listed("written"):
            lines = line.split(" ; ")
            yield Item(f"verbs/{world}/{line}", partial(_chain, stage, world, lines))
    for line in listed("refused"):
        yield _one(stage, FOREIGN, line, PLAIN, whole=True)
    yield from _alone(stage)
    yield from _helps(stage)
    for world in RICH:
        yield Item(f"verbs/{world}/report html", partial(_report, stage, world))


def _everywhere(stage: Stage) -> Iterator[Item]:
    for world in (*WORLDS, *INCIDENTS):
        for line in (*listed("everywhere"), *(listed("more") if world in RICH else ())):
            for form in (PLAIN, JSON):
                telling = world in {"leak", "forty"} and line in _WHOLE
                yield _one(stage, world, line, form, whole=telling)
    for form in (PLAIN, JSON):
        yield _one(stage, "lost-gpu", "backtest --since 40h", form)
        yield _one(stage, "leak", "backtest --since 2h --all --set policy.confirm=1", form)


def _looks(stage: Stage) -> Iterator[Item]:
    for world in LOOKED_ON:
        for line in listed("looked-at"):
            for form in (COLOUR, ASCII, NARROW, WIDE):
                yield _one(stage, world, line, form)


def _alone(stage: Stage) -> Iterator[Item]:
    for line in listed("alone"):
        for form in LOOKS:
            yield _one(stage, "none", line, form)
    for form in (PLAIN, JSON):
        yield _one(stage, "none", DEMO, form)
    for name in (*places.COMMANDS, *_others(stage)):
        yield _one(stage, "none", f"schema {name}", PLAIN)
    for page in _pages(stage):
        yield _one(stage, "none", f"docs {page}", PLAIN)


def _one(stage: Stage, world: str, line: str, form: Form, *, whole: bool = False) -> Item:
    def make() -> str:
        with stage.before(world):
            return ctl(*line.split(), form=form)

    return Item(f"verbs/{world}/{line or '(nothing)'}/{form.name}", make, whole)


def _chain(stage: Stage, world: str, lines: list[str]) -> str:
    parts = []
    with stage.before(world, copied=True) as place:
        for line in lines:
            parts += [f"$ {line}", ctl(*line.split())]
        parts += [f"$ {lines[-1]} --json", ctl(*lines[-1].split(), form=JSON)]
        for folder in (place / "cwd", place.parents[1] / "home"):
            for file in sorted(folder.rglob("*")):
                if file.is_file():
                    parts += [f"# {file.relative_to(folder)}", shown(file)]
                    file.unlink()
    return "\n".join(parts)


def shown(file: Path) -> str:
    """Return what people read in a file: of a page not how it is drawn."""
    text = file.read_text("utf-8", "replace")
    return read_of(text) if file.suffix == ".html" else text


def read_of(page: str) -> str:
    """Return a page without its styles, programs and white space before tags; its data stays."""
    page = re.sub(r"\s*\n\s*(?=<)", "", page)
    page = re.sub(r"<style\b.*?</style>", "<style/>", page, flags=re.DOTALL)
    return re.sub(r"<script(?![^>]*json)[^>]*>.*?</script>", "<script/>", page, flags=re.DOTALL)


def _report(stage: Stage, world: str) -> str:
    with stage.before(world):
        return read_of(ctl("report", "--since", "40h", "--format", "html", "--output", "-"))


def _helps(stage: Stage) -> Iterator[Item]:
    yield Item("help/gpuwatchd", lambda: call(places.gpuwatchd_main, ["--help"]), whole=True)
    for line in ("", *_paths()):
        words = line.split()
        for form in (PLAIN, NARROW):
            yield Item(
                f"help/{line or 'gpuwatchctl'}/{form.name}",
                partial(_help, stage, [*words, "--help"], form),
                whole=form is PLAIN and len(words) < 2,
            )


def _help(stage: Stage, words: list[str], form: Form) -> str:
    with stage.before("none"):
        return ctl(*words, form=form)


def _paths() -> Iterator[str]:
    for name in places.COMMANDS:
        yield name
        command = places.command_line.load(name)
        if isinstance(command, click.Group):
            yield from (f"{name} {child}" for child in command.commands)


def _others(stage: Stage) -> list[str]:
    """Return the schemas that are no verb's."""
    with stage.before("none"):
        listed = ctl("schema")
    words = re.findall(r"^\s*([a-z-]+)\b", listed, flags=re.MULTILINE)
    return sorted({*words} & {"command", "ask", "error", "history-ndjson"})


def _pages(stage: Stage) -> list[str]:
    with stage.before("none"), contextlib.suppress(IndexError):
        listed = ctl("docs", "--list").split("== stdout\n")[1].split("\n== stderr")[0]
    return sorted(re.findall(r"^\s*([a-z0-9-]+)\s", listed, flags=re.MULTILINE))
