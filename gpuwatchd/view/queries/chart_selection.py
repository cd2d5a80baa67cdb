"""Which pictures are meant: of GPUs, of processes that run, or of ones that have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpuwatchd.core import units
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.store import curves
from gpuwatchd.view.queries import charts, current_state, history_query, state_location, user_filter
from gpuwatchd.view.queries.charts import Asked

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from gpuwatchd.charts.chart_model import Picture
    from gpuwatchd.core.model import Device, ProcessInfo, ProcessKey
    from gpuwatchd.store.reader import Reader
    from gpuwatchd.view.queries.current_state import View
    from gpuwatchd.view.query import Query

_MOST = 32
"""Processes: of more nobody sees anything, and each is a question to the history."""


class Selection(NamedTuple):
    """What is drawn."""

    pictures: list[Picture]
    left_out: int
    """Processes that are meant too."""
    missing: str = ""
    """What was asked for and is not there, as a sentence."""

    @property
    def smaller(self) -> str:
        """Whether processes are left out, as a sentence; "" for none."""
        if not self.left_out:
            return ""
        return f"and {self.left_out} more processes, smaller ones; --pid draws one"

    @property
    def warnings(self) -> list[tuple[str, str]]:
        """Code and sentence of what is not shown."""
        pairs = (("not-all", self.smaller), ("no-such-gpu", self.missing))
        return [pair for pair in pairs if pair[1]]


def select(
    query: Query, pids: Sequence[int], span: tuple[float, float], *, tight: bool
) -> Selection:
    """Return what is to be drawn of a time, at least one picture with something on it.

    Parameters
    ----------
    query
        Its GPUs and users choose.
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
    asked = Asked(*span)
    selection = _asked_for(query, pids, asked)
    pictures = selection.pictures
    first_s = min(
        (picture.curve.at_s[0] for picture in pictures if not picture.empty), default=None
    )
    # One look of now is no curve: without a history there will be no more than that.
    alone = all(len(picture.curve.at_s) < 2 for picture in pictures)
    if first_s is None or (alone and not state_location.recorded(state_location.state_dir())):
        raise _nothing(span)
    shorter = charts.since_record(pictures, asked)
    if tight and shorter != asked:
        return _asked_for(query, pids, shorter)
    return selection


def _nothing(span: tuple[float, float]) -> GpuwatchdError:
    if not state_location.recorded(state_location.state_dir()):
        return GpuwatchdError(
            "there is no history yet to draw",
            hint="gpuwatchctl service install; without a GPU: gpuwatchctl demo",
            page="errors#no-history",
        )
    between = f"{units.clock(span[0])} and {units.clock(span[1])}"
    return GpuwatchdError(
        f"no data between {between}",
        hint="ask for a longer time, such as --since 7d; what is now: gpuwatchctl status",
        page="errors#nothing-recorded",
    )


def _asked_for(query: Query, pids: Sequence[int], asked: Asked) -> Selection:
    if not pids and not query.user:
        pictures, view = charts.all_devices(query, asked)
        return Selection(pictures, 0, _nobody_there(view))
    if not state_location.recorded(state_location.state_dir()):
        return _processes(query, None, pids, asked)
    with history_query.reader() as history:
        return _processes(query, history, pids, asked)


def _processes(
    query: Query, history: Reader | None, pids: Sequence[int], asked: Asked
) -> Selection:
    """Return the pictures of processes: of those that run, then of others, the largest first."""
    view = current_state.load_view(query, want_trend=True)
    running = [
        (item, process)
        for item in view.devices
        for process in item.processes or ()
        if not pids or process.info.key.pid in pids
    ]
    running.sort(key=lambda pair: -(pair[1].used_bytes or 0))
    pairs = {(item.device.uid, process.info.key) for item, process in running}
    ended = [] if history is None else _ended(query, history, pids, asked, pairs)
    count = len(running) + len(ended)
    pictures = [
        charts.of_process(history, view, item, process, asked) for item, process in running[:_MOST]
    ]
    if history is not None:
        room = _MOST - len(pictures)
        drawn = [charts.past_process(history, *pair, asked) for pair in ended[:room]]
        pictures += [picture for picture in drawn if not picture.empty]
        count -= sum(picture.empty for picture in drawn)
    if not pictures:
        raise _nobody(query, pids)
    return Selection(pictures, count - len(pictures), _nobody_there(view))


def _nobody_there(view: View) -> str:
    return next((text for code, text in view.warnings if code == "no-such-gpu"), "")


def _nobody(query: Query, pids: Sequence[int]) -> GpuwatchdError:
    named = f"pid {', '.join(map(str, pids))}" if pids else f"user {', '.join(query.user)}"
    return GpuwatchdError(
        f"no process of {named} is or was on a GPU here in that time",
        hint="gpuwatchctl status; of an earlier time: --since 7d",
        page="errors#no-such-process",
    )


def _ended(
    query: Query,
    history: Reader,
    pids: Sequence[int],
    asked: Asked,
    container: Container[tuple[str, ProcessKey]],
) -> list[tuple[Device, ProcessInfo]]:
    """Return the others that were on a GPU in that time, the largest first."""
    people = user_filter.People(query.user) if query.user else None
    infos = {
        info.key: info
        for info in history.processes(asked.begin_s)
        if (not pids or info.key.pid in pids) and (people is None or people.own(info))
    }
    span = (asked.begin_s, asked.end_s)
    found: list[tuple[int, Device, ProcessInfo]] = []
    for device in history.devices():
        if not query.wants(device):
            continue
        there = {
            presence.process: presence.peak_bytes or 0
            for presence in history.ask(curves.present, device.uid, span)
        }
        # What was not rolled up yet, or not any more, can be asked for by its pid.
        keys = infos.keys() if pids else infos.keys() & there.keys()
        found += [
            (there.get(key, 0), device, infos[key])
            for key in keys
            if (device.uid, key) not in container
        ]
    found.sort(key=lambda entry: -entry[0])
    return [(device, info) for _, device, info in found]
