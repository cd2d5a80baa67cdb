"""``alerts``, ``snooze``, ``feedback``, ``policy`` and ``notify``."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from gpuwatchd.core.model import AlertState, DecisionKind, NoticeKind, Severity
from gpuwatchd.view.answers.base import (
    Answer,
    Count,
    Instant,
    ProcessId,
    Shape,
    Verdict,
    Word,
    of_verb,
)
from gpuwatchd.view.answers.current import Silent


class UserFeedback(Shape):
    """The user's label of an alert."""

    word: Word
    why: str | None
    by: str | None
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


class Decided(Shape):
    """One decision on a message."""

    at: Instant
    kind: DecisionKind
    notice: str | None
    channel: str | None
    reason: str


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


class AlertShape(Shape):
    """One alert."""

    id: str
    """Six characters that other verbs accept, too."""
    key: str
    kind: Literal["leak", "gpu", "held"]
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
    deliveries: tuple[Delivered, ...] | None
    """Null in the list."""


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

    id: int | None
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


class WordShape(UserFeedback):
    """A label, and its alert."""

    key: str
    title: str
    opened_at: Instant
    device_uid: str
    process: ProcessId | None
    on_host: bool
    program_known: bool | UnsetType = UNSET
    """Only of a label just set: whether it applies to the program's next runs."""
    daemon_running: bool | UnsetType = UNSET
    """Only of a label just set."""


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


class Digest(Shape):
    """A message as it would be sent."""

    severity: Severity
    subject: str
    body: tuple[str, ...]
    """Lines."""
    facts: dict[str, str]
    """Label to text."""
    command: str


class Letter(Digest):
    """A message about an alert."""

    cost: str | None


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


class Reached(Shape):
    """One channel."""

    channel: str
    result: Literal["usable", "not-usable", "arrived", "failed"]
    """``list`` and ``--dry-run``: usable, not-usable; else arrived, failed."""
    detail: str
    hint: str | None
    page: str | None
    """Page of the documentation, where it failed."""
    in_use: bool | UnsetType = UNSET
    """Only in ``list``."""


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
