"""Can people be reached: channels in use, mail server, desktop session, live page."""

from __future__ import annotations

import errno
import importlib.util
import os
import socket
import stat
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from gpuwatchd.cli.doctor import Check, PendingCheck, ok, warning
from gpuwatchd.collect.host.procfs import read_bytes, words_of
from gpuwatchd.core import config, extras, text
from gpuwatchd.core.codes import ProblemCode
from gpuwatchd.core.config import listening
from gpuwatchd.core.errors import NotifyError
from gpuwatchd.notify import NOTIFIERS
from gpuwatchd.service import account
from gpuwatchd.view.queries import current_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from gpuwatchd.cli.doctor import CheckContext
    from gpuwatchd.core.ports import Notifier


def check(around: CheckContext) -> Iterator[Check]:
    """Yield what each channel says of itself, and which are set up in vain."""
    from gpuwatchd.notify.outbox import dispatcher  # noqa: PLC0415

    used = config.channels.used(around.settings)
    built = dispatcher.build(around.settings.notify, [name for name in NOTIFIERS if name in used])
    for asked in [_ask(name, notifier) for name, notifier in built.items()]:
        yield from asked.answers()
    for sentence in config.channels.unused(around.settings):
        yield warning("channel-unused", sentence, "gpuwatchctl notify list")


def _ask(name: str, notifier: Notifier) -> PendingCheck:
    test = f"gpuwatchctl notify test {name}"

    def probe() -> list[Check]:
        state = notifier.probe()
        if state.ok:
            return [ok(state.reason)]
        return [warning(f"channel-{name}", state.reason, state.hint or test)]

    hung = warning("channel-hangs", "does not answer", test, name=f"channel {name}")
    return PendingCheck(probe, hung)


# Does the mail server answer, as far as one comes without sending anything.

WITHIN_S = 4.0
"""For the whole conversation."""
NAMES_S = 1.0
"""More for finding the address of a name, which cannot be interrupted."""


def mail_server(around: CheckContext) -> Iterator[Check]:
    """Yield whether the server of [notify.email] answers; nothing where no mail is wanted."""
    section = around.settings.notify.email
    if "email" not in config.channels.used(around.settings) or not section.host:
        return
    if around.offline:
        yield ok("not asked (--offline)")
        return
    host = section.host
    hung = warning(
        "mail-unreachable",
        f"{host} does not answer within {WITHIN_S + NAMES_S:g} s",
        f"getent hosts {host}; is the port open from here?",
    )
    yield from PendingCheck(lambda: [_reach(around)], hung).answers(WITHIN_S + NAMES_S)


def _reach(around: CheckContext) -> Check:
    from gpuwatchd.notify.channels.email.channel import Reach  # noqa: PLC0415

    server = Reach(**{**msgspec.structs.asdict(around.settings.notify.email), "timeout": WITHIN_S})
    try:
        return ok(server.reach())
    except NotifyError as error:
        return warning(server.fault, error.message, error.hint or "gpuwatchctl notify test email")


# Is there a desktop session for the pop-ups, and why not.

_CONNECT_S = 1.0
_ELSE = "or, on a machine without a desktop: gpuwatchctl notify add email"


def desktop_session(around: CheckContext) -> Iterator[Check]:
    """Yield where the session bus is; nothing where no pop-up is wanted."""
    if "desktop" not in config.channels.used(around.settings) or os.uname().sysname != "Linux":
        return
    from gpuwatchd.notify.channels.desktop import session_bus  # noqa: PLC0415

    names = session_bus.addresses(around.environ)
    alive = [value for value in names if answers(value)]
    if alive:
        yield ok(f"the session bus is at {text.clean(alive[0])}")
        return
    foreign = _why_foreign(around.environ)
    if foreign is not None:
        yield warning("session-foreign", *foreign)
    elif names:
        yield warning(
            "session-dead",
            f"no answer from the session bus {text.clean(names[0])}: that session has ended",
            "unset DBUS_SESSION_BUS_ADDRESS and log in again",
        )
    else:
        yield warning(
            "session-none",
            "DBUS_SESSION_BUS_ADDRESS is not set and there is no bus in /run/user: no desktop "
            "session is seen from here",
            f"log in to a desktop, or install dbus-user-session; {_ELSE}",
        )


def _why_foreign(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return words and hint where this shell is not the one of a desktop session."""
    if environ.get("SUDO_USER") and os.geteuid() == 0:
        name = text.clean(environ["SUDO_USER"])
        words = f"sudo: root has no desktop session; that of {name} belongs to {name}"
        return words, f"run it as {name}: gpuwatchctl doctor"
    home = environ.get("XDG_RUNTIME_DIR", "")
    if home.startswith("/run/user/") and home != f"/run/user/{os.getuid()}":
        words = f"su: XDG_RUNTIME_DIR={text.clean(home)} is another user's"
        return words, "log in as this user itself (su -l, ssh or machinectl shell)"
    if environ.get("SSH_CONNECTION"):
        words = "ssh: this login has no desktop session, and no user is logged in to a desktop"
        return words, f"have the daemon run in the session of a desktop, {_ELSE}"
    return None


def answers(address: str) -> bool:
    """Say whether somebody listens at a D-Bus address; of several the first that does counts.

    Examples
    --------
    >>> answers("unix:path=/nowhere")
    False
    """
    for value in address.split(";"):
        kind, _, rest = value.partition(":")
        values = dict(part.split("=", 1) for part in rest.split(",") if "=" in part)
        if kind != "unix":
            return bool(kind)  # tcp, launchd, autolaunch: only the library can tell
        path = values.get("path") or (f"\0{values['abstract']}" if "abstract" in values else "")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as tried:
            tried.settimeout(_CONNECT_S)
            try:
                tried.connect(path)
            except (OSError, ValueError):
                continue
            return True
    return False


# Could the live page be served as [web] says: libraries, address, token, who can read it.

_NEEDED: Final = ("starlette", "uvicorn")
_TOKEN: Final = "web-token"  # noqa: S105 - the name of its file
_RENEW: Final = "gpuwatchctl web --new-token --token"
_LISTENS: Final = "0A"
_TUNNEL: Final = (
    '[web] listen = "127.0.0.1:9753", and ssh -t -L 9753:127.0.0.1:9753 HOST gpuwatchctl web'
)


class _Listener(NamedTuple):
    """Who is to listen, for what is said of its place."""

    name: str
    section: str
    elsewhere: str
    is_own: Callable[[int, Sequence[str]], bool]
    """Whether a pid and its command line are its own."""

    @property
    def fault(self) -> str:
        """Id of what is wrong with its place."""
        return f"{self.section}-listen"


_WEB: Final = _Listener(
    "gpuwatchctl web",
    "web",
    "gpuwatchctl web --port 0 takes a free one; [web] listen names another",
    lambda _, argv: any(word.endswith("gpuwatchctl") for word in argv) and "web" in argv,
)
_METRICS: Final = _Listener(
    "gpuwatchd",
    "metrics",
    "[metrics] listen names another",
    lambda _, argv: any(word.endswith("gpuwatchd") for word in argv[:3]),
)


def metrics(around: CheckContext) -> Iterator[Check]:
    """Yield whether Prometheus has what [metrics] says: the daemon knows, or it is tried here."""
    if around.faulty is not None:
        return
    section, state = around.settings.metrics, around.state[0] if around.alive else None
    pid = None if state is None else state.pid
    daemon = _METRICS._replace(is_own=lambda holder, _: holder == pid)
    faults = [
        warning(code.value, words, "gpuwatchctl service logs")
        for code in (ProblemCode.METRICS_LISTEN, ProblemCode.METRICS_FILE)
        for words in ([] if state is None else current_state.problems_of(state, code))
    ] or metrics_faults(section, around.root, daemon)
    if faults or not (section.listen or section.file):
        yield from faults or [ok("off")]
        return
    if section.listen:
        where = text.clean(section.listen, limit=200)
        if (place := _place(around.root, _metrics_address(section), daemon)) is not None:
            yield place
        elif pid is None:
            yield ok(f"not served at {where}: the daemon is not running")
        else:
            words = f"not served at {where}: the daemon, pid {pid}, does not listen there"
            yield warning(daemon.fault, words, "gpuwatchctl service restart")
    if section.file:
        where = text.clean(section.file)
        ended = f"not written to {where}: the daemon is not running"
        yield ok(ended if pid is None else f"written to {where}")


def _metrics_address(section: config.MetricsSection) -> listening.Address:
    return listening.parse(
        section.listen, remote=section.remote, section="metrics", socket=listening.METRICS_SOCKET
    )


def metrics_faults(
    section: config.MetricsSection, root: Path, daemon: _Listener = _METRICS
) -> list[Check]:
    """Return what keeps the daemon, as this user, from what a section asks for."""
    asked: list[Check | None] = []
    if not (section.listen or section.file):
        return []
    if importlib.util.find_spec("prometheus_client") is None:
        words = "needs prometheus-client, which is not installed"
        asked.append(warning("metrics-extra", words, extras.install("metrics")))
    if section.listen:
        address = _metrics_address(section)
        asked.append(_place(root, address, daemon))
        asked.append(_metrics_token(section, address))
    if section.file:
        folder = config.expanded(section.file).parent
        value = text.clean(str(folder))
        if not folder.is_dir():
            hint = f"mkdir {value}, or the folder of --collector.textfile.directory"
            asked.append(warning("metrics-file", f"{value} is no folder", hint))
        elif not os.access(folder, os.W_OK | os.X_OK):
            hint = f"let gpuwatchd write there: chgrp and chmod g+w {value}"
            asked.append(warning("metrics-file", f"{value} cannot be written by you", hint))
    return [one for one in asked if one is not None and one.level != "ok"]


def _metrics_token(section: config.MetricsSection, address: listening.Address) -> Check | None:
    from gpuwatchd.notify import credentials  # noqa: PLC0415

    try:
        token = credentials.read("token", credential="metrics-token", file=section.token_file)
    except NotifyError as error:
        return warning("metrics-token", error.message, error.hint)
    if token is None and not address.loopback:
        words = f"{address.hosts[0]} can be reached from elsewhere, and there is no token"
        return warning("metrics-token", words, "[metrics] token-file names one")
    return None


def live_page(around: CheckContext) -> Iterator[Check]:
    """Yield whether the page could be served; nothing where the configuration cannot be read."""
    if around.faulty is not None:
        return
    section = around.settings.web
    used = section != config.WebSection() or os.path.lexists(_token_file(section))
    for one in _page_checks(around, section):
        if one.level == "ok" or used:
            yield one
        else:  # on a shared server the usual port is another user's: no fault of who has no page
            yield ok(f"{one.text}; {one.hint}")


def _page_checks(around: CheckContext, section: config.WebSection) -> list[Check]:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        words = f"gpuwatchctl web needs {' and '.join(missing)}, not installed"
        return [warning("web-extra", words, extras.install("web"))]
    address = listening.parse(section.listen, remote=section.remote)
    asked = [_place(around.root, address), _token(section)]
    if not address.loopback:
        words = f"[web] remote: whoever reads the traffic of {address.hosts[0]} has the token"
        asked.insert(0, warning("web-remote", words, _TUNNEL))
    where = text.clean(section.listen, limit=200)
    return [one for one in asked if one] or [ok(f"gpuwatchctl web may have {where}")]


def _place(root: Path, address: listening.Address, for_: _Listener = _WEB) -> Check | None:
    if address.path is not None:
        return _socket(address.path, for_)
    for host in address.hosts:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        where = f"[{host}]:{address.port}" if ":" in host else f"{host}:{address.port}"
        try:
            with socket.socket(family, socket.SOCK_STREAM) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                tried.bind((host, address.port))  # and let go at once: nothing ever connects
        except OSError as error:
            absent = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
            if error.errno in absent and host != address.hosts[0]:
                continue  # a machine without IPv6
            if error.errno == errno.EADDRINUSE:
                return _taken(root, where, address.port, for_)
            why = "only root may use it" if error.errno == errno.EACCES else error.strerror
            return warning(for_.fault, f"{where}: {why}", for_.elsewhere)
    return None


def _taken(root: Path, where: str, port: int, for_: _Listener) -> Check:
    """Return who has a port, as far as this user may know it."""
    uid, inode = _listener(root, port)
    pid = None if inode is None else _holder(root, inode)
    if pid is not None:
        argv = words_of(read_bytes(root / "proc" / str(pid) / "cmdline"))
        name = text.clean(" ".join(argv[:2]), limit=80)
        if for_.is_own(pid, argv):
            return ok(f"{for_.name}, pid {pid}, serves it at {where}")
        return warning(for_.fault, f"{where} is taken by {name}[{pid}]", for_.elsewhere)
    by = "somebody else" if uid is None else f"a program of {text.clean(account.owner(uid))}"
    return warning(for_.fault, f"{where} is taken by {by}", for_.elsewhere)


def _listener(root: Path, port: int) -> tuple[int | None, str | None]:
    """Return user and inode of what listens at a port; None where the system does not tell."""
    for table in ("tcp", "tcp6"):
        try:
            lines = (root / "proc/net" / table).read_text("ascii", "replace").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            parts = line.split()
            if len(parts) > 9 and parts[3] == _LISTENS and parts[1].endswith(f":{port:04X}"):
                return int(parts[7]), parts[9]
    return None, None


def _holder(root: Path, inode: str) -> int | None:
    """Return the pid of who holds a socket; None where it is another user's."""
    meant = f"socket:[{inode}]"
    for handle in (root / "proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(handle) == meant:  # noqa: PTH115 - no path of a file
                return int(handle.parts[-3])
        except OSError:
            continue
    return None


def _socket(path: Path, for_: _Listener) -> Check | None:
    value = text.clean(str(path))
    try:
        stat_result = path.lstat()
    except FileNotFoundError:
        own = path.parent == config.runtime_dir()
        if own or os.access(path.parent, os.W_OK | os.X_OK):
            return None
        why = "cannot be written by you" if path.parent.is_dir() else "is no folder"
        return _no_socket(f"{text.clean(str(path.parent))} {why}", for_)
    except OSError as error:
        return _no_socket(f"unix:{value}: {error.strerror}", for_)
    if not stat.S_ISSOCK(stat_result.st_mode) or stat_result.st_uid != os.geteuid():
        return _no_socket(f"unix:{value}: something is there already, no socket of yours", for_)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(_CONNECT_S)
        try:
            asking.connect(str(path))
        except OSError:
            return None  # of a server that is no more: the next one clears it away
    return ok(f"{for_.name} serves it at unix:{value}")


def _no_socket(words: str, for_: _Listener) -> Check:
    return warning(for_.fault, words, f'[{for_.section}] listen = "unix", or unix:PATH elsewhere')


def _token_file(section: config.WebSection) -> Path:
    named = section.token_file
    return config.expanded(named) if named else config.state_dir() / _TOKEN


def _token(section: config.WebSection) -> Check | None:
    path = _token_file(section)
    value = text.clean(str(path))
    try:
        stat_result = path.lstat()
    except OSError:
        return None  # the first start writes it, or says why it cannot
    why = ""
    if not stat.S_ISREG(stat_result.st_mode):
        why = "is a link" if stat.S_ISLNK(stat_result.st_mode) else "is no file"
    elif stat_result.st_uid not in {os.geteuid(), 0}:
        why = "belongs to another user"
    elif stat_result.st_mode & 0o077:
        why = f"can be read by others (mode {stat_result.st_mode & 0o777:04o})"
    return warning("web-token", f"the token file {value} {why}", _RENEW) if why else None
