"""Which verdict is meant: by GPU, pid, alert key, or the worst there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpuwatchd.cli import current_state, incidents
from gpuwatchd.cli.flags import Globals, plain
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.core.model import Subject
from gpuwatchd.store.live import LiveDevice, LiveProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.cli.current_state import View
    from gpuwatchd.core.model import Alert, Finding, ProcessInfo
    from gpuwatchd.store.labels import Word

_DIGITS = 10
"""Of a pid at most."""
_TIERS = {"none": 0, "watch": 1, "alert": 2}


class Meant(NamedTuple):
    """One subject, with what is shown of it."""

    item: LiveDevice
    process: LiveProcess | None
    subject: Subject
    finding: Finding | None
    alert: Alert | None = None
    word: Word | None = None
    """What the user said of the alert."""
    known: ProcessInfo | None = None
    """Who the process was, where it has ended."""


def judged_view(flags: Globals) -> View:
    """Return judged devices: from the live state, else judged again from the history.

    Raises
    ------
    GpuwatchdError
        When there is neither a live state nor a history to judge, or it cannot be read.
    """
    state, _ = current_state.read_state()
    if state is not None and state.devices:
        return current_state.see(flags, want_trend=True)
    from gpuwatchd.cli import history_query  # noqa: PLC0415 - numpy and SQLite come with it

    view = history_query.judged(flags)
    if view is None:
        current_state.see(flags)  # says it when there is no GPU at all
        raise GpuwatchdError(
            "no history to predict from: nothing was watched yet",
            hint="gpuwatchctl service install",
            page="errors#no-history",
        )
    view.devices = tuple(item for item in view.devices if flags.wants(item.device))
    current_state.of_users(view, flags)
    return view


def every(view: View) -> Iterator[Meant]:
    """Yield every subject that has a verdict: devices and their processes, host memory too."""
    for item in view.devices:
        finding = item.finding
        if finding is not None and finding.subject.process is None:
            yield _meant(view, item, None, finding.subject, finding)
        for process in item.processes or ():
            for one in (process.finding, process.host_finding):
                if one is not None:
                    yield _meant(view, item, process, one.subject, one)


def pick(view: View, target: str | None) -> Meant:
    """Return the subject that is meant.

    Parameters
    ----------
    view
        What there is.
    target
        Index, name ("GPU 0", "MIG 3:0"), UUID or glob of a GPU; a pid on one of them; the key of
        an alert or a part of it; None for the worst verdict. A number is a GPU where there is such
        an index.

    Raises
    ------
    GpuwatchdError
        When nothing, or more than one thing, fits.
    """
    if target is None:
        return _worst(view)
    flags = Globals()
    index = plain(target)
    flags.gpu = [target]
    devices = [item for item in view.devices if target and flags.wants(item.device)]
    exact = [item for item in devices if index == str(item.device.index)]
    if exact and len(devices) > 1:
        # A card has the index, and its instances come with it: the card is meant.
        devices = [item for item in exact if item.device.parent_uid is None] or devices
    if devices:
        if len(devices) > 1:
            names = ", ".join(item.device.uid for item in devices)
            raise GpuwatchdError(
                f"{target!r} fits {len(devices)} GPUs",
                hint=f"GPUs: {names}",
                page="errors#ambiguous",
            )
        return _device(view, devices[0])
    if target.isdecimal() and len(target) <= _DIGITS:
        found = _process(view, int(target))
        if found is not None:
            return found
    return _alert(view, target)


def of_process(view: View, item: LiveDevice, process: LiveProcess) -> Meant:
    """Return what is judged of one process on one device."""
    finding = process.finding
    subject = None if finding is None else finding.subject
    return _meant(view, item, process, subject, finding)


def _worst(view: View) -> Meant:
    found = max(
        every(view),
        key=lambda one: (
            (_TIERS[one.finding.tier], one.finding.confidence, one.finding.pattern != "unknown")
            if one.finding is not None
            else (0, 0.0, False)
        ),
        default=None,
    )
    return found if found is not None else _device(view, view.devices[0])


def _device(view: View, item: LiveDevice) -> Meant:
    """Return what a device is shown with: its own verdict, or that of its worst process."""
    finding = item.finding
    subject = Subject(device_uid=item.device.uid) if finding is None else finding.subject
    process = next((one for one in item.processes or () if one.info.key == subject.process), None)
    return _meant(view, item, process, subject, finding)


def _process(view: View, pid: int) -> Meant | None:
    """Return the worse of what is judged of a process, wherever it is."""
    found = [
        _meant(view, item, process, one.subject if one is not None else None, one)
        for item in view.devices
        for process in item.processes or ()
        if process.info.key.pid == pid
        for one in (process.finding, process.host_finding)
        if one is not None or process.host_finding is None
    ]
    return max(
        found,
        key=lambda one: (
            (_TIERS[one.finding.tier], one.finding.confidence)
            if one.finding is not None
            else (-1, 0)
        ),
        default=None,
    )


def _meant(
    view: View,
    item: LiveDevice,
    process: LiveProcess | None,
    subject: Subject | None,
    finding: Finding | None,
) -> Meant:
    if subject is None:
        key = None if process is None else process.info.key
        subject = Subject(device_uid=item.device.uid, process=key)
    # Of the same subject there may be another kind of alert: it is explained by its key.
    leaks = (one for one in view.alerts if one.kind == "leak" and one.subject == subject)
    alert = next(leaks, None)
    return Meant(item, process, subject, finding, alert)


def _alert(view: View, target: str) -> Meant:
    try:
        found = incidents.gather(0.0, only_open=False)
        alert = incidents.pick(found.alerts, target)
    except GpuwatchdError as error:
        raise GpuwatchdError(
            f"no GPU, no process on one and no alert {target[:64]!r}: {error.message}",
            hint="gpuwatchctl status; gpuwatchctl alerts --all",
            page="errors#no-such-alert",
        ) from error
    live = next((one for one in every(view) if one.subject == alert.subject), None)
    word = found.said(alert)
    if live is not None and alert.kind == "leak" and alert.state in incidents.OPEN:
        return live._replace(alert=alert, word=word)
    uid = alert.subject.device_uid
    item = next((one for one in view.devices if one.device.uid == uid), None)
    if item is None:
        device = found.devices.get(uid)
        if device is None:
            raise GpuwatchdError(
                f"the GPU of {alert.title or alert.key} is not known any more",
                page="errors#no-such-gpu",
            )
        item = LiveDevice(device=device, reading=None)
    process = next(
        (one for one in item.processes or () if one.info.key == alert.subject.process), None
    )
    return Meant(item, process, alert.subject, alert.finding, alert, word, _known(found, alert))


def _known(found: incidents.Found, alert: Alert) -> ProcessInfo | None:
    process = alert.subject.process
    return None if process is None else found.infos.get(process)
