"""What the views have in common: the frame around each, badges, and who an address means."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from gpuwatchd import __version__
from gpuwatchd import alerts as policy
from gpuwatchd.core import text, units
from gpuwatchd.core.design import LOOKS
from gpuwatchd.core.errors import GpuwatchdError, StoreError
from gpuwatchd.view.answers import base
from gpuwatchd.view.answers.base import Sentence, Shape, fill, sources
from gpuwatchd.view.blocks import Flow, Page, Table
from gpuwatchd.view.queries import current_state, history_query
from gpuwatchd.view.text import badges, delivery_text, status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from gpuwatchd.core.model import Alert, Device, ProcessInfo, ProcessKey
    from gpuwatchd.store.live import LiveDevice, LiveProcess
    from gpuwatchd.store.reader import Reader
    from gpuwatchd.view.blocks import Part
    from gpuwatchd.view.queries.current_view import View

LINE = 1024
"""Characters of a line."""
_LONGEST = 4096


class BadgeMark(Shape):
    """A verdict at a glance."""

    kind: str
    mark: str
    word: str
    words: Sentence
    rest: Sentence | UnsetType = UNSET
    """What the word does not say."""
    FROM = sources(mark=lambda badge: LOOKS[badge.kind].mark)


class OpenAlert(Shape):
    """An alert that is open, for those who do not see the page."""

    key: str
    said: str
    watched: bool


class Notice(Shape):
    """What is missing or wrong."""

    code: str
    text: str
    bad: bool


class Frame(Shape):
    """What stands around every view."""

    host: str
    version: str
    clock: str
    zone: str
    seen: str
    live: bool
    """Whether a daemon keeps this fresh."""
    interval_s: float
    daemon: str
    warnings: tuple[Notice, ...]
    open: tuple[OpenAlert, ...]
    counted: str


class PageAnswer(Shape):
    """Base of what a view shows."""

    page: Frame


class AlertLine(Shape):
    """One open alert, in a line."""

    id: str
    key: str
    badge: BadgeMark
    when: str
    title: str
    line: str
    silent: str
    """Until when; "" where it is not snoozed."""


def joined(parts: Iterable[Part], between: str = ", ") -> str:
    """Return parts as one clean line."""
    return between.join(filter(None, (_words(part).strip() for part in parts)))


def clean(words: Iterable[str]) -> tuple[str, ...]:
    """Return lines as they may be shown, without those that say nothing."""
    return tuple(text.clean(line, limit=LINE) for line in words if line)


def _words(part: Part) -> str:
    return text.clean(part if isinstance(part, str) else part[0], limit=_LONGEST)


def lines(page: Page) -> Iterator[tuple[int, str]]:
    """Yield depth (steps of two columns) and words of each line of a page.

    Wide gaps become commas, as a browser has no columns.
    """
    for block in page.blocks:
        if isinstance(block, Table):
            continue
        if isinstance(block, Flow):
            words = block.first + joined(block.parts, block.gap if len(block.gap) == 1 else ", ")
        else:
            words = "".join(map(_words, block.parts))
        if words.strip():
            yield (len(words) - len(words.lstrip())) // 2, words.strip()


def frame(view: View) -> Frame:
    """Return the part of an answer that the frame around each view is drawn from."""
    now_s = view.now_s
    alerts = current_state.shown(view.alerts)
    late = any(code == "daemon-late" for code, _ in view.warnings)
    return Frame(
        host=base.host(),
        version=__version__,
        clock=units.clock(now_s, now_s=now_s, seconds=True),
        zone=units.zone(now_s),
        seen=units.clock(view.taken_at_s, now_s=now_s, seconds=True),
        live=view.source == "state-file" and view.daemon.running and not late,
        interval_s=view.interval_s,
        daemon=_daemon(view, now_s),
        warnings=tuple(_warnings(view, now_s)),
        open=tuple(_open(alert, view) for alert in alerts),
        counted=current_state.counted(alerts),
    )


def _daemon(view: View, now_s: float) -> str:
    daemon = view.daemon
    if not daemon.running:
        return "No daemon is running."
    since = ""
    if daemon.started_at_s is not None:
        since = f" since {units.clock(daemon.started_at_s, now_s=now_s)}"
    whom = " for the whole machine" if daemon.scope == "system" else ""
    return f"The daemon {daemon.version or '?'} runs{whom}{since}."


def _open(alert: Alert, view: View) -> OpenAlert:
    begin, *rest = status.alert_line(alert, view)
    said = joined([joined([begin]).rstrip(":"), *rest])
    return OpenAlert(key=text.clean(alert.key), said=said, watched=alert.state == "watch")


def _warnings(view: View, now_s: float) -> Iterator[Notice]:
    """Yield what ``status`` says above and below the GPUs, one sentence each."""
    for code, sentence in view.warnings:
        words = text.clean(sentence, limit=LINE) + status.age(view, code, now_s=now_s)
        yield Notice(code=code, text=words, bad=code.startswith("daemon"))
    for alert in view.deaths:
        death = joined(delivery_text.death_line(alert, now_s=now_s), " ")
        yield Notice(code="death", text=death, bad=True)
    if undelivered := joined(delivery_text.undelivered(view, mark=""), " "):
        yield Notice(code="unheard", text=undelivered, bad=True)
    out = Page()
    delivery_text.silences(out, view)
    for _, words in lines(out):
        yield Notice(code="unheard", text=words, bad=False)
    for problem in delivery_text.other_problems(view):
        yield Notice(code="problem", text=text.clean(problem), bad=False)


def open_alerts(
    view: View, *, uid: str | None = None, process: ProcessKey | None = None
) -> tuple[AlertLine, ...]:
    """Return what is open, the worst first: of everything, of a GPU, or of a process on it."""
    return tuple(
        _line(alert, view)
        for alert in current_state.shown(view.alerts)
        if uid in {None, alert.subject.device_uid} and process in {None, alert.subject.process}
    )


def _line(alert: Alert, view: View) -> AlertLine:
    now_s = view.now_s
    begin, title, *rest = status.alert_line(alert, view)
    silence = policy.silenced(alert, delivery_text.in_force(view.silences, now_s), now_s)
    return AlertLine(
        id=alert.code,
        key=text.clean(alert.key),
        badge=fill(BadgeMark, badges.alert(alert)),
        when=joined([begin]).rstrip(":"),
        title=joined([title]),
        line=joined(rest),
        silent="" if silence is None else delivery_text.silent(silence, now_s=now_s),
    )


_BEGAN_S = 0.002
"""The page keeps milliseconds."""
_DIGITS = 16
"""Of milliseconds; more are no instant, and too many no number."""


def address(item: LiveDevice, process: LiveProcess) -> str:
    """Return where a process is found on the page: device, pid and when it began."""
    began_s = process.info.key.started_at_s
    began = "-" if began_s is None else str(round(began_s * 1000))
    return f"{text.clean(item.device.uid)}/{process.info.key.pid}/{began}"


def device(view: View, parameters: Mapping[str, str]) -> LiveDevice:
    """Return the GPU with the UUID that is asked for.

    Raises
    ------
    GpuwatchdError
        When it is not here.
    """
    uid = parameters.get("gpu", "")
    for item in view.devices:
        if text.clean(item.device.uid) == uid:
            return item
    why = f"GPU {text.clean(uid, limit=80)} is not here"
    hint = "the overview has those that are"
    raise GpuwatchdError(why, hint=hint, page="errors#no-such-gpu")


def process(
    view: View, parameters: Mapping[str, str]
) -> tuple[LiveDevice, LiveProcess] | tuple[None, None]:
    """Return the process that is asked for, with its GPU; None where it is not there (any more)."""
    for item in view.devices:
        if text.clean(item.device.uid) == parameters.get("gpu"):
            for each in item.processes or ():
                if _is_meant(each.info.key, parameters):
                    return item, each
    return None, None


def _is_meant(key: ProcessKey, parameters: Mapping[str, str]) -> bool:
    """Say whether a process is the one with this pid that began at this instant."""
    if str(key.pid) != parameters.get("pid"):
        return False
    began = parameters.get("began", "-")
    if not began.isdecimal() or len(began) > _DIGITS:
        return True
    return key.started_at_s is None or abs(key.started_at_s - int(began) / 1000) < _BEGAN_S


def ended(
    history: Reader | None, parameters: Mapping[str, str]
) -> tuple[ProcessInfo, Device | None]:
    """Return a process that is over, and its GPU as the history knows it.

    Raises
    ------
    GpuwatchdError
        When nothing is recorded of it.
    """
    infos = [] if history is None else history.processes()
    fitting = [info for info in infos if _is_meant(info.key, parameters)]
    if not fitting:
        pid = text.clean(parameters.get("pid", ""), limit=20)
        why = f"process {pid} is not on this GPU, and there is no data of it"
        hint = "the overview has those that are"
        raise GpuwatchdError(why, hint=hint, page="errors#no-such-process")
    devices = [] if history is None else history.devices()
    uid = parameters.get("gpu")
    on = next((each for each in devices if text.clean(each.uid) == uid), None)
    return max(fitting, key=lambda info: info.key.started_at_s or 0.0), on


def history() -> AbstractContextManager[Reader | None]:
    """Return the history, open within a ``with``; None in there where there is none."""
    try:
        return history_query.reader()
    except StoreError:
        return nullcontext()
