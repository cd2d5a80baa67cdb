"""``service``: the daemon under the user's service manager."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from gpuwatchd.cli import channel_setup, options, output
from gpuwatchd.core import config, registry, units
from gpuwatchd.core.errors import ServiceError
from gpuwatchd.service import MANAGERS
from gpuwatchd.service.unit_files import CREDENTIAL_NAMES
from gpuwatchd.view.answers.program import (
    Done,
    ServiceDone,
    ServicePrint,
    ServiceStatus,
    Unit,
)

if TYPE_CHECKING:
    from gpuwatchd.cli.global_flags import Globals
    from gpuwatchd.core.model import ServiceState
    from gpuwatchd.core.ports import Manager


@click.group("service", epilog=options.examples("service install --linger", "service status"))
def command() -> None:
    """Run the daemon as a service: yours without root, or the machine's."""


def _own() -> str:
    return "launchd" if sys.platform == "darwin" else "systemd"


def _load(name: str, *, system: bool = False) -> Manager:
    try:
        manager: Manager = registry.load(MANAGERS, name)(system=system)
    except ImportError as error:
        raise ServiceError(name, "loading", str(error), hint="reinstall gpuwatchd") from error
    return manager


def _running_manager(*, system: bool) -> Manager:
    """Return the service manager of this machine; ServiceError when it does not run here."""
    name = _own()
    manager = _load(name, system=system)
    availability = manager.probe()
    if not availability.ok:
        hint = availability.hint or "run the daemon yourself: gpuwatchd"
        raise ServiceError(name, "looking for it", availability.reason, hint=hint)
    return manager


def _report(flags: Globals, data: Done | ServiceState, lines: list[str]) -> None:
    if flags.json:
        kind = ServiceDone if isinstance(data, Done) else ServiceStatus
        output.emit_answer(kind, data, source="service-manager")
    elif not flags.quiet:
        out = output.Out(flags)
        for line in lines:
            out.line(line)


_UNREACHED = (
    "nobody is warned yet: no desktop session here. Set up a mail or a chat: "
    "gpuwatchctl notify add email, or slack, ntfy, ..."
)
_system = click.option(
    "--system", is_flag=True, help="The service of the whole machine, not one of yours."
)
_dry_run = click.option("--dry-run", is_flag=True, help="Only print what would be done.")


def _credentials(
    ctx: click.Context, param: click.Parameter, given: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    """Return (name, file) of each ``NAME=FILE``; each name is one that the daemon asks for."""
    pairs = []
    for word in given:
        name, _, file = word.partition("=")
        if name not in CREDENTIAL_NAMES or not file:
            names = " or ".join(CREDENTIAL_NAMES)
            raise click.BadParameter(
                f"{word!r}: write NAME=FILE with NAME {names}", ctx=ctx, param=param
            )
        pairs.append((name, file))
    if len(dict(pairs)) < len(pairs):
        raise click.BadParameter("each credential has one file", ctx=ctx, param=param)
    return tuple(pairs)


@command.command(
    "install",
    epilog=options.examples(
        "service install --linger",
        "service install --credential smtp-password=~/.smtp-password",
        "sudo gpuwatchctl service install --system",
    ),
)
@_system
@_dry_run
@click.option("--linger", is_flag=True, help="Keep it running after you log out.")
@click.option(
    "--anyway", is_flag=True, help="Also where the machine's service, or Homebrew's, would do."
)
@click.option(
    "--credential", "credentials", callback=_credentials, multiple=True, metavar="NAME=FILE",
    help="Pass a secret to the daemon from a file (mode 600); NAME is smtp-password or chat-urls.",
)  # fmt: skip
def install(
    system: bool,  # noqa: FBT001
    dry_run: bool,  # noqa: FBT001
    linger: bool,  # noqa: FBT001
    anyway: bool,  # noqa: FBT001
    credentials: tuple[tuple[str, str], ...],
) -> int:
    """Write, enable and start the service; again after an upgrade."""
    if system and linger:
        raise click.UsageError("--linger is for a user service; the system service stays on")
    manager = _load(_own(), system=system) if dry_run else _running_manager(system=system)
    done = manager.install(dry_run=dry_run, linger=linger, anyway=anyway, credentials=credentials)
    flags = options.current()
    where = None if dry_run else channel_setup.unreached(flags, system=system)
    done = done if where is None else [*done, _UNREACHED]
    _report(flags, Done(dry_run=dry_run, done=tuple(done)), done)
    if where is not None and sys.stdin.isatty() and not (flags.json or flags.quiet):
        _ask_for_mail(flags, where)
    return 0


def _ask_for_mail(flags: Globals, where: channel_setup.Target) -> None:
    if "email" in config.channels.set_up(where.load().config):
        return  # for the digest alone
    words = "Mail address for alerts (empty: none)"
    address = click.prompt(words, default="", show_default=False, err=True).strip()
    if address:
        given = channel_setup.ChannelOptions(to=(address,))
        added = channel_setup.add(flags, where, "email", given)
        for line in (*channel_setup.lines(added), "try it: gpuwatchctl notify test"):
            output.Out(flags).line(line)


@command.command(
    "uninstall",
    epilog=options.examples("service uninstall --dry-run", "service uninstall --purge --yes"),
)
@_system
@_dry_run
@click.option("--purge", is_flag=True, help="Remove history, live state and configuration, too.")
@click.option("--yes", is_flag=True, help="Do purge; without it, only print what would be removed.")
def uninstall(system: bool, dry_run: bool, purge: bool, yes: bool) -> int:  # noqa: FBT001
    """Stop and remove the service; history and configuration are kept."""
    asks = purge and not yes
    only_said = dry_run or asks
    manager = _load(_own(), system=system) if only_said else _running_manager(system=system)
    done = manager.uninstall(dry_run=only_said, purge=purge)
    if asks and not dry_run:
        done = [*done, "dry run: --yes does it"]
    _report(options.current(), Done(dry_run=only_said, done=tuple(done)), done)
    return 0


def _add_order(name: str, done: str, text: str) -> None:
    """Add a subcommand that is one order to the manager and takes nothing else."""

    @command.command(
        name, epilog=options.examples(f"service {name}", f"service {name} --json"), help=text
    )
    @_system
    def order(system: bool) -> int:  # noqa: FBT001
        """Give the order and say that it was carried out."""
        getattr(_running_manager(system=system), name)()
        _report(options.current(), Done(done=(done,)), [done])
        return 0


_add_order("start", "started", "Start the service.")
_add_order("stop", "stopped", "Stop the service.")
_add_order("restart", "restarted", "Restart the service.")


@command.command("status", epilog=options.examples("service status", "service status --system"))
@_system
def status(system: bool) -> int:  # noqa: FBT001
    """Show the state of the service; exit 0 running, 3 not running, 4 no such service."""
    state = _running_manager(system=system).status()
    _report(options.current(), state, _lines(state, time.time()))
    return state.code


def _lines(state: ServiceState, now_s: float) -> list[str]:
    """Return the state as people read it: what is known, nothing else."""
    rows = []
    if state.since_at_s is not None:
        ago = units.duration(max(0.0, now_s - state.since_at_s))
        rows.append(("since", f"{units.moment(state.since_at_s, now_s=now_s)} ({ago})"))
    if state.file:
        words = {True: " (starts by itself)", False: " (does not start by itself)", None: ""}
        rows.append(("file", f"{state.file}{words[state.enabled]}"))
    rows += [("with", file) for file in state.beside]
    if state.memory_bytes is not None:
        most = f" of {units.size(state.memory_max_bytes)}" if state.memory_max_bytes else ""
        rows.append(("memory", f"{units.size(state.memory_bytes)}{most}"))
    if state.watchdog_s is not None and state.running:
        rows.append(("watchdog", f"after {units.duration(state.watchdog_s)} without a sample"))
    rows += [("log", line) for line in state.log]
    rows += [("hint", hint) for hint in state.hints]
    return [state.text, *(f"  {name:<9} {value}" for name, value in rows)]


@command.command(
    "logs",
    epilog=options.examples("service logs --follow", "service logs --since 1h --level warning"),
)
@_system
@click.option(
    "-n", "--lines", type=click.IntRange(min=1), default=50, show_default=True, metavar="COUNT",
    help="How many lines.",
)  # fmt: skip
@click.option("-f", "--follow", is_flag=True, help="Follow new lines.")
@click.option("--since", type=options.INSTANT, metavar="TIME", help="Not before this: 2h (ago).")
@click.option(
    "--level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="debug",
    help="Lowest priority to show.",
)
def logs(system: bool, lines: int, follow: bool, since: float | None, level: str) -> int:  # noqa: FBT001
    """Show the log of the service."""
    if options.current().json:
        raise click.UsageError("logs are text; leave --json out, or ask journalctl -o json")
    manager = _running_manager(system=system)
    return manager.logs(lines=lines, follow=follow, since_at_s=since, level=level)


@command.command(
    "print",
    epilog=options.examples(
        "service print --system", "service print --packaged /usr/bin/gpuwatchd"
    ),
)
@_system
@click.option("--manager", "name", type=click.Choice(list(MANAGERS)), help="Another manager's.")
@click.option(
    "--packaged",
    metavar="EXEC",
    default="",
    help="For a package with this daemon (absolute path): no path of one user in it.",
)
def print_(system: bool, name: str | None, packaged: str) -> int:  # noqa: FBT001
    """Print the unit (or property list) that install writes."""
    manager = _load(name or _own(), system=system)
    text = manager.render(packaged)
    if options.current().json:
        unit = Unit(manager=manager.name, unit=text)
        output.emit_answer(ServicePrint, unit, source="service-manager")
    else:
        click.echo(text, nl=not text.endswith("\n"))
    return 0
