"""``config``: where it is, what is in force, a file to start from, and what a file would do."""

from __future__ import annotations

import os
from operator import attrgetter
from pathlib import Path

import click

from gpuwatchd.cli import config_text, doctor, options, output, rules_text
from gpuwatchd.cli.doctor import channels
from gpuwatchd.core import config
from gpuwatchd.core.errors import ConfigError, GpuwatchdError
from gpuwatchd.view.answers import program as answers
from gpuwatchd.view.queries import operating_points

_ORIGINS = {"environment": "environment variable"}


@click.group("config", epilog=options.examples("config init", "config print --origin"))
def command() -> None:
    """Show, write and check the configuration."""


@command.command("path", epilog=options.examples("config path", "config path --json"))
def path() -> int:
    """Show which files and directories are used."""
    flags = options.current()
    named = flags.config or os.environ.get("GPUWATCHD_CONFIG")
    files = [Path(named)] if named else [config.SYSTEM_FILE, config.user_file()]
    paths = answers.ConfigPaths(
        files=tuple(answers.ConfigFile(path=str(file), exists=file.exists()) for file in files),
        state_dir=str(config.state_dir()),
        runtime_dir=str(config.runtime_dir()),
    )
    if flags.json:
        output.emit_answer(answers.ConfigPath, paths, source="files")
        return 0
    out = output.Out(flags)
    for file in paths.files:
        out.line(f"configuration  {file.path}" + ("" if file.exists else "  (does not exist)"))
    out.line(f"history        {paths.state_dir}")
    out.line(f"live state     {paths.runtime_dir}")
    return 0


@command.command("print", epilog=options.examples("config print", "config print --origin --json"))
@click.option("--origin", is_flag=True, help="Show where each value comes from.")
def show(origin: bool) -> int:  # noqa: FBT001
    """Print the configuration in force; secrets are shown as ****."""
    flags = options.current()
    loaded = flags.load_config()
    rows = [
        (
            key,
            config_text.masked(attrgetter(key.replace("-", "_"))(loaded.config)),
            default,
            loaded.origin[key],
        )
        for key, default in config.keys()  # noqa: SIM118 - a function, not a dict
    ]
    warnings = [("environment", words) for words in loaded.warnings]
    if flags.json:
        if loaded.config.override:
            sections = [config_text.masked(section) for section in loaded.config.override]
            rows.append(("override", sections, [], loaded.origin["override"]))
        data = tuple(
            answers.ConfigKey(
                key=key,
                value=config_text.plain(value),
                default=config_text.plain(default),
                origin=source,
            )
            for key, value, default, source in rows
        )
        output.emit_answer(answers.ConfigPrint, data, source="files", warnings=warnings)
        return 0
    out = output.Out(flags)
    section = None
    for key, value, _, source in rows:
        table, _, name = key.rpartition(".")
        if table != section:
            out.raw(("" if section is None else "\n") + f"[{table}]")
            section = table
        line = (
            f"{name} = {config_text.toml(value)}" if value is not None else f"# {name} is not set"
        )
        out.line(line, (f"  # {_ORIGINS.get(source, source)}", "dim") if origin else "")
    source = loaded.origin.get("override", "")
    for section_of in loaded.config.override:
        out.line("")
        out.line("[[override]]", (f"  # {_ORIGINS.get(source, source)}", "dim") if origin else "")
        for line in config_text.toml(config_text.masked(section_of)).splitlines():
            out.line(line)
    _warn(loaded.warnings)
    return 0


def _warn(warnings: list[str]) -> None:
    for words in warnings:
        click.echo(f"warning: {words}", err=True)


@command.command("init", epilog=options.examples("config init", "config init --config ./x.toml"))
@click.option("--force", is_flag=True, help="Replace a file that exists.")
def init(force: bool) -> int:  # noqa: FBT001
    """Write a commented file with every key at its default."""
    flags = options.current()
    file = flags.config or Path(os.environ.get("GPUWATCHD_CONFIG") or config.user_file())
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        how = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if force else os.O_EXCL)
        handle = os.open(file, how, 0o600)
    except FileExistsError:
        raise GpuwatchdError(
            f"{file} exists; it was left as it is",
            hint="gpuwatchctl config init --force",
            page="errors#file-exists",
        ) from None
    except OSError as error:
        raise GpuwatchdError(
            f"{file}: {error.strerror}",
            hint="choose another place with --config FILE",
            page="errors#cannot-write",
        ) from error
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(config_text.default_file())
    if flags.json:
        output.emit_answer(answers.ConfigInit, answers.Written(written=str(file)), source="files")
    elif not flags.quiet:
        output.Out(flags).line(f"wrote {file}")
    return 0


@command.command(
    "validate", epilog=options.examples("config validate", "config validate ./gpuwatchd.toml")
)
@click.argument("file", required=False, type=click.Path(path_type=Path))
def validate(file: Path | None) -> int:
    """Check a file (or the files in force), and explain what its settings mean.

    Which messages go to which channel and when; what the settings hide, delay or never report; how
    right and how early alerts are at each sensitivity.
    """
    flags = options.current()
    loaded = config.load(file or flags.config)
    problems = config_text.problems(loaded.config)
    faults = channels.metrics_faults(loaded.config.metrics, doctor.ROOT)
    problems += [f"[metrics] {fault.text}; {fault.hint}" for fault in faults]
    notes = config_text.consequences(loaded.config)
    rules = rules_text.explain(loaded.config) if not problems else []
    if problems and not flags.json:
        for words in problems[1:]:
            click.echo(f"gpuwatchctl: {words}", err=True)
        first, hint = problems[0], "gpuwatchctl config print --origin"
        if len(problems) == len(faults):  # the first is of what would be served, and has its own
            first, hint = f"[metrics] {faults[0].text}", faults[0].hint
        raise ConfigError("", "", first, hint=hint)
    files = [str(name) for name in loaded.files]
    points = operating_points.operating_points(loaded.config.detection.confidence_threshold)
    measured_on = operating_points.measured().measured_on
    if flags.json:
        data = answers.Validated(
            files=tuple(files),
            valid=not problems,
            problems=tuple(problems),
            consequences=tuple(notes),
            rules=tuple(rules),
            operating_points=points,
            measured_on=measured_on,
        )
        warnings = [("environment", words) for words in loaded.warnings]
        output.emit_answer(answers.ConfigValidate, data, source="files", warnings=warnings)
        return 5 if problems else 0
    out = output.Out(flags)
    if not flags.quiet:
        for sentence in rules:
            out.flow([sentence], whole=True)
    for note in notes:
        out.flow([(f"note: {note}", "yellow")], whole=True)
    _warn(loaded.warnings)
    if not flags.quiet:
        config_text.operating_points(out, points, measured_on)
        out.line(f"valid: {', '.join(files) or 'no file; the defaults are in force'}")
    return 0
