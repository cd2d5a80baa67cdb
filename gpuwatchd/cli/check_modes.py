"""What ``check`` looks at in the live state, one function per mode."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.cli import plugin
from gpuwatchd.cli.plugin import CRITICAL, OK, WARNING, Answer, Perf, Range
from gpuwatchd.core import units

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuwatchd.core.model import Alert, Device, Finding, Holding
    from gpuwatchd.store.live import LiveDevice, LiveState

_SEVERITY: Final = {"info": OK, "warning": WARNING, "critical": CRITICAL}
ETA_WARN: Final = Range(4 * 3600.0, float("inf"))
ETA_CRIT: Final = Range(3600.0, float("inf"))
_SOME: Final = Range(0.0, 0.0)
"""Alerts above none."""


class Mark(StrEnum):
    """What stands behind a time where no open alert says so."""

    NONE = ""
    WATCHED = " (watched)"
    SILENCED = " (silenced)"


class Case(NamedTuple):
    """What is to be looked at."""

    state: LiveState
    devices: tuple[LiveDevice, ...]
    """Those that ``--gpu`` lets through."""
    alerts: tuple[Alert, ...]
    """Open alerts on them that people are told of."""
    silenced: tuple[Alert, ...]
    """Those that nobody is told of now, on a person's word."""
    holdings: tuple[Holding, ...]
    now_s: float
    warn: Range | None
    crit: Range | None
    """None: the default of the mode."""


def label_of(device: Device) -> str:
    """Return the beginning of a device's labels: gpu0, gpu3_mig1, gpu_1a2b3c4d.

    Examples
    --------
    >>> from gpuwatchd.core.model import Device
    >>> label_of(Device(uid="GPU-1", vendor="x", index=0, name="y", memory_total_bytes=None))
    'gpu0'
    """
    if device.index is None:
        return device.label.lower().replace(" ", "_")
    if device.parent_uid is None:
        return f"gpu{device.index}"
    card = "" if device.parent_index is None else device.parent_index
    return f"gpu{card}_mig{device.index}"


def left_s(finding: Finding | None, now_s: float) -> float | None:
    """Return how long it is from now to out of memory, None when that is unknown."""
    if finding is None or finding.eta is None or finding.tier == "none":
        return None
    # A judgement of the future was made before the clock was set back: it counts as of now.
    return max(0.0, finding.eta.mid_s - max(0.0, now_s - finding.judged_at_s))


def _words(alert: Alert, now_s: float) -> str:
    """Return one alert in one line: who, how fast, until when."""
    finding = alert.finding
    if alert.kind != "leak":
        return f"{alert.title}: {finding.reason}" if finding.reason else alert.title
    rate = finding.rate_bytes_per_s
    growth = "" if rate is None else f" {'+' if rate >= 0 else ''}{units.rate(rate)}"
    left = left_s(finding, now_s)
    full = "" if left is None else f", full in {units.duration(left)}"
    return f"{alert.title}{growth}{full}"


def _used(case: Case) -> tuple[Perf, ...]:
    out = []
    for item in case.devices:
        reading = item.reading
        total = item.device.memory_total_bytes
        if reading is not None and reading.total_bytes is not None:
            total = reading.total_bytes
        used = None if reading is None else reading.used_bytes
        out.append(Perf(f"{label_of(item.device)}_used", used, "B", low=0, high=total))
    return tuple(out)


def _soon(alert: Alert, now_s: float) -> float:
    left = left_s(alert.finding, now_s)
    return float("inf") if left is None else left


def leak(case: Case) -> Answer:
    """Check open alerts; their severity decides, or with a threshold their number."""
    firing = [alert for alert in case.alerts if alert.state == "firing" and alert.kind != "held"]
    firing.sort(key=lambda one: (-_SEVERITY[one.severity], _soon(one, case.now_s)))
    if case.warn is None and case.crit is None:
        state = plugin.worst(_SEVERITY[alert.severity] for alert in firing)
    else:
        state = plugin.judge(float(len(firing)), case.warn, case.crit)
    perf = Perf("findings", float(len(firing)), "", case.warn or _SOME, case.crit, 0)
    lines = [f"{alert.severity}: {_words(alert, case.now_s)}" for alert in firing]
    watched = [alert for alert in case.alerts if alert.state == "watch"]
    lines += [f"watched: {_words(alert, case.now_s)}" for alert in watched]
    lines += [f"silenced: {_words(alert, case.now_s)}" for alert in case.silenced]
    if firing:
        more = f" (and {len(firing) - 1} more)" if len(firing) > 1 else ""
        head = f"{_words(firing[0], case.now_s)}{more}"
    else:
        other = "other " if case.silenced else ""
        head = f"no {other}leak on {_count(len(case.devices), 'GPU')}"
        if watched:
            head += f", {len(watched)} watched"
        if case.silenced:
            head += f", {len(case.silenced)} silenced"
    return Answer(state, head, (perf, *_used(case)), tuple(lines))


def eta(case: Case, *, watched_too: bool = True) -> Answer:
    """Check the time that is left on each GPU.

    Parameters
    ----------
    watched_too
        Whether growth that is only watched counts; it warns at most.
    """
    warn, crit = case.warn, case.crit
    if warn is None and crit is None:
        warn, crit = ETA_WARN, ETA_CRIT
    perf: list[Perf] = []
    told: list[tuple[int, float, str]] = []
    silenced = {alert.finding.subject.id for alert in case.silenced}
    for item in case.devices:
        left, mark = _soonest(item, case, silenced)
        perf.append(Perf(f"{label_of(item.device)}_eta", left, "s", warn, crit, 0))
        if left is None:
            continue
        state = OK if mark is Mark.SILENCED else plugin.judge(left, warn, crit)
        if mark is not Mark.NONE:
            state = min(state, WARNING if watched_too else OK)
        told.append((state, left, f"{item.device.label} full in {units.duration(left)}{mark}"))
    told.sort(key=lambda one: (-one[0], one[1]))
    state = plugin.worst(one[0] for one in told)
    head = told[0][2] if told else f"nothing grows on {_count(len(case.devices), 'GPU')}"
    return Answer(state, head, tuple(perf), tuple(one[2] for one in told))


def _soonest(
    item: LiveDevice, case: Case, silenced: Iterable[str] = ()
) -> tuple[float | None, Mark]:
    """Return the least time that is left on a device, and a mark where no open alert says so.

    An open alert beats what is only watched, and that what is silenced, however soon that would be
    full.
    """
    if open_s := _left_of(case.alerts, item, case.now_s):
        return min(open_s), Mark.NONE
    findings = [item.finding, *(process.finding for process in item.processes or ())]
    seen = [
        left
        for finding in findings
        if finding is not None and finding.subject.id not in silenced
        if (left := left_s(finding, case.now_s)) is not None
    ]
    if seen:
        return min(seen), Mark.WATCHED
    hushed = _left_of(case.silenced, item, case.now_s)
    return (min(hushed), Mark.SILENCED) if hushed else (None, Mark.NONE)


def _left_of(alerts: Iterable[Alert], item: LiveDevice, now_s: float) -> list[float]:
    """Return the time that is left before each alert that fires about a device's memory."""
    return [
        left
        for alert in alerts
        if alert.state == "firing" and alert.kind == "leak"
        if alert.subject.device_uid == item.device.uid and not alert.subject.host
        if (left := left_s(alert.finding, now_s)) is not None
    ]


def used(case: Case) -> Answer:
    """Check how full each GPU is, in per cent; without a threshold nothing is too full."""
    perf: list[Perf] = []
    told: list[tuple[int, float, str]] = []
    unread: list[str] = []
    for item, amount in zip(case.devices, _used(case), strict=True):
        share = None
        if amount.value is not None and amount.high:
            share = 100.0 * amount.value / amount.high
            state = plugin.judge(share, case.warn, case.crit)
            of = f"{units.size(amount.value)} of {units.size(amount.high)}"
            told.append((state, share, f"{item.device.label} {share:.0f}% used ({of})"))
        else:
            unread.append(f"{item.device.label} cannot be read")
        name = f"{label_of(item.device)}_used_pct"
        perf += (amount, Perf(name, share, "%", case.warn, case.crit, 0, 100))
    told.sort(reverse=True)
    state = plugin.worst([*(one[0] for one in told), *(plugin.UNKNOWN for _ in unread)])
    lines = [*(one[2] for one in told), *unread]
    return Answer(state, lines[0] if lines else "no GPU", tuple(perf), tuple(lines))


def idle_memory(case: Case) -> Answer:
    """Check memory that is held without work; by default any of it warns."""
    warn = case.warn if case.warn is not None or case.crit is not None else _SOME
    number = float(len(case.holdings))
    held = [holding.held_bytes for holding in case.holdings if holding.held_bytes is not None]
    total = float(sum(held)) if held or not case.holdings else None
    labels = {item.device.uid: item.device.label for item in case.devices}
    lines = []
    for holding in case.holdings:
        who = holding.process.name_and_pid if holding.process else "nobody known"
        where = labels.get(holding.device_uid, "a GPU")
        lines.append(f"{where} {who} holds {units.size(holding.held_bytes)}: {holding.kind}")
    head = "no memory is held without work"
    if case.holdings:
        head = f"{_count(len(case.holdings), 'holding')} without work"
        head += f", {units.size(total)}" if total is not None else ""
    perf = (
        Perf("zombies", number, "", warn, case.crit, 0),
        Perf("zombies_held", total, "B", low=0),
    )
    return Answer(plugin.judge(number, warn, case.crit), head, perf, tuple(lines))


def daemon(case: Case) -> Answer:
    """Check the daemon that runs: its last sample, its GPUs, whether what it tells arrives."""
    age_s = max(0.0, case.now_s - case.state.taken_at_s)
    state = plugin.judge(age_s, case.warn, case.crit)
    lines: list[str] = []
    bad = [alert for alert in case.alerts if alert.kind == "gpu" and alert.state == "firing"]
    for alert in bad:
        state = plugin.worst([state, _SEVERITY[alert.severity]])
        lines.append(f"{alert.severity}: {_words(alert, case.now_s)}")
    for item in case.devices:
        if item.reading is None:
            state = plugin.worst([state, WARNING])
            lines.append(f"{item.device.label} cannot be read")
    for channel in case.state.channels:
        if channel.ok is False:
            state = plugin.worst([state, WARNING])
            why = f": {channel.why}" if channel.why else ""
            lines.append(f"channel {channel.name} does not deliver{why}")
    if case.state.untold:
        state = plugin.worst([state, WARNING])
        lines.append(f"{_count(len(case.state.untold), 'alert')} reached nobody")
    # What keeps a channel from delivering is a problem of the daemon too: once is enough.
    lines += [problem for problem in case.state.problems if problem not in lines]
    head = f"daemon {case.state.version} (pid {case.state.pid}), last sample {age_s:.0f} s ago"
    if lines:
        head = f"{lines[0]}; {head}" if state != OK else head
    age = Perf("sample_age", age_s, "s", case.warn, case.crit, 0)
    return Answer(state, head, (age,), tuple(lines))


def all_of_it(case: Case) -> Answer:
    """Check what the default looks at: leaks, the time left before each, the daemon.

    Thresholds are those of the time that is left; severity decides the rest.
    """
    by_itself = case._replace(warn=None, crit=None)
    parts = [leak(by_itself), eta(case, watched_too=False), daemon(by_itself)]
    state = plugin.worst(part.state for part in parts)
    # An alert says who and how fast; of the time alone it need not be said again.
    lines = list(dict.fromkeys(line for part in parts for line in part.more))
    answer = parts[0] if parts[0].state != OK else parts[1]
    heads = [part.line for part in (parts[2], answer) if part.state != OK]
    head = "; ".join(heads) or parts[0].line
    findings, *amounts = parts[0].perf
    return Answer(state, head, (*amounts, *parts[1].perf, findings), tuple(lines))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def case_of(
    state: LiveState,
    *,
    wants: Callable[[Device], bool],
    quiet: Callable[[Alert], bool],
    warn: Range | None = None,
    crit: Range | None = None,
) -> Case:
    """Return what there is to check.

    Parameters
    ----------
    wants
        Lets a device through.
    quiet
        Says whether nobody is told of an alert now, on a person's word.
    """
    devices = tuple(item for item in state.devices if wants(item.device))
    uids = {item.device.uid for item in devices}
    # Where all are wanted, so is what is known of one that is not there any more.
    every = len(devices) == len(state.devices)
    alerts = [alert for alert in state.alerts if every or alert.subject.device_uid in uids]
    return Case(
        state=state,
        devices=devices,
        alerts=tuple(alert for alert in alerts if not quiet(alert)),
        silenced=tuple(alert for alert in alerts if quiet(alert)),
        holdings=tuple(
            holding for holding in state.holdings if every or holding.device_uid in uids
        ),
        now_s=time.time(),
        warn=warn,
        crit=crit,
    )


MODES: Final[dict[str, Callable[[Case], Answer]]] = {
    "all": all_of_it,
    "leak": leak,
    "eta": eta,
    "used": used,
    "zombies": idle_memory,
    "daemon": daemon,
}
