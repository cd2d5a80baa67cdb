"""What is told: alerts, decisions, messages, deliveries."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpuwatchd.model.judged import Finding, Subject
from gpuwatchd.model.names import AlertState, DecisionKind, NoticeKind, Severity, Value


class Alert(Value, frozen=True, kw_only=True):
    """The life of one finding: opened, escalated, resolved. Kept in the store."""

    key: str
    """Kind + subject: one open alert per key."""
    kind: str
    subject: Subject
    state: AlertState
    severity: Severity
    finding: Finding
    opened_at_s: float
    changed_at_s: float
    watch_at_s: float | None = None
    firing_at_s: float | None = None
    resolved_at_s: float | None = None
    confirmations: int = 0
    """Evaluations in a row that support at least a watch."""
    held_since_s: float | None = None
    """Since when they have."""
    alert_confirmations: int = 0
    """Evaluations in a row that support an alert."""
    alert_since_s: float | None = None
    clears: int = 0
    """Evaluations in a row that support nothing."""
    clear_since_s: float | None = None
    notices: int = 0
    last_notice_at_s: float | None = None
    next_notice_at_s: float | None = None
    title: str = ""
    """Who it is about, in words that outlive it: "GPU 0 (A100): python[4711] of alice"."""
    ended: str = ""
    """Why it was resolved, in words."""
    held_back: str = ""
    """Why no notice went out although one was due; empty when none was held back."""


class Decision(Value, frozen=True, kw_only=True):
    """What policy wants done about a finding; a held alert says why too."""

    finding_id: str
    alert_key: str
    kind: DecisionKind
    target: str
    """Channel or action name; "" for a hold."""
    notice: NoticeKind
    reason: str
    at_s: float


class Message(Value, frozen=True, kw_only=True):
    """What a notifier sends. Plain text only; each notifier escapes for its own sink."""

    id: str
    """Stable across retries: the same message sent twice carries the same id."""
    notice: NoticeKind
    severity: Severity
    subject: str
    """At most 78 characters."""
    body: str
    facts: dict[str, str] = msgspec.field(default_factory=dict)
    """Label -> value, in the order to show."""
    command: str = ""
    """What to type next."""
    thread: str | None = None
    """Message id of the incident's first message, for replies."""
    finding: Finding | None = None


class Delivery(Value, frozen=True, kw_only=True):
    """One attempt to deliver one decision on one channel."""

    alert_key: str
    channel: str
    message: Message
    state: Literal["pending", "sent", "failed"]
    attempts: int
    created_at_s: float
    next_try_at_s: float | None = None
    sent_at_s: float | None = None
    error: str | None = None
    dry_run: bool = False
    row: int | None = None
    """Row id in the store, once it has one."""


class Availability(Value, frozen=True, kw_only=True):
    """Whether a source or channel can work here, and why not."""

    ok: bool
    reason: str
    hint: str = ""
