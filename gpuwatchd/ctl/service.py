"""``service``: the daemon under the user's service manager."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from gpuwatchd import registry
from gpuwatchd.ctl import envelope, options, output
from gpuwatchd.errors import ServiceError
from gpuwatchd.service import MANAGERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.ctl.flags import Globals
    from gpuwatchd.ports import Manager

NOT_RUNNING = 3


@click.group(
    "service", epilog=options.examples("service install --linger", "service logs --follow")
)
def command() -> None:
    """Install and run the daemon as a service of yours; no root."""


def _own() -> str:
    return "launchd" if sys.platform == "darwin" else "systemd"


def _load(name: str, *, system: bool = False) -> Manager:
    try:
        manager: Manager = registry.load(MANAGERS, name)(system=system)
    except ImportError as error:
        raise ServiceError(name, "loading", str(error), hint="reinstall gpuwatchd") from error
    return manager


def _running_manager() -> Manager:
    """Return the service manager of this machine.

    Raises
    ------
    ServiceError
        When it does not run here.
    """
    name = _own()
    manager = _load(name)
    found = manager.probe()
    if not found.ok:
        hint = found.hint or "run the daemon yourself: gpuwatchd"
        raise ServiceError(name, "looking for it", found.reason, hint=hint)
    return manager


def _report(flags: Globals, data: dict[str, Any], lines: list[str]) -> None:
    if flags.json:
        output.emit_json(envelope.answer("service", data, source="service-manager"))
    elif not flags.quiet:
        out = output.Out(flags)
        for line in lines:
            out.line(line)


_system = click.option(
    "--system", is_flag=True, help="The service of the whole machine, not one of yours."
)
_dry_run = click.option("--dry-run", is_flag=True, help="Only say what would be done.")


@command.command("install", epilog=options.examples("service install", "service install --dry-run"))
@_dry_run
@click.option("--linger", is_flag=True, help="Keep it running after you log out.")
def install(dry_run: bool, linger: bool) -> int:  # noqa: FBT001
    """Write, enable and start the service."""
    manager = _load(_own()) if dry_run else _running_manager()
    done = manager.install(dry_run=dry_run, linger=linger)
    _report(options.current(), {"dry_run": dry_run, "done": done}, done)
    return 0


@command.command(
    "uninstall", epilog=options.examples("service uninstall", "service uninstall --dry-run")
)
@_dry_run
def uninstall(dry_run: bool) -> int:  # noqa: FBT001
    """Stop and remove the service; history and configuration stay."""
    manager = _load(_own()) if dry_run else _running_manager()
    done = manager.uninstall(dry_run=dry_run)
    _report(options.current(), {"dry_run": dry_run, "done": done}, done)
    return 0


def _do(word: str, work: Callable[[Manager], None]) -> int:
    work(_running_manager())
    _report(options.current(), {"done": [word]}, [word])
    return 0


@command.command("start", epilog=options.examples("service start", "service start --json"))
def start() -> int:
    """Start the service."""
    return _do("started", lambda manager: manager.start())


@command.command("stop", epilog=options.examples("service stop", "service stop --json"))
def stop() -> int:
    """Stop the service."""
    return _do("stopped", lambda manager: manager.stop())


@command.command("restart", epilog=options.examples("service restart", "service restart --json"))
def restart() -> int:
    """Restart the service."""
    return _do("restarted", lambda manager: manager.restart())


@command.command("status", epilog=options.examples("service status", "service status --json"))
def status() -> int:
    """Say whether the service runs: exit 0 running, 3 not."""
    running, words = _running_manager().status()
    _report(options.current(), {"running": running, "text": words}, words.splitlines())
    return 0 if running else NOT_RUNNING


@command.command("logs", epilog=options.examples("service logs", "service logs -n 200 --follow"))
@click.option(
    "-n", "--lines", type=click.IntRange(min=1), default=50, show_default=True, metavar="COUNT",
    help="How many lines.",
)  # fmt: skip
@click.option("-f", "--follow", is_flag=True, help="Go on as lines come.")
def logs(lines: int, follow: bool) -> int:  # noqa: FBT001
    """Show the log of the service."""
    flags = options.current()
    if flags.json:
        raise click.UsageError("logs are text; leave --json out, or ask journalctl -o json")
    return _running_manager().logs(lines=lines, follow=follow)


@command.command(
    "print",
    epilog=options.examples(
        "service print --system", "service print --packaged /usr/bin/gpuwatchd"
    ),
)
@_system
@click.option("--manager", "name", type=click.Choice(list(MANAGERS)), help="Another manager's.")
@click.option(
    "--packaged", metavar="EXEC", default="",
    help="For a package with this daemon (absolute path): no path of one user in it.",
)  # fmt: skip
def print_(system: bool, name: str | None, packaged: str) -> int:  # noqa: FBT001
    """Print the unit (or property list) that install writes."""
    manager = _load(name or _own(), system=system)
    text = manager.render(packaged)
    flags = options.current()
    if flags.json:
        data = {"manager": manager.name, "unit": text}
        output.emit_json(envelope.answer("service", data, source="service-manager"))
    else:
        click.echo(text, nl=not text.endswith("\n"))
    return 0
