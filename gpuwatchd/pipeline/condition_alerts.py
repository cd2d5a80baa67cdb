"""Condition alerts: no series is judged. A lost GPU, idle memory, a limit that is near.

What is not known changes nothing: an alert opens when something bad was seen for long enough, and
ends when something good was. So a driver that is restarted, a release, or a GPU that sleeps is
none; and one that cannot be read stays as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import UNSET

from gpuwatchd import alerts
from gpuwatchd.alerts.policy_types import RANK
from gpuwatchd.core import units
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.model import Alert, Finding, Subject
from gpuwatchd.core.model.alerts import Title, TitlePart, device_title, process_title
from gpuwatchd.core.model.findings import reason_fields
from gpuwatchd.pipeline.clock import moved_alert
from gpuwatchd.pipeline.memory_limits import NearLimits, group_bytes
from gpuwatchd.pipeline.state import ConditionAlert

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from gpuwatchd.core.codes import Facts
    from gpuwatchd.core.model import Holding, HoldingKind, ProcessKey, Severity
    from gpuwatchd.pipeline.state import State
    from gpuwatchd.pipeline.track import Track, TrackedDevice

# Which GPUs are in trouble, and for how long: lost, hanging, to be reset, or read no more.

ALONE_S: Final = 60.0
"""A GPU is told as lost after so long while another one of its driver answers."""
DRIVER_S: Final = 300.0
"""The same while none does: a driver that is exchanged or loaded anew takes its time."""
HUNG_S: Final = 180.0
"""A call to the driver may take long while much is loaded, and while NVML is started."""
RESET_S: Final = 30.0
_BLIND: Final = frozenset({"nvml", "drm", "metal"})
"""Sources of which silence means something: a recording just ends."""
_SILENT: Final = "silent"
_ON_PURPOSE: Final = frozenset({"asleep", "released"})
_TROUBLES: Final = {
    "lost": "the GPU no longer answers",
    "hung": "a call to its driver does not return",
    "reset-required": "the GPU has to be reset",
    _SILENT: "the GPU can no longer be read",
}
_LOG: Final = ("see the kernel log for details", "sudo dmesg | grep -iE 'xid|nvrm|amdgpu|pcie'")
_ADVICE: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "lost": (
        _LOG,
        ("what ran on it cannot go on there: start it again on another GPU", ""),
        ("one that fell off the bus comes back with a reboot, or with the power off and on", ""),
    ),
    "hung": (
        _LOG,
        ("see which processes hold it", "sudo fuser -v /dev/nvidia* /dev/dri/*"),
        ("if they cannot be ended, only a reset of the GPU or a reboot helps", ""),
    ),
    "reset-required": (
        _LOG,
        ("until then new programs fail on it; those that run may go on", ""),
    ),
    _SILENT: (("gpuwatchctl doctor shows what is missing", ""), _LOG),
}


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with one subject now."""

    kind: str
    subject: Subject
    severity: Severity
    title: Title
    reasons: tuple[str, ...]
    """The parts of its reason; the first is enough on a lock screen."""
    advice: tuple[str, ...] = ()
    commands: tuple[str, ...] | msgspec.UnsetType = UNSET
    """What is to be typed at the end of each line of advice; "" for nothing."""
    group: str = ""
    since_s: float | None = None
    """Where that is known better than from when it was first seen here."""
    framework: str | None = None

    @property
    def key(self) -> str:
        """Key of its alert."""
        return f"{self.kind}:{self.subject.id}"


class DeviceHealth:
    """How each GPU is."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._since_s: dict[str, float] = {}
        """UUID -> since when something is wrong."""
        self._well: set[str] = set()
        """Those that have answered: what never did is not lost."""

    def recall(self, uid: str, since_s: float) -> None:
        """Take over what an earlier run knew: this one was in trouble."""
        self._well.add(uid)
        self._since_s[uid] = since_s

    def move(self, by_s: float) -> None:
        """Let what has lasted last no longer for a step of the clock, or a time without looks."""
        self._since_s = {uid: since_s + by_s for uid, since_s in self._since_s.items()}

    def conditions(self, now_s: float) -> dict[str, Condition]:
        """Return what is wrong, by the key of its alert; some microseconds when all is well."""
        conditions: dict[str, Condition] = {}
        for uid, device in self._state.devices.items():
            state = _state(device)
            if state == "ok":
                self._well.add(uid)
                self._since_s.pop(uid, None)
            elif state in _ON_PURPOSE:
                self._since_s.pop(uid, None)
            elif (
                state in _TROUBLES
                and device.device.parent_uid not in self._state.devices
                and (uid in self._well or state == "reset-required")
            ):
                since_s = self._since_s.setdefault(uid, now_s)
                if now_s - since_s >= self._hold_s(device, state):
                    ail = self._condition(device, state, since_s)
                    conditions[ail.key] = ail
        return conditions

    def is_well(self, subject: Subject) -> tuple[Ending, float] | None:
        """Return that a GPU answers again, and for how long it must; None where it does not."""
        device = self._state.devices.get(subject.device_uid)
        return (Ending.DEVICE_ANSWERS, 60.0) if device and _state(device) == "ok" else None

    def _hold_s(self, device: TrackedDevice, state: str) -> float:
        if state == "reset-required":
            return RESET_S
        if state == "hung":
            return HUNG_S
        return ALONE_S if state == "lost" and self._others(device)[0] else DRIVER_S

    def _others(self, device: TrackedDevice) -> tuple[int, int]:
        """Return how many other GPUs of the same source answer, and how many there are."""
        others = [
            other
            for other in self._state.devices.values()
            if other.source == device.source and other is not device and not other.device.parent_uid
        ]
        return sum(_state(other) == "ok" for other in others), len(others)

    def _condition(self, tracked_device: TrackedDevice, state: str, since_s: float) -> Condition:
        device = tracked_device.device
        answer, others = self._others(tracked_device)
        texts = [
            _TROUBLES[state],
            # Where it is says the title.
            *(fault.why for fault in tracked_device.faults[:1]),
        ]
        if others and not answer:
            texts.append(
                f"nor do the other {others} of its driver"
                if others > 1
                else "nor does the other one"
            )
        advice = _ADVICE[state]
        if state == "reset-required" and device.vendor == "nvidia" and device.index is not None:
            reset = f"sudo nvidia-smi --gpu-reset -i {device.index}"
            again = f"gpuwatchctl release --for 5m && {reset}"
            advice = (*advice, ("end what runs on it, then", again))
        return Condition(
            kind="gpu",
            subject=Subject(device_uid=device.uid),
            severity="critical" if state in {"lost", "hung"} else "warning",
            title=device_title(device),
            reasons=tuple(texts),
            advice=tuple([": ".join(filter(None, line)) for line in advice]),
            commands=tuple([command for _, command in advice]),
            group=f"gpu:{tracked_device.source}",
            since_s=since_s,
        )


def _state(device: TrackedDevice) -> str | None:
    """Return a device's state as far as it is known."""
    reading = device.reading
    if reading is not None and reading.state != "no-permission":
        return reading.state
    return _SILENT if device.source in _BLIND else None


# Which memory is held without work for long enough to tell somebody: one alert per process.

HOLD_S: Final = 300.0
"""Idle memory is reported after so long; each kind is listed only after its own time."""
GONE_S: Final = 60.0
"""An alert on a process that is gone is over after so long."""
BUSY_S: Final = 300.0
"""One on a process that is still there is over after so long: it may be looked at half-way."""
_WORDS: Final[dict[HoldingKind, str]] = {
    "gone": "held by a process that no longer exists",
    "defunct": "held by a process that has ended and was not collected",
    "driver-wait": "held by a process that hangs in the kernel",
    "ghost": "held without a known owner",
    "orphaned-runner": "held by a runner that its server has forgotten",
    "no-model": "held by a server without a model",
    "leaked-kv": "held by a cache that its server does not use",
    "hung-rank": "held by a rank that waits for ranks that have ended",
    "idle": "held by an idle process",
}


class IdleAlerts:
    """Idle memory, process by process."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._homes: dict[ProcessKey, str] = {}
        """Process -> the device that its alert is about: it may hold memory on several."""
        self._doubted: set[ProcessKey] = set()
        """Those of which nobody knows what they did while nobody looked."""
        self._seen: tuple[object, object] = (None, None)
        self._found: dict[str, Condition] = {}

    def recall(self, subject: Subject) -> None:
        """Take over what an earlier run knew."""
        if subject.process is not None:
            self._homes[subject.process] = subject.device_uid
            self._doubted.add(subject.process)

    def doubt(self, subjects: Iterable[Subject]) -> None:
        """Take in that nobody has looked for a while: what lasted must have lasted anew."""
        self._doubted = {subject.process for subject in subjects if subject.process is not None}

    def conditions(
        self, kinds: Collection[HoldingKind], acted_on: Collection[ProcessKey], now_s: float
    ) -> dict[str, Condition]:
        """Return what is to be told, by the key of its alert; the same until there is news.

        ``acted_on`` are processes of which every kind is.
        """
        pair = (self._state.holdings, (kinds, acted_on))
        if pair[0] is self._seen[0] and pair[1] == self._seen[1]:
            return self._found
        self._seen = pair
        meant = [
            holding
            for holding in self._state.holdings
            if (holding.kind in kinds or (holding.process and holding.process.key in acted_on))
            and holding.since_s is not None
            and now_s - holding.since_s >= HOLD_S
        ]
        whose: dict[object, list[Holding]] = {}
        for holding in meant:
            whose.setdefault(
                holding.process.key if holding.process else holding.device_uid, []
            ).append(holding)
        ails = [self._condition(those) for those in whose.values()]
        self._found = {ail.key: ail for ail in ails}
        keys = {holding.process.key for holding in meant if holding.process is not None}
        self._doubted -= keys
        self._homes = {key: uid for key, uid in self._homes.items() if key in keys}
        return self._found

    def is_over(self, subject: Subject, patience_s: float = 0.0) -> tuple[Ending, float] | None:
        """Return why nothing is held any more, and for how long that must be; None: not known."""
        device = self._state.devices.get(subject.device_uid)
        reading = None if device is None else device.reading
        if reading is None or reading.state != "ok" or reading.uses is None:
            return None
        if subject.process is None:
            return Ending.MEMORY_OWNED, BUSY_S
        use = next((one for one in reading.uses if one.key == subject.process), None)
        if use is None:
            return Ending.MEMORY_RELEASED, GONE_S
        if subject.process in self._doubted:
            if not use.sm_pct:
                return Ending.NOT_LISTED, patience_s + BUSY_S
            self._doubted.discard(subject.process)
        return Ending.AT_WORK, BUSY_S

    def _condition(self, those: list[Holding]) -> Condition:
        """Return what is told of one process; ``those`` begin with the surest."""
        first = those[0]
        info = first.process
        uids = [holding.device_uid for holding in those]
        uid = uids[0]
        if info is not None:
            home = self._homes.get(info.key)
            uid = home if home in uids else uid
            self._homes[info.key] = uid
        since_s = min(holding.since_s for holding in those if holding.since_s is not None)
        device = self._state.devices.get(uid)
        title = Title.of(uid) if device is None else device_title(device.device)
        if info is not None and device is not None:
            named = info.name not in {"", "?"}
            gone = device_title(device.device, TitlePart(text=f"pid {info.key.pid} (gone)"))
            title = process_title(device.device, info) if named else gone
        owner = _owner(first)
        return Condition(
            kind="held",
            subject=Subject(
                device_uid=uid,
                process=None if info is None else info.key,
                unattributed=info is None,
            ),
            severity="warning",
            title=title,
            reasons=(_amount(those, first.kind), *_beside(those)),
            advice=(*owner, *first.advice),
            commands=(*("" for _ in owner), first.command) if first.command else UNSET,
            group=(info.group or "") if info is not None else "",
            since_s=since_s,
            framework=None if info is None else info.framework,
        )


def _amount(those: list[Holding], kind: HoldingKind) -> str:
    known = [holding.held_bytes for holding in those if holding.held_bytes is not None]
    size = units.size(sum(known)) if known else "memory"
    where = f" on {len(those)} GPUs" if len(those) > 1 else ""
    return f"{size}{where} {_WORDS[kind]}"


def _beside(those: list[Holding]) -> list[str]:
    """Return the facts, and for how much and how long; the alert's own line says the money."""
    texts = [those[0].evidence] if those[0].evidence else []
    hours = [holding.gib_hours for holding in those if holding.gib_hours is not None]
    if hours:
        texts.append(f"{sum(hours):.1f} GiB-hours so far")
    return texts


def _owner(first: Holding) -> tuple[str, ...]:
    """Return whom to ask."""
    info = first.process
    if info is None or info.foreign or info.name in {"", "?"}:
        return ()
    return (f"it belongs to {info.attribution}",)


def _limited(track: Track, since_s: float) -> Condition:
    """Return what is said of a control group that is near its limit."""
    limit, pid = track.limit, track.subject.process.pid if track.subject.process else ""
    hard, name = (limit.hard_bytes, limit.name) if limit else (None, "")
    used, explain = units.size(group_bytes(track)), f"gpuwatchctl explain {pid}"
    raised = "beyond it allocations fail: end what is not needed, or have the limit raised"
    return Condition(
        kind="limit",
        subject=track.subject,
        severity="warning",
        title=track.title,
        reasons=(f"{used} of {units.size(hard)}: near the limit of its control group", name),
        advice=(raised, f"see how fast it grows: {explain}"),
        commands=("", explain),
        group=f"limit:{name}",
        since_s=since_s,
        framework=track.framework,
    )


SOURCE: Final = "conditions"
"""``source`` of them for the notifier, beside the labels of sources."""
KINDS: Final = frozenset({"gpu", "held", "limit"})
"""Kinds of alerts that are opened here."""
GAP_S: Final = 600.0
"""What lasts over a longer time without a look has to last anew."""
FRESH_S: Final = 60.0
"""What is said of an open alert is no older than this."""
FORGET_S: Final = 86_400.0
"""One whose device has not been seen for so long is over."""


class ConditionAlerts:
    """Opens, keeps and ends them."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._health = DeviceHealth(state)
        self._waste = IdleAlerts(state)
        self._limits = NearLimits(state)
        self._alerts = state.conditions
        """By alert key."""
        self._told_s: dict[str, float] = {}
        """Alert key -> when an earlier one was last told, for the cool-down."""
        self._acted_on: frozenset[ProcessKey] = frozenset()
        self._last_s: float | None = None

    def include(self, acted_on: frozenset[ProcessKey]) -> None:
        """Tell of these processes whatever is to be told of others: something may be done to them.

        Nothing is, before somebody was told.
        """
        self._acted_on = acted_on

    def adopt(self, alert: Alert, now_s: float) -> None:
        """Take over an alert of an earlier run."""
        self._alerts[alert.key] = ConditionAlert(alert, now_s)
        if alert.kind == "gpu":
            self._health.recall(alert.subject.device_uid, alert.opened_at_s)
        elif alert.kind == "held":
            self._waste.recall(alert.subject)

    def move(self, by_s: float) -> list[Alert]:
        """Move what is remembered in time: the wall clock was stepped; return the open alerts."""
        self._health.move(by_s)
        self._limits.move(by_s)
        self._told_s = {key: at_s + by_s for key, at_s in self._told_s.items()}
        self._last_s = None if self._last_s is None else self._last_s + by_s
        for entry in self._alerts.values():
            if entry.alert is not None:
                entry.alert = moved_alert(entry.alert, by_s)
            entry.last_known_s += by_s
            if entry.well_since_s is not None:
                entry.well_since_s += by_s
        return [entry.alert for entry in self._alerts.values() if entry.alert is not None]

    def step(self, now_s: float) -> list[Alert]:
        """Take in what is so now; return the alerts whose state changed."""
        self._keep_time(now_s)
        config, changed = self._state.settings.config.policy, list[Alert]()
        conditions = self._health.conditions(now_s) if config.tell_hardware else {}
        if config.tell_held or self._acted_on:
            held = self._waste.conditions(config.tell_held, self._acted_on, now_s)
            conditions = conditions | held
        if config.tell_limit and (self._state.tracks.limited or self._limits.since_s):
            near = [_limited(*one) for one in self._limits.conditions(now_s, self._alerts)]
            conditions = conditions | {ail.key: ail for ail in near}
        if not conditions and not self._alerts:
            return changed
        for key, condition in conditions.items():
            entry = self._alerts.get(key)
            if entry is None:
                entry = self._alerts[key] = ConditionAlert(None, now_s)
            entry.last_known_s, entry.well_since_s = now_s, None
            if entry.alert is None:
                entry.alert, news = self._opened(condition, now_s), True
            else:
                entry.alert, news = _again(entry.alert, condition, now_s)
            if news:
                changed.append(entry.alert)
        for key in [key for key in self._alerts if key not in conditions]:
            over = self._missing(key, self._alerts[key], now_s)
            if over is not None:
                changed.append(over)
        return changed

    def _opened(self, condition: Condition, now_s: float) -> Alert:
        rules = self._state.settings.rules
        since_s = now_s if condition.since_s is None else min(condition.since_s, now_s)
        last_s = self._told_s.get(condition.key)
        first_s = now_s + rules.flap_hold_s
        return Alert(
            key=condition.key,
            kind=condition.kind,
            subject=condition.subject,
            state="firing",
            severity=condition.severity,
            finding=_finding(condition, since_s, now_s),
            opened_at_s=since_s,
            changed_at_s=now_s,
            watch_at_s=now_s,
            firing_at_s=now_s,
            critical_at_s=now_s if condition.severity == "critical" else None,
            last_notice_at_s=last_s,
            next_notice_at_s=first_s if last_s is None else max(first_s, last_s + rules.cooldown_s),
            **condition.title.fields,
            group=condition.group,
        )

    def _missing(self, key: str, entry: ConditionAlert, now_s: float) -> Alert | None:
        """Take in that nothing bad was seen of an alert's subject; return the alert if it ends."""
        alert = entry.alert
        if alert is None:
            del self._alerts[key]
            return None
        setting = self._unwanted(alert)
        facts: Facts = {"setting": setting} if setting else {}
        why = Ending.TURNED_OFF if setting else self._over(entry, alert, now_s)
        if why is None:
            return None
        if alert.last_notice_at_s is not None:
            cooldown_s = self._state.settings.rules.cooldown_s
            kept = {k: at for k, at in self._told_s.items() if now_s - at < cooldown_s}
            self._told_s = kept | {key: alert.last_notice_at_s}
        del self._alerts[key]
        rules = self._state.settings.rules
        return alerts.ended(alert, why, rules, now_s=now_s, facts=facts).alert

    def _over(self, entry: ConditionAlert, alert: Alert, now_s: float) -> Ending | None:
        """Return why an alert is over; None while it is not, or nobody knows."""
        if alert.kind == "gpu":
            pair = self._health.is_well(alert.subject)
        elif alert.kind == "limit":
            pair = self._limits.is_over(alert.subject)
        else:
            pair = self._waste.is_over(
                alert.subject, float(self._state.settings.config.zombies.idle_after)
            )
        if pair is None:
            entry.well_since_s = None
            return Ending.NOT_SEEN if now_s - entry.last_known_s >= FORGET_S else None
        entry.last_known_s = now_s
        if entry.well_since_s is None:
            entry.well_since_s = now_s
        return pair[0] if now_s - entry.well_since_s >= pair[1] else None

    def _unwanted(self, alert: Alert) -> str:
        """Return which setting says that nobody wants to be told of an alert any more."""
        section = self._state.settings.config.policy
        if alert.kind == "gpu":
            return "" if section.tell_hardware else "tell-hardware was turned off"
        if alert.kind == "limit":
            return "" if section.tell_limit else "tell-limit was turned off"
        told = section.tell_held or alert.subject.process in self._acted_on
        return "" if told else "tell-held was emptied"

    def _keep_time(self, now_s: float) -> None:
        """Let what has lasted have lasted when the clock is set back, or nobody looked."""
        last_s, self._last_s = self._last_s, now_s
        if last_s is None or 0.0 <= now_s - last_s <= GAP_S:
            return
        by_s = now_s - last_s
        self._health.move(by_s)
        self._limits.move(by_s)
        self._waste.doubt(alert.alert.subject for alert in self._alerts.values() if alert.alert)
        for entry in self._alerts.values():
            entry.well_since_s = None
            if by_s < 0.0 and entry.alert is not None:
                entry.alert, entry.last_known_s = moved_alert(entry.alert, by_s), now_s
        self._told_s = {key: min(at_s, now_s) for key, at_s in self._told_s.items()}


def _finding(condition: Condition, since_s: float, now_s: float) -> Finding:
    return Finding(
        id=f"{condition.key}@{since_s:.0f}",
        subject=condition.subject,
        judged_at_s=now_s,
        pattern="unknown",
        tier="alert",
        severity=condition.severity,
        confidence=1.0,
        rate_bytes_per_s=None,
        eta=None,
        onset_at_s=since_s,
        **reason_fields(*condition.reasons),
        advice=condition.advice,
        commands=condition.commands,
        framework=condition.framework,
    )


def _again(before: Alert, condition: Condition, now_s: float) -> tuple[Alert, bool]:
    """Return an open alert with what is so now, and whether that is news."""
    worse = RANK[condition.severity] > RANK[before.severity]
    if now_s - before.finding.judged_at_s < FRESH_S and not worse:
        return before, False
    since_s = before.finding.onset_at_s
    finding = _finding(condition, before.opened_at_s if since_s is None else since_s, now_s)
    alert = msgspec.structs.replace(before, **condition.title.fields, finding=finding)
    if worse:
        # As with leaks: an escalation passes the cool-down.
        next_s = now_s if before.notices > 0 else before.next_notice_at_s
        alert = msgspec.structs.replace(
            alert,
            severity=condition.severity,
            changed_at_s=now_s,
            next_notice_at_s=next_s,
            critical_at_s=now_s if condition.severity == "critical" else alert.critical_at_s,
        )
    return alert, worse
