"""Is the program whole and well placed: parts, configuration, prices, surroundings, clock."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import shlex
import sqlite3
import stat
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatchd import __version__
from gpuwatchd.cli import config_text
from gpuwatchd.cli.doctor import Check, failed, ok, warning
from gpuwatchd.core import config, extras, text, units
from gpuwatchd.core.errors import GpuwatchdError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.cli.doctor import CheckContext

SQLITE_NEEDED = (3, 37, 0)
_EXTRAS = {
    "charts": "matplotlib",
    "chat": "apprise",
    "web": "uvicorn",
    "keyring": "keyring",
    "metrics": "prometheus_client",
}
_COMPLETIONS = (
    "share/bash-completion/completions/gpuwatchctl",
    "share/zsh/site-functions/_gpuwatchctl",
    "share/zsh/vendor-completions/_gpuwatchctl",
    "share/fish/vendor_completions.d/gpuwatchctl.fish",
)
_OWN_COMPLETIONS = (
    ".local/share/bash-completion/completions/gpuwatchctl",
    ".config/fish/completions/gpuwatchctl.fish",
)
_MANUAL = "share/man/man1/gpuwatchctl.1"


def check(around: CheckContext) -> Iterator[Check]:
    """Yield what is wrong with the program itself."""
    version = platform.python_version()
    words = f"gpuwatchd {__version__}, Python {version}, {platform.system()} {platform.release()}"
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        yield ok(words, name="python")
    else:
        words, hint = f"{words}: not a tested Python", "use Python 3.11, 3.12 or 3.13"
        yield warning("python-untested", words, hint, name="python")
    words = f"SQLite {sqlite3.sqlite_version}"
    if sqlite3.sqlite_version_info >= SQLITE_NEEDED:
        yield ok(words, name="sqlite")
    else:
        words, hint = f"{words} is too old; 3.37 is needed", "use a newer Python build"
        yield failed("sqlite-old", words, hint, name="sqlite")
    yield _terminal(around)
    yield _extras()
    yield _brought(around)


def _terminal(around: CheckContext) -> Check:
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("_", "-")
    named = around.environ.get("LC_ALL") or around.environ.get("LC_CTYPE")
    named = named or around.environ.get("LANG", "")
    if encoding not in {"utf-8", "utf8"} and not around.flags.ascii:
        return warning(
            "terminal-encoding",
            f"text is written as {encoding} (locale {named or 'not set'}): bars and ± are lost",
            "export LC_ALL=C.UTF-8, or use --ascii",
            name="terminal",
        )
    return ok(f"text is written as {encoding}", name="terminal")


def _extras() -> Check:
    here = [name for name, module in _EXTRAS.items() if importlib.util.find_spec(module)]
    missing = [name for name in _EXTRAS if name not in here]
    if not missing:
        return ok(f"installed: {', '.join(here)}", name="extras")
    words = f"installed: {', '.join(here) or 'none'}; not installed, and not needed unless used: "
    return ok(f"{words}{', '.join(missing)} ({extras.install('full')})", name="extras")


def _brought(around: CheckContext) -> Check:
    """Look where shells and man look; of a virtual environment man alone knows, and by its PATH."""
    folders = [Path(name) for name in around.environ.get("PATH", "").split(os.pathsep)]
    places = [around.root / "usr", around.root / "usr/local"]
    places += [folder.parent for folder in folders if folder.name == "bin"]
    home = Path(around.environ.get("HOME") or "/nonexistent")
    shells = [place for place in places if not (place / "pyvenv.cfg").exists()]
    tab = any((place / name).exists() for place in shells for name in _COMPLETIONS)
    tab = tab or any((home / name).exists() for name in _OWN_COMPLETIONS)
    pages = any((place / f"{_MANUAL}{end}").exists() for place in places for end in ("", ".gz"))
    words = "completion is installed" if tab else "no completion (gpuwatchctl completion --help)"
    return ok(f"{words}; {'man pages too' if pages else 'no man pages'}", name="shell")


# Is the clock right: synchronised, with a time zone, and not behind what is recorded.

_SYNCHRONIZED = "run/systemd/timesync/synchronized"
_UNSYNCHRONIZED_BIT = 0x40
"""STA_UNSYNC of adjtimex(2): nobody has disciplined the clock for a while."""
_OWN_CLOCK = {"simulate", "replay"}
_AHEAD_S = 60.0
"""A record as far ahead of the clock is no rounding any more."""


class _Timex(ctypes.Structure):
    """The first fields of struct timex of Linux, and room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long), ("esterror", ctypes.c_long), ("status", ctypes.c_int),
        ("room", ctypes.c_char * 256),
    )  # fmt: skip


def disciplined() -> bool | None:
    """Say whether the kernel holds the clock for synchronised; None where it cannot be asked."""
    if sys.platform != "linux":
        return None
    try:
        about = _Timex()
        if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(about)) < 0:
            return None
    except (OSError, AttributeError):
        return None
    return not about.status & _UNSYNCHRONIZED_BIT


def clock(around: CheckContext) -> Iterator[Check]:
    """Yield what is wrong with the clock."""
    yield from [*_clock_faults(around)] or [ok(f"{units.clock(time.time())} {time.strftime('%Z')}")]


def _clock_faults(around: CheckContext) -> Iterator[Check]:
    # In a container the host's services keep the clock, and their files are not seen.
    kept = around.with_systemd and not (around.root / "run/systemd/container").exists()
    if kept and not (around.root / _SYNCHRONIZED).exists() and disciplined() is False:
        yield warning(
            "clock-unsynchronised",
            "the clock is not synchronised: times of alerts and of other machines' logs drift "
            "apart",
            "sudo timedatectl set-ntp true (or install chrony)",
        )
    zone = around.environ.get("TZ", "").lstrip(":")
    database = around.root / "usr/share/zoneinfo"
    named = "/" in zone and not zone.startswith("/") and database.is_dir()
    if named and not (database / zone).exists():
        words = f"the time zone TZ={zone} is not known here: UTC is shown"
        yield warning("clock-zone", words, "timedatectl list-timezones")
    # A source with a clock of its own (a recording, a simulation) may be ahead already.
    if {word.partition(":")[0] for word in around.settings.sources.enabled} & _OWN_CLOCK:
        return
    state, now_s = around.state[0], time.time()
    latest_s = max(0.0 if state is None else state.taken_at_s, _recorded_s(now_s))
    if latest_s > now_s + _AHEAD_S:
        ahead = units.duration(latest_s - now_s)
        yield warning(
            "clock-behind",
            f"is {ahead} behind what is recorded already: it was set back, or was wrong before",
            "timedatectl; samples from the future are used once their time comes",
        )


def _recorded_s(now_s: float) -> float:
    """Return the latest instant of the history that lies ahead; 0 where none does."""
    from gpuwatchd.view.queries import history_query, state_location  # noqa: PLC0415

    if not state_location.recorded(state_location.state_dir()):
        return 0.0
    try:
        with history_query.reader() as history:
            found = [
                rows[-1].at_s
                for device in history.devices()
                if (rows := history.device_rows(device.uid, now_s + _AHEAD_S, now_s + 1e9))
            ]
    except GpuwatchdError:
        return 0.0  # the check of the history says so
    return max(found, default=0.0)


# Is the configuration right, and what it means.

_SECRET = ("password", "token", "secret", "://")
_ORIGIN = "gpuwatchctl config print --origin"


def configuration(around: CheckContext) -> Iterator[Check]:
    """Yield what is wrong with the configuration."""
    if around.faulty is not None:
        message, hint = around.faulty
        yield failed("config-error", message, hint or "gpuwatchctl config validate")
        return
    files = around.loaded.files
    names = ", ".join(map(str, files)) or "no file; the defaults"
    over = "; the second wins key by key" if len(files) > 1 else ""
    yield from [*_sources(around)] or [ok(f"{names}{over}")]


def _sources(around: CheckContext) -> Iterator[Check]:
    chosen = around.settings
    for words in config_text.problems(chosen):
        yield failed("config-problem", words, "gpuwatchctl config validate")
    for words in around.loaded.warnings:
        yield warning("config-variable", words, _ORIGIN)
    for words in config_text.consequences(chosen):
        yield warning("config-consequence", words, _ORIGIN)
    for file in around.loaded.files:
        try:
            about = file.stat()
            content = file.read_text(encoding="utf-8", errors="replace").lower()
        except OSError:
            continue
        mode, mine, quoted = about.st_mode, about.st_uid == os.geteuid(), shlex.quote(str(file))
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            hint = f"{'' if mine else 'sudo '}chmod go-w {quoted}"
            yield warning("config-writable", f"others can change {file}", hint)
        elif mode & stat.S_IROTH and _tells(content):
            hidden = f"chmod 600 {quoted}" if mine else f"sudo chmod o-r {quoted}"
            yield warning(
                "config-readable",
                f"others can read {file}, and a login or token seems to be in it",
                f"{hidden}, and use password-file or urls-file",
            )
    if around.environ.get("GPUWATCHD_CONFIG") and len(around.loaded.files) == 1:
        own = config.user_file()
        if own.exists() and not own.samefile(around.loaded.files[0]):
            yield ok(f"{own} is not read: GPUWATCHD_CONFIG names another file")


def _tells(content: str) -> bool:
    """Say whether a line holds what looks like a secret: masking it would change it."""
    lines = [line.partition("#")[0].strip() for line in content.splitlines()]
    told = [line for line in lines if any(mark in line for mark in _SECRET)]
    return any(text.mask_argv([line])[0] != line for line in told)


# Is it known what the GPUs cost.


def prices(around: CheckContext) -> Iterator[Check]:
    """Yield which price is used, and what is doubtful about it."""
    from gpuwatchd.view.text import cost_text  # noqa: PLC0415

    state, _ = around.state
    devices = [] if state is None else [item.device for item in state.devices]
    for well, words, hint in cost_text.Book(around.settings, devices, now_s=time.time()).checks():
        yield ok(words) if well else warning("price-doubtful", words, hint)
