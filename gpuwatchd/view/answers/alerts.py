"""``alerts``, ``snooze``, ``feedback``, ``policy`` and ``notify``."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gpuwatchd.analysis import cost
from gpuwatchd.core import text
from gpuwatchd.core.model import AlertState, DecisionKind, NoticeKind, Severity
from gpuwatchd.view.answers.base import (
    Answer,
    AsItIs,
    Count,
    Instant,
    ProcessId,
    Shape,
    Verdict,
    Word,
    fill,
    of_verb,
    sources,
)
from gpuwatchd.view.answers.current import Silent, silent

if TYPE_CHECKING:
    from gpuwatchd.core import model
    from gpuwatchd.view.queries.alert_query import Incidents
    from gpuwatchd.view.text.alert_details import AlertRecord


class UserFeedback(Shape):
    """The user's label of an alert."""

    word: Word
    why: str | None
    who: str | None = msgspec.field(name="by")
    given_at: Instant
    undone_at: Instant | None
    """Null while it is in force."""


class AlertCost(Shape):
    """What it costs."""

    line: str
    spent_usd: float | None
    at_risk_usd: float | None
    gpu_hours: float | None
    at_risk_gpu_hours: float | None
    since: Literal["start", "checkpoint", "first-seen"]
    since_at: Instant | None
    basis: str | None
    """Which price."""
    FROM = sources(line=cost.line)


class Decided(Shape):
    """One decision on a message."""

    at: Instant
    kind: DecisionKind
    notice: str | None
    target: str | None = msgspec.field(name="channel")
    reason: str


class Acted(Shape):
    """One row on what was done to a process of the alert, during it or within an hour of it."""

    at: Instant
    verb: str
    """checkpoint, attach, reap; of a step that was taken by itself act-checkpoint, act-restart,
    act-requeue, act-end."""
    process: ProcessId | None
    phase: Literal["asked", "done", "refused"]
    dry_run: bool = msgspec.field(name="proposed")
    """Nothing was sent."""
    code: str | None
    """What for, what came of it, or why it was refused."""
    result: str | None
    """In words."""
    saved: bool
    """The checkpoint that was asked for has been seen."""
    who: str | None = msgspec.field(name="by")


class Delivered(Shape):
    """One message on one channel."""

    channel: str
    notice: NoticeKind
    state: Literal["pending", "sent", "failed"]
    attempts: Count
    created_at: Instant
    sent_at: Instant | None
    next_try_at: Instant | None
    error: str | None
    known: str | None
    """What is known of its arrival."""
    held: str | None
    """Why it waits."""
    fallback_of: str | None
    """The channel that could not deliver it."""
    message_id: str
    subject: str
    also: tuple[str, ...]
    """Keys of the other alerts that it is about."""
    dry_run: bool
    FROM = sources(
        notice="message.notice",
        message_id="message.id",
        subject="message.subject",
        also="message.also",
    )


class AlertShape(Shape):
    """One alert."""

    code: str = msgspec.field(name="id")
    """Six characters that other verbs take, too."""
    key: str
    kind: Literal["leak", "gpu", "held", "limit"]
    state: AlertState
    severity: Severity
    title: str
    device_uid: str
    process: ProcessId | None
    user: str | None
    unattributed: bool
    """About memory that no process owns."""
    on_host: bool
    """About the process's memory on the host."""
    opened_at: Instant
    watch_at: Instant | None
    firing_at: Instant | None
    resolved_at: Instant | None
    changed_at: Instant
    notices: Count
    next_notice_at: Instant | None
    held_back: str | None
    """Why it was held back."""
    group: str | None
    """The group that it shares messages with."""
    flaps: Count
    """How often it opened and resolved within the hour before."""
    inhibited_by: str | None
    """Key of the alert that inhibits it."""
    silence: Silent | None
    """The one in force."""
    reached_nobody: bool
    ended: str | None
    feedback: UserFeedback | None
    cost: AlertCost | None
    verdict: Verdict
    decisions: tuple[Decided, ...] | None
    """Null in the list; oldest first."""
    actions: tuple[Acted, ...] | None
    """Null in the list; oldest first."""
    deliveries: tuple[Delivered, ...] | None
    """Null in the list."""
    FROM = sources(
        device_uid="subject.device_uid",
        process="subject.process",
        unattributed="subject.unattributed",
        on_host="subject.host",
        verdict="finding",
    )


def alert(of: model.Alert, found: Incidents, record: AlertRecord | None = None) -> AlertShape:
    """Return one alert; without a record what was decided and delivered was not asked for."""
    silence = found.silence(of, found.now_s)
    return fill(
        AlertShape,
        of,
        user=found.user(of),
        silence=None if silence is None else silent(silence, [of]),
        reached_nobody=of.key in found.untold,
        feedback=found.user_label(of),
        decisions=None if record is None else record.decisions,
        actions=None if record is None else record.actions,
        deliveries=None if record is None else record.deliveries,
    )


class Alerts(Answer):
    """``alerts``."""

    VERB = "alerts"
    verb: Literal["alerts"]
    data: tuple[AlertShape, ...]
    """Newest first."""


class MatcherShape(Shape):
    """What a silence is about; only what it names is there."""

    key: str | UnsetType = UNSET
    gpu: str | UnsetType = UNSET
    user: str | UnsetType = UNSET
    process: str | UnsetType = UNSET
    framework: str | UnsetType = UNSET
    job: str | UnsetType = UNSET
    kind: str | UnsetType = UNSET


class SilenceShape(Shape):
    """A silence, and which alerts it is about."""

    row: int | None = msgspec.field(name="id")
    matcher: MatcherShape
    state: Literal["in-force", "over", "cleared"]
    from_at: Instant
    until_at: Instant | None
    until_resolved: bool
    even_critical: bool
    who: str | None
    why: str | None
    cleared_at: Instant | None
    """Null while it stands."""
    fits: tuple[str, ...]
    """Keys of the open alerts that it is about."""
    daemon_running: bool | UnsetType = UNSET
    """Only of one that was just set."""
    FROM = sources(matcher=lambda silence: _named(silence.matcher))


def _named(matcher: model.Matcher) -> MatcherShape:
    named = {name: text.clean(getattr(matcher, name)) for name in MatcherShape.__struct_fields__}
    return MatcherShape(**{name: value for name, value in named.items() if value})


class WordShape(Shape):
    """What was said, of which alert."""

    alert_key: str = msgspec.field(name="key")
    title: str
    opened_at: Instant
    device_uid: str
    process: ProcessId | None
    on_host: bool
    word: Word
    why: str | None
    who: str | None = msgspec.field(name="by")
    given_at: Instant
    undone_at: Instant | None
    """Null while it holds."""
    program_known: bool | UnsetType = UNSET
    """Only of a label just set: whether it applies to the program's next runs."""
    daemon_running: bool | UnsetType = UNSET
    """Only of a label just set."""
    FROM = sources(
        device_uid="subject.device_uid",
        process="subject.process",
        on_host="subject.host",
    )


class Rules(Shape):
    """Which messages are sent where, in sentences."""

    rules: tuple[str, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...]
    """What cannot work."""


class Route(Shape):
    """What happens to the message on one channel."""

    channel: str
    kind: Literal["send", "wait", "hold"]
    reason: str
    until_at: Instant | None


class Override(Shape):
    """A key that an ``[[override]]`` sets."""

    sets: str
    by: str
    FROM = sources(sets=itemgetter(0), by=itemgetter(1))


_LINES = sources(body=lambda message: message.body.splitlines())


class Digest(Shape):
    """A message as it would be sent."""

    subject: str
    body: tuple[str, ...]
    """Lines."""
    facts: dict[str, str]
    """Label to text."""
    severity: Severity
    command: str
    FROM = _LINES


class Letter(Shape):
    """A message about an alert."""

    severity: Severity
    subject: str
    body: tuple[str, ...]
    """Lines."""
    facts: dict[str, str]
    """Label to text."""
    cost: str | None
    command: str
    FROM = _LINES


class Tried(Shape):
    """What would be sent about an alert."""

    alert: str
    title: str
    notice: NoticeKind
    at: Instant
    text_at: Instant | None
    """When the text's figures were judged: not before `at`."""
    never: str | None
    """Why such a message is never due."""
    routes: tuple[Route, ...]
    fallback: tuple[str, ...]
    overrides: tuple[Override, ...]
    message: Letter
    FROM = sources(
        alert="alert.key",
        title="alert.title",
        text_at="as_of",
        never=lambda trial: trial.never(),
        fallback="config.policy.fallback",
        overrides="applied",
    )


class Reached(Shape):
    """One channel."""

    channel: str
    result: Literal["usable", "not-usable", "arrived", "failed"]
    """``list`` and ``--dry-run``: usable, not-usable; else arrived, failed."""
    detail: AsItIs
    hint: AsItIs | None
    page: AsItIs | None
    """Page of the documentation, where it failed."""
    in_use: bool | UnsetType = UNSET
    """Only in ``list``."""


class ChannelAdded(Shape):
    """A channel that was set up."""

    channel: str
    file: str
    """The configuration that has it now, unless the test failed."""
    secret_file: str | None
    """Where its secret lies (mode 0600)."""
    channels: tuple[str, ...]
    """By which alerts are sent now."""
    daemon: Literal["reloaded", "not-running", "not-told", "unchanged"]
    """not-told: it has to be reloaded or restarted by hand; unchanged: nothing is kept, since the
    test failed."""
    notes: tuple[str, ...]
    test: Reached | None
    """What became of the test message."""


AlertShown = of_verb("alerts", "AlertShown", AlertShape, "``alerts show``.")
Snooze = of_verb(
    "snooze",
    "Snooze",
    tuple[SilenceShape, ...],
    "``snooze``, ``snooze list`` and ``snooze clear``.",
)
Feedback = of_verb(
    "feedback",
    "Feedback",
    tuple[WordShape, ...],
    "``feedback``, ``feedback undo`` and ``feedback list``.",
)
PolicyShown = of_verb("policy", "PolicyShown", Rules, "``policy show``.")
PolicyTested = of_verb("policy", "PolicyTested", Tried, "``policy test``.")
Notify = of_verb("notify", "Notify", tuple[Reached, ...], "``notify list`` and ``notify test``.")
NotifyDigest = of_verb("notify", "NotifyDigest", Digest, "``notify digest --dry-run``.")
NotifyAdded = of_verb("notify", "NotifyAdded", ChannelAdded, "``notify add``.")
