"""Every key of the configuration: its default and, in the text below it, its meaning."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from gpuwatchd.core.model.base import ActMode, ActStep, HoldingKind  # noqa: TC001 - msgspec reads


class Seconds(float):
    """A duration: in TOML a number of seconds or a text such as "15m"."""

    __slots__ = ()


class Size(int):
    """A size: in TOML a number of bytes or a text such as "24GiB"."""

    __slots__ = ()


class Section(
    msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True
):
    """Base of every section."""


class DaemonSection(Section, frozen=True, kw_only=True):
    """``[daemon]``: the sampling loop."""

    interval: Seconds = Seconds(5)
    """Time between two samples."""
    source_deadline: Seconds = Seconds(2)
    """A source that has not answered by then is unknown for this tick; the others go on."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged on standard error: debug, info, warning or error."""
    readers: Literal["user", "group"] = "user"
    """Who may read the live state and the history: only the user that runs the daemon (user), or
    the members of its group too (group), as on a shared server. Nobody else ever may."""


class ReplaySection(Section, frozen=True, kw_only=True):
    """``[sources.replay]``: a recorded log as a source."""

    file: str = ""
    """The log to play."""
    speed: Annotated[float, Meta(gt=0)] = 1.0
    """How much faster than recorded."""


class SimulateSection(Section, frozen=True, kw_only=True):
    """``[sources.simulate]``: a scripted world of GPUs."""

    scenario: str = "demo"
    """Which scripted world: demo, quiet, one-leak, mixed-8x8, lost-gpu or idle."""
    seed: int = 7
    """The same seed gives the same world."""
    speed: Annotated[float, Meta(gt=0)] = 1.0
    """How much faster than real time."""


class DrmSection(Section, frozen=True, kw_only=True):
    """``[sources.drm]``: AMD and Intel GPUs on Linux."""

    integrated: bool = False
    """Watch integrated graphics that as a rule only draw: Intel's, and AMD's beside a card."""


class SourcesSection(Section, frozen=True, kw_only=True):
    """``[sources]``: where readings come from; several at once are fine."""

    enabled: tuple[str, ...] = ("auto",)
    """What this system can have (nvml and drm on Linux, metal on macOS), or names of sources;
    "replay:FILE" and "simulate:SCENARIO" carry their main setting."""
    drm: DrmSection = DrmSection()
    replay: ReplaySection = ReplaySection()
    simulate: SimulateSection = SimulateSection()


GROWTH_SHARE: Final = 0.0015
"""Growth below this share of the device is no candidate, whatever ``minimum-growth-mib`` says."""
SENSITIVITY: Final = {"early": 0.62, "balanced": 0.68, "quiet": 0.8}
"""Name of ``[detection] sensitivity`` -> the confidence threshold that it stands for."""


class DetectionSection(Section, frozen=True, kw_only=True):
    """``[detection]``: what counts as a leak. The first five keys are gpulse's, same units."""

    min_r_squared: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Extra condition on gradual leaks; 0 means that R² is reported and decides nothing."""
    min_slope_mb_per_sec: Annotated[float, Meta(ge=0)] = 0.0
    """Floor of the growth rate, 1 MB = 1,000,000 bytes; 0 means none."""
    sensitivity: Literal["early", "balanced", "quiet"] = "balanced"
    """How early an alert comes, at the price of false ones: early, balanced or quiet. It stands for
    a confidence-threshold of 0.62, 0.68 or 0.80; one that is set wins."""
    confidence_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.68
    """Mean confidence from which a finding alerts; a watch needs less."""
    minimum_samples: Annotated[int, Meta(ge=2)] = 20
    """Samples before an alert."""
    analysis_window_hours: Annotated[float, Meta(gt=0, le=168)] = 6.4
    """The longest look-back; where samples are further apart, the last 40 of them."""
    minimum_duration: Seconds = Seconds(300)
    """Growth younger than this does not alert (it may be watched); from three fifths of it where
    memory would be full within 14 minutes, and that is plain to see."""
    minimum_growth_mib: Annotated[float, Meta(ge=0)] = 16.0
    """Growth below this, or below 0.15 % of the device, is no candidate."""
    eta_horizon: Seconds = Seconds(72 * 3600)
    """A leak that needs longer than this to fill the device is information, not an alert."""
    spike_percent: Annotated[float, Meta(gt=0)] = 20.0
    """A jump by this share of the used memory (and 256 MiB) is a spike."""
    spike_window: Seconds = Seconds(30)
    """Time within which a spike rises; never shorter than three samples."""

    def least_growth_bytes(self, device_bytes: float | None) -> float:
        """Return the least growth that makes a candidate; None: the device's size is unknown."""
        return max(self.minimum_growth_mib * 2**20, GROWTH_SHARE * (device_bytes or 0.0))


class PolicySection(Section, frozen=True, kw_only=True):
    """``[policy]``: when messages are sent, by which channels, and how often."""

    preset: Literal["workstation", "shared", "ci"] = "workstation"
    """Defaults for a machine of one's own (workstation), a shared server (shared), or a run without
    people (ci); keys that are set win over it."""
    channels: tuple[str, ...] = ("desktop",)
    """Every one of them gets every message, so that one that fails never silences an alert. Where
    this is not set: pop-ups, and every channel that is set up and not used otherwise, such as for
    the digest alone."""
    fallback: tuple[str, ...] = ()
    """Used in this order, until one delivers, when none of the channels above could."""
    fallback_after: Seconds = Seconds(120)
    """A channel that fails for a reason that may pass has this long before a fallback is used."""
    severity: dict[str, Literal["info", "warning", "critical"]] = {}
    """Channel = the lowest severity that it is used for: info, warning or critical."""
    quiet_hours: dict[str, tuple[str, ...]] = {}
    """Channel (or "all") = hours such as ["22:00-07:00", "sat 00:00-24:00"]; what is not critical
    waits for their end and is sent as one message."""
    digest: Literal["off", "daily", "weekly"] = "off"
    """A summary of what is open, what was resolved, and what it cost, sent through the digest's
    channels: off, daily or weekly."""
    digest_at: str = "08:00"
    """When, in local time; a weekly one comes on Mondays."""
    digest_channels: tuple[str, ...] = ("email",)
    """Channels of the digest."""
    confirm: Annotated[int, Meta(ge=1)] = 3
    """Evaluations in a row before a finding opens."""
    cooldown: Seconds = Seconds(1800)
    """No repeat for the same subject before this has passed; an escalation is sent at once."""
    flap_hold: Seconds = Seconds(30)
    """From opening to the first message; what resolves within it is never sent."""
    clear_after: Annotated[int, Meta(ge=1)] = 3
    """Evaluations in a row without the finding before it is resolved."""
    repeat: tuple[Seconds, ...] = tuple(Seconds(h * 3600) for h in (1, 2, 4, 8, 24))
    """Reminders while an alert is open; the last interval repeats."""
    recovered: bool = True
    """Send a message when an alert resolves (only if its first message was sent)."""
    max_per_hour: Annotated[int, Meta(ge=1)] = 20
    """Messages per hour over all channels; those beyond it wait."""
    group_interval: Seconds = Seconds(300)
    """Alerts of one cause share a message; a new one of that cause waits this long after it."""
    flaps: Annotated[int, Meta(ge=2)] = 3
    """An alert that opens this often within an hour is reported as flapping."""
    tell_hardware: bool = True
    """Raise an alert when a GPU is lost, hangs or must be reset."""
    tell_limit: bool = True
    """Raise an alert when a control group is near its limit of GPU memory."""
    tell_held: tuple[HoldingKind, ...] = ()
    """Kinds of idle memory (see zombies) that raise an alert: gone, defunct,
    driver-wait, ghost, orphaned-runner, no-model, leaked-kv, hung-rank, idle."""


THRESHOLDS: Final = (
    *("confidence_threshold", "minimum_growth_mib"),
    *("minimum_duration", "eta_horizon"),
)
"""Keys of ``[detection]`` that an override may have, too."""


class OverrideSection(Section, frozen=True, kw_only=True):
    """``[[override]]``: rules for some; of those that match, the last that sets a key wins."""

    gpu: str = ""
    """Index, uid or name of the device, as a glob; an empty condition matches everything."""
    user: str = ""
    """Owner of the process, as a glob, like those below."""
    process: str = ""
    """Name of the process."""
    framework: str = ""
    """Such as "PyTorch" or "vLLM"."""
    command: str = ""
    """Command line of the process."""
    job: str = ""
    """Job of the process."""
    container: str = ""
    """Container of the process."""
    kind: str = ""
    """leak, gpu, held or limit."""
    pattern: str = ""
    """gradual, step, cyclic or spike."""
    mute: bool = False
    """No message is sent; it is still watched and shown."""
    grows: bool = False
    """It may grow: watched at most, never an alert, unless it is about to run out of memory."""
    grows_to: Size | None = None
    """It may grow up to this, for example "24GiB": no message below it."""
    severity: Literal["info", "warning", "critical"] | None = None
    """Highest severity sent: info, warning or critical."""
    channels: tuple[str, ...] | None = None
    """Sent through these channels."""
    repeat: tuple[Seconds, ...] | None = None
    """Reminders."""
    act: ActMode | None = None
    """Mode of [act]; auto opts its targets in, and needs command and user."""
    confidence_threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    """That of [detection], for leaks."""
    minimum_growth_mib: Annotated[float, Meta(ge=0)] | None = None
    """That of [detection]."""
    minimum_duration: Seconds | None = None
    """That of [detection]."""
    eta_horizon: Seconds | None = None
    """That of [detection]."""
    why: str = ""
    """Shown where the rule is applied."""


class DesktopSection(Section, frozen=True, kw_only=True):
    """``[notify.desktop]``: a pop-up on the session bus."""

    timeout: Seconds = Seconds(20)
    """An attempt that takes longer has failed."""
    buttons: bool = True
    """Show buttons where the notification server has them: Snooze 1 h, Show, and Ask to checkpoint
    where [act] allows it."""
    terminal: tuple[str, ...] = ()
    """What Show opens, such as ["kitty"] or ["xterm", "-e"]; what is to run follows as further
    arguments. Empty: the first terminal that is found."""


class EmailSection(Section, frozen=True, kw_only=True):
    """``[notify.email]``: a mail by SMTP."""

    host: str = ""
    """The SMTP server; empty means that this channel is not set up."""
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    """Default 587 for starttls, 465 for tls, 25 for none."""
    security: Literal["starttls", "tls", "none"] = "starttls"
    """starttls, tls or none. The certificate is always verified; none is accepted for loopback
    hosts only."""
    ca_file: str = ""
    """Certificates to trust instead of the system's."""
    username: str = ""
    """Empty means no login."""
    password_file: str = ""
    """Readable by you alone (0600). A systemd credential smtp-password comes before it, the
    variable GPUWATCHD_SMTP_PASSWORD after it."""
    password_keyring: str = ""
    """Name of a keyring service that has the password of the user name (extra keyring)."""
    sender: str = ""
    """Address of the sender."""
    to: tuple[str, ...] = ()
    """Recipients."""
    chart: bool = True
    """Put a picture of the growth into the mail (extra charts); else a line of text."""
    timeout: Seconds = Seconds(20)
    """An attempt that takes longer has failed and is tried again later."""


class CommandSection(Section, frozen=True, kw_only=True):
    """``[notify.command]``: a program of yours gets the finding as JSON on standard input."""

    argv: tuple[str, ...] = ()
    """The program and its arguments; never run through a shell."""
    timeout: Seconds = Seconds(20)
    """It is ended after this."""


class ChatSection(Section, frozen=True, kw_only=True):
    """``[notify.chat]``: chat and paging services, through Apprise (extra chat)."""

    urls_file: str = ""
    """A file of Apprise addresses, one per line, that you alone can read (0600): they hold secrets.
    Or a systemd credential named chat-urls."""
    timeout: Seconds = Seconds(20)
    """An attempt that takes longer has failed and is tried again later."""


class NotifySection(Section, frozen=True, kw_only=True):
    """``[notify.*]``: the channels."""

    desktop: DesktopSection = DesktopSection()
    email: EmailSection = EmailSection()
    chat: ChatSection = ChatSection()
    command: CommandSection = CommandSection()


class EndpointsSection(Section, frozen=True, kw_only=True):
    """``[endpoints]``: what serving engines on this machine report; loopback only."""

    enabled: bool = True
    """Ask Ollama, vLLM, SGLang and llama.cpp servers that are seen to run here."""
    every: Seconds = Seconds(15)
    """Time between two requests to one server."""
    timeout: Seconds = Seconds(1)
    """A server that has not answered by then is unknown; nothing else waits for it."""
    urls: tuple[str, ...] = ()
    """Servers that are not found by themselves, as "vLLM=http://127.0.0.1:8001"."""


class ZombiesSection(Section, frozen=True, kw_only=True):
    """``[zombies]``: idle memory."""

    preset: Literal["workstation", "shared", "strict"] = "workstation"
    """How soon idle memory is listed, and how many messages come before a step of [act]:
    workstation (after 2 h), shared (after 15 min, three messages within 2 h) or strict (after
    15 min, two messages, the step at 1 h); keys that are set win over it."""
    idle_after: Seconds = Seconds(2 * 3600)
    """A process that computes nothing and holds memory is listed after this."""
    minimum_mib: Annotated[float, Meta(ge=0)] = 512.0
    """Less than this is not listed."""


class CostSection(Section, frozen=True, kw_only=True):
    """``[cost]``: what a device costs."""

    mode: Literal["rental", "owned", "off"] = "rental"
    """rental: a price per hour; owned: what was paid, over its lifetime, and electricity; off."""
    usd_per_gpu_hour: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    """Price of one device for an hour, whatever its model."""
    prices: dict[str, Annotated[float, Meta(ge=0, le=1e6)]] = {}
    """Model, as a glob = price of one for an hour in currency; wins over the built-in table."""
    offer: Literal["on-demand", "reserved", "spot"] = "on-demand"
    """Which offer of the built-in table counts: on-demand, reserved or spot."""
    currency: str = "USD"
    """Three letters; amounts are shown in it."""
    per_usd: Annotated[float, Meta(ge=1e-9, le=1e9)] | None = None
    """Units of currency for one US dollar; needed where it is not USD."""
    purchase: Annotated[float, Meta(ge=0, le=1e12)] | None = None
    """Owned: what one device cost, in currency."""
    lifetime: Seconds = Seconds(4 * 365 * 86400)
    """Owned: for how long it is used."""
    electricity_per_kwh: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    """Owned: price of a kilowatt-hour, in currency."""
    engineer_per_hour: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    """An hour of the person who starts a lost run again, in currency; a line of its own."""


class CheckpointsSection(Section, frozen=True, kw_only=True):
    """``[checkpoints]``: how it is known that a job has saved its work."""

    paths: tuple[str, ...] = ()
    """File patterns such as "~/runs/**/*.ckpt", or "{cwd}/checkpoints/*" beside each job: a file
    that its owner wrote while it ran is a checkpoint. Or say: gpuwatchctl checkpointed PID."""
    every: Seconds = Seconds(60)
    """Time between two checks."""


class ActSection(Section, frozen=True, kw_only=True):
    """``[act]``: what gpuwatchd may do to a job; by default it only proposes."""

    checkpoint: Literal["off", "signal", "command"] = "off"
    """How a job is asked to save its work when somebody presses the button: off, by a signal, or
    by a command (argv)."""
    signal: Literal["USR1", "USR2", "HUP"] = "USR1"
    """USR1, USR2 or HUP; sent only to a job of yours that has a handler for it."""
    argv: tuple[str, ...] = ()
    """A program of yours; it gets the finding as JSON on standard input."""
    mode: ActMode = "propose"
    """observe: no step is named; propose: an alert names the command of its next step, nothing is
    done; auto: steps for idle memory are taken on processes that opted in (GPUWATCHD_ACT=1 in
    their environment, X-GpuWatchd=act in their unit, or act = "auto" of an override), all others
    are proposed."""
    leak_steps: tuple[ActStep, ...] = ("restart",)
    """What an alert on a leak proposes: checkpoint, restart, requeue or end; of several the
    first."""
    idle_steps: tuple[ActStep, ...] = ("end",)
    """Steps for idle memory, one after the other: checkpoint, restart, requeue, end."""
    notices: Annotated[int, Meta(ge=2, le=10)] = 2
    """Messages that must have arrived before a step is taken; the last names command and minute."""
    notice_gap: Seconds = Seconds(900)
    """Time between two of them, and between the last one and the step."""
    runner: tuple[str, ...] = ()
    """A program of the site's, by its whole path, that takes the steps instead of gpuwatchd, of
    other users' processes too: it gets the request as JSON on standard input."""


class ProbeSection(Section, frozen=True, kw_only=True):
    """``[probe]``: what prepared processes (`gpuwatchctl run`) say of themselves."""

    inspect_on_alert: bool = False
    """Look into the heap of a prepared process of yours when its alert opens, to name the variable
    that keeps what grows."""
    fragmentation_ratio: Annotated[float, Meta(gt=0, le=1)] = 0.3
    """Reserved memory is fragmented when this share of it is free between tensors."""
    inefficient_allocation_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """A function is named when less than this share of what is reserved is in tensors after it."""
    memory_leak_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.1
    """Of a function it is said whether more than this share of its calls add memory; that decides
    nothing."""
    min_calls_for_analysis: Annotated[int, Meta(ge=1)] = 50
    """Of a function with fewer calls it is not said."""


class StoreSection(Section, frozen=True, kw_only=True):
    """``[store]``: the history and its bounds."""

    flush: Seconds = Seconds(60)
    """Raw samples wait this long in memory, after a start only a tenth of the daemon's age; alerts
    are written at once."""
    max_db_mib: Annotated[int, Meta(ge=8)] = 256
    """Size that the database never exceeds; the oldest raw samples go first, alerts never."""
    min_free_mib: Annotated[int, Meta(ge=0)] = 500
    """Free disk space below which raw samples are not written."""
    raw: Seconds = Seconds(7 * 86400)
    """How long every sample of a device is kept."""
    process_raw: Seconds = Seconds(48 * 3600)
    """How long every sample of a process is kept."""
    minute: Seconds = Seconds(90 * 86400)
    """How long one-minute roll-ups of devices are kept."""
    process_minute: Seconds = Seconds(30 * 86400)
    """How long one-minute roll-ups of processes are kept."""
    hour: Seconds = Seconds(5 * 365 * 86400)
    """How long one-hour roll-ups are kept."""
    events: Seconds = Seconds(365 * 86400)
    """How long resolved alerts, deliveries and events are kept."""


class WebSection(Section, frozen=True, kw_only=True):
    """``[web]``: the live page and the JSON API of `gpuwatchctl web` (extra web)."""

    listen: str = "127.0.0.1:9753"
    """Address and port ("localhost:9753": by IPv4 and IPv6), "unix" or "unix:PATH" (a socket)."""
    hosts: tuple[str, ...] = ()
    """Host names accepted besides localhost, such as "gpu.example.org" of a proxy."""
    token_file: str = ""
    """File of its token, readable by you alone; by default web-token beside the history."""
    remote: bool = False
    """Allow listening elsewhere than on loopback; whoever reads the traffic then has the token."""


class MetricsSection(Section, frozen=True, kw_only=True):
    """``[metrics]``: what Prometheus scrapes (extra metrics); off by default."""

    listen: str = ""
    """Address and port such as "127.0.0.1:9750", "unix" or "unix:PATH"; empty: it listens
    nowhere."""
    file: str = ""
    """A file that the daemon writes for node_exporter's textfile collector, ending in .prom; empty:
    none."""
    compat: tuple[Literal["dcgm", "nvidia-smi", "nvitop"], ...] = ()
    """Whose names devices and processes have beside ours, for dashboards that exist: dcgm,
    nvidia-smi (nvidia_gpu_exporter), nvitop. Not beside such an exporter: it would be doubled."""
    remote: bool = False
    """Allow listening elsewhere than on loopback; only with a token."""
    token_file: str = ""
    """File of a token that who scrapes must send (authorization: credentials_file), readable by its
    owner alone; or a systemd credential named metrics-token."""


class Config(Section, frozen=True, kw_only=True):
    """The whole configuration."""

    daemon: DaemonSection = DaemonSection()
    sources: SourcesSection = SourcesSection()
    detection: DetectionSection = DetectionSection()
    policy: PolicySection = PolicySection()
    notify: NotifySection = NotifySection()
    endpoints: EndpointsSection = EndpointsSection()
    zombies: ZombiesSection = ZombiesSection()
    cost: CostSection = CostSection()
    checkpoints: CheckpointsSection = CheckpointsSection()
    act: ActSection = ActSection()
    probe: ProbeSection = ProbeSection()
    store: StoreSection = StoreSection()
    web: WebSection = WebSection()
    metrics: MetricsSection = MetricsSection()
    override: tuple[OverrideSection, ...] = ()
    """Other rules for some users, devices, frameworks or commands."""
