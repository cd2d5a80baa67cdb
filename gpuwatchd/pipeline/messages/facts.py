"""What a message says beside its body, as labels and values. Pure."""

from __future__ import annotations

import glob
import shlex
from typing import TYPE_CHECKING

from gpuwatchd.core import text, units
from gpuwatchd.core.codes import TypedFact
from gpuwatchd.pipeline.messages import sentences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.core.model import Alert, NoticeKind

_VALUE_CHARS = 207
"""Three lines of a screen of 80 beside the longest label, also of a text without a space."""
_BLAMED = 4
_OTHERS = 3
_OTHER_CHARS = 66


def facts(
    alert: Alert, notice: NoticeKind, *, now_s: float, also: Sequence[Alert], host: str
) -> dict[str, str]:
    """Return who, where, since when, what to check, and what to type; nothing that is unknown."""
    over = alert.state == "resolved"
    known = runs(alert)
    values = {
        "Who": alert.title or alert.subject.id,
        "Runs": f"{known}, on {host}" if known and host else known,
        "Host": "" if known else host,
        "Also": others(also, now_s=now_s),
        "Who grew": "" if over else attribution(alert),
    }
    if over:
        values["Alert"] = _life(alert, now_s)
    else:
        values["Advice"] = advice(alert)
        values |= _ways_out(alert, also)
    if notice == "repeat":
        values["Reminder"] = _reminder(alert, now_s)
    return {label: _short(value) for label, value in values.items() if value}


def _short(value: str) -> str:
    return text.cut(text.clean(value, limit=4 * _VALUE_CHARS).strip(), _VALUE_CHARS)


def runs(alert: Alert) -> str:
    """Return framework, model, job, container and unit: what is known of them."""
    about, finding = alert.about, alert.finding
    framework = (about.framework if about is not None else "") or finding.framework or ""
    if about is None:
        return framework
    parts = [
        framework,
        f"model {about.model}" if about.model else "",
        about.job,
        about.container,
        # Every process of a session is in a scope or slice: only a service says something.
        about.unit if about.unit.endswith(".service") and "@" not in about.unit else "",
    ]
    return ", ".join(part for part in parts if part)


def others(also: Sequence[Alert], *, now_s: float) -> str:
    """Return who else is meant: the first by name, the rest by number."""
    named = []
    for alert in also[:_OTHERS]:
        end = sentences.tail(
            alert, "resolved" if alert.state == "resolved" else "firing", now_s=now_s
        )
        name = sentences.brief(alert)
        named.append(f"{sentences.fitted(name, max(_OTHER_CHARS - len(end), 12))}{end}")
    more = len(also) - len(named)
    return "; ".join([*named, f"{more} more"] if more > 0 else named)


def attribution(alert: Alert) -> str:
    """Return whose growth it is; "" where it is only its own."""
    blame, process = alert.finding.blame, alert.subject.process
    if len(blame) == 1 and process is not None and blame[0].process == process:
        return ""
    named = [f"{text.cut(text.clean(one.name), 60)} {units.percent(one.share)}" for one in blame]
    more = len(named) - _BLAMED
    return ", ".join([*named[:_BLAMED], f"{more} more"] if more > 0 else named)


def advice(alert: Alert) -> str:
    """Return what to check: as many whole lines as three lines of a screen hold, at least one."""
    texts: list[str] = []
    for line in map(sentences.sentence, alert.finding.advice):
        if texts and len(" ".join([*texts, line])) > _VALUE_CHARS:
            break
        texts.append(line)
    return " ".join(texts)


def target(alert: Alert) -> str:
    """Return what to type for an alert: the pid, "PID/host", else its code."""
    process = alert.subject.process
    if process is None:
        return alert.code
    return f"{process.pid}/host" if alert.subject.host else str(process.pid)


def command(alert: Alert, notice: NoticeKind) -> str:
    """Return the one command to type next."""
    if notice == "resolved" or alert.state == "resolved":
        return f"gpuwatchctl alerts show {alert.code}"
    if alert.kind == "held":
        return "gpuwatchctl zombies"
    if alert.kind == "gpu":
        return "gpuwatchctl doctor"
    return f"gpuwatchctl explain {target(alert)}"


def _ways_out(alert: Alert, also: Sequence[Alert]) -> dict[str, str]:
    """Return how to hear no more of it."""
    ways: dict[str, str] = {
        TypedFact.SILENCE: f"gpuwatchctl snooze {_all_of(alert, also) or target(alert)} 1h"
    }
    if alert.kind == "leak":
        ways[TypedFact.IF_NORMAL] = f"gpuwatchctl feedback {target(alert)} normal"
    return ways


def _all_of(alert: Alert, also: Sequence[Alert]) -> str:
    """Return the rule that several alerts fit: their job, else their device; "" without one."""
    about = alert.about
    if not also or about is None:
        return ""
    if about.job and all(one.about is not None and one.about.job == about.job for one in also):
        # To be copied into a shell: nobody's name may end there as a command.
        return f"--job {shlex.quote(glob.escape(text.clean(about.job, limit=80)))}"
    uid = alert.subject.device_uid
    if about.gpu and all(one.subject.device_uid == uid for one in also):
        return f"--gpu {shlex.quote(about.gpu)}"
    return ""


def _life(alert: Alert, now_s: float) -> str:
    begun_s = alert.firing_at_s if alert.firing_at_s is not None else alert.opened_at_s
    end_s = alert.resolved_at_s if alert.resolved_at_s is not None else alert.changed_at_s
    raised = units.moment(begun_s, now_s=now_s)
    ended = units.moment(end_s, now_s=now_s, zone=alert.finding.onset_at_s is None)
    return f"raised {raised}, over {ended} ({units.duration(max(0.0, end_s - begun_s))})"


def _reminder(alert: Alert, now_s: float) -> str:
    value = f"notice {alert.notices}"
    if alert.next_notice_at_s is None:
        return value
    return f"{value}; the next at {units.moment(alert.next_notice_at_s, now_s=now_s)}"
