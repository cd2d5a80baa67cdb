"""How it stands: the devices, the worst first, and one sentence on all of them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from gpuwatchd.core import units
from gpuwatchd.core.model import is_leak
from gpuwatchd.view import blocks
from gpuwatchd.view.queries import current_state
from gpuwatchd.view.text import badges, verdict_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.core.design import Kind
    from gpuwatchd.core.model import Alert, Blame, Finding, ProcessInfo
    from gpuwatchd.store.live import LiveDevice
    from gpuwatchd.view.blocks import Part
    from gpuwatchd.view.queries.current_view import View
    from gpuwatchd.view.text.badges import Badge

_STYLES = {"critical": "red-bold", "warning": "yellow-bold", "watch": "yellow"}
_NAME_CELLS = 32
_COUNTED = {"critical": "critical", "leak": "warning", "watch": "watch"}
"""A judgement of which there is no alert counts as one."""
_PLURALS = {"critical": "critical", "warning": "warnings", "info": "notes", "watch": "watches"}


class Standing(NamedTuple):
    """How one device stands."""

    item: LiveDevice
    badge: Badge
    finding: Finding | None
    """What the badge is about: of the device, else of the worst process on it."""


def standings(devices: Iterable[LiveDevice], alerts: Iterable[Alert] = ()) -> list[Standing]:
    """Return the devices: the worst first, of equals what is full first.

    An alert that is open counts as long as it is, whatever is read or judged now.
    """
    raised: dict[str, list[tuple[int, float]]] = {}
    for alert in current_state.shown(alerts):
        rank = _rank(badges.raised(alert).kind, alert.finding)
        raised.setdefault(alert.subject.device_uid, []).append(rank)
    return sorted(
        map(_standing, devices),
        key=lambda place: min([_place(place), *raised.get(place.item.device.uid, ())]),
    )


def _standing(item: LiveDevice) -> Standing:
    own = Standing(item, badges.device(item), item.finding)
    if own.badge.kind == "trouble":
        return own
    leaks = (
        Standing(item, badges.process(process), finding)
        for process in item.processes or ()
        for finding in (process.finding, process.host_finding)
        if is_leak(finding)
    )
    return min((own, *leaks), key=_place)


def _place(standing: Standing) -> tuple[int, float]:
    return _rank(standing.badge.kind, standing.finding)


def _rank(kind: Kind, finding: Finding | None) -> tuple[int, float]:
    eta = None if finding is None else finding.eta
    return badges.WORST_FIRST.index(kind), float("inf") if eta is None else eta.mid_s


def chief(finding: Finding) -> Blame | None:
    """Return which part of the growth of a device is the largest; None of one process's own."""
    if finding.subject.process is not None:
        return None
    return max(finding.blame, key=lambda blame: blame.share, default=None)


def culprit(item: LiveDevice, finding: Finding) -> ProcessInfo | None:
    """Return whose growth it is: the judged process, else the one that explains most of it."""
    blame = chief(finding)
    key = finding.subject.process if blame is None else blame.process
    infos = (process.info for process in item.processes or ())
    return None if key is None else next((info for info in infos if info.key == key), None)


def sentence(view: View, places: Sequence[Standing]) -> Part:
    """Return "8 GPUs: 1 critical, 4 warnings; next full in 51 min: worker5 of bob"."""
    alerts = current_state.shown(view.alerts)
    raised: list[tuple[str, Finding]] = [
        ("watch" if alert.state == "watch" else alert.severity, alert.finding) for alert in alerts
    ]
    growing = [a for a in alerts if a.clear_since_s is None and not a.subject.host]
    ahead = [(alert.state != "firing", alert.finding) for alert in growing]
    if not alerts:
        judged = [(_COUNTED.get(place.badge.kind, ""), place.finding) for place in places]
        raised = [(word, finding) for word, finding in judged if word and finding is not None]
        ahead = [(word == "watch", finding) for word, finding in raised]
    counts = Counter(word for word, _ in raised)
    parts = [
        f"{counts[word]} {plural if counts[word] > 1 else word}"
        for word, plural in _PLURALS.items()
        if counts[word]
    ]
    broken = {alert.subject.device_uid for alert in alerts if alert.kind == "gpu"}
    kinds = [place.badge.kind for place in places if place.item.device.uid not in broken]
    parts += [f"{kinds.count('trouble')} unreadable"] if "trouble" in kinds else []
    style = next((style for word, style in _STYLES.items() if counts[word]), "")
    if not parts:
        parts, style = [_calm(view, places)], "bold"
    made = "simulated " if any(item.device.source == "simulate" for item in view.devices) else ""
    what = f"{units.count(len(places), f'{made}GPU')}: {', '.join(parts)}"
    return f"{what}{_next_full(view, ahead)}", style or "yellow"


def _calm(view: View, places: Sequence[Standing]) -> str:
    """Return how it stands where nothing is open."""
    if not view.trend:
        return "one reading, no verdict"
    calm = sum(place.badge.kind == "calm" for place in places)
    if calm == len(places):
        return "all stable" if calm > 1 else "stable"
    return f"{calm} stable, {len(places) - calm} without a verdict" if calm else "no verdict yet"


def _next_full(view: View, growing: Iterable[tuple[bool, Finding]]) -> str:
    """Return what runs out first: of what people are told of, else of what is watched."""
    etas = [
        (watched, finding.eta.mid_s, finding.subject.id, finding)
        for watched, finding in growing
        if finding.eta is not None
    ]
    if not etas:
        return ""
    _, left_s, _, finding = min(etas)
    uid = finding.subject.device_uid
    item = next((item for item in view.devices if item.device.uid == uid), None)
    info = None if item is None else culprit(item, finding)
    where = item.device.label if item is not None else uid
    if info is not None and verdict_text.is_named(info):
        name = blocks.fit(info.label, _NAME_CELLS, "...")
        where = f"{name} of {info.user}" if info.user else name
    return f"; next full in {units.duration(left_s)}: {where}"
