"""``status``, ``watch``, ``predict``, ``explain`` and ``zombies``."""

from __future__ import annotations

from typing import Literal

from gpuwatchd.core.model import AlertState, DeviceState, Pattern, Severity
from gpuwatchd.view.answers.base import (
    Answer,
    BlameShape,
    Bytes,
    Count,
    DevicePlace,
    HappenedShape,
    HoldingShape,
    Info,
    Instant,
    LedgerShape,
    Pid,
    Process,
    Seconds,
    Shape,
    Share,
    Verdict,
    of_verb,
)


class OthersShape(Shape):
    """Processes of users that --user has left out."""

    processes: Count
    held_bytes: Bytes | None
    """Null where a part of it is unknown."""


class DeviceNow(Shape):
    """One device and who is on it."""

    device: DevicePlace
    state: DeviceState | None
    """Null when it could not be read at all."""
    used_bytes: Bytes | None
    free_bytes: Bytes | None
    reserved_bytes: Bytes | None
    resident_bytes: Bytes | None
    """What of the used memory is resident now: Apple."""
    util_pct: float | None
    temp_c: float | None
    power_w: float | None
    memory_api: str | None
    """Which call gave the memory."""
    throttle: tuple[str, ...] | None
    """Why clocks are held down; null: not readable."""
    ecc_errors: Count | None
    retired_pages: Count | None
    processes_reason: str | None
    """Why the list of processes is unknown."""
    unattributed_bytes: Bytes | None
    ledger: LedgerShape | None
    events: tuple[HappenedShape, ...]
    """The newest, oldest first."""
    faults: tuple[str, ...]
    """What could not be read."""
    verdict: Verdict | None
    blame: tuple[BlameShape, ...]
    processes: tuple[Process, ...] | None
    """Null when the list is unknown and none is remembered."""
    processes_age_s: Seconds | None
    """Age of a list that could not be read anew; null where it is of now."""
    others: OthersShape | None
    """What other users hold, with --user; null without it, and where the list is unknown."""


class Served(Shape):
    """A model that a serving engine has loaded."""

    name: str
    size_bytes: Bytes | None
    vram_bytes: Bytes | None
    expires_at: Instant | None


class Server(Shape):
    """What a serving engine reports."""

    kind: str
    url: str
    at: Instant
    pid: Pid | None
    started_at: Instant | None
    """Of that process, where it is on a device here."""
    ok: bool
    why: str | None
    """Why it did not answer."""
    models: tuple[Served, ...] | None
    kv_share: Share | None
    running: Count | None
    waiting: Count | None
    pool_share: Share | None


class Channel(Shape):
    """State of a channel."""

    name: str
    ok: bool | None
    """Null: not used since the start."""
    why: str | None
    failing_since_at: Instant | None
    delivered_at: Instant | None
    waiting: Count
    """Messages that wait for it."""


class LostShape(Shape):
    """An alert of the last day that ended badly before any message could be sent."""

    key: str
    id: str
    title: str
    severity: Severity
    ended: str
    """How it ended."""
    ended_at: Instant | None


class Silent(Shape):
    """A silence."""

    about: str
    from_at: Instant
    until_at: Instant | None
    until_resolved: bool
    who: str | None
    why: str | None


class ObservedDevices(Answer):
    """State of the devices."""

    data: tuple[DeviceNow, ...]
    holdings: tuple[HoldingShape, ...]
    servers: tuple[Server, ...]
    channels: tuple[Channel, ...]
    untold: tuple[str, ...]
    """Keys of open alerts that have reached nobody."""
    lost: tuple[LostShape, ...]
    silences: tuple[Silent, ...]
    """In force."""


class Status(ObservedDevices):
    """``status``."""

    VERB = "status"
    verb: Literal["status"]


class Watch(ObservedDevices):
    """``watch``: one such object per interval, one per line."""

    VERB = "watch"
    verb: Literal["watch"]


class Predict(ObservedDevices):
    """``predict``."""

    VERB = "predict"
    verb: Literal["predict"]


class Examined(Shape):
    """The recorded series, measured again."""

    samples: Count
    span_s: Seconds
    interval_s: Seconds | None
    until_at: Instant
    noise_bytes: Bytes
    minimum_growth_bytes: Bytes
    growth_bytes: int | None
    """Of the growth that deserves a verdict most."""
    growth_age_s: Seconds | None
    growth_events: float | None
    confidence: Share | None


class SignalShape(Shape):
    """What one detector sees."""

    detector: str
    pattern: Pattern
    rate_bytes_per_s: float | None
    confidence: Share | None
    since_at: Instant | None
    n: Count
    """Samples, or steps."""
    facts: dict[str, float | None]


class Levels(Shape):
    """What it takes."""

    watch_confidence: Share
    alert_confidence: Share
    minimum_samples: Count
    minimum_duration_s: Seconds
    eta_horizon_s: Seconds


class ExplainedDelivery(Shape):
    """One message on one channel."""

    at: Instant
    channel: str
    notice: str
    state: str
    error: str | None


class ExplainedAlert(Shape):
    """The alert that is open, or was asked for."""

    key: str
    state: AlertState
    confirmations: Count
    alert_confirmations: Count
    notices: Count
    held_back: str | None
    deliveries: tuple[ExplainedDelivery, ...]


class Hardware(Shape):
    """Whether the hardware is to blame."""

    word: Literal["clean", "unreadable", "hardware", "application"]
    """unreadable: it is unknown."""
    sentence: str
    look_first: bool
    events: tuple[HappenedShape, ...]


class Section(Shape):
    """A part of the text."""

    title: str
    lines: tuple[str, ...]


class NextStep(Shape):
    """What to do."""

    text: str
    command: str | None


class Explained(Shape):
    """The whole reasoning of one verdict."""

    device: DevicePlace
    process: Process | None
    unattributed: bool
    on_host: bool
    held_bytes: Bytes | None
    verdict: Verdict | None
    blame: tuple[BlameShape, ...]
    ledger: LedgerShape | None
    measured: Examined | None
    """Null without a recorded series."""
    signals: tuple[SignalShape, ...]
    levels: Levels
    alert: ExplainedAlert | None
    hardware: Hardware
    sections: tuple[Section, ...]
    next_steps: tuple[NextStep, ...]


Explain = of_verb("explain", "Explain", Explained, "``explain``.")


class Checked(Shape):
    """How much was checked."""

    devices: Count
    devices_known: Count
    """Whose process list is known."""
    processes: Count
    since_at: Instant | None


class Holder(Info):
    """A process that the driver does not list, with device files open."""

    nodes: tuple[str, ...]
    computes: bool
    """False: it has only opened the cards, as a monitor does."""


class OpenFiles(Shape):
    """Who has device files open."""

    possible: bool
    """False without /proc."""
    whole: bool
    looked: Count
    unreadable: Count
    """Processes that only root may inspect."""
    holders: tuple[Holder, ...]


class ZombiesData(Shape):
    """Idle memory."""

    holdings: tuple[HoldingShape, ...]
    """The surest first."""
    checked: Checked
    open_files: OpenFiles


IdleMemory = of_verb("zombies", "IdleMemory", ZombiesData, "``zombies``.")
