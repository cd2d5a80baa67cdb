"""A channel set up in one go: its secret, its section, its use, the daemon, a test message."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import click
import msgspec

from gpuwatchd.cli import config_edit, config_text
from gpuwatchd.core import config
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.notify import dispatcher
from gpuwatchd.notify.channels import chat
from gpuwatchd.notify.channels.email.channel import EmailNotifier
from gpuwatchd.service import other_instances, unit_files
from gpuwatchd.view.answers.alerts import Added
from gpuwatchd.view.queries import state_location

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.cli.config_edit import Changes
    from gpuwatchd.cli.global_flags import Globals
    from gpuwatchd.core.config import Loaded
    from gpuwatchd.core.ports import Notifier
    from gpuwatchd.view.answers.alerts import Reached

    Test = Callable[[str, Notifier], Reached]

_LOOPBACK: Final = {"localhost", "127.0.0.1", "::1"}
_MOST_CHARS: Final = 1000
_PORTS: Final = {"starttls": 587, "tls": 465, "none": 25}


class Service(NamedTuple):
    """A chat service: what people paste, and the address that is made of it."""

    asks: str
    kinds: frozenset[str]
    """What stands before "://" in its addresses."""
    address: str = "{}"
    option: str = "--url"


SERVICES: Final = {
    "slack": Service("webhook, https://hooks.slack.com/services/...", frozenset({"slack"})),
    "discord": Service("webhook, https://discord.com/api/webhooks/...", frozenset({"discord"})),
    "teams": Service("workflow address, https://...", frozenset({"workflow", "workflows"})),
    "ntfy": Service(
        "topic, or https://SERVER/TOPIC",
        frozenset({"ntfy", "ntfys"}),
        "ntfys://ntfy.sh/{}",
        "--topic",
    ),
    "pagerduty": Service(
        "key of an Events API v2 integration",
        frozenset({"pagerduty"}),
        "pagerduty://{}@apikey?action=map",
        "--key",
    ),
    "telegram": Service("token of the bot", frozenset({"tgram"}), "tgram://{}/{}", "--token"),
}
NAMES: Final = (*SERVICES, "email")


class Given(msgspec.Struct):
    """What the command line says; what is empty is asked for."""

    secret: str = ""
    chat_id: str = ""
    to: tuple[str, ...] = ()
    host: str = ""
    port: int | None = None
    security: Literal["starttls", "tls", "none"] | None = None
    username: str = ""
    sender: str = ""


class Place(NamedTuple):
    """The configuration that is meant, and where the daemon that reads it runs."""

    file: Path
    runtime_dir: Path
    system: bool
    loaded: Loaded
    """As it is in force now."""

    def reload(self) -> Place:
        """Return the same as it is in force after the file was written."""
        return self._replace(loaded=_load(self.file, alone=self.system or self.file != _usual()))


class _Plan(NamedTuple):
    channel: str
    changes: Changes
    secret_file: Path | None
    content: str = ""
    """Of that file."""
    address: str = ""
    """The one to test, of a chat."""


def _usual() -> Path:
    return config.user_file()


def _load(file: Path, *, alone: bool) -> Loaded:
    return config.load((file if file.exists() else Path(os.devnull)) if alone else None)


def place(flags: Globals, *, system: bool = False) -> Place:
    """Return the configuration of the daemon that watches here: one's own, or the machine's."""
    named = flags.config or os.environ.get("GPUWATCHD_CONFIG")
    if not named and (system or state_location.chosen().scope == "system"):
        file, runtime_dir, system = config.SYSTEM_FILE, config.SYSTEM_RUNTIME_DIR, True
    else:
        file, runtime_dir, system = Path(named or _usual()), config.runtime_dir(), False
    loaded = _load(file, alone=bool(named) or system)
    return Place(file, runtime_dir, system, loaded)


def add(
    flags: Globals, where: Place, name: str, given: Given, *, force: bool, test: Test | None
) -> Added:
    """Set a channel up; nothing is written before all is known and the result is valid.

    Raises
    ------
    GpuwatchdError
        When it is there already, a library is missing, or a file cannot be written.
    click.UsageError
        When something is missing and there is no terminal to ask at.
    """
    if where.system and os.geteuid():
        raise GpuwatchdError(
            f"the service of this machine reads {where.file}, which only root may change",
            hint=f"sudo gpuwatchctl notify add {name}",
            page="errors#root-needed",
        )
    if name != "email" and msgspec.structs.replace(given, secret="", chat_id="") != Given():
        raise click.UsageError(f"{name} takes no option of email, such as --to or --host")
    plan = (_email if name == "email" else _chat)(flags, where, name, given, force=force)
    where = where.reload()  # somebody may have edited it while questions stood at the terminal
    notes = _use(where, plan)
    try:
        _write(where, plan)
    except OSError as error:
        raise GpuwatchdError(
            f"{error.filename or where.file}: {error.strerror}",
            hint="choose another place with --config FILE",
            page="errors#cannot-write",
        ) from error
    settings = where.reload().loaded.config
    return Added(
        channel=plan.channel,
        file=str(where.file),
        secret_file=None if plan.secret_file is None else str(plan.secret_file),
        channels=settings.policy.channels,
        daemon=_reload_daemon(where.runtime_dir),
        notes=(*notes, *config.channels.unused(settings)),
        test=None if test is None else _tested(settings.notify, plan, test),
    )


def _asked(
    flags: Globals,
    option: str,
    words: str,
    given: str,
    *,
    default: str | None = None,
    secret: bool = False,
) -> str:
    """Return what was given, or what is said at the terminal; "-" reads a line of stdin."""
    if given == "-":
        given = sys.stdin.readline().strip()
    elif not given and sys.stdin.isatty() and not flags.json:
        shown = bool(default)
        given = click.prompt(
            words, default=default, show_default=shown, hide_input=secret, err=True
        ).strip()
    if not given and default is None:
        hint = " (- reads it from standard input)" if secret else ""
        raise click.UsageError(f"{option} is missing: {words}{hint}")
    if len(given) > _MOST_CHARS or not given.isprintable():
        raise click.UsageError(f"{option}: not one short line of text: {words}")
    return given or default or ""


def _chat(flags: Globals, where: Place, name: str, given: Given, *, force: bool) -> _Plan:
    chat.kinds("")  # before anything is asked: is there what sends to it
    service, urls_file = SERVICES[name], where.loaded.config.notify.chat.urls_file
    words = _asked(flags, service.option, f"{name}: {service.asks}", given.secret, secret=True)
    if "://" not in words:
        parts = [words]
        if name == "telegram":
            parts.append(_asked(flags, "--chat-id", "telegram: number of the chat", given.chat_id))
        address = service.address.format(*parts)
    elif name == "ntfy":  # as Apprise writes a server of one's own
        address = words.replace("https://", "ntfys://", 1).replace("http://", "ntfy://", 1)
    else:
        address = words
    if not chat.kinds(address) & service.kinds:
        raise click.UsageError(
            f"{name}: not a {service.asks}; see: gpuwatchctl docs chat#addresses"
        )
    file = config.expanded(urls_file) if urls_file else where.file.resolve().parent / "chat-urls"
    held = chat.content(file).splitlines() if file.exists() else []
    if not urls_file and "chat" in config.channels.used(where.loaded.config):
        held += _addresses_elsewhere(name, force=force)
    lines = [
        line
        for line in held
        if line.strip() != address and not (force and chat.kinds(line.strip()) & service.kinds)
    ]
    changes: Changes = {} if urls_file else {"notify.chat": {"urls-file": str(file)}}
    return _Plan("chat", changes, file, "\n".join([*lines, address, ""]), address)


def _addresses_elsewhere(name: str, *, force: bool) -> list[str]:
    """Return the addresses of a credential or the environment: a file is read instead of them."""
    try:
        return [address.url for address in chat.load("")]
    except GpuwatchdError:
        if force:
            return []
    raise GpuwatchdError(
        "chat is in use without urls-file: what its daemon is given (credential "
        f"{chat.CREDENTIAL}, {chat.VARIABLE}) cannot be read here, and a file would replace it",
        hint=f"add the address there; if there is nothing: gpuwatchctl notify add {name} --force",
        page="errors#file-exists",
    )


def _email(flags: Globals, where: Place, name: str, given: Given, *, force: bool) -> _Plan:
    section = where.loaded.config.notify.email
    if name in config.channels.set_up(where.loaded.config) and not force:
        raise GpuwatchdError(
            f"email is set up already: {', '.join(section.to)} by {section.host}",
            hint="gpuwatchctl notify add email --force replaces it; notify test email tries it",
            page="errors#file-exists",
        )
    to = list(given.to) or _asked(flags, "--to", "Mail to", "").replace(",", " ").split()
    host = _asked(flags, "--host", "Mail server (SMTP)", given.host)
    security = given.security or ("none" if host in _LOOPBACK else "starttls")
    sender = _asked(flags, "--from", "From", given.sender, default=next(iter(to), None))
    state = EmailNotifier(host=host, security=security, sender=sender, to=to).probe()
    if not state.ok:
        raise click.UsageError(f"email: {state.reason}")
    username = _asked(flags, "--username", "Login (empty: none)", given.username, default="")
    password, file = "", None
    if given.secret and not username:
        raise click.UsageError("--password needs --username")
    if username:
        password = _asked(flags, "--password", "Password", given.secret, secret=True)
        file = where.file.resolve().parent / "smtp-password"
    values = {
        "host": host,
        "to": to,
        "sender": sender,
        "security": security,
        "username": username,
        "password-file": "" if file is None else str(file),
        "port": given.port or (_PORTS[security] if section.port else None),
    }
    old = config_text.plain(section)
    changed = {key: value for key, value in values.items() if value != old[key]}
    return _Plan("email", {"notify.email": changed}, file, f"{password}\n")


def unreached(flags: Globals, *, system: bool) -> Place | None:
    """Return the configuration by which nobody is warned, since no desktop session is here."""
    try:
        where = place(flags, system=system)
    except GpuwatchdError:
        return None  # the daemon says what is wrong with it
    current = where.loaded.config.policy.channels
    if not current or not {"desktop", "email"}.issuperset(current):
        return None  # none is wanted, or one whose secret only the service manager has
    if config.channels.set_up(where.loaded.config):
        return None
    no_desktop = where.system or "desktop" not in current or not desktop_works(where.loaded)
    return where if no_desktop else None


def desktop_works(loaded: Loaded) -> bool:
    """Say whether a pop-up can be shown to this user now."""
    return dispatcher.build(loaded.config.notify, ("desktop",))["desktop"].probe().ok


def _use(where: Place, plan: _Plan) -> list[str]:
    """Let the plan use its channel; return what is to be said of that."""
    current, chosen = where.loaded.config.policy.channels, where.loaded.channels_chosen
    notes = []
    kept = current
    if not chosen and "desktop" in current and (where.system or not desktop_works(where.loaded)):
        kept = tuple(name for name in current if name != "desktop")
        notes = ["no pop-ups: there is no desktop session here"]
    if chosen or kept != current or not current:
        wanted = list(dict.fromkeys((*kept, plan.channel)))
        if wanted != list(current):
            plan.changes["policy"] = {"channels": wanted}
    return notes


def _write(where: Place, plan: _Plan) -> None:
    file = where.file.resolve()
    there = file.exists()
    words = file.read_bytes().decode("utf-8") if there else ""
    after = config_edit.edited(words, plan.changes, file)
    file.parent.mkdir(mode=0o755 if where.system else 0o700, parents=True, exist_ok=True)
    if plan.secret_file is not None:
        unit_files.write_atomically(plan.secret_file.resolve(), plan.content.encode(), 0o600)
        if where.system:
            with suppress(LookupError):
                shutil.chown(plan.secret_file, config.SYSTEM_GROUP, config.SYSTEM_GROUP)
    if after != words:
        mode = file.stat().st_mode & 0o777 if there else 0o644 if where.system else 0o600
        unit_files.write_atomically(file, after.encode(), mode)


def _reload_daemon(runtime_dir: Path) -> Literal["reloaded", "not-running", "not-told"]:
    pid = other_instances.lock_holder(runtime_dir)
    if pid is None:
        return "not-running"
    with suppress(OSError):
        # In a container that shares the directory the number would be another process's.
        if pid > 0 and b"gpuwatchd" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGHUP)
            return "reloaded"
    return "not-told"


_DAEMON: Final = {
    "reloaded": "daemon   told to read it again",
    "not-running": "daemon   not running here; gpuwatchctl service install starts it",
    "not-told": "daemon   restart it to have this read: gpuwatchctl service restart",
}


def lines(added: Added) -> list[str]:
    """Return what was done, as people read it."""
    secret = [] if added.secret_file is None else [f"secret   {added.secret_file} (mode 0600)"]
    return [
        *secret,
        f"written  {added.file}",
        f"alerts   are sent by {', '.join(added.channels) or 'no channel'}",
        *(f"note     {note}" for note in added.notes),
        _DAEMON[added.daemon],
    ]


def _tested(section: config.NotifySection, plan: _Plan, test: Test) -> Reached:
    if not plan.address:
        return test(plan.channel, dispatcher.build(section, (plan.channel,))[plan.channel])
    # By the new address alone: who has the others does not want a test of it.
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:  # mode 0600
        file.write(f"{plan.address}\n")
        file.flush()
        return test(plan.channel, chat.ChatNotifier(file.name, section.chat.timeout))
