"""Does the daemon run, once and not twice, and are its programs those that the shell finds."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatchd import __version__
from gpuwatchd import service as managers
from gpuwatchd.cli.doctor import Check, named, ok, warning
from gpuwatchd.collect import mailboxes
from gpuwatchd.collect.host.procfs import read_bytes
from gpuwatchd.core import config, directories, registry, text, units
from gpuwatchd.core.codes import MailboxFault
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.service.unit_files import CommandRunner, with_runtime_dir
from gpuwatchd.view.queries import state_location
from gpuwatchd.view.text.inspection import FAULTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.cli.doctor import CheckContext
    from gpuwatchd.core.model import Availability
    from gpuwatchd.core.ports import Manager

_LOCK = "gpuwatchd.lock"
_BROKEN = {"state-newer": "daemon-newer", "state-broken": "daemon-state"}
_NEWER = "upgrade this program as you installed it, or see: gpuwatchctl doctor instances"
_LATE_S = 60.0
_ENABLED = "etc/systemd/system/multi-user.target.wants/gpuwatchd.service"
"""There once the service of this machine is started with it."""
_PROGRAMS = ("gpuwatchctl", "gpuwatchd")


def check(around: CheckContext) -> Iterator[Check]:
    """Yield whether the daemon runs and how it does."""
    state, pairs = around.state
    again, logs = "gpuwatchctl service restart", "gpuwatchctl service logs"
    if state_location.chosen().scope == "system":
        again, logs = "sudo systemctl restart gpuwatchd", "sudo journalctl -u gpuwatchd"
    for code, words in pairs:
        if code in _BROKEN:
            yield warning(_BROKEN[code], words, _NEWER if code == "state-newer" else again)
        elif code == "system-denied":
            yield warning(
                "daemon-denied", state_location.REFUSED, state_location.access_instructions()
            )
        else:
            yield ok(words)
    if state is None or not around.alive:
        yield from _unseen(around, f"{again}, then: {logs}")
        return
    memory = f", {units.size(state.rss_bytes)} of memory" if state.rss_bytes else ""
    yield ok(f"runs as pid {state.pid}, version {state.version}{memory}")
    if state.version != __version__:
        yield warning(
            "daemon-version", f"runs version {state.version}, this is {__version__}", again
        )
    late_s = time.time() - state.taken_at_s
    if late_s > max(_LATE_S, 3 * state.interval_s):
        yield warning(
            "daemon-late",
            f"its last sample is {units.duration(late_s)} old",
            f"{again}, then: {logs}",
        )
    for problem in state.problems:
        yield warning("daemon-problem", problem, logs)


def _unseen(around: CheckContext, again: str) -> Iterator[Check]:
    """Yield what is not told yet where the live state is of no daemon that runs."""
    if is_held(state_location.chosen().runtime_dir / _LOCK, around.root):
        if not _BROKEN.keys() & dict(around.state[1]).keys():
            yield warning("daemon-late", "runs, but there is no live state of it", again)
    elif not around.denied:  # else it runs, and how it does may not be known
        system = (around.root / _ENABLED).is_symlink()
        mend = "sudo systemctl restart gpuwatchd" if system else "gpuwatchctl service install"
        yield warning("daemon-absent", "is not running", mend)


def probes(around: CheckContext) -> Iterator[Check]:
    """Yield which prepared processes of this user are not read, and which cannot be prepared."""
    uid = os.getuid()
    place = mailboxes.folder(uid)
    pids = sorted(int(file.stem) for file in place.glob("*.json") if file.stem.isdecimal())
    pids = [pid for pid in pids if (around.root / f"proc/{pid}").exists()]
    ignored = Counter(
        fault for pid in pids if isinstance(fault := mailboxes.read(place, pid, uid), MailboxFault)
    )
    for fault, count in ignored.items():
        words = f"{count} of {len(pids)} ignored: each {FAULTS[fault]}"
        yield warning("probe-ignored", words, f"ls -l {shlex.quote(str(place))}")
    yield ok(f"{len(pids) - ignored.total()} prepared processes are read")
    devices = () if around.state[0] is None else around.state[0].devices
    infos = {each.info.key.pid: each.info for device in devices for each in device.processes or ()}
    for pid, info in infos.items():
        if info.uid == uid and mailboxes.is_isolated(pid):
            yield ok(f"process {pid} was started with -I, -E or -S: `run` does not prepare it")


def instances(around: CheckContext) -> Iterator[Check]:
    """Yield a second daemon, a second service, and programs that hide others."""
    found = [*_two_daemons(around), *_two_services(around), *_programs(around)]
    yield from found or [ok("one installation, and no second daemon")]


def _two_daemons(around: CheckContext) -> Iterator[Check]:
    held = {
        lock: text.clean(read_bytes(lock).partition(b"\n")[0].decode("ascii", "replace")) or "?"
        for lock in (directory / _LOCK for directory in _runtime_dirs(around))
        if is_held(lock, around.root)
    }
    if len(held) > 1:
        which = " and ".join(f"pid {pid} ({lock.parent})" for lock, pid in held.items())
        system = any(lock.parent == directories.SYSTEM_RUNTIME_DIR for lock in held)
        hint = f"gpuwatchctl service stop{' (the system service keeps running)' if system else ''}"
        yield warning("instance-second", f"{len(held)} daemons watch the same GPUs: {which}", hint)


def _runtime_dirs(around: CheckContext) -> list[Path]:
    """Return every directory in which a daemon of ours or of the machine may hold its lock."""
    plain = {k: v for k, v in around.environ.items() if not k.startswith("GPUWATCHD_")}
    session = {k: v for k, v in plain.items() if k != "XDG_RUNTIME_DIR"}
    paths = [
        config.runtime_dir(), directories.runtime_dir(plain), directories.runtime_dir(session),
        directories.state_dir(plain) / "run", around.root / str(directories.SYSTEM_RUNTIME_DIR)[1:],
    ]  # fmt: skip
    return list({os.path.realpath(path): path for path in paths}.values())


def is_held(lock: Path, root: Path) -> bool:
    """Say whether a daemon holds a lock, without touching it: from /proc/locks."""
    try:
        about = lock.stat()
        lines = (root / "proc/locks").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    place = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
    return any("FLOCK" in (fields := line.split()) and place in fields for line in lines)


def _two_services(around: CheckContext) -> Iterator[Check]:
    home = Path(around.environ.get("HOME") or "/nonexistent")
    folder = home / ".config/systemd/user"
    agents = home / "Library/LaunchAgents"
    plists = [*agents.glob("*gpuwatchd*.plist")]
    own = (folder / "default.target.wants/gpuwatchd.service").is_symlink() or bool(plists)
    brewed = [folder / "homebrew.gpuwatchd.service", agents / "homebrew.mxcl.gpuwatchd.plist"]
    if own and any(path.exists() for path in brewed) and plists != [brewed[1]]:
        yield warning(
            "instance-homebrew",
            "Homebrew's service and one of your own are both installed",
            "brew services stop gpuwatchd, or: gpuwatchctl service uninstall",
        )
    if own and (around.root / _ENABLED).is_symlink():
        yield warning(
            "instance-system",
            "this machine's own service and one of yours are both enabled: the GPUs are read twice",
            "gpuwatchctl service uninstall (members of the group gpuwatchd read the machine's)",
        )


def _programs(around: CheckContext) -> Iterator[Check]:
    folders = [Path(value) for value in around.environ.get("PATH", "").split(os.pathsep) if value]
    first: dict[str, Path] = {}
    for name in _PROGRAMS:
        paths: dict[str, Path] = {}
        for folder in folders:
            file = folder / name
            if file.is_file() and os.access(file, os.X_OK):
                paths.setdefault(os.path.realpath(file), file)
        found = list(paths.values())
        if found:
            first[name] = found[0]
        if len(found) > 1:
            others = ", ".join(map(str, found[1:4]))
            yield warning(
                "path-several",
                f"{len(found)} installations: {found[0]} hides {others}",
                "remove all but one (pipx list, pip list, uv tool list, apt list --installed)",
            )
            return
    if len(first) == 2 and _home(first["gpuwatchctl"]) != _home(first["gpuwatchd"]):
        yield warning(
            "path-differs",
            f"{first['gpuwatchctl']} and {first['gpuwatchd']} are of different installations",
            "remove one of them, or put the right folder first in PATH",
        )


def _home(program: Path) -> str:
    return os.path.dirname(os.path.realpath(program))  # noqa: PTH120


# How the service manager sees the daemon: unit, failures, restarts, memory, linger.

_SHOWN = (
    "LoadState,ActiveState,Result,NRestarts,FragmentPath,NeedDaemonReload,UnitFileState,"
    "MemoryMax,MemoryCurrent"
)
_MARK = "gpuwatchctl service install"
"""Stands in every unit that it writes."""
_MANY_RESTARTS = 3
_LOGS = "gpuwatchctl service logs"
_ASK_S = 5.0


def service(around: CheckContext) -> Iterator[Check]:
    """Yield what the service manager knows of the daemon."""
    name = "launchd" if sys.platform == "darwin" else "systemd"
    try:
        manager: Manager = registry.load(managers.MANAGERS, name)()
        availability: Availability = manager.probe()
    except (ImportError, AttributeError) as error:
        yield warning("service-broken", f"{name}: {error}", "reinstall gpuwatchd")
        return
    if name == "systemd" and around.with_systemd:
        yield from named(_unit(_shown(around, system=True), system=True), "machine's service")
    if availability.ok:
        yield ok(availability.reason)
    elif around.alive or around.denied:
        # Run by hand, by a container or by the machine: it runs, and that is what counts.
        yield ok(f"{availability.reason}; the daemon runs without it")
    else:
        hint = availability.hint or "run the daemon yourself: gpuwatchd"
        yield warning("service-none", availability.reason, hint)
    if availability.ok and name == "systemd":
        values = _shown(around, system=False)
        yield from _unit(values, system=False)
        if values.get("LoadState") == "loaded":
            yield from _stale(values.get("FragmentPath", ""), manager)
        yield from named(_linger(around, values), "linger")


def _shown(around: CheckContext, *, system: bool) -> dict[str, str]:
    """Return what systemctl shows of the unit; nothing where it does not answer."""
    whose = [] if system else ["--user"]
    argv = ["systemctl", *whose, "show", "gpuwatchd.service", f"--property={_SHOWN}"]
    run = around.run or CommandRunner(with_runtime_dir(around.environ))
    done = run(argv, timeout_s=_ASK_S)
    if done.code:
        return {}
    return dict(line.split("=", 1) for line in done.output.splitlines() if "=" in line)


def _unit(values: dict[str, str], *, system: bool) -> Iterator[Check]:
    """Yield what is wrong with a unit that is loaded."""
    if values.get("LoadState") != "loaded":
        return
    systemctl = "sudo systemctl" if system else "systemctl --user"
    again, edit = f"{systemctl} restart gpuwatchd", f"{systemctl} edit gpuwatchd"
    logs = "sudo journalctl -u gpuwatchd" if system else _LOGS
    result = values.get("Result", "success")
    if result == "oom-kill":
        words = "was ended because it went beyond its memory limit"
        yield warning("service-memory", words, f"{logs}; a higher MemoryMax= in: {edit}")
    elif values.get("ActiveState") == "failed":
        words = f"failed ({text.clean(result)})"
        yield warning("service-failed", words, f"{logs}, then: {again}")
    restarts = values.get("NRestarts", "")
    if restarts.isdecimal() and int(restarts) >= _MANY_RESTARTS:
        words = f"was started again {restarts} times by systemd since it was installed or booted"
        yield warning("service-restarts", words, logs)
    if values.get("NeedDaemonReload") == "yes":
        words = "its unit was changed, and systemd still has the old one"
        yield warning("service-reload", words, f"{systemctl} daemon-reload && {again}")
    if values.get("ActiveState") == "active" and values.get("UnitFileState") == "disabled":
        words = "runs, but is not started the next time"
        yield warning("service-disabled", words, f"{systemctl} enable gpuwatchd")
    most, now = values.get("MemoryMax", ""), values.get("MemoryCurrent", "")
    if most.isdecimal() and now.isdecimal() and int(now) > 0.9 * int(most):
        words = f"uses {100 * int(now) // int(most)} % of its memory limit"
        yield warning("service-memory", words, f"a higher MemoryMax= in: {edit}")


def _stale(path: str, manager: Manager) -> Iterator[Check]:
    """Yield when a unit that we wrote is not what we would write today."""
    try:
        written = Path(path).read_text(encoding="utf-8") if path else ""
        wanted = manager.render()
    except (OSError, UnicodeDecodeError, GpuwatchdError):
        return
    if _MARK not in written:
        return  # the user's own: not ours to judge
    starts, ours = (_line(unit, "ExecStart=") for unit in (written, wanted))
    # A package's starts this very daemon by the link in /usr/bin, and is as it should be.
    if _program(starts) != _program(ours):
        yield warning("service-other", f"{path} starts the daemon of another installation", _MARK)
    elif starts == ours and _settled(written) != _settled(wanted):
        yield warning("service-old", f"{path} is not what this version would write", _MARK)


def _line(unit: str, start: str) -> str:
    return next((line for line in unit.splitlines() if line.startswith(start)), "")


def _program(line: str) -> str:
    """Return the file that a line of a unit starts in the end; the line where that is unclear."""
    words = line.removeprefix("ExecStart=").split('"')
    return os.path.realpath(words[1]) if len(words) == 3 else line


def _settled(unit: str) -> list[str]:
    """Return the unit without what follows from the shell that it was written in."""
    return [line for line in unit.splitlines() if not line.startswith(("Environment=", "#"))]


def _linger(around: CheckContext, values: dict[str, str]) -> Iterator[Check]:
    """Yield from /var/lib/systemd/linger: one file per user whose services outlive the session."""
    user = state_location.name_of(os.geteuid())
    words, hint = "the daemon ends when you log out", f"loginctl enable-linger {user}"
    if (around.root / "var/lib/systemd/linger" / user).exists():
        yield ok(f"services of {user} keep running after logout")
    elif not {"active", "enabled"} & {values.get("ActiveState"), values.get("UnitFileState")}:
        return  # nothing of ours that could end: a package's unit is there for everybody
    elif around.environ.get("DISPLAY") or around.environ.get("WAYLAND_DISPLAY"):
        yield ok(f"{words} of the desktop ({hint} keeps it)")
    else:
        yield warning("linger-missing", words, f"{hint} (with sudo where that is denied)")
