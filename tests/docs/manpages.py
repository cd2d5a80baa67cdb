"""Writes the man pages from the commands, the configuration and the facts: ``docs/man``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click
import msgspec

from gpuwatchd.cli import COMMANDS, command_line, options
from gpuwatchd.core import config
from gpuwatchd.daemon.main import command as daemon_command
from gpuwatchd.view.answers import schema
from tests.docs import facts

if TYPE_CHECKING:
    from collections.abc import Iterable

DATE = "2026-11-22"
"""In the head of every page; no clock, so that the pages do not grow stale by themselves."""
_MARK = '.\\" Written by `make docs` from the code; edits here are lost.'
_INLINE = re.compile(r"``?([^`]+)``?")
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_BOLD = re.compile(r"\*\*([^*]+)\*\*")


def escaped(words: str) -> str:
    r"""Return text that roff shows as it is.

    >>> escaped(r"--all \d"), escaped(".so is a word"), escaped("→")
    ('\\-\\-all \\ed', '\\&.so is a word', '\\[u2192]')
    """
    out = words.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    out = out.replace("`", "\\(ga").replace("^", "\\(ha").replace("~", "\\(ti")
    out = "".join(c if ord(c) < 128 else f"\\[u{ord(c):04X}]" for c in out)
    return f"\\&{out}" if out.startswith(".") else out


def inline(words: str) -> str:
    """Return Markdown of one paragraph as roff: code and strong words in bold, links as words."""
    words = _BOLD.sub(r"`\1`", _LINK.sub(r"\1", words))
    parts = _INLINE.split(" ".join(words.split()))
    shown = [f"\\fB{escaped(p)}\\fR" if n % 2 else escaped(p) for n, p in enumerate(parts) if p]
    return "".join(shown)


def _entries(rows: Iterable[tuple[str, str]]) -> list[str]:
    lines: list[str] = []
    for term, words in rows:
        lines += [".TP", f"\\fB{escaped(term)}\\fR", inline(words)]
    return lines


def _head(name: str, section: int, what: str) -> list[str]:
    return [
        _MARK,
        f'.TH {name.upper()} {section} "{DATE}" "gpuwatchd" "gpuwatchd manual"',
        ".SH NAME",
        f"{escaped(name)} \\- {escaped(what)}",
    ]


def _block(lines: Iterable[str]) -> list[str]:
    return [".PP", ".nf", ".RS 4", *(escaped(line.rstrip()) for line in lines), ".RE", ".fi"]


def paragraphs(words: str) -> list[str]:
    """Return the help text of a command as paragraphs; what is laid out by hand stays so."""
    lines: list[str] = []
    for part in re.split(r"\n\s*\n", words.strip()):
        if part.lstrip().startswith("\b"):
            lines += _block(part.replace("\b", "").strip("\n").splitlines())
        elif part.strip():
            lines += [".PP", inline(part)]
    return lines


def _context(command: click.Command, name: str = "") -> click.Context:
    # click remembers the first help option that it made, of whatever context.
    return click.Context(command, info_name=name, help_option_names=["-h", "--help"])


def _option(param: click.Option) -> tuple[str, str]:
    names = ", ".join([*param.opts, *param.secondary_opts])
    context = click.Context(click.Command("x"))
    metavar = "" if param.is_flag or param.count else f" {param.make_metavar(context)}"
    return names + metavar, param.help or ""


def _options(command: click.Command, *, besides: frozenset[str]) -> list[str]:
    shown = [
        _option(param)
        for param in command.get_params(_context(command))
        if isinstance(param, click.Option) and not param.hidden and not besides & set(param.opts)
    ]
    return _entries(shown)


def _usage(command: click.Command, path: str) -> str:
    context = _context(command, path.rpartition(" ")[2])
    pieces = command.collect_usage_pieces(context)
    return f"\\fB{escaped(path)}\\fR " + escaped(" ".join(pieces))


def _examples(command: click.Command) -> list[str]:
    text = (command.epilog or "").replace("\b", "")
    lines = text.partition("Documentation:")[0].strip().splitlines()[1:]
    return _block(line.strip() for line in lines) if lines else []


def _verb(command: click.Command, path: str, besides: frozenset[str]) -> list[str]:
    lines = [f".SS {escaped(path.partition(' ')[2])}", _usage(command, path)]
    lines += paragraphs(command.help or "")
    lines += _options(command, besides=besides)
    lines += _examples(command)
    if isinstance(command, click.Group):
        for child in command.commands.values():
            lines += _verb(child, f"{path} {child.name}", besides)
    return lines


def _see_also(*names: str) -> list[str]:
    shown = ", ".join(f"\\fB{escaped(name)}\\fR({section})" for name, section in
                      (one.split("/") for one in names))  # fmt: skip
    return [".SH SEE ALSO", shown, ".PP",
            "The whole manual: \\fBgpuwatchctl docs\\fR."]  # fmt: skip


def _facts(*, codes: list[facts.Row], variables: Iterable[str]) -> list[str]:
    lines = [".SH EXIT STATUS", *_entries(codes), ".SH ENVIRONMENT"]
    for title in variables:
        lines += _entries(facts.ENVIRONMENT[title])
    lines.append(".SH FILES")
    for title, rows in facts.FILES.items():
        lines += [f".SS {escaped(title)}", *_entries(rows)]
    return lines


def gpuwatchctl() -> str:
    """Return gpuwatchctl(1)."""
    top = command_line.program
    own = frozenset(name for one in options.global_options() for name in one.opts)
    lines = _head("gpuwatchctl", 1, "ask gpuwatchd who leaks GPU memory, and when it will be full")
    lines += [".SH SYNOPSIS", _usage(top, "gpuwatchctl"), ".SH DESCRIPTION"]
    lines += paragraphs(top.help or "")
    lines += [
        ".PP",
        ("Every verb works without the daemon, the history and a GPU, and then says which of them"
        " is missing. Results go to standard output, errors and progress to standard error."),
        ".SH OPTIONS", "These go before or after the verb.",
    ]  # fmt: skip
    lines += _options(top, besides=frozenset())
    lines.append(".SH VERBS")
    for name in COMMANDS:
        lines += _verb(command_line.load(name), f"gpuwatchctl {name}", own | {"-h"})
    lines += _facts(
        codes=facts.EXIT_CODES,
        variables=("Settings", "Places", "Output", "Given to others"),
    )
    lines += _see_also("gpuwatchd/8", "gpuwatchd.toml/5")
    return _page(lines)


def gpuwatchd() -> str:
    """Return gpuwatchd(8)."""
    lines = _head("gpuwatchd", 8, "watch the memory of every GPU, and warn before it is full")
    lines += [".SH SYNOPSIS", _usage(daemon_command, "gpuwatchd"), ".SH DESCRIPTION"]
    lines += paragraphs((daemon_command.help or "").partition("\b")[0])
    lines += [
        ".PP",
        (
            "As a rule a service manager starts it: \\fBgpuwatchctl service install\\fR. It needs"
            " no root and opens no port unless [metrics] asks for one. It runs without GPU,"
            " driver, session bus and network, says what is missing, and takes it up when it comes."
            " Only one runs in a runtime directory."
        ),
        ".SH OPTIONS",
    ]
    lines += _options(daemon_command, besides=frozenset())
    lines += [".SH SIGNALS", *_entries(facts.SIGNALS)]
    lines += _facts(codes=facts.DAEMON_CODES, variables=facts.ENVIRONMENT)
    lines += [".SH EXAMPLES", *_block(["gpuwatchd --interval 1s", "gpuwatchd --source simulate"])]
    lines += _see_also("gpuwatchctl/1", "gpuwatchd.toml/5")
    return _page(lines)


def _keys(kind: type[Any], name: str, notes: dict[str, dict[str, str]]) -> list[str]:
    from tests.docs import generate

    rows: list[tuple[str, str]] = []
    nested: list[str] = []
    for field in msgspec.structs.fields(kind):
        full = f"{name}.{field.encode_name}" if name else field.encode_name
        listed = generate.listed(field.type)
        if listed is not None:
            nested += [f".SS {escaped(f'[[{full}]]')}", *_keys(listed, "", notes)]
        elif isinstance(field.type, type) and issubclass(field.type, config.Section):
            inner = _keys(field.type, full, notes)
            nested += ([f".SS {escaped(f'[{full}]')}"] if inner[:1] == [".TP"] else []) + inner
        else:
            rows.append(
                (f"{field.encode_name} = {generate.written(generate.default_of(field))}",
                 " ".join(notes[kind.__name__].get(field.name, "").split()))
            )  # fmt: skip
    return _entries(rows) + nested


def gpuwatchd_toml() -> str:
    """Return gpuwatchd.toml(5)."""
    from tests.docs import generate

    lines = _head("gpuwatchd.toml", 5, "configuration of gpuwatchd")
    lines += [
        ".SH DESCRIPTION",
        inline(generate.LAYERS), ".PP",
        inline("No file is needed: what stands here beside a key is its default."
               " `gpuwatchctl config validate` checks a file and says what follows from it;"
               " `gpuwatchctl config print --origin` shows where each value comes from. After a"
               " change send SIGHUP to the daemon, or `systemctl --user reload gpuwatchd`."),
        ".SH KEYS",
        *_keys(config.Config, "", schema.notes(config.Config.__module__)),
        ".SH FILES", *_entries(facts.FILES["Configuration"]),
        ".SH ENVIRONMENT",
        *_entries([*facts.ENVIRONMENT["Settings"], *facts.ENVIRONMENT["Secrets"]]),
        ".SH EXAMPLES",
        *_block(["[policy]", 'channels = ["desktop", "email"]', "", "[notify.email]",
                 'host = "smtp.example.org"', 'sender = "gpuwatchd@example.org"',
                 'to = ["me@example.org"]', 'password-file = "~/.config/gpuwatchd/smtp-password"']),
    ]  # fmt: skip
    lines += _see_also("gpuwatchctl/1", "gpuwatchd/8")
    return _page(lines)


def _page(lines: list[str]) -> str:
    kept = [line for line in lines if line]
    kept = [
        line
        for before, line in zip(["", *kept], kept, strict=False)
        if line != ".PP" or not before.startswith((".SH", ".SS"))
    ]
    return "\n".join(kept) + "\n"


PAGES = {
    "gpuwatchctl.1": gpuwatchctl,
    "gpuwatchd.8": gpuwatchd,
    "gpuwatchd.toml.5": gpuwatchd_toml,
}
