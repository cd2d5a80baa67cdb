"""What is said of mistakes: exit code, line, hint and page."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.recordings import places
from tests.recordings.calling import JSON, PLAIN, call, ctl
from tests.recordings.items import Item, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.recordings.calling import Form
    from tests.recordings.worlds import Stage


def items(stage: Stage) -> Iterator[Item]:
    """Yield what is said of mistakes."""
    for line in listed("mistakes"):
        for world in ("none", "leak"):
            for form in (PLAIN, JSON):
                whole = world == "leak" and form is PLAIN
                yield Item(
                    f"errors/{world}/{line}/{form.name}",
                    partial(_line, stage, world, line, form),
                    whole,
                )
    for written in listed("settings"):
        name = " ".join(written.split())
        for line in ("config validate", "predict", "doctor config --offline"):
            for form in (PLAIN, JSON):
                yield Item(
                    f"errors/settings/{name}/{line}/{form.name}",
                    partial(_settings, stage, written, line, form),
                    whole=line == "config validate" and form is PLAIN,
                )
    for name, _, value in (one.partition("=") for one in listed("variables")):
        for line in ("config validate", "status", "config print"):
            yield Item(
                f"errors/variables/{name}={value}/{line}",
                partial(_variable, stage, name, value, line),
            )
    for line in listed("daemon"):
        yield Item(f"errors/gpuwatchd/{line}", partial(_daemon, stage, line))


def _line(stage: Stage, world: str, line: str, form: Form) -> str:
    with stage.before(world, copied=True):
        return ctl(*line.split(), form=form)


def _settings(stage: Stage, written: str, line: str, form: Form) -> str:
    with stage.before("none", copied=True) as place:
        file = place / "config/gpuwatchd/config.toml"
        file.write_text(written)
        return ctl(*line.split(), form=form)


def _variable(stage: Stage, name: str, value: str, line: str) -> str:
    import os

    with stage.before("none", copied=True):
        os.environ[name] = value
        return ctl(*line.split())


def _daemon(stage: Stage, line: str) -> str:
    with stage.before("none", copied=True):
        return call(places.gpuwatchd_main, line.split())
