"""Alerts that no curve is judged for: a GPU that is lost, memory that is held without work.

What is not known changes nothing: an alert opens when something bad was seen for long enough, and
ends when something good was. So a driver that is restarted, a release, or a GPU that sleeps is
none; and one that cannot be read stays as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatchd import alerts
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.model import Alert, Finding
from gpuwatchd.core.model.findings import reasoned
from gpuwatchd.pipeline.clock import moved_alert
from gpuwatchd.pipeline.device_health import DeviceHealth
from gpuwatchd.pipeline.idle_alerts import IdleAlerts

if TYPE_CHECKING:
    from gpuwatchd.core.codes import Facts
    from gpuwatchd.core.config import Config
    from gpuwatchd.pipeline.device_health import Ailment
    from gpuwatchd.pipeline.idle_memory import IdleMemory
    from gpuwatchd.pipeline.tracker import Intake

SOURCE: Final = "alarms"
"""Under what the herald announces them."""
KINDS: Final = frozenset({"gpu", "held"})
"""Kinds of alerts that are opened here."""
GAP_S: Final = 600.0
"""What lasts over a longer time without a look has to last anew."""
FRESH_S: Final = 60.0
"""What is said of an open alert is no older than this."""
_RANK: Final = ("info", "warning", "critical")
FORGET_S: Final = 86_400.0
"""One whose device has not been seen for so long is over."""


class ConditionAlert:
    """One subject that such an alert is about."""

    def __init__(self, alert: Alert | None = None) -> None:
        self.alert = alert
        self.heard_at_s: float | None = None
        """When something was last known of it."""
        self.well_since_s: float | None = None
        """Since when it has been well again."""


class ConditionAlerts:
    """Opens, keeps and ends them.

    Parameters
    ----------
    config
        Says which kinds are told.
    intake
        Has the state of each device.
    holdings
        Has what is held without work.
    """

    def __init__(self, config: Config, intake: Intake, holdings: IdleMemory) -> None:
        self.config = config
        self._intake = intake
        self._health = DeviceHealth(intake)
        self._waste = IdleAlerts(intake, holdings)
        self.alarms: dict[str, ConditionAlert] = {}
        """Alert key -> its alarm."""
        self._told_s: dict[str, float] = {}
        """Alert key -> when an earlier one was last told, for the cool-down."""
        self._last_s: float | None = None

    def adopt(self, alert: Alert, now_s: float) -> None:
        """Take over an alert of an earlier run."""
        alarm = self.alarms[alert.key] = ConditionAlert(alert)
        alarm.heard_at_s = now_s
        if alert.kind == "gpu":
            self._health.recall(alert.subject.device_uid, alert.opened_at_s)
        else:
            self._waste.recall(alert.subject)

    def move(self, by_s: float) -> list[Alert]:
        """Move what is remembered in time: the wall clock was stepped; return the open alerts."""
        self._health.move(by_s)
        self._told_s = {key: at_s + by_s for key, at_s in self._told_s.items()}
        self._last_s = None if self._last_s is None else self._last_s + by_s
        for alarm in self.alarms.values():
            if alarm.alert is not None:
                alarm.alert = moved_alert(alarm.alert, by_s)
            if alarm.heard_at_s is not None:
                alarm.heard_at_s += by_s
            if alarm.well_since_s is not None:
                alarm.well_since_s += by_s
        return [alarm.alert for alarm in self.alarms.values() if alarm.alert is not None]

    def step(self, now_s: float) -> list[Alert]:
        """Take in what is so now; return the alerts whose state changed."""
        self._keep_time(now_s)
        config, changed = self.config.policy, list[Alert]()
        ailments = self._health.conditions(now_s) if config.tell_hardware else {}
        if config.tell_held:
            ailments = ailments | self._waste.conditions(config.tell_held, now_s)
        if not ailments and not self.alarms:
            return changed
        for key, ailment in ailments.items():
            alarm = self.alarms.get(key)
            if alarm is None:
                alarm = self.alarms[key] = ConditionAlert()
            alarm.heard_at_s, alarm.well_since_s = now_s, None
            if alarm.alert is None:
                alarm.alert, news = self._opened(ailment, now_s), True
            else:
                alarm.alert, news = _again(alarm.alert, ailment, now_s)
            if news:
                changed.append(alarm.alert)
        for key in [key for key in self.alarms if key not in ailments]:
            over = self._missing(key, self.alarms[key], now_s)
            if over is not None:
                changed.append(over)
        return changed

    def _opened(self, ailment: Ailment, now_s: float) -> Alert:
        rules = self._intake.watcher.rules
        since_s = now_s if ailment.since_s is None else min(ailment.since_s, now_s)
        last_s = self._told_s.get(ailment.key)
        first_s = now_s + rules.flap_hold_s
        return Alert(
            key=ailment.key,
            kind=ailment.kind,
            subject=ailment.subject,
            state="firing",
            severity=ailment.severity,
            finding=_finding(ailment, since_s, now_s),
            opened_at_s=since_s,
            changed_at_s=now_s,
            watch_at_s=now_s,
            firing_at_s=now_s,
            last_notice_at_s=last_s,
            next_notice_at_s=first_s if last_s is None else max(first_s, last_s + rules.cooldown_s),
            **ailment.title.fields,
            group=ailment.group,
        )

    def _missing(self, key: str, alarm: ConditionAlert, now_s: float) -> Alert | None:
        """Take in that nothing bad was seen of an alert's subject; return the alert if it ends."""
        alert = alarm.alert
        if alert is None:
            del self.alarms[key]
            return None
        setting = self._unwanted(alert)
        facts: Facts = {"setting": setting} if setting else {}
        why = Ending.TURNED_OFF if setting else self._over(alarm, alert, now_s)
        if why is None:
            return None
        if alert.last_notice_at_s is not None:
            cooldown_s = self._intake.watcher.rules.cooldown_s
            kept = {k: at for k, at in self._told_s.items() if now_s - at < cooldown_s}
            self._told_s = kept | {key: alert.last_notice_at_s}
        del self.alarms[key]
        rules = self._intake.watcher.rules
        return alerts.ended(alert, why, rules, now_s=now_s, facts=facts).alert

    def _over(self, alarm: ConditionAlert, alert: Alert, now_s: float) -> Ending | None:
        """Return why an alert is over; None while it is not, or nobody knows."""
        if alert.kind == "gpu":
            pair = self._health.is_well(alert.subject)
        else:
            pair = self._waste.is_over(alert.subject, float(self.config.zombies.idle_after))
        heard_s = now_s if alarm.heard_at_s is None else alarm.heard_at_s
        if pair is None:
            alarm.well_since_s = None
            return Ending.NOT_SEEN if now_s - heard_s >= FORGET_S else None
        alarm.heard_at_s = now_s
        if alarm.well_since_s is None:
            alarm.well_since_s = now_s
        return pair[0] if now_s - alarm.well_since_s >= pair[1] else None

    def _unwanted(self, alert: Alert) -> str:
        """Return which setting says that nobody wants to be told of an alert any more."""
        section = self.config.policy
        if alert.kind == "gpu":
            return "" if section.tell_hardware else "tell-hardware was turned off"
        return "" if section.tell_held else "tell-held was emptied"

    def _keep_time(self, now_s: float) -> None:
        """Let what has lasted have lasted when the clock is set back, or nobody looked."""
        last_s, self._last_s = self._last_s, now_s
        if last_s is None or 0.0 <= now_s - last_s <= GAP_S:
            return
        by_s = now_s - last_s
        self._health.move(by_s)
        self._waste.doubt(alert.alert.subject for alert in self.alarms.values() if alert.alert)
        for alarm in self.alarms.values():
            alarm.well_since_s = None
            if by_s < 0.0 and alarm.alert is not None:
                alarm.alert, alarm.heard_at_s = moved_alert(alarm.alert, by_s), now_s
        self._told_s = {key: min(at_s, now_s) for key, at_s in self._told_s.items()}


def _finding(ailment: Ailment, since_s: float, now_s: float) -> Finding:
    return Finding(
        id=f"{ailment.key}@{since_s:.0f}",
        subject=ailment.subject,
        judged_at_s=now_s,
        pattern="unknown",
        tier="alert",
        severity=ailment.severity,
        confidence=1.0,
        rate_bytes_per_s=None,
        eta=None,
        onset_at_s=since_s,
        **reasoned(*ailment.reasons),
        advice=ailment.advice,
        commands=ailment.commands,
        framework=ailment.framework,
    )


def _again(before: Alert, ailment: Ailment, now_s: float) -> tuple[Alert, bool]:
    """Return an open alert with what is so now, and whether that is news."""
    worse = _RANK.index(ailment.severity) > _RANK.index(before.severity)
    if now_s - before.finding.judged_at_s < FRESH_S and not worse:
        return before, False
    since_s = before.finding.onset_at_s
    alert = msgspec.structs.replace(
        before,
        **ailment.title.fields,
        finding=_finding(ailment, before.opened_at_s if since_s is None else since_s, now_s),
    )
    if not worse:
        return alert, False
    # As with leaks: an escalation passes the cool-down.
    told_before = before.notices > 0
    return (
        msgspec.structs.replace(
            alert,
            severity=ailment.severity,
            changed_at_s=now_s,
            next_notice_at_s=now_s if told_before else before.next_notice_at_s,
        ),
        True,
    )
