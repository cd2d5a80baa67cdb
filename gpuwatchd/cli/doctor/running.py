"""Does the daemon run, once and not twice, and are its programs those that the shell finds."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatchd import __version__
from gpuwatchd.cli import locations
from gpuwatchd.cli.doctor.answer import Check, ok, warning
from gpuwatchd.core import config, text, units
from gpuwatchd.core.config import directories

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.cli.doctor.answer import Around

_LOCK = "gpuwatchd.lock"
_BROKEN = {"state-newer": "daemon-newer", "state-broken": "daemon-state"}
_NEWER = "upgrade this program as you installed it, or see: gpuwatchctl doctor instances"
_LATE_S = 60.0
_ENABLED = "etc/systemd/system/multi-user.target.wants/gpuwatchd.service"
"""There once the service of this machine is started with it."""
_PROGRAMS = ("gpuwatchctl", "gpuwatchd")


def check(around: Around) -> Iterator[Check]:
    """Yield whether the daemon runs and how it does."""
    state, pairs = around.state
    again, logs = "gpuwatchctl service restart", "gpuwatchctl service logs"
    if locations.chosen().scope == "system":
        again, logs = "sudo systemctl restart gpuwatchd", "sudo journalctl -u gpuwatchd"
    for code, words in pairs:
        if code in _BROKEN:
            hint = _NEWER if code == "state-newer" else again
            yield warning(_BROKEN[code], "daemon", words, hint)
        elif code == "system-denied":
            yield warning("daemon-denied", "daemon", locations.REFUSED, locations.joining())
        else:
            yield ok("daemon", words)
    if state is None or not around.alive:
        if not around.denied:  # else it runs, and how it does may not be known
            system = (around.root / _ENABLED).is_symlink()
            mend = "sudo systemctl restart gpuwatchd" if system else "gpuwatchctl service install"
            yield warning("daemon-absent", "daemon", "is not running", mend)
        return
    memory = f", {units.size(state.rss_bytes)} of memory" if state.rss_bytes else ""
    yield ok("daemon", f"runs as pid {state.pid}, version {state.version}{memory}")
    if state.version != __version__:
        yield warning(
            "daemon-version", "daemon", f"runs version {state.version}, this is {__version__}",
            again,
        )  # fmt: skip
    late_s = time.time() - state.taken_at_s
    if late_s > max(_LATE_S, 3 * state.interval_s):
        yield warning(
            "daemon-late", "daemon", f"its last sample is {units.duration(late_s)} old",
            f"{again}, then: {logs}",
        )  # fmt: skip
    for problem in state.problems:
        yield warning("daemon-problem", "daemon", problem, logs)


def instances(around: Around) -> Iterator[Check]:
    """Yield a second daemon, a second service, and programs that hide others."""
    checks = [*_two_daemons(around), *_two_services(around), *_programs(around)]
    yield from checks
    if not checks:
        yield ok("instances", "one installation, and no second daemon")


def _two_daemons(around: Around) -> Iterator[Check]:
    held = {}
    for directory in _runtime_dirs(around):
        lock = directory / _LOCK
        if is_held(lock, around.root):
            held[lock] = text.clean(_first_line(lock)) or "?"
    if len(held) > 1:
        which = " and ".join(f"pid {pid} ({lock.parent})" for lock, pid in held.items())
        system = any(lock.parent == directories.SYSTEM_RUNTIME_DIR for lock in held)
        hint = "gpuwatchctl service stop" + (" (the machine's own goes on)" if system else "")
        yield warning(
            "instance-second", "instances", f"{len(held)} daemons watch the same GPUs: {which}",
            hint,
        )  # fmt: skip


def _runtime_dirs(around: Around) -> list[Path]:
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


def _first_line(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").partition("\n")[0].strip()
    except OSError:
        return ""


def _two_services(around: Around) -> Iterator[Check]:
    home = Path(around.environ.get("HOME") or "/nonexistent")
    folder = home / ".config/systemd/user"
    agents = home / "Library/LaunchAgents"
    own = (folder / "default.target.wants/gpuwatchd.service").is_symlink() or any(
        agents.glob("*gpuwatchd*.plist")
    )
    brewed = [folder / "homebrew.gpuwatchd.service", agents / "homebrew.mxcl.gpuwatchd.plist"]
    if own and any(path.exists() for path in brewed) and not _only(agents, brewed[1]):
        yield warning(
            "instance-homebrew", "instances",
            "Homebrew's service and one of your own are both installed",
            "brew services stop gpuwatchd, or: gpuwatchctl service uninstall",
        )  # fmt: skip
    if own and (around.root / _ENABLED).is_symlink():
        yield warning(
            "instance-system", "instances",
            "this machine's own service and one of yours are both enabled: the GPUs are read twice",
            "gpuwatchctl service uninstall (you can read the history of the machine's)",
        )  # fmt: skip


def _only(folder: Path, file: Path) -> bool:
    return [*folder.glob("*gpuwatchd*.plist")] == [file]


def _programs(around: Around) -> Iterator[Check]:
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
                "path-several", "instances",
                f"{len(found)} installations: {found[0]} hides {others}",
                "remove all but one (pipx list, pip list, uv tool list, apt list --installed)",
            )  # fmt: skip
            return
    if len(first) == 2 and _home(first["gpuwatchctl"]) != _home(first["gpuwatchd"]):
        yield warning(
            "path-differs", "instances",
            f"{first['gpuwatchctl']} and {first['gpuwatchd']} are of different installations",
            "remove one of them, or put the right folder first in PATH",
        )  # fmt: skip


def _home(program: Path) -> str:
    return os.path.dirname(os.path.realpath(program))  # noqa: PTH120
