"""What is found in recorded logs: samples of every tool, and one world as every tool writes it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from tests.cli import logs_of
from tests.recordings.calling import JSON, PLAIN, REPOSITORY, ctl
from tests.recordings.items import Item
from tests.recordings.verbs import read_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.recordings.calling import Form
    from tests.recordings.worlds import Stage

SAMPLES: Final = REPOSITORY / "tests" / "data" / "logs"
HINTED: Final = {
    "two_columns_day_first.csv": ("--date-order", "dmy"),
    "ambiguous_dates.csv": ("--tz", "CET"),
    "no_header.log": ("--interval", "5s"),
    "dcgmi_dmon.log": ("--interval", "10s"),
    "prometheus.txt": ("--interval", "10s"),
    "rocm.json": ("--interval", "10s"),
}


def items(stage: Stage) -> Iterator[Item]:
    """Yield what ``analyze`` says of each."""
    for file in sorted(SAMPLES.iterdir()):
        for form in (PLAIN, JSON):
            yield Item(
                f"logs/{file.name}/{form.name}",
                partial(_sample, stage, file, (), form),
                whole=form is PLAIN,
            )
            if file.name in HINTED:
                more = HINTED[file.name]
                yield Item(
                    f"logs/{file.name} {' '.join(more)}/{form.name}",
                    partial(_sample, stage, file, more, form),
                )
    for name in logs_of.WRITTEN:
        yield Item(f"logs/world as {name}", partial(_world, stage, name, JSON))
    yield Item("logs/world as nvidia-smi-q/plain", partial(_world, stage, "nvidia-smi-q", PLAIN))
    for name in ("nvidia-smi-csv", "nvidia-smi-pmon"):
        yield Item(f"logs/world as {name}/html", partial(_page, stage, name))
    yield Item("logs/successive jobs", partial(_jobs, stage))


def _sample(stage: Stage, file: Path, more: tuple[str, ...], form: Form) -> str:
    with stage.before("none"):
        return ctl("analyze", str(file), *more, "--all", form=form)


def _written(place: Path, name: str) -> list[str]:
    one = logs_of.WRITTEN[name]
    file = place / "cwd" / "world.log"
    file.write_text(one.text())
    return ["analyze", "world.log", "--all", *one.flags]


def _world(stage: Stage, name: str, form: Form) -> str:
    with stage.before("none", copied=True) as place:
        return ctl(*_written(place, name), form=form)


def _page(stage: Stage, name: str) -> str:
    with stage.before("none", copied=True) as place:
        said = ctl(*_written(place, name), "--html", "out.html")
        return said + read_of((place / "cwd" / "out.html").read_text())


def _jobs(stage: Stage) -> str:
    with stage.before("none", copied=True) as place:
        for name, text in zip(("gpu.csv", "apps.csv"), logs_of.successive_jobs(), strict=True):
            (place / "cwd" / name).write_text(text)
        return ctl("analyze", "gpu.csv", "apps.csv", "--all")
