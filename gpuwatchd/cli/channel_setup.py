"""A channel set up in one go: its secret, its section, its use, and the daemon that reads it."""

from __future__ import annotations

import os
import pwd
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import click
import msgspec

from gpuwatchd.cli import config_text
from gpuwatchd.core import config
from gpuwatchd.core.config import loading
from gpuwatchd.core.errors import ConfigError, GpuwatchdError
from gpuwatchd.notify.channels import chat
from gpuwatchd.notify.channels.email import channel as email
from gpuwatchd.notify.outbox import dispatcher
from gpuwatchd.service import other_instances, unit_files
from gpuwatchd.view.answers.alerts import ChannelAdded
from gpuwatchd.view.queries import state_location

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.cli.global_flags import Globals
    from gpuwatchd.core.config import Config, Loaded
    from gpuwatchd.core.ports import Notifier
    from gpuwatchd.view.answers.alerts import Reached

Changes = dict[str, dict[str, Any]]
"""Section ("notify.email") -> key -> value."""
_MOST_CHARS: Final = 1000
_DAEMON: Final = {
    "reloaded": "told to read it again",
    "not-running": "not running here; gpuwatchctl service install starts it",
    "not-told": "restart it to have this read: gpuwatchctl service restart",
}


class ChannelOptions(msgspec.Struct):
    """What the command line says; what is empty is asked for."""

    secret: str = ""
    chat_id: str = ""
    to: tuple[str, ...] = ()
    host: str = ""
    port: int | None = None
    security: Literal["starttls", "tls", "none"] | None = None
    username: str = ""
    sender: str = ""


class Target(NamedTuple):
    """The configuration that is meant, and where the daemon that reads it runs."""

    file: Path
    runtime_dir: Path
    system: bool
    alone: bool
    """Whether it is read without any other."""

    def load(self) -> Loaded:
        """Return what is in force now."""
        file = self.file if self.file.exists() else Path(os.devnull)
        return config.load(file if self.alone else None)


class _Plan(NamedTuple):
    channel: str
    changes: Changes
    secret_file: Path | None
    content: str
    """Of that file."""
    address: str = ""
    """The one to test, of a chat."""


def target(flags: Globals, *, system: bool = False) -> Target:
    """Return the configuration of the daemon that watches here: one's own, or the machine's."""
    named = flags.config or os.environ.get("GPUWATCHD_CONFIG")
    if not named and (system or state_location.chosen().scope == "system"):
        return Target(config.SYSTEM_FILE, config.SYSTEM_RUNTIME_DIR, system=True, alone=True)
    file = Path(named or config.user_file())
    return Target(file, config.runtime_dir(), system=False, alone=bool(named))


def add(
    flags: Globals,
    where: Target,
    name: str,
    given: ChannelOptions,
    *,
    force: bool = False,
    test: Callable[[str, Notifier], Reached] | None = None,
) -> ChannelAdded:
    """Set a channel up; what is not valid, or fails its test, leaves the files as they were.

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
    if name == "email":
        plan = _email(flags, where, given, force=force)
    elif msgspec.structs.replace(given, secret="", chat_id="") != ChannelOptions():
        raise click.UsageError(f"{name} takes no option of email, such as --to or --host")
    else:
        plan = _chat(flags, where, name, given, force=force)
    notes = _use(where, plan)
    tested, kept = None, False
    try:
        files = _files(where, plan)
        before = [
            file._replace(
                content=file.path.read_bytes(),
                mode=file.path.stat().st_mode & 0o777,
                owner=_owner(file.path),
            )
            for file in files
            if file.path.exists()
        ]
        unit_files.write_atomically(*files)
        try:
            settings = where.load().config
            if test is not None:
                tested = test(plan.channel, _notifier(plan, settings))
            kept = tested is None or tested.result == "arrived"
        finally:
            if not kept:
                unit_files.write_atomically(*before)
                for path in {file.path for file in files} - {file.path for file in before}:
                    path.unlink(missing_ok=True)
    except OSError as error:
        raise GpuwatchdError(
            f"{error.filename or where.file}: {error.strerror}",
            hint="choose another place with --config FILE",
            page="errors#cannot-write",
        ) from error
    if not kept:
        settings, notes = where.load().config, []
    return ChannelAdded(
        channel=plan.channel,
        file=str(where.file),
        secret_file=None if plan.secret_file is None or not kept else str(plan.secret_file),
        channels=settings.policy.channels,
        daemon=_reload_daemon(where.runtime_dir) if kept else "unchanged",
        notes=(*notes, *config.channels.unused(settings)),
        test=tested,
    )


def _notifier(plan: _Plan, settings: Config) -> Notifier:
    """Return what sends a test."""
    if plan.address:  # by the new one alone: who has the others does not want a test of it
        return chat.SingleChat(plan.address, settings.notify.chat.timeout)
    return dispatcher.build(settings.notify, [plan.channel])[plan.channel]


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
        given = click.prompt(
            words, default=default, show_default=bool(default), hide_input=secret, err=True
        ).strip()
    if not given and default is None:
        hint = " (- reads it from standard input)" if secret else ""
        raise click.UsageError(f"{option} is missing: {words}{hint}")
    if len(given) > _MOST_CHARS or not given.isprintable():
        raise click.UsageError(f"{option}: not one short line of text: {words}")
    return given or default or ""


def _chat(flags: Globals, where: Target, name: str, given: ChannelOptions, *, force: bool) -> _Plan:
    chat.kind("")  # before anything is asked: is there what sends to it
    service, settings = config.channels.CHAT_SERVICES[name], where.load().config
    urls_file = settings.notify.chat.urls_file
    if not (urls_file or force) and "chat" in config.channels.used(settings):
        raise GpuwatchdError(
            "chat is in use without urls-file: a file would replace what its daemon is given "
            f"(credential {chat.CREDENTIAL}, {chat.VARIABLE})",
            hint=f"add the address there; to replace that: gpuwatchctl notify add {name} --force",
            page="errors#file-exists",
        )
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
    if chat.kind(address) != service.kind:
        raise click.UsageError(
            f"{name}: not a {service.asks}; see: gpuwatchctl docs chat#addresses"
        )
    file = config.expanded(urls_file) if urls_file else where.file.resolve().parent / "chat-urls"
    lines = [
        line
        for line in (chat.content(file).splitlines() if file.exists() else ())
        if line.strip() != address and not (force and chat.kind(line.strip()) == service.kind)
    ]
    changes: Changes = {} if urls_file else {"notify.chat": {"urls-file": str(file)}}
    return _Plan("chat", changes, file, "\n".join([*lines, address, ""]), address)


def _email(flags: Globals, where: Target, given: ChannelOptions, *, force: bool) -> _Plan:
    settings = where.load().config
    section = settings.notify.email
    if "email" in config.channels.set_up(settings) and not force:
        raise GpuwatchdError(
            f"email is set up already: {', '.join(section.to)} by {section.host}",
            hint="gpuwatchctl notify add email --force replaces it; notify test email tries it",
            page="errors#file-exists",
        )
    to = list(given.to) or _asked(flags, "--to", "Mail to", "").replace(",", " ").split()
    host = _asked(flags, "--host", "Mail server (SMTP)", given.host)
    security = given.security or ("none" if email.is_loopback(host) else "starttls")
    sender = _asked(flags, "--from", "From", given.sender, default=next(iter(to), None))
    state = email.EmailNotifier(host=host, security=security, sender=sender, to=to).probe()
    if not state.ok:
        raise click.UsageError(f"email: {state.reason}")
    username = _asked(flags, "--username", "Login (empty: none)", given.username, default="")
    password, file = "", None
    if given.secret and not username:
        raise click.UsageError("--password needs --username")
    if username:
        file = where.file.resolve().parent / email.CREDENTIAL
        if file.exists() and not force:
            raise GpuwatchdError(
                f"{file} is there already, and no mail server that it is for",
                hint="move it away; or gpuwatchctl notify add email --force replaces it",
                page="errors#file-exists",
            )
        password = _asked(flags, "--password", "Password", given.secret, secret=True)
    values = {
        "host": host,
        "to": to,
        "sender": sender,
        "security": security,
        "username": username,
        "password-file": "" if file is None else str(file),
        "port": given.port or (email.DEFAULT_PORTS[security] if section.port else None),
    }
    old = config_text.plain(section)
    changed = {key: value for key, value in values.items() if value != old[key]}
    return _Plan("email", {"notify.email": changed}, file, f"{password}\n")


def unreached(flags: Globals, *, system: bool) -> Target | None:
    """Return the configuration by which nobody is warned, since no desktop session is here."""
    where = target(flags, system=system)
    try:
        settings = where.load().config
    except GpuwatchdError:
        return None  # the daemon says what is wrong with it
    policy = settings.policy
    in_use = {*policy.channels, *policy.fallback}
    if not policy.channels or in_use - {"desktop", "email"}:
        return None  # none is wanted, or one whose secret only the service manager has
    if in_use.intersection(config.channels.set_up(settings)):
        return None
    pop_ups = "desktop" in in_use and not where.system and _desktop_works(settings)
    return None if pop_ups else where


def _desktop_works(settings: Config) -> bool:
    """Say whether a pop-up can be shown to this user now."""
    return dispatcher.build(settings.notify, ["desktop"])["desktop"].probe().ok


def _use(where: Target, plan: _Plan) -> list[str]:
    """Let the plan use its channel; return what is to be said of that."""
    loaded = where.load()  # somebody may have edited it while questions stood at the terminal
    current, chosen = loaded.config.policy.channels, loaded.channels_chosen
    kept, notes = list(current), []
    if not chosen and "desktop" in kept and (where.system or not _desktop_works(loaded.config)):
        kept.remove("desktop")
        notes = ["no pop-ups: there is no desktop session here"]
    wanted = list(dict.fromkeys((*kept, plan.channel)))
    if (chosen or notes or not current) and wanted != list(current):
        plan.changes["policy"] = {"channels": wanted}
    return notes


def _files(where: Target, plan: _Plan) -> list[unit_files.NewFile]:
    """Return what is to be written; the folder of the configuration is made."""
    file = where.file.resolve()
    words, mode = "", 0o644 if where.system else 0o600
    with suppress(FileNotFoundError):
        words, mode = file.read_bytes().decode("utf-8"), file.stat().st_mode & 0o777
    after = edited(words, plan.changes, file)
    file.parent.mkdir(mode=0o755 if where.system else 0o700, parents=True, exist_ok=True)
    files = []
    if after != words:
        files.append(unit_files.NewFile(file, after.encode(), mode, _owner(file)))
    if plan.secret_file is not None:
        path = plan.secret_file.resolve()
        owner = _owner(path)
        if where.system:
            with suppress(KeyError):
                owner = pwd.getpwnam(config.SYSTEM_GROUP)[2:4]
        files.append(unit_files.NewFile(path, plan.content.encode(), 0o600, owner))
    return files


def _owner(path: Path) -> tuple[int, int] | None:
    """Return whose a file of root's making is: whose the old one was, or its folder."""
    if os.geteuid():
        return None
    status = next(at for at in (path, *path.parents) if at.exists()).stat()
    return status.st_uid, status.st_gid


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


def lines(added: ChannelAdded) -> list[str]:
    """Return what was done, as people read it."""
    if added.daemon == "unchanged":
        return ["written  nothing is kept, since the test failed; --no-test keeps it"]
    secret = [] if added.secret_file is None else [f"secret   {added.secret_file} (mode 0600)"]
    return [
        *secret,
        f"written  {added.file}",
        f"alerts   are sent by {', '.join(added.channels) or 'no channel'}",
        *(f"note     {note}" for note in added.notes),
        f"daemon   {_DAEMON[added.daemon]}",
    ]


# Keys set in a configuration file that people write by hand: the rest of it stays as it is.

_VALUE: Final = r"""(?:[^#"'\n]|"[^"\n]*"|'[^'\n]*')*?"""
_SECTION: Final = re.compile(r"^[ \t]*\[", re.MULTILINE)


def edited(words: str, changes: Changes, file: Path) -> str:
    """Return the text of a file with some keys set; comments and all other keys stay.

    Raises
    ------
    ConfigError
        When the file is bad, or so written that a line put in does not mean what it should.
    """
    wanted: dict[str, Any] = loading.parse(words, file=str(file))
    after = words
    for section, values in changes.items():
        table = wanted
        for part in section.split("."):
            table = table.setdefault(part, {})
        table |= values
        for key, value in reversed(values.items()):  # each goes right below the head
            after = _set(after, section, key, config_text.toml(value))
    try:
        good = loading.parse(after, file=str(file)) == wanted
    except ConfigError:
        good = False
    if not good:
        keys = "; ".join(
            f"[{section}] {key} = {config_text.toml(value)}"
            for section, values in changes.items()
            for key, value in values.items()
        )
        why = "written in a way that only you can change"
        raise ConfigError(str(file), "", why, hint=f"write: {keys}")
    return after


def _set(words: str, section: str, key: str, value: str) -> str:
    """Return the text with a key of one line replaced, or put below the head of its section."""
    name = r"[ \t]*\.[ \t]*".join(map(re.escape, section.split(".")))
    head = re.search(rf"^[ \t]*\[[ \t]*{name}[ \t]*\][ \t\r]*(#.*)?$", words, re.MULTILINE)
    if head is None:
        above = f"{words.rstrip()}\n\n" if words.strip() else ""
        return f"{above}[{section}]\n{key} = {value}\n"
    begin = head.end()
    following = _SECTION.search(words, begin)
    end = len(words) if following is None else following.start()
    name = key.replace("-", "[-_]")
    old = re.compile(rf"^([ \t]*{name}[ \t]*=[ \t]*){_VALUE}([ \t\r]*(?:#.*)?)$", re.MULTILINE)
    body, count = old.subn(lambda line: line[1] + value + line[2], words[begin:end], count=1)
    body = body if count else f"\n{key} = {value}{body}"
    return f"{words[:begin]}{body}{words[end:]}"
