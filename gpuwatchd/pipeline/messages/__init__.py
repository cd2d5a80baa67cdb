"""The messages of alerts, in one place.

Facts first, then the judgement with its strength, then what to do, then the command. Plain text;
each channel escapes for its own sink. The subject is enough on a lock screen, the body on a
pop-up; the facts say the rest, each thing once. All of it fits on a screen of 24 lines of 80.
"""

from __future__ import annotations

import functools
import glob
import os
import shlex
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.alerts import wording
from gpuwatchd.alerts.grouping import group_of
from gpuwatchd.alerts.policy_types import RANK
from gpuwatchd.analysis import cost
from gpuwatchd.core import text, units
from gpuwatchd.core.codes import TypedFact
from gpuwatchd.core.model import Message
from gpuwatchd.pipeline.messages import sentences
from gpuwatchd.pipeline.messages.sentences import SUBJECT_CHARS, Case

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.core.model import Alert, Button, Chart, NoticeKind, Proposal, Severity

__all__ = ["SUBJECT_CHARS", "compose", "digest", "message_id"]


def message_id(alert: Alert, notice: NoticeKind, number: int) -> str:
    """Return an id that is the same however often the same message is tried."""
    return _id_of(f"{alert.key}|{alert.opened_at_s:.3f}|{notice}|{number}")


def _id_of(seed: str) -> str:
    import hashlib  # noqa: PLC0415 - brings the whole of OpenSSL into a daemon that has no alert

    return f"{hashlib.sha256(seed.encode('utf-8', 'replace')).hexdigest()[:24]}@gpuwatchd"


def compose(  # noqa: PLR0913 - what one message is made of
    alert: Alert,
    notice: NoticeKind,
    *,
    now_s: float,
    also: Sequence[Alert] = (),
    chart: Chart | None = None,
    buttons: Sequence[Button] = (),
    proposals: Sequence[tuple[Alert, Proposal]] = (),
    host: str | None = None,
) -> Message:
    """Return the message of one notice, which the alert has counted already.

    ``also`` are others of one cause that share it; ``proposals`` are for some of all of them.
    """
    first = alert.first_message or message_id(alert, "firing", 1)
    own = message_id(alert, notice, alert.notices)
    name = machine_name(host)
    case = Case(alert, notice, now_s, alert.ran_out, also, name)
    lines = sentences.body(alert, now_s=now_s, others=bool(also))
    lines += [
        sentences.proposal(step, one.subject.process.pid, now_s)
        for one, step in proposals
        if one.subject.process is not None
    ]
    return Message(
        id=own,
        notice=notice,
        # What probably ran out of memory has not recovered.
        severity="info" if notice == "resolved" and not case.ran_out else alert.severity,
        subject=sentences.subject(case),
        lead=sentences.critical_lead(alert, notice),
        body="\n".join(lines),
        command=command(case),
        cost=_money(case),
        facts=facts(case),
        thread=first if own != first else None,
        finding=alert.finding.public,
        alert_key=alert.key,
        also=tuple([one.key for one in also]),
        buttons=tuple(buttons),
        proposal={one.key: step for one, step in proposals}.get(alert.key),
        chart=chart,
    )


def _money(case: Case) -> str:
    """Return the line on money; of what is over only what a crash has cost."""
    alert = case.alert
    if alert.cost is None or (alert.state == "resolved" and not case.ran_out):
        return ""
    if alert.state != "resolved" and sentences.calm_since_s(alert) is None:
        return cost.line(alert.cost)
    # Nothing is added until memory is full where it is over, or does not grow.
    spent = msgspec.structs.replace(alert.cost, at_risk_usd=None, at_risk_gpu_hours=None)
    return cost.line(spent)


# Several alerts in one message: what waited, or what a day or a week has brought. Pure.

MOST = 7
"""Alerts that are named; the others are counted."""
_WHY_CHARS = 40
"""With the instant after it, one line of a screen."""
_ENTRY_CHARS = 130


def digest(
    alerts: Sequence[Alert],
    *,
    number: str,
    why: str,
    from_s: float,
    now_s: float,
    host: str | None = None,
) -> Message:
    """Return one message on several alerts, the worst and those that are open first."""
    newest: dict[str, Alert] = {}
    times: dict[str, int] = {}
    for alert in sorted(alerts, key=lambda one: one.opened_at_s):
        newest[alert.code] = alert
        times[alert.code] = times.get(alert.code, 0) + 1
    ordered = sorted(newest.values(), key=_order)
    entries = {}
    for alert in ordered[:MOST]:
        often = f" ({times[alert.code]} times)" if times[alert.code] > 1 else ""
        entries[alert.code] = f"{entry(alert, now_s=now_s)}{often}"
    if len(ordered) > MOST:
        entries["..."] = f"{len(ordered) - MOST} more: gpuwatchctl alerts --all"
    still = [alert for alert in ordered if alert.state != "resolved"]
    worst: Severity = max((a.severity for a in still), key=RANK.__getitem__, default="info")
    count = len(ordered)
    value = "No alerts" if not count else "1 alert" if count == 1 else f"{count} alerts"
    state = f", {len(still)} still open" if still else ", all resolved" if count else ""
    until = units.moment(now_s, now_s=now_s, zone=True)
    lines = [f"Digest {text.fit(why, _WHY_CHARS)} until {until}."]
    if lost := sum(alert.ran_out for alert in ordered):
        lines.append(f"{lost} probably ran out of memory.")
    return Message(
        id=_id_of(f"digest|{number}"),
        notice="digest",
        severity=worst,
        subject=text.cut(
            f"{value} since {units.moment(from_s, now_s=now_s)}{state}"
            f"{sentences.on_host(machine_name(host))}",
            sentences.SUBJECT_CHARS,
        ),
        body="\n".join(lines),
        facts=entries,
        command=f"gpuwatchctl alerts show {ordered[0].code}" if ordered else "gpuwatchctl status",
        alert_key=ordered[0].key if ordered else "",
        also=tuple(alert.key for alert in ordered[1:]),
    )


def _order(alert: Alert) -> tuple[bool, int, float]:
    return alert.state == "resolved", -RANK[alert.severity], -alert.opened_at_s


def entry(alert: Alert, *, now_s: float) -> str:
    """Return one alert in one or two lines of a screen: when, who, what became of it."""
    begun_s = alert.firing_at_s if alert.firing_at_s is not None else alert.opened_at_s
    over = alert.state == "resolved"
    ended_s = alert.resolved_at_s if over else None
    # The time belongs to the word after it: since when it is open, or when it was over.
    at = units.moment(begun_s if ended_s is None else ended_s, now_s=now_s)
    case = Case(alert, "resolved" if over else "repeat", now_s, alert.ran_out)
    what = sentences.tail(case)
    mark = "resolved" if over else f"{alert.severity}, open"
    if case.ran_out:
        mark = "probably ran out of memory"
    who = sentences.brief(alert)
    room = _ENTRY_CHARS - len(at) - len(mark) - len(what)
    return f"{at} {mark}: {sentences.fitted(who, max(room, 12))}{what}"


# What this machine is called when people are told of it.

HOST_CHARS = 40


def machine_name(host: str | None) -> str:
    """Return a given name made safe; by default what this machine calls itself, undotted."""
    return _own_name() if host is None else text.clean(host, limit=HOST_CHARS).strip()


@functools.cache
def _own_name() -> str:
    return text.clean(os.uname().nodename.partition(".")[0], limit=HOST_CHARS)


_VALUE_CHARS = 207
"""Three lines of a screen of 80 beside the longest label, also of a text without a space."""
_INSIDE_CHARS = 130
"""Two such lines."""
_BLAMED = 4
_OTHERS = 3
_OTHER_CHARS = 66


def facts(case: Case) -> dict[str, str]:
    """Return who, where, since when, what to check, and what to type; nothing that is unknown."""
    alert, also, now_s, host = case.alert, case.also, case.now_s, case.host
    over, known = alert.state == "resolved", runs(alert)
    died = case.ran_out and alert.died
    values = {
        "Who": alert.title or alert.subject.id,
        "Runs": f"{known}, on {host}" if known and host else known,
        "Host": "" if known else host,
        "Also": others(also, now_s=now_s),
        "Who grew": "" if over else attribution(alert),
    }
    if not over or died:
        inside = wording.inside(alert.finding)
        values |= {label: text.cut(line, _INSIDE_CHARS) for label, line in inside.items()}
    if died:
        values["Checkpoint"] = _saved(alert, now_s)
        values["Advice"] = f"Before it is started again: {advice(alert)}" if advice(alert) else ""
    if over:
        values["Alert"] = _life(alert, now_s)
    else:
        values["Advice"] = advice(alert)
        values |= _ways_out(alert, also)
    if case.notice == "repeat":
        values["Reminder"] = _reminder(alert, now_s)
    return {label: text.fit(value, _VALUE_CHARS) for label, value in values.items() if value}


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
        about.service,
    ]
    return ", ".join([part for part in parts if part])


def others(also: Sequence[Alert], *, now_s: float) -> str:
    """Return who else is meant: the first by name, the rest by what is typed for them: the pid."""
    named = [_named(alert, now_s) for alert in also[:_OTHERS]]
    value = ""
    for count in range(len(named), -1, -1):
        rest = [target(alert) for alert in also[count:]]
        more = [f"{len(rest)} more: {', '.join(rest)}"] if rest else []
        value = "; ".join([*named[:count], *more])
        if len(value) <= _VALUE_CHARS:
            break
    return value


def _named(alert: Alert, now_s: float) -> str:
    notice: NoticeKind = "resolved" if alert.state == "resolved" else "firing"
    end = sentences.tail(Case(alert, notice, now_s, alert.ran_out))
    return f"{sentences.fitted(sentences.brief(alert), max(_OTHER_CHARS - len(end), 12))}{end}"


def attribution(alert: Alert) -> str:
    """Return whose growth it is; "" where it is only its own."""
    blame, process = alert.finding.blame, alert.subject.process
    if len(blame) == 1 and process is not None and blame[0].process == process:
        return ""
    named = [f"{text.fit(one.name, 60)} {units.percent(one.share)}" for one in blame]
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


def command(case: Case) -> str:
    """Return the one command to type next."""
    alert = case.alert
    if case.ran_out:
        return f"gpuwatchctl explain {alert.code}"
    if case.resolved:
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
    if alert.finding.allocator and not alert.finding.holder:
        ways[TypedFact.INSPECT] = f"gpuwatchctl inspect {target(alert)}"
    return ways


def _all_of(alert: Alert, also: Sequence[Alert]) -> str:
    """Return the rule that several alerts fit and no others: job, or device; "" without one."""
    about = alert.about
    if not also or about is None:
        return ""
    if about.job and all(one.about is not None and one.about.job == about.job for one in also):
        # To be copied into a shell: nobody's name may end there as a command.
        return f"--job {shlex.quote(glob.escape(text.clean(about.job, limit=80)))}"
    uid = alert.subject.device_uid
    shared = (alert.group or group_of(alert)) == f"gpu:{uid}"
    if about.gpu and shared and all(one.subject.device_uid == uid for one in also):
        return f"--gpu {shlex.quote(about.gpu)}"
    return ""


def _life(alert: Alert, now_s: float) -> str:
    begun_s = alert.firing_at_s if alert.firing_at_s is not None else alert.opened_at_s
    end_s = alert.resolved_at_s if alert.resolved_at_s is not None else alert.changed_at_s
    raised = units.moment(begun_s, now_s=now_s)
    ended = units.moment(end_s, now_s=now_s, zone=alert.finding.onset_at_s is None)
    return f"raised {raised}, resolved {ended} ({units.duration(max(0.0, end_s - begun_s))})"


def _saved(alert: Alert, now_s: float) -> str:
    """Return when a job that has died last saved its work, as far as that is known."""
    known = alert.cost
    saved_at_s = None if known is None or known.since != "checkpoint" else known.since_at_s
    if saved_at_s is None:
        return "none known: all of its work counts as lost"
    before = units.duration(max(0.0, alert.ended_at_s - saved_at_s))
    return f"saved {units.moment(saved_at_s, now_s=now_s)}, {before} before the end"


def _reminder(alert: Alert, now_s: float) -> str:
    value = f"notice {alert.notices}"
    if alert.next_notice_at_s is None:
        return value
    return f"{value}; the next at {units.moment(alert.next_notice_at_s, now_s=now_s)}"
