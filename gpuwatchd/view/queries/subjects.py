"""Which verdict is meant: by GPU, pid, alert key, or the worst there is."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from gpuwatchd.core import units
from gpuwatchd.core.errors import Ambiguous, GpuwatchdError
from gpuwatchd.core.model import Subject
from gpuwatchd.store.live import LiveDevice, LiveProcess
from gpuwatchd.view.queries import alert_query, current_state, names
from gpuwatchd.view.query import Query, plain
from gpuwatchd.view.text import verdict_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatchd.core.model import Alert, Finding, ProcessInfo
    from gpuwatchd.store.tables import UserLabel
    from gpuwatchd.view.queries.alert_query import Incidents
    from gpuwatchd.view.queries.current_view import View

_TIERS = {"none": 0, "watch": 1, "alert": 2}


class NamedSubject(NamedTuple):
    """One subject, with what is shown of it."""

    item: LiveDevice
    process: LiveProcess | None
    subject: Subject
    finding: Finding | None
    alert: Alert | None = None
    word: UserLabel | None = None
    """What the user said of the alert."""
    known: ProcessInfo | None = None
    """Who the process was, where it has ended."""


def judged_view(query: Query) -> View:
    """Return judged devices: from the live state, else judged again from the history.

    Raises
    ------
    GpuwatchdError
        When there is neither a live state nor a history to judge, or it cannot be read.
    """
    state, _ = current_state.read_state()
    if state is not None and state.devices:
        return current_state.load_view(query, want_trend=True)
    from gpuwatchd.view.queries import history_query  # noqa: PLC0415 - 68 ms: numpy and SQLite come with it

    view = history_query.judged(query)
    if view is None:
        current_state.load_view(query)  # says it when there is no GPU at all
        raise GpuwatchdError(
            "no history to predict from: nothing was recorded yet",
            hint="gpuwatchctl service install",
            page="errors#no-history",
        )
    view.devices = tuple(item for item in view.devices if query.wants(item.device))
    current_state.of_users(view, query)
    return view


def every(view: View) -> Iterator[NamedSubject]:
    """Yield every subject that has a verdict: devices and their processes, host memory too."""
    for item in view.devices:
        finding = item.finding
        if finding is not None and finding.subject.process is None:
            yield _named_subject(view, item, None, finding)
        for process in item.processes or ():
            for one in (process.finding, process.host_finding):
                if one is not None:
                    yield _named_subject(view, item, process, one)


def pick(view: View, target: str | None) -> NamedSubject:
    """Return the subject that is meant.

    Parameters
    ----------
    target
        Index, name ("GPU 0", "MIG 3:0"), UUID or glob of a GPU; a pid on one of them, or whatever
        is shown of a process there; the id or key of an alert; None for the worst firing alert,
        else the newest death, else the worst watch, else the worst verdict. A number is a GPU where
        there is such an index.

    Raises
    ------
    GpuwatchdError
        When nothing fits.
    Ambiguous
        When more than one thing does.
    """
    if target is None:
        return _worst(view)
    query = Query()
    index = plain(target)
    query.gpu = [target]
    devices = [item for item in view.devices if target and query.wants(item.device)]
    exact = [item for item in devices if index == str(item.device.index)]
    if exact and len(devices) > 1:
        # A card has the index, and its instances come with it: the card is meant.
        devices = [item for item in exact if item.device.parent_uid is None] or devices
    if devices:
        if len(devices) > 1:
            cards = [item.device for item in devices]
            each = {current_state.typed(card): f"{card.label} {card.name}" for card in cards}
            raise names.ambiguous(target, "GPUs", each)
        return _device(view, devices[0])
    pid, running = names.pid_in(target), list(_running(view))
    # A number that is no pid here may be that of a job.
    fitting = [pair for pair in running if pair[1].info.key.pid == pid]
    fitting = fitting or [pair for pair in running if names.names_process(target, pair[1].info)]
    shown = {
        process.info.key.pid: f"{verdict_text.who(process.info)} on {item.device.label}"
        for item, process in fitting
    }
    if len(shown) > 1:
        raise names.ambiguous(target, "processes", shown)
    for number in shown:
        return _process(view, number)
    found = alert_query.gather(0.0, only_open=False)
    here = current_state.gpus_here([item.device for item in view.devices])
    alert = _named_alert(found, target, "GPU, process", "errors#no-such-alert", here)
    return _of_alert(view, alert, found)


def _running(view: View) -> Iterator[tuple[LiveDevice, LiveProcess]]:
    return ((item, process) for item in view.devices for process in item.processes or ())


def pids(word: str) -> list[int]:
    """Return the pids that a word names: all processes of a program, user or job, or an alert's.

    Raises
    ------
    GpuwatchdError
        When it names none.
    """
    return list(_fitting(word, running=False))


def pid(word: str) -> int:
    """Return the pid of the process that a word names, of those that hold GPU memory now.

    Raises
    ------
    GpuwatchdError
        When it names none.
    Ambiguous
        When it names several.
    """
    fitting = _fitting(word, running=True)
    if len(fitting) > 1:
        raise names.ambiguous(word, "processes", fitting)
    return next(iter(fitting))


def _fitting(word: str, *, running: bool) -> dict[int, str]:
    """Return the pids that a word names, and who each is."""
    number, found = names.pid_in(word), alert_query.Incidents()
    with contextlib.suppress(GpuwatchdError):  # there is nothing that could be named
        found = alert_query.gather(0.0, only_open=False)
    if number not in {key.pid for key in found.infos}:
        infos = [info for _, info in found.holders] if running else found.infos.values()
        fitting = {i.key.pid: verdict_text.who(i) for i in infos if names.names_process(word, i)}
        if fitting:
            return dict(sorted(fitting.items()))
    if number is not None:
        return {number: word}
    alert = _named_alert(found, word, "process", "errors#no-such-process")
    if alert.subject.process is None:
        raise _nothing(word, "process", "errors#no-such-process")
    return {alert.subject.process.pid: alert.title}


def sorted_out(words: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return which words name GPUs, and the pids that the others name.

    A number that is no pid on a GPU is one that has no such index: the refusal is about a GPU.
    """
    try:
        found = alert_query.gather(0.0, only_open=False)
    except GpuwatchdError:
        return list(words), []
    known = {info.key.pid for info in found.infos.values()}
    here = {
        word
        for word in words
        if not Query(gpu=[word]).unmatched(found.devices.values())
        or (units.is_number(word) and int(word) not in known)
    }
    others = [pid for word in words if word not in here for pid in pids(word)]
    return [word for word in words if word in here], others


def of_process(view: View, item: LiveDevice, process: LiveProcess) -> NamedSubject:
    """Return what is judged of one process on one device."""
    return _named_subject(view, item, process, process.finding)


def _rank(subject: NamedSubject) -> tuple[int, float, bool]:
    """Return how bad a verdict is; less than any where there is none."""
    finding = subject.finding
    if finding is None:
        return -1, 0.0, False
    return _TIERS[finding.tier], finding.confidence, finding.pattern != "unknown"


def _worst(view: View) -> NamedSubject:
    opened = current_state.shown(view.alerts)
    firing = (alert for alert in opened if alert.state != "watch")
    alert = next(iter((*firing, *view.deaths, *opened)), None)
    if alert is not None:
        live = next((one for one in every(view) if one.alert == alert), None)
        return live or _of_alert(view, alert, alert_query.gather(0.0, only_open=False))
    subject = max(every(view), key=_rank, default=None)
    return subject if subject is not None else _device(view, view.devices[0])


def _device(view: View, item: LiveDevice) -> NamedSubject:
    """Return what a device is shown with: its own verdict, or that of its worst process."""
    key = None if item.finding is None else item.finding.subject.process
    process = next((one for one in item.processes or () if one.info.key == key), None)
    return _named_subject(view, item, process, item.finding)


def _process(view: View, pid: int) -> NamedSubject:
    """Return the worse of what is judged of a process, wherever it is."""
    subjects = [
        _named_subject(view, item, process, finding)
        for item, process in _running(view)
        if process.info.key.pid == pid
        for finding in (process.finding, process.host_finding)
        if finding is not None or process.host_finding is None
    ]
    return max(subjects, key=lambda subject: _rank(subject)[:2])


def _named_subject(
    view: View, item: LiveDevice, process: LiveProcess | None, finding: Finding | None
) -> NamedSubject:
    key = None if process is None else process.info.key
    subject = (
        Subject(device_uid=item.device.uid, process=key) if finding is None else finding.subject
    )
    # Of the same subject there may be another kind of alert: it is explained by its key.
    leaks = (one for one in view.alerts if one.kind == "leak" and one.subject == subject)
    return NamedSubject(item, process, subject, finding, next(leaks, None))


def _named_alert(found: Incidents, word: str, what: str, page: str, here: str = "") -> Alert:
    try:
        return alert_query.pick(found.alerts, word)
    except Ambiguous:
        raise
    except GpuwatchdError as error:
        raise _nothing(word, what, page, here) from error


def _nothing(word: str, what: str, page: str, here: str = "") -> GpuwatchdError:
    verbs = "gpuwatchctl status; gpuwatchctl alerts --all"
    return GpuwatchdError(
        f"no {what}, program, user, job or alert {word[: names.LONGEST]!r}",
        hint=f"{here}; {verbs}" if here else verbs,
        page=page,
    )


def _of_alert(view: View, alert: Alert, found: Incidents) -> NamedSubject:
    live = next((subject for subject in every(view) if subject.subject == alert.subject), None)
    word = found.user_label(alert)
    if live is not None and alert.kind == "leak" and alert.state in alert_query.OPEN:
        return live._replace(alert=alert, word=word)
    uid = alert.subject.device_uid
    item = next((one for one in view.devices if one.device.uid == uid), None)
    if item is None:
        device = found.devices.get(uid)
        if device is None:
            raise GpuwatchdError(
                f"the GPU of {alert.title or alert.key} is no longer known",
                page="errors#no-such-gpu",
            )
        item = LiveDevice(device=device, reading=None)
    process = next(
        (one for one in item.processes or () if one.info.key == alert.subject.process), None
    )
    known = None if alert.subject.process is None else found.infos.get(alert.subject.process)
    return NamedSubject(item, process, alert.subject, alert.finding, alert, word, known)
