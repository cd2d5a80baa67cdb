"""What is told: alerts, decisions, messages, deliveries."""

from binascii import crc32
from collections.abc import Iterator
from typing import Any, Final, Literal, Self

import msgspec
from msgspec import UNSET, UnsetType

from gpuwatchd.core.codes import (
    DIED,
    OUT_OF_MEMORY,
    ActHold,
    Ending,
    Facts,
    Failure,
    Hold,
    NameKind,
    TitleRole,
)
from gpuwatchd.core.model.base import (
    ActStep,
    AlertState,
    ButtonName,
    DecisionKind,
    NoticeKind,
    Severity,
    Value,
)
from gpuwatchd.core.model.findings import Finding, Subject
from gpuwatchd.core.model.readings import Device, ProcessInfo

SAID_FOR_S: Final = 86_400.0
"""For how long it is said that something is over, badly."""


class AlertSubject(Value, frozen=True, kw_only=True):
    """Who an alert is about, in the words that rules and silences are written in.

    Kept with the alert, so that a rule can be tried on one whose process has long ended.
    """

    gpu: str = ""
    """Index of the device ("0", "0:1" for a MIG instance); its uid is the subject's."""
    card_uid: str = ""
    """Uid of the card that a MIG instance is part of; "" where the device is a card itself."""
    gpu_name: str = ""
    user: str = ""
    process: str = ""
    """Its name, without arguments."""
    pid: int | None = None
    framework: str = ""
    command: str = ""
    """Its command line, secrets masked."""
    job: str = ""
    container: str = ""
    program: str = ""
    """Under what its runs are known again."""
    unit: str = ""
    """systemd unit: "ollama.service"."""
    model: str = ""
    """Model that it serves."""

    @property
    def service(self) -> str:
        """Its unit, where that says something: every process of a session is in a scope."""
        return self.unit if self.unit.endswith(".service") and "@" not in self.unit else ""


class Matcher(Value, frozen=True, kw_only=True):
    """Which alerts a rule or a silence is about: every field that is not empty must fit (globs)."""

    key: str = ""
    """Key of an alert."""
    kind: str = ""
    """leak, gpu, held or limit."""
    gpu: str = ""
    """Index, uid or name of the device."""
    user: str = ""
    process: str = ""
    framework: str = ""
    command: str = ""
    job: str = ""
    container: str = ""
    pattern: str = ""
    severity: str = ""


class Silence(Value, frozen=True, kw_only=True):
    """Nobody is told of what fits until an instant; it is still watched and shown."""

    matcher: Matcher
    from_at_s: float
    until_at_s: float
    until_resolved: bool = False
    """Over as soon as the alert named by the matcher's key is."""
    even_critical: bool = False
    """Also of what is critical; without it that is told all the same."""
    who: str = ""
    why: str = ""
    cleared_at_s: float | None = None
    row: int | None = None


class Cost(Value, frozen=True, kw_only=True):
    """What one alert costs, in US dollars; None is unknown, never 0."""

    usd_per_hour: float | None = None
    """Of the part of the device that the subject takes."""
    whole_usd_per_hour: float | None = None
    """Of the whole device."""
    spent_usd: float | None = None
    """From ``since_at_s`` until the judgement: what a crash now would lose."""
    at_risk_usd: float | None = None
    """The same until the middle of the time that is left."""
    gpu_hours: float | None = None
    at_risk_gpu_hours: float | None = None
    since_at_s: float | None = None
    since: Literal["start", "checkpoint", "first-seen"] = "start"
    basis: str = ""
    """Which price: "A100 40GB, on-demand, as of 2024-06", "yours"; "" without one."""
    currency: str = "USD"
    per_usd: float = 1.0
    """Units of ``currency`` for one US dollar, by the user's word; for display alone."""
    members: tuple[Subject, ...] = ()
    """Who was counted on which device: of a job, all of its ranks."""


class TitlePart(Value, frozen=True, kw_only=True):
    """A part of what a subject is called."""

    text: str
    role: TitleRole = TitleRole.NONE
    short: str | None = None
    """The same in a short line, where that has other words."""


class Title(Value, frozen=True):
    """What a subject is called: "GPU 0 (A100): python[4711] of alice"."""

    parts: tuple[TitlePart, ...] = ()

    @classmethod
    def of(cls, text: str) -> Self:
        """Return a title of one part."""
        return cls((TitlePart(text=text),))

    def __str__(self) -> str:
        """Return all of it."""
        return "".join([part.text for part in self.parts])

    def __bool__(self) -> bool:
        """Whether it is called anything."""
        return bool(self.parts)

    def without(self, *roles: TitleRole) -> "Title":
        """Return it without some parts."""
        return Title(tuple([part for part in self.parts if part.role not in roles]))

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of an alert that hold it."""
        return {"title": str(self), "title_parts": self.parts}


# What a device or a process is called in a title.

_COLON = TitlePart(text=": ", role=TitleRole.DEVICE)
UNOWNED = TitlePart(text="memory that no listed process owns", short="memory without an owner")


def device_title(device: Device, of: TitlePart | None = None) -> Title:
    """Return the title of a device; ``of`` is what of it is meant.

    Examples
    --------
    >>> from gpuwatchd.core.model import Device
    >>> str(device_title(Device(uid="u", vendor="nvidia", index=0, name="NVIDIA A100-SXM4-80GB",
    ...                      memory_total_bytes=None)))
    'GPU 0 (A100-SXM4-80GB)'
    """
    name = device.name.removeprefix("NVIDIA ").removeprefix("GeForce ")
    model = TitlePart(text=f" ({name})" if name else "", role=TitleRole.MODEL)
    parts = (TitlePart(text=device.label, role=TitleRole.DEVICE), model)
    return Title(parts if of is None else (*parts, _COLON, of))


def process_title(device: Device, info: ProcessInfo) -> Title:
    """Return "GPU 0 (A100): python[4711] of alice"."""
    return Title((*device_title(device).parts, _COLON, *_who(info)))


def host_title(info: ProcessInfo) -> Title:
    """Return "host memory of python[4711] of alice"."""
    return Title((TitlePart(text="host memory of "), *_who(info)))


def _who(info: ProcessInfo) -> Iterator[TitlePart]:
    owner = f" of {info.user}" if info.user else ""
    if info.name_kind is NameKind.STAND_IN:
        yield TitlePart(text=f"{info.numbered}{owner}")
        return
    flag, script = info.entry_point
    if script and not flag:
        yield TitlePart(text=f"{info.name} ", role=TitleRole.INTERPRETER)
        yield TitlePart(text=script)
    else:
        yield TitlePart(text=info.label or "process")
    yield TitlePart(text=f"[{info.key.pid}]", role=TitleRole.PID)
    yield TitlePart(text=owner, role=TitleRole.OWNER)


_BESIDE_PROGRAM = (TitleRole.MODEL, TitleRole.OWNER, TitleRole.INTERPRETER, TitleRole.PID)


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
    critical_at_s: float | None = None
    """When it became critical last; None: never, or before that was kept."""
    resolved_at_s: float | None = None
    confirmations: int = 0
    """Evaluations in a row that support at least a watch."""
    held_since_s: float | None = None
    """Since when they have."""
    alert_confirmations: int = 0
    """Evaluations that support an alert, less those since that do not."""
    alert_since_s: float | None = None
    evidence: float | None = None
    """Mean log odds of an alert; None: nothing has been averaged yet."""
    clears: int = 0
    """Evaluations in a row that support nothing."""
    clear_since_s: float | None = None
    notices: int = 0
    last_notice_at_s: float | None = None
    next_notice_at_s: float | None = None
    title: str = ""
    """Who it is about, in words that outlive it: "GPU 0 (A100): python[4711] of alice"."""
    title_parts: tuple[TitlePart, ...] | UnsetType = UNSET
    ended: str = ""
    """Why it was resolved, for people."""
    ended_code: Ending | None = None
    """The same to decide by; None while it is open."""
    ended_facts: Facts = msgspec.field(default_factory=dict)
    held_back: str = ""
    """Why no notice went out although one was due, for people; "" when none was held back."""
    held_code: Hold | None = None
    """The same to decide by."""
    held_facts: Facts = msgspec.field(default_factory=dict)
    about: AlertSubject | None = None
    group: str = ""
    """What it shares its notices with: alerts of one cause."""
    cost: Cost | None = None
    """As of the last notice, or of its end where its subject ran out of memory."""
    flaps: int = 0
    """How often the same key was open and over within the hour before it opened."""
    inhibited_by: str = ""
    """Key of the alert that makes this one no news."""
    milder_since_s: float | None = None
    """Since when its evidence has supported less than its severity."""
    first_message: str = ""
    """Id of the first message about it: later ones refer to it, however clocks are set."""
    told_severity: Severity | None = None
    """What people were last told that it is worth; None: nothing yet."""
    told_on: tuple[str, ...] = ()
    """Channels that its notices went to."""
    told_flapping: bool = False
    """People were told that it comes and goes."""
    told_over: bool = False
    """People were told that it is over."""

    @property
    def program(self) -> str:
        """The program alone as its title has it; of what no process is known of, the device."""
        title = Title(self.title_parts or ())
        program = title.without(TitleRole.DEVICE, *_BESIDE_PROGRAM)
        return str(program or title.without(*_BESIDE_PROGRAM))

    @property
    def ended_at_s(self) -> float:
        """When it was over; of one that is open, when it changed last."""
        return self.changed_at_s if self.resolved_at_s is None else self.resolved_at_s

    @property
    def ran_out(self) -> bool:
        """Whether it is over because its subject probably ran out of memory."""
        return self.state == "resolved" and self.ended_code in OUT_OF_MEMORY

    @property
    def died(self) -> bool:
        """Whether its process ended so: what only gave memory back may go on."""
        return self.state == "resolved" and self.ended_code in DIED

    @property
    def code(self) -> str:
        """Six letters and digits to type for it: the same as long as its key is.

        The first is a letter, so that it is no pid.
        """
        number = crc32(self.key.encode("utf-8", "replace"))
        return f"{'abcdef'[(number >> 24) % 6]}{number & 0xFFFFF:05x}"


class ChannelHealth(Value, frozen=True, kw_only=True):
    """How one channel does."""

    name: str
    ok: bool | None
    """None: it was not used since the start."""
    why: str = ""
    """Of its last failure."""
    failing_since_s: float | None = None
    delivered_at_s: float | None = None
    waiting: int = 0
    """Messages that are to leave by it."""


class Decision(Value, frozen=True, kw_only=True):
    """What policy wants done about a finding; a held alert says why too."""

    finding_id: str
    alert_key: str
    kind: DecisionKind
    target: str
    """Channel or action name; "" for a hold."""
    notice: NoticeKind
    reason: str
    """For people."""
    at_s: float
    code: Hold | None = None
    """Why it is held or waits; None: it leaves now."""
    facts: Facts = msgspec.field(default_factory=dict)


class Chart(Value, frozen=True, kw_only=True):
    """What a picture of the growth is drawn from: at most 240 points."""

    at_s: tuple[float, ...]
    """(n,) ascending, epoch seconds."""
    used_bytes: tuple[float, ...]
    """(n,) memory of the subject."""
    limit_bytes: float | None = None
    onset_at_s: float | None = None
    judged_at_s: float | None = None
    rate_bytes_per_s: float | None = None
    """Slope of the fit, through the level at ``judged_at_s``."""
    level_bytes: float | None = None
    """Where the fit stands at ``judged_at_s``."""
    low_s: float | None = None
    """Seconds from ``judged_at_s`` to out of memory, 5 %."""
    mid_s: float | None = None
    high_s: float | None = None
    died_at_s: float | None = None
    """When its subject ran out of memory; None: it has not."""


class Button(Value, frozen=True, kw_only=True):
    """Something that people can press on a notice, where its channel has that."""

    name: ButtonName
    label: str
    command: str
    """What to type for the same."""


class Proposal(Value, frozen=True, kw_only=True):
    """A step that could be taken, or that will be."""

    step: ActStep
    command: str
    """What to type for it."""
    at_s: float | None = None
    """The minute at which it is taken unless somebody says no; None: it is only proposed."""
    notices_left: int = 0
    """How many notices come before it is taken; 0 where it is only proposed."""
    hold: ActHold | None = None
    """Why it is only proposed."""
    runner: str = ""
    """Program of the site's that will take it instead of us."""


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
    alert_key: str = ""
    """Key of the first alert that it is about."""
    also: tuple[str, ...] = ()
    """Keys of the others, where one notice is about several."""
    others_open: bool = False
    """Other alerts of its thread go on, although this one is over."""
    cost: str = ""
    """The one line on money; "" where nothing is known."""
    buttons: tuple[Button, ...] = ()
    proposal: Proposal | None = None
    """Of the first alert."""
    chart: Chart | None = None
    lead: str | UnsetType = UNSET
    """How its subject begins where that says that it is critical: for replies alone."""


class Delivery(Value, frozen=True, kw_only=True):
    """One message on its way on one channel, until it is known to have arrived or given up."""

    alert_key: str
    channel: str
    message: Message
    state: Literal["pending", "sent", "failed"]
    attempts: int
    created_at_s: float
    next_try_at_s: float | None = None
    sent_at_s: float | None = None
    error: str | None = None
    """Why it was not delivered, for people."""
    code: Failure | None = None
    """The same to decide by."""
    facts: Facts = msgspec.field(default_factory=dict)
    dry_run: bool = False
    held: str = ""
    """Why it waits although its channel works: "quiet hours until 07:00"; "" when it does not."""
    lease_until_s: float | None = None
    """While an attempt is under way: until then it is in the hands of a worker of this daemon."""
    known: str = ""
    """What is known of its arrival, in the channel's words."""
    fallback_of: str = ""
    """Channel that it was meant for, where that could not deliver."""
    row: int | None = None
    """Row id in the store, once it has one."""


class Availability(Value, frozen=True, kw_only=True):
    """Whether a source or channel can work here, and why not."""

    ok: bool
    reason: str
    hint: str = ""
    brief: str = ""
    """The reason in few words, where it is longer."""


class ServiceState(Value, frozen=True, kw_only=True):
    """How the daemon's service is, as the service manager says."""

    state: Literal["running", "starting", "stopping", "stopped", "failed", "not-installed"]
    text: str
    """The same in one line, with what the daemon says of itself."""
    enabled: bool | None = None
    """It starts by itself at the next login or boot; None: not known."""
    since_at_s: float | None = None
    """Since when it runs, or does not."""
    pid: int | None = None
    restarts: int | None = None
    """Times that the manager started it anew by itself."""
    result: str = ""
    """How it ended last in the manager's word ("watchdog", "oom-kill"); "" for well."""
    exit_code: int | None = None
    memory_bytes: int | None = None
    memory_max_bytes: int | None = None
    watchdog_s: float | None = None
    file: str = ""
    """The unit or property list in force."""
    beside: tuple[str, ...] = ()
    """Files that change it: drop-ins."""
    log: tuple[str, ...] = ()
    """Its last lines, where it failed."""
    hints: tuple[str, ...] = ()
    """What mends it."""

    @property
    def running(self) -> bool:
        """Whether it watches now."""
        return self.state == "running"

    @property
    def code(self) -> int:
        """The exit code that systemctl gives it: 0 running, 3 not running, 4 not there."""
        return {"running": 0, "not-installed": 4}.get(self.state, 3)
