"""Write the reference pages from the code; ``--check`` only says whether they are stale."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from gpuwatchd import config, units
from gpuwatchd.act import ACTIONS
from gpuwatchd.ctl import COMMANDS, program
from gpuwatchd.daemon import command as daemon_command
from gpuwatchd.detect import DETECTORS
from gpuwatchd.notify import NOTIFIERS
from gpuwatchd.sources import SOURCES
from gpuwatchd.sources.formats import FORMATS

ROOT = Path(__file__).resolve().parent.parent.parent
REFERENCE = ROOT / "docs" / "reference"
MARK = "<!-- Written by `make docs` from the code; edits here are lost. -->"

EXIT_CODES = [
    ("0", "done; for `analyze`: nothing at or above `--fail-on`"),
    ("1", "failed: no GPU readable, no data for the period, delivery failed"),
    ("2", "usage, also the bare command without a verb"),
    ("3", ("findings: `analyze` always; `status`, `predict` and `zombies` with `--exit-code`;"
          " `doctor` with warnings only; `service status` not running")),
    ("5", "bad input: a log that cannot be read or has no memory column, a configuration error"),
    ("0-3", "`check` alone: OK, WARNING, CRITICAL, UNKNOWN; a wrong flag is UNKNOWN, too"),
    ("130", "interrupted (Ctrl-C)"),
    ("141", "the reader closed the pipe"),
]  # fmt: skip
DAEMON_CODES = [
    ("0", "stopped in order; with `--once`: a GPU was read"),
    ("1", "already running, no usable directory; with `--once`: no GPU was read"),
    ("2", "usage"),
    ("75", "start it again: the NVIDIA library is new, and it could not replace itself"),
    ("78", "configuration error at start"),
]


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
    top = program.program
    lines += ["```", _help(top, "gpuwatchctl"), "```", ""]
    for name in COMMANDS:
        command = program.load(name)
        lines += [f"### {name}", "", "```", _help(command, f"gpuwatchctl {name}"), "```", ""]
        if isinstance(command, click.Group):
            for child in command.commands.values():
                path = f"gpuwatchctl {name} {child.name}"
                lines += [f"#### {name} {child.name}", "", "```", _help(child, path), "```", ""]
    lines += ["## gpuwatchd", "", "```", _help(daemon_command, "gpuwatchd"), "```", ""]
    lines += ["## Exit codes", "", "`gpuwatchctl`:", "", "| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES]
    lines += ["", "`gpuwatchd`:", "", "| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in DAEMON_CODES]
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines()) + "\n"


def field_notes() -> dict[str, dict[str, str]]:
    """Return class name -> field -> the string that follows it in the source."""
    tree = ast.parse((ROOT / "gpuwatchd" / "config" / "sections.py").read_text(encoding="utf-8"))
    notes: dict[str, dict[str, str]] = {}
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        mine: dict[str, str] = {}
        for before, after in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(before, ast.AnnAssign)
                and isinstance(before.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                mine[before.target.id] = " ".join(str(after.value.value).split())
        notes[node.name] = mine
    return notes


def _written(value: Any) -> str:
    if isinstance(value, config.Seconds):
        return f'"{units.short_duration(value)}"'
    if isinstance(value, tuple):
        return "[" + ", ".join(_written(one) for one in value) + "]"
    if value is None:
        return "(not set)"
    return msgspec.json.encode(value).decode()


def _section(kind: type[Any], name: str, notes: dict[str, dict[str, str]]) -> list[str]:
    title = (kind.__doc__ or "").strip().splitlines()[0]
    rows: list[str] = []
    nested: list[str] = []
    for field in msgspec.structs.fields(kind):
        full = f"{name}.{field.encode_name}" if name else field.encode_name
        if isinstance(field.type, type) and issubclass(field.type, config.Section):
            nested += _section(field.type, full, notes)
            continue
        default = (
            field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
        )
        note = notes[kind.__name__].get(field.name, "")
        rows.append(f"| `{field.encode_name}` | `{_written(default)}` | {note} |")
    head = [f"## [{name}]", "", title, ""] if name and rows else []
    table = ["| key | default | meaning |", "|---|---|---|", *rows, ""] if rows else []
    return head + table + nested


def configuration() -> str:
    """Return the page of the configuration file."""
    lines = [
        MARK,
        "# Configuration",
        "",
        (
            "TOML. Layers, lowest first: the defaults, `/etc/gpuwatchd/config.toml`, your"
            " file (`gpuwatchctl config path`), `GPUWATCHD_SECTION_KEY` variables, flags."
            " They are merged key by key; lists are replaced. Durations are numbers of"
            ' seconds or texts such as `"15m"`. `snake_case` spellings are accepted; an'
            " unknown key is refused and the nearest one named. `gpuwatchctl config init`"
            " writes a file with every key."
        ),
        "",
        *_section(config.Config, "", field_notes()),
    ]
    return "\n".join(lines).rstrip() + "\n"


def tables() -> str:
    """Return the page of the plug-in tables."""
    lines = [MARK, "# What is built in", ""]
    for title, table in (
        ("Sources", SOURCES),
        ("Log formats", FORMATS),
        ("Detectors", DETECTORS),
        ("Channels", NOTIFIERS),
        ("Actions", ACTIONS),
        ("Verbs", COMMANDS),
    ):
        lines += [f"## {title}", "", "| name | class |", "|---|---|"]
        lines += [f"| `{name}` | `{target}` |" for name, target in table.items()]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


PAGES = {"cli.md": cli, "config.md": configuration, "tables.md": tables}


def stale() -> list[str]:
    """Return the pages that differ from what the code says."""
    return [
        name
        for name, page in PAGES.items()
        if not (REFERENCE / name).is_file()
        or (REFERENCE / name).read_text(encoding="utf-8") != page()
    ]


def main() -> int:
    """Write the pages, or check them."""
    if "--check" in sys.argv[1:]:
        old = stale()
        if old:
            print(f"stale, run make docs: {', '.join(old)}", file=sys.stderr)
        return 1 if old else 0
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
