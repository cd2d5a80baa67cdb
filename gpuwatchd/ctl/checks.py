"""What ``doctor`` looks at: each check answers in one sentence, and names what mends it."""

from __future__ import annotations

import os
import platform
import sqlite3
import stat
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpuwatchd import __version__, config, text, units
from gpuwatchd.ctl import look, ruleset, settings
from gpuwatchd.errors import GpuwatchdError
from gpuwatchd.model import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpuwatchd.config import Config, Loaded
    from gpuwatchd.ctl.flags import Globals
    from gpuwatchd.model import Availability, Device, Sample
    from gpuwatchd.ports import Notifier

DEADLINE_S = 8.0
"""A probe that has not answered by then hangs; doctor goes on without it."""
SQLITE_NEEDED = (3, 37, 0)
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs",
     "fuse.sshfs", "fuse.glusterfs", "ncpfs", "coda"}
)  # fmt: skip
_MOUNTINFO = "/proc/self/mountinfo"
_READABLE = frozenset({"ok", "asleep", "released"})
"""States of a GPU that need no mending."""


class Check(Value, frozen=True, kw_only=True):
    """One answer."""

    name: str
    level: Literal["ok", "warning", "failed"]
    text: str
    hint: str = ""
    """The command (or step) that mends it."""


def _check(
    name: str, level: Literal["ok", "warning", "failed"], words: str, hint: str = ""
) -> Check:
    return Check(
        name=name,
        level=level,
        text=text.clean(words, limit=1024),
        hint=text.clean(hint, limit=1024),
    )


def _ok(name: str, words: str) -> Check:
    return _check(name, "ok", words)


def _warning(name: str, words: str, hint: str = "") -> Check:
    return _check(name, "warning", words, hint)


def _failed(name: str, words: str, hint: str = "") -> Check:
    return _check(name, "failed", words, hint)


def every(flags: Globals) -> Iterator[Check]:
    """Yield every check in order; one that breaks is itself an answer."""
    yield _python()
    yield _sqlite()
    loaded, found = _configuration(flags)
    yield from found
    yield from _sources(loaded.config)
    yield from _around(loaded.config)
    yield from _daemon()
    yield from _directories()
    yield from _database()
    yield from _prices(loaded.config)
    yield from _channels(loaded.config)
    yield from _service()


def bounded(work: Callable[[], list[Check]], hung: Check) -> list[Check]:
    """Return what a check answers.

    Parameters
    ----------
    work
        The check. One that breaks is an answer too: that it failed, and of what.
    hung
        The answer when it does not return (a driver, a bus); then it is left behind.
    """
    box: list[list[Check]] = []

    def run() -> None:
        try:
            box.append(work())
        except Exception as error:  # noqa: BLE001 - the edge of this thread; the others are asked on
            why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            box.append([_failed(hung.name, f"breaks with {why}", hung.hint)])

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    return box[0] if box else [hung]


def _python() -> Check:
    version = platform.python_version()
    words = f"gpuwatchd {__version__}, Python {version}, {platform.system()} {platform.release()}"
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        return _warning("python", f"{words}: not a tested Python", "use Python 3.11, 3.12 or 3.13")
    return _ok("python", words)


def _sqlite() -> Check:
    if sqlite3.sqlite_version_info < SQLITE_NEEDED:
        return _failed(
            "sqlite", f"SQLite {sqlite3.sqlite_version} is too old; 3.37 is needed",
            "use a newer Python build",
        )  # fmt: skip
    return _ok("sqlite", f"SQLite {sqlite3.sqlite_version}")


def _configuration(flags: Globals) -> tuple[Loaded, list[Check]]:
    try:
        loaded = flags.load_config()
    except GpuwatchdError as error:
        nothing = config.load(Path(os.devnull), environ={})
        return nothing, [_failed("config", error.message, error.hint)]
    files = ", ".join(str(file) for file in loaded.files) or "no file; the defaults"
    checks = [
        *(_failed("config", words) for words in settings.problems(loaded.config)),
        *(_warning("config", words) for words in loaded.warnings),
        *(_warning("config", words) for words in settings.consequences(loaded.config)),
    ]
    return loaded, checks or [_ok("config", files)]


def _sources(settings: Config) -> Iterator[Check]:
    from gpuwatchd.sources import SOURCES, chosen  # noqa: PLC0415

    found: list[tuple[list[Check], bool]] = []
    choices = chosen.choices(settings.sources)
    for word, optional in choices:
        hung = _failed(
            f"source {word}", "does not answer: the driver hangs", "check: nvidia-smi; dmesg"
        )
        answers = bounded(lambda word=word: _source(word, settings), hung)  # type: ignore[misc]
        found.append((answers, optional))
    works = any(answers[0].level == "ok" for answers, _ in found)
    state, _ = look.read_state()
    for (first, *others), optional in found:
        # What is merely tried needs no mending while another source works.
        yield _ok(first.name, first.text) if works and optional else first
        if state is None or not look.alive(state):  # else the daemon's own view follows
            yield from others
    for kind in chosen.HARDWARE:
        if kind not in SOURCES or any(kind == word for word, _ in choices):
            continue
        known = "not enabled" if chosen.suits(kind) else "not for this system"
        yield _ok(f"source {kind}", known)
    if not works:
        yield _failed(
            "gpu", "no GPU can be watched here",
            "install the driver of your GPU, or try it without: gpuwatchctl demo",
        )  # fmt: skip


def _source(name: str, settings: Config) -> list[Check]:
    """Return whether a source works, then what keeps it from reading a GPU."""
    from gpuwatchd.sources import chosen  # noqa: PLC0415

    word = f"source {name}"
    if name == "nvml" and (until_s := look.released_until_s()) is not None:
        # Asking the driver anything would hold the GPUs again, which somebody wants free.
        until = units.clock(until_s, now_s=time.time())
        return [_ok(word, f"let go on request until {until}, and not asked")]
    try:
        source = chosen.make(name, settings.sources)
        found = source.probe()
        if not found.ok:
            return [_warning(word, found.reason, found.hint)]
        sample = source.read()
        devices = tuple(source.devices())
        source.close()
    except GpuwatchdError as error:
        return [_warning(word, error.message, error.hint)]
    if not devices:
        return [_warning(word, f"{found.reason}; it has no GPU")]
    count = _counted(devices)
    read = {one.device_uid for one in sample.readings if one.state in _READABLE}
    unread = [device for device in devices if device.uid not in read]
    if not unread:
        return [_ok(word, f"{count}; {found.reason}")]
    words = f"{count}, {len(unread)} of them cannot be read; {found.reason}"
    first = _ok(word, words) if read else _warning(word, words, "sudo dmesg | tail")
    return [first, *(_unread(device, sample) for device in unread)]


def _counted(devices: Sequence[Device]) -> str:
    """Return "5 GPUs and 2 MIG instances"."""
    cards = sum(device.parent_uid is None for device in devices)
    pieces = len(devices) - cards
    parts = [
        f"{number} {name}{'' if number == 1 else 's'}"
        for number, name in ((cards, "GPU"), (pieces, "MIG instance"))
        if number
    ]
    return " and ".join(parts)


def _unread(device: Device, sample: Sample) -> Check:
    """Say what keeps a GPU from being read, in the words of ``status``."""
    from gpuwatchd.ctl import surroundings  # noqa: PLC0415
    from gpuwatchd.store.live import LiveDevice  # noqa: PLC0415

    faults = tuple(fault.why for fault in sample.faults if fault.device_uid == device.uid)
    reading = next((one for one in sample.readings if one.device_uid == device.uid), None)
    item = LiveDevice(device=device, reading=reading, faults=faults)
    name, _, words, hint = next(surroundings.device(item, now_s=sample.taken_at_s))
    return _warning(name, words, hint)


def _around(settings: Config) -> Iterator[Check]:
    from gpuwatchd.ctl import surroundings  # noqa: PLC0415

    state, _ = look.read_state()
    alive = state is not None and look.alive(state)
    for name, level, words, hint in surroundings.every(settings, state, alive=alive):
        yield _check(name, "ok" if level == "ok" else "warning", words, hint)


def _daemon() -> Iterator[Check]:
    state, warnings = look.read_state()
    for _, words in warnings:
        yield _warning("daemon", words)
    if state is None or not look.alive(state):
        yield _warning("daemon", "is not running", "gpuwatchctl service install")
        return
    memory = f", {units.size(state.rss_bytes)} of memory" if state.rss_bytes else ""
    yield _ok("daemon", f"runs as pid {state.pid}, version {state.version}{memory}")
    if state.version != __version__:
        yield _warning(
            "daemon", f"runs version {state.version}, this is {__version__}",
            "gpuwatchctl service restart",
        )  # fmt: skip
    for problem in state.problems:
        yield _warning("daemon", problem)


def _directories() -> Iterator[Check]:
    for name, directory in (("history", config.state_dir()), ("live", config.runtime_dir())):
        check = _directory(f"{name} directory", directory)
        kind = file_system(directory)
        if check.level == "ok" and kind in NETWORK_FILE_SYSTEMS:
            check = _warning(
                f"{name} directory", f"{directory} is on a network file system ({kind})",
                f"export GPUWATCHD_{'STATE' if name == 'history' else 'RUNTIME'}_DIR=/a/local/dir",
            )  # fmt: skip
        yield check


def _directory(name: str, directory: Path) -> Check:
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not os.access(existing, os.W_OK | os.X_OK) or not existing.is_dir():
        return _failed(name, f"{existing} cannot be written by you", f"sudo chown $USER {existing}")
    if existing != directory:
        return _ok(name, f"{directory} does not exist yet and can be made")
    about = directory.stat()
    if about.st_uid != os.geteuid():
        return _warning(
            name, f"{directory} belongs to somebody else", f"sudo chown $USER {directory}"
        )
    if stat.S_IMODE(about.st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
        return _warning(name, f"others can look into {directory}", f"chmod 700 {directory}")
    return _ok(name, str(directory))


def file_system(directory: Path) -> str | None:
    """Return the type of the file system below a path, None where that cannot be told.

    From /proc/self/mountinfo: the longest mount point above the path wins.
    """
    try:
        lines = Path(_MOUNTINFO).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    target = os.path.realpath(directory)
    best, kind = "", None
    for line in lines:
        left, mark, right = line.partition(" - ")
        fields = left.split()
        if not mark or len(fields) < 5:
            continue
        point = fields[4].replace("\\040", " ")
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind


def _database() -> Iterator[Check]:
    from gpuwatchd.ctl import past  # noqa: PLC0415

    directory = config.state_dir()
    file = directory / past.FILE_NAME
    if not file.exists():
        yield _ok("history", "nothing is recorded yet")
        return
    try:
        with past.reader() as history:
            count = len(history.devices())
    except GpuwatchdError as error:
        yield _failed("history", error.message, error.hint or f"sqlite3 {file} .recover")
        return
    amount = units.size(file.stat().st_size)
    yield _ok("history", f"{file}: {amount}, {count} GPU" + ("" if count == 1 else "s"))
    aside = sorted(directory.glob(f"{past.FILE_NAME}.corrupt-*"))
    if aside:
        yield _warning(
            "history", f"a damaged history was moved aside: {aside[-1].name}",
            f"sqlite3 {aside[-1]} .recover",
        )  # fmt: skip


def _prices(settings: Config) -> Iterator[Check]:
    from gpuwatchd.ctl import money  # noqa: PLC0415

    state, _ = look.read_state()
    devices = [] if state is None else [item.device for item in state.devices]
    for well, words, hint in money.Book(settings, devices, now_s=time.time()).checks():
        yield _check("price", "ok" if well else "warning", words, hint)


def _channels(chosen: Config) -> Iterator[Check]:
    from gpuwatchd.notify import NOTIFIERS, outbox  # noqa: PLC0415

    used = ruleset.used_channels(chosen)
    names = [name for name in NOTIFIERS if name in used]
    for name, notifier in outbox.build(chosen.notify, names).items():
        hung = _warning(f"channel {name}", "does not answer", f"gpuwatchctl notify test {name}")
        yield from bounded(lambda name=name, notifier=notifier: [_channel(name, notifier)], hung)  # type: ignore[misc]


def _channel(name: str, notifier: Notifier) -> Check:
    found = notifier.probe()
    if found.ok:
        return _ok(f"channel {name}", found.reason)
    hint = found.hint or f"gpuwatchctl notify test {name}"
    return _warning(f"channel {name}", found.reason, hint)


def _service() -> Iterator[Check]:
    from gpuwatchd import registry  # noqa: PLC0415
    from gpuwatchd.service import MANAGERS  # noqa: PLC0415

    name = "launchd" if sys.platform == "darwin" else "systemd"
    try:
        found: Availability = registry.load(MANAGERS, name)().probe()
    except (ImportError, AttributeError) as error:
        yield _warning("service", f"{name}: {error}", "reinstall gpuwatchd")
        return
    if not found.ok:
        hint = found.hint or "run the daemon yourself: gpuwatchd"
        yield _warning("service", found.reason, hint)
        return
    yield _ok("service", found.reason)
    if name == "systemd":
        yield _linger()


def _linger() -> Check:
    """From /var/lib/systemd/linger: one file per user whose services outlive the session."""
    import pwd  # noqa: PLC0415

    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    if Path("/var/lib/systemd/linger", user).exists():
        return _ok("linger", f"services of {user} go on after logout")
    return _warning("linger", "the daemon ends when you log out", f"loginctl enable-linger {user}")
