"""``release``: let the daemon release the GPUs, for a reset or another driver."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuwatchd import __version__
from gpuwatchd.cli import options, output
from gpuwatchd.core import text, units
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.service import own_process
from gpuwatchd.store import live
from gpuwatchd.store.private_files import private_directory
from gpuwatchd.view.answers.base import ProcessId, fill
from gpuwatchd.view.answers.program import DriverRelease, ReleaseData
from gpuwatchd.view.queries import current_state, state_location

if TYPE_CHECKING:
    from gpuwatchd.cli.global_flags import Globals
    from gpuwatchd.store.live import LiveState

DEFAULT_S = 600.0
WAIT_S = 30.0
"""The daemon lets go within one read; a driver that hangs may keep it from that for ever."""
TELL_AFTER_S = 2.0
"""One who waits for longer is told what for."""
_NODE = "/dev/nvidia"
_LET_GO = {"released", "asleep"}


@click.command(
    "release",
    epilog=options.examples("release --for 10m", "release && sudo nvidia-smi -r", "release --end"),
)
@click.option(
    "--for", "duration", type=options.SPAN, default=DEFAULT_S, metavar="DURATION",
    help="For how long, 10s to 24h (10m); a second call extends it.",
)  # fmt: skip
@click.option(
    "--wait/--no-wait", default=True, help="Wait until the daemon has released them (the default)."
)
@click.option("--end", "--now-back", "end", is_flag=True, help="End it: watch the GPUs again.")
def command(duration: float, wait: bool, end: bool) -> int:  # noqa: FBT001
    """Release the NVIDIA driver for a while: for a GPU reset, MIG changes, a new driver.

    The daemon runs on, shows the GPUs as released and takes them back by itself. Exit 0: nothing
    of gpuwatchd holds a GPU, also when no daemon runs; 1: it does not release it, a call to the
    driver hangs.
    """
    flags = options.current()
    # Whatever is asked of a daemon of one's own, that one goes on holding them.
    state_location.require_read_access()
    with state_location.writing() as place:
        return _command(flags, place, duration, wait=wait, end=end)


def _command(
    flags: Globals, place: state_location.Place, duration: float, *, wait: bool, end: bool
) -> int:
    directory = private_directory(place.runtime_dir)
    state = live.read(directory)
    running = state is not None and current_state.alive(state)
    if end:
        return _end(flags, directory, running=running)
    if not live.SHORTEST_RELEASE_S <= duration <= live.LONGEST_RELEASE_S:
        raise click.BadParameter("must be between 10s and 24h", param_hint="--for")
    now_s = time.time()
    request = live.ask_release(directory, duration, now_s)
    heard = own_process.ring(directory)
    until = units.clock(request.until_at_s, now_s=now_s, seconds=True)
    data = ReleaseData(
        until_at=units.instant(request.until_at_s), daemon=None, released=True, open_files=None
    )
    if state is None or not running:
        words = f"no daemon is running: gpuwatchd holds no GPU; one that starts waits until {until}"
        return _answer(flags, data, words)
    data.daemon = fill(ProcessId, state)
    if not wait:
        data.released = None
        return _answer(flags, data, *_asked(state, until, heard=heard))
    held = _wait(flags, directory, state)
    data.open_files = None if held is None else tuple(held)
    sure = "no /dev/nvidia* open" if held is not None else "its open files cannot be seen"
    words = f"gpuwatchd (pid {state.pid}) has released the GPUs until {until}; {sure}"
    return _answer(flags, data, words)


def _end(flags: Globals, directory: Path, *, running: bool) -> int:
    was = live.end_release(directory)
    own_process.ring(directory)
    if not was:
        words = "no release was requested"
    elif running:
        words = "the daemon takes the GPUs back"
    else:
        words = "the request is withdrawn; no daemon runs"
    return _answer(flags, ReleaseData(until_at=None, released=False, was_released=was), words)


def _asked(state: LiveState, until: str, *, heard: bool) -> tuple[str, str]:
    """Return what was asked of the daemon, and why it may not have been understood."""
    when = "immediately" if heard else f"within {units.duration(state.interval_s)}"
    words = f"asked pid {state.pid} to release the GPUs {when}, until {until}"
    if state.version == __version__:
        return words, ""
    other = text.clean(state.version, limit=40)
    return words, (
        f"not confirmed: the daemon is gpuwatchd {other}, this is {__version__}; "
        "gpuwatchctl status shows whether they are released"
    )


def _answer(flags: Globals, data: ReleaseData, words: str, doubt: str = "") -> int:
    warnings = [("unconfirmed", doubt)] if doubt else []
    if flags.json:
        output.emit_answer(DriverRelease, data, source="daemon", warnings=warnings)
        return 0
    out = output.Out(flags)
    if not flags.quiet:
        out.line(words)
    if doubt:
        out.prose(f"! {doubt}", "yellow", rest="  ")
    return 0


def _wait(flags: Globals, directory: Path, before: LiveState) -> list[str] | None:
    """Wait until the daemon has let go; return what it has open of the driver, which is nothing.

    None where its open files cannot be seen. One who looks on is told what takes so long;
    GpuwatchdError where it does not let go.
    """
    begun_s = time.monotonic()
    until_s = begun_s + max(WAIT_S, 2 * before.interval_s)
    looks_on = sys.stderr.isatty() and not flags.json and not flags.quiet
    keeps: list[tuple[str, str]] = []
    held: list[str] | None = None
    while time.monotonic() < until_s:
        state = live.read(directory)
        if state is None or not current_state.alive(state):
            return []
        keeps = [
            (device.device.label, device.reading.state if device.reading else "unknown")
            for device in state.devices
            if device.device.source == "nvml"
            and (device.reading is None or device.reading.state not in _LET_GO)
        ]
        held = open_files(state.pid)
        if state.ticks > before.ticks and not keeps and not held:
            return held
        if looks_on and time.monotonic() - begun_s >= TELL_AFTER_S:
            looks_on = False
            most = units.duration(until_s - begun_s)
            sys.stderr.write(f"waiting, {most} at most: {_why(keeps, held)}\n")
        time.sleep(0.1)
    raise GpuwatchdError(
        f"the daemon (pid {before.pid}) has not released the GPUs: {_why(keeps, held)}",
        hint="a call to the driver may hang; stopping the daemon ends its hold: "
        "gpuwatchctl service stop",
        page="errors#not-let-go",
    )


def _why(keeps: list[tuple[str, str]], held: list[str] | None) -> str:
    # Of those that are kept, the ones that do not answer are why.
    keeps = [keep for keep in keeps if keep[1] != "ok"] or keeps
    texts = [f"{label} is {state}" for label, state in keeps]
    return ", ".join([*texts, *(held or [])]) or "no tick since"


def open_files(pid: int) -> list[str] | None:
    """Return the nodes of the NVIDIA driver that a process has open; None where that is unseen."""
    names: set[str] = set()
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                names.add(str(entry.readlink()))
    except OSError:
        return None
    return sorted(target for target in names if target.startswith(_NODE))
