"""Write the reference pages from the code; ``--check`` only says whether they are stale."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

import click
import msgspec

from gpuwatchd.act import ACTIONS
from gpuwatchd.analysis.detectors import DETECTORS
from gpuwatchd.cli import COMMANDS, command_line
from gpuwatchd.collect import SOURCES
from gpuwatchd.collect.logs.formats import FORMATS
from gpuwatchd.core import config, units
from gpuwatchd.daemon.main import command as daemon_command
from gpuwatchd.fleet.main import command as fleet_command
from gpuwatchd.notify import NOTIFIERS
from gpuwatchd.view.answers import schema
from gpuwatchd.view.queries import operating_points as points
from tests.docs import (
    api_page,
    charts_page,
    database,
    errors_page,
    facts,
    made,
    manpages,
    metrics_page,
    schemas_page,
    units_page,
)
from tests.scenarios.bench import page as bench_page

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
MARK = "<!-- Written by `make docs` from the code; edits here are lost. -->"

LAYERS = (
    "TOML. Layers, lowest first: the defaults, `/etc/gpuwatchd/config.toml`, your"
    " file (`gpuwatchctl config path`), `GPUWATCHD_SECTION_KEY` variables, flags."
    " They are merged key by key; lists are replaced. Durations are numbers of"
    ' seconds or texts such as `"15m"`. `snake_case` spellings are accepted; an'
    " unknown key is refused and the nearest one named. `gpuwatchctl config init`"
    " writes a file with every key."
)


def _help(command: click.Command, path: str) -> str:
    # The names of the help option are the context's, and click remembers the first that it made.
    context = click.Context(
        command, info_name=path, max_content_width=80, terminal_width=80,
        help_option_names=["-h", "--help"],
    )  # fmt: skip
    return command.get_help(context)


def cli() -> str:
    """Return the page of both programs."""
    lines = [MARK, "# Command line", "", "## gpuwatchctl", ""]
    top = command_line.program
    lines += ["```", _help(top, "gpuwatchctl"), "```", ""]
    for name in COMMANDS:
        command = command_line.load(name)
        lines += [f"### {name}", "", "```", _help(command, f"gpuwatchctl {name}"), "```", ""]
        if isinstance(command, click.Group):
            for child in command.commands.values():
                path = f"gpuwatchctl {name} {child.name}"
                lines += [f"#### {name} {child.name}", "", "```", _help(child, path), "```", ""]
    lines += ["## gpuwatchd", "", "```", _help(daemon_command, "gpuwatchd"), "```", ""]
    fleet = _help(fleet_command, "gpuwatchd fleet")
    lines += ["## gpuwatchd fleet", "", "```", fleet, "```", ""]
    lines += ["## Exit codes", "", "They have [a page of their own](exit-codes.md).", ""]
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines()) + "\n"


def written(value: Any) -> str:
    """Return a value as it stands in a file."""
    if isinstance(value, config.Seconds):
        return f'"{units.short_duration(value)}"'
    if isinstance(value, tuple):
        return "[" + ", ".join(written(one) for one in value) + "]"
    if value is None:
        return "(not set)"
    return msgspec.json.encode(value).decode()


def default_of(field: Any) -> Any:
    """Return the default of a field of the configuration."""
    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()


def listed(kind: Any) -> type[config.Section] | None:
    """Return the section of a list of tables, as ``[[override]]`` is one; else None."""
    inner = get_args(kind)[0] if get_origin(kind) is tuple else None
    return inner if isinstance(inner, type) and issubclass(inner, config.Section) else None


def _section(kind: type[Any], name: str, notes: dict[str, dict[str, str]]) -> list[str]:
    title = (kind.__doc__ or "").strip().splitlines()[0]
    rows: list[str] = []
    nested: list[str] = []
    for field in msgspec.structs.fields(kind):
        full = f"{name}.{field.encode_name}" if name else field.encode_name
        if isinstance(field.type, type) and issubclass(field.type, config.Section):
            nested += _section(field.type, full, notes)
            continue
        inner = listed(field.type)
        if inner is not None:
            nested += _section(inner, f"[{full}]", notes)
            continue
        note = " ".join(notes[kind.__name__].get(field.name, "").split())
        rows.append(f"| `{field.encode_name}` | `{written(default_of(field))}` | {note} |")
    head = [f"## [{name}]", "", title, ""] if name and rows else []
    table = ["| key | default | meaning |", "|---|---|---|", *rows, ""] if rows else []
    if kind is config.DetectionSection:
        table += operating_points()
    return head + table + nested


def configuration() -> str:
    """Return the page of the configuration file."""
    lines = [
        MARK,
        "# Configuration",
        "",
        LAYERS,
        "",
        *facts.examples(),
        *_section(config.Config, "", schema.notes(config.Config.__module__)),
    ]
    return "\n".join(lines).rstrip() + "\n"


def operating_points() -> list[str]:
    """Return the figures of each sensitivity, for the page of the keys."""
    known = points.measured()
    mix = "F1 | false alerts a GPU-day (95 %) | ramps a day"
    lines = [
        f"What each sensitivity brings and costs on simulated runs ({known.measured_on}), other",
        "keys at their defaults",
        "([what the figures mean](../explanation/detection.md#operating-points)):",
        "",
        f"| sensitivity | field mix: {mix} | hard mix: {mix} | lead | 10, 30, 60 min left |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for point in points.operating_points(config.DetectionSection().confidence_threshold):
        shown = point.figures
        if shown is None:
            lines.append(f"| `{point.sensitivity}` | not measured |")
            continue
        cells = [f"`{point.sensitivity}`"]
        for one in (shown.field, shown.hard):
            low, high = one.false_alerts_low_per_day, one.false_alerts_high_per_day
            cells += [
                f"{one.f1:.2f}",
                f"{one.false_alerts_per_day:.2f} ({low:.2f} to {high:.2f})",
                f"{one.ramps_per_day:.2f}",
            ]
        left = (shown.left_10_min_share, shown.left_30_min_share, shown.left_60_min_share)
        cells += [
            units.percent(shown.lead_share),
            ", ".join(units.percent(share) for share in left),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def tables() -> str:
    """Return the page of the plug-in tables."""
    lines = [MARK, "# What is built in: sources, log formats, detectors, channels", ""]
    for title, table in (
        ("Sources", SOURCES),
        ("Log formats", FORMATS),
        ("Detectors", DETECTORS),
        ("Channels", NOTIFIERS),
        ("Actions", ACTIONS),
        ("Verbs", COMMANDS),
    ):
        lines += [f"## {title}", "", "| name | what it is | class |", "|---|---|---|"]
        lines += [f"| `{name}` | {_what(path)} | `{path}` |" for name, path in table.items()]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _what(target: str) -> str:
    """Return the first sentence of what a row's module says of itself, without the row's name.

    Log formats of one kind share a module: there the class says it.
    """
    path, _, name = target.partition(":")
    module = importlib.import_module(path)
    shared = path.startswith("gpuwatchd.collect.logs.")
    said = (getattr(module, name) if shared else module).__doc__ or ""
    first = said.strip().partition("\n\n")[0].replace("\n", " ").replace("``", "`")
    return re.sub(r"^`(gpuwatchctl )?[a-z-]+`: ", "", first).replace("|", "\\|")


def _marked(lines: list[str]) -> str:
    return "\n".join([MARK, *lines]).rstrip() + "\n"


def readme() -> str:
    """Return the README with the figures of detection that the benchmark wrote."""
    figures = msgspec.json.decode(bench_page.FIGURES.read_bytes())
    return bench_page.readme((ROOT / "README.md").read_text(encoding="utf-8"), figures)


PAGES: dict[str, Callable[[], str]] = {
    "../README.md": readme,
    "reference/cli.md": cli,
    "reference/config.md": configuration,
    "reference/tables.md": tables,
    "reference/errors.md": errors_page.page,
    "reference/database.md": lambda: _marked(database.page()),
    "reference/json.md": lambda: _marked(schemas_page.page()),
    "reference/api.md": lambda: _marked(api_page.page()),
    "reference/exit-codes.md": lambda: _marked(facts.exit_codes()),
    "reference/environment.md": lambda: _marked(facts.environment()),
    "reference/files.md": lambda: _marked(facts.files()),
    "reference/signals.md": lambda: _marked(facts.signals()),
    charts_page.NAME: charts_page.page,
    "reference/metrics.md": lambda: _marked(metrics_page.page()),
    "reference/units.md": lambda: _marked(units_page.page()),
    **{f"man/{name}": page for name, page in manpages.PAGES.items()},
}


if __name__ == "__main__":
    sys.exit(made.main(DOCS, PAGES))
