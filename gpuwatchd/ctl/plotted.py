"""Which pictures are meant: of GPUs, of processes that run, or of ones that have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd import units
from gpuwatchd.ctl import charts, look, mine, past, whose
from gpuwatchd.ctl.charts import Asked
from gpuwatchd.errors import GpuwatchdError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatchd.ctl.flags import Globals
    from gpuwatchd.model import Device, ProcessInfo
    from gpuwatchd.pictures.chart import Picture
    from gpuwatchd.store.reader import Reader

_POINTS = 400
_MOST = 32
"""Processes: of more nobody sees anything, and each is a question to the history."""
_MARGIN = 0.02
_LEAST_S = 60.0


def pictures(
    flags: Globals, pids: Sequence[int], span: tuple[float, float], *, tight: bool
) -> list[Picture]:
    """Return what is to be drawn of a time, at least one picture with something on it.

    Parameters
    ----------
    flags
        ``--gpu`` and ``--user`` choose.
    pids
        Of processes; none means the GPUs, or with ``--user`` all of these users' processes.
    span
        From and to, epoch seconds.
    tight
        Whether to begin where the record begins, if that is later.

    Raises
    ------
    GpuwatchdError
        When there is no such GPU or process, or nothing is known of that time.
    """
    asked = Asked(*span, _POINTS)
    found = _asked_for(flags, pids, asked)
    first_s = min((one.curve.at_s[0] for one in found if not one.empty), default=None)
    # One look of now is no curve: without a history there will be no more than that.
    alone = all(len(one.curve.at_s) < 2 for one in found)
    if first_s is None or (alone and not whose.recorded(whose.state_dir())):
        raise _nothing(span)
    begin_s = first_s - max(_MARGIN * (span[1] - first_s), _LEAST_S / 2)
    if tight and begin_s > span[0] + 0.1 * (span[1] - span[0]):
        found = _asked_for(flags, pids, Asked(begin_s, span[1], _POINTS))
    return found


def _nothing(span: tuple[float, float]) -> GpuwatchdError:
    if not whose.recorded(whose.state_dir()):
        return GpuwatchdError(
            "there is no history yet to draw",
            hint="gpuwatchctl service install; without a GPU: gpuwatchctl demo",
            page="errors#no-history",
        )
    between = f"{units.clock(span[0])} and {units.clock(span[1])}"
    return GpuwatchdError(
        f"nothing is recorded between {between}",
        hint="ask for a longer time, such as --since 7d; what is now: gpuwatchctl status",
        page="errors#nothing-recorded",
    )


def _asked_for(flags: Globals, pids: Sequence[int], asked: Asked) -> list[Picture]:
    if not pids and not flags.user:
        return charts.all_devices(flags, asked)
    if not whose.recorded(whose.state_dir()):
        return _processes(flags, None, pids, asked)
    with past.reader() as history:
        return _processes(flags, history, pids, asked)


def _processes(
    flags: Globals, history: Reader | None, pids: Sequence[int], asked: Asked
) -> list[Picture]:
    """Return the pictures of processes: first of those that run, the largest first."""
    view = look.see(flags, want_trend=True)
    running = [
        (item, process)
        for item in view.devices
        for process in item.processes or ()
        if not pids or process.info.key.pid in pids
    ]
    running.sort(key=lambda one: -(one[1].used_bytes or 0))
    found = [
        charts.of_process(history, view, item, process, asked) for item, process in running[:_MOST]
    ]
    if history is not None:
        known = {(item.device.uid, process.info.key) for item, process in running}
        found += [
            charts.past_process(history, device, info, asked)
            for device, info in _ended(flags, history, pids, asked.begin_s)
            if (device.uid, info.key) not in known
        ]
        found = [
            picture for n, picture in enumerate(found) if n < len(running) or not picture.empty
        ]
    if found:
        return found[:_MOST]
    named = f"pid {', '.join(map(str, pids))}" if pids else f"user {', '.join(flags.user)}"
    raise GpuwatchdError(
        f"no process of {named} is or was on a GPU here in that time",
        hint="gpuwatchctl status; of an earlier time: --since 7d",
        page="errors#no-such-process",
    )


def _ended(
    flags: Globals, history: Reader, pids: Sequence[int], since_s: float
) -> Iterator[tuple[Device, ProcessInfo]]:
    """Yield the processes that were known from then on, on each GPU where they may have been."""
    people = mine.People(flags.user) if flags.user else None
    devices = [device for device in history.devices() if flags.wants(device)]
    for info in history.processes(since_s):
        if (not pids or info.key.pid in pids) and (people is None or people.own(info)):
            yield from ((device, info) for device in devices)
