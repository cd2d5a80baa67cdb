"""``doctor``, ``check``, ``config``, ``service``, ``release``, ``web``, ``demo``; words of jobs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from gpuwatchd.view.answers.base import (
    AsItIs,
    Bytes,
    Count,
    DeviceId,
    Eta,
    Instant,
    Pid,
    ProcessId,
    Seconds,
    Sentence,
    Shape,
    Share,
    Verdict,
    of_verb,
    sources,
)

Setting = None | bool | int | float | str | list[Any] | dict[str, Any]
"""A value of the configuration, as TOML has it."""


class CheckShape(Shape):
    """One answer of the doctor."""

    name: str
    level: Literal["ok", "warning", "failed"]
    text: Sentence
    hint: Sentence
    """The command (or step) that fixes it; empty where nothing is wrong."""
    id: str
    """What is wrong, the same in every version; where nothing is, the check that says so."""
    page: str
    """Page of the documentation; empty where nothing is wrong."""


class Performance(Shape):
    """One value of the performance data."""

    label: str
    value: float | None
    """Null: unknown."""
    unit: Literal["", "s", "%", "B", "c"]
    warning: str | None
    """A range of the guidelines for monitoring plug-ins."""
    critical: str | None
    min: float | None
    max: float | None
    FROM = sources(
        warning=lambda perf: perf.warn and str(perf.warn),
        critical=lambda perf: perf.crit and str(perf.crit),
        min="low",
        max="high",
    )


class PluginData(Shape):
    """What a monitoring system gets."""

    mode: Literal["all", "leak", "eta", "used", "zombies", "daemon"]
    state: Literal["OK", "WARNING", "CRITICAL", "UNKNOWN"]
    """In the letters of the guidelines for monitoring plug-ins."""
    exit_code: Annotated[int, Meta(ge=0, le=3)]
    text: Sentence
    details: tuple[Sentence, ...]
    perfdata: tuple[Performance, ...]
    FROM = sources(exit_code="state", perfdata="perf")


class ConfigFile(Shape):
    """A file that is looked for."""

    path: str
    exists: bool


class ConfigPaths(Shape):
    """Where things are."""

    files: tuple[ConfigFile, ...]
    state_dir: str
    runtime_dir: str


class ConfigKey(Shape):
    """One key."""

    key: str
    value: Setting
    """Secrets are `****`."""
    default: Setting
    origin: str
    """default, a file, environment, flag."""


class Written(Shape):
    """What was written."""

    written: str


class Mix(Shape):
    """How often a confidence threshold is right, in one mix of harmless runs."""

    f1: Share
    false_alerts_per_day: float
    """Per harmless GPU-day."""
    false_alerts_low_per_day: float
    """Lower end of the 95 % interval."""
    false_alerts_high_per_day: float
    ramps_per_day: float
    """Straight harmless ramps of 20 minutes or more a GPU-day, which nothing can tell from leaks
    before they stop: figures of different rates cannot be compared."""


class ThresholdFigures(Shape):
    """What the benchmark of detection measured at one confidence threshold."""

    alert_confidence: Share
    field: Mix
    """Harmless runs weighed by how often their like was seen in public telemetry."""
    hard: Mix
    """All families alike: they are made to be hard."""
    lead_share: Share | None
    """Share of the time from onset to out-of-memory that is left at the alert, median of the leaks
    that were found."""
    left_10_min_share: Share | None
    """Share of all leaks that leave at least so long at the alert; a missed one leaves nothing."""
    left_30_min_share: Share | None
    left_60_min_share: Share | None


class OperatingPoint(Shape):
    """One confidence threshold."""

    sensitivity: Literal["early", "balanced", "quiet"] | None
    """Null: a threshold without a name."""
    alert_confidence: Share
    in_force: bool
    nearest: bool
    """Measured next to one that is in force and was not."""
    figures: ThresholdFigures | None
    """Null: none were measured for it."""


class Validated(Shape):
    """Whether a configuration can be used, and what follows from it."""

    files: tuple[str, ...]
    valid: bool
    problems: tuple[str, ...]
    consequences: tuple[str, ...]
    rules: tuple[str, ...]
    operating_points: tuple[OperatingPoint, ...]
    """Each sensitivity, and what is in force, by ascending threshold."""
    measured_on: str
    """Set of simulated runs that the figures are of, all other keys at their defaults."""


class Done(Shape, kw_only=True):
    """What was done, step by step."""

    dry_run: bool | UnsetType = UNSET
    """Only of ``install`` and ``uninstall``: only said what would be done."""
    done: tuple[str, ...]


class ServiceNow(Shape):
    """State of the service, as the service manager reports it."""

    running: bool
    state: Literal["running", "starting", "stopping", "stopped", "failed", "not-installed"]
    text: AsItIs
    enabled: bool | None
    """It starts by itself at the next login or boot."""
    since_at: Instant | None
    """Since when it runs, or does not."""
    pid: Pid | None
    restarts: Count | None
    result: AsItIs | None
    """How it ended last, in the manager's word; null for success."""
    exit_code: int | None
    memory_bytes: Bytes | None
    memory_max_bytes: Bytes | None
    watchdog_s: Seconds | None
    file: AsItIs | None
    beside: tuple[AsItIs, ...]
    """Files that change it."""
    log: tuple[AsItIs, ...]
    hints: tuple[AsItIs, ...]


class Unit(Shape):
    """The unit or property list."""

    manager: str
    unit: str


class ReleaseData(Shape, kw_only=True):
    """Whether the daemon has let go of the driver."""

    until_at: Instant | None
    """Null with ``--end``."""
    daemon: ProcessId | UnsetType | None = UNSET
    """Who was asked; absent with ``--end``."""
    released: bool | None
    """Null: asked, not waited for."""
    open_files: tuple[str, ...] | UnsetType | None = UNSET
    """Device files that it still holds; null where they cannot be seen."""
    was_released: bool | UnsetType = UNSET
    """Only with ``--end``."""


class Saved(Shape):
    """A job that reported that it has saved its work."""

    pid: Pid
    started_at: Instant | None
    saved_at: Instant
    said_by: str
    daemon_running: bool
    FROM = sources(pid="process.pid", started_at="process.started_at")


class Asked(Shape):
    """A job that was asked to save its work."""

    process: ProcessId
    asked: bool
    """False: nothing was done, only printed."""
    result: str


class Held(Shape):
    """A process on which the daemon takes no step by itself."""

    process: ProcessId
    name: str | None
    """Null: it has ended, or cannot be seen."""
    until_at: Instant
    cleared: bool
    """It was taken back just now."""


# ``web``.


class Serving(Shape):
    """Address and token of the live page."""

    url: str | None
    """With the token; null of a unix socket, with --token, and where the output is no terminal."""
    listens: str | None
    """Without it: http://ADDRESS or unix:PATH; null with --token, which serves nothing."""
    token: str | None
    """Null where the output is no terminal and --token was not given: token_file has it."""
    token_file: str


class MetricsPage(Shape):
    """The page that Prometheus scrapes, as it is now."""

    page: AsItIs
    url: str | None
    """Where the daemon serves it: http://ADDRESS/metrics or unix:PATH; null: it does not."""
    file: str | None
    """Where the daemon writes it for node_exporter; null: it does not."""


# ``demo``, ``completion``, ``docs`` and ``schema``: what is about gpuwatchd itself.


class DemoStarted(Shape):
    """The first line."""

    event: Literal["started"]
    world_s: Seconds
    title: str
    note: str


class DemoEvent(Shape):
    """Something that happened in the simulated world."""

    event: Literal[
        "watch",
        "alert",
        "escalated",
        "cleared",
        "recovered",
        "crashed",
        "pop-up",
        "message",
        "step",
    ]
    world_s: Seconds
    """Seconds of that world since the demo began."""
    at: Instant
    text: AsItIs
    key: str | UnsetType = UNSET
    """This and the following: where an alert is meant."""
    device: DeviceId | UnsetType | None = UNSET
    pid: Pid | UnsetType | None = UNSET
    started_at: Instant | UnsetType | None = UNSET
    verdict: Verdict | UnsetType = UNSET
    FROM = sources(
        pid="subject.process.pid", started_at="subject.process.started_at", verdict="finding"
    )


class Scored(Shape):
    """One program of the script, and what was found."""

    program: str
    planted: str
    leak: bool
    found: str
    watch_s: Seconds | None
    alert_s: Seconds | None
    eta: Eta | None
    true_eta_s: Seconds | None
    """From the first alert to the real end; null: never."""
    right: bool


class DemoSummary(Shape):
    """The last line."""

    event: Literal["summary"]
    world_s: Seconds
    text: str
    rows: tuple[Scored, ...]


class Script(Shape):
    """A completion script."""

    shell: Literal["bash", "zsh", "fish"]
    script: str


class SectionName(Shape):
    """A section of a page."""

    section: str
    title: str
    level: Count
    FROM = sources(section="anchor")


class PageText(Shape):
    """A page of the documentation."""

    page: str
    kind: str | None
    """tutorial, how-to, reference, explanation."""
    title: str
    section: str | None
    sections: tuple[SectionName, ...]
    text: AsItIs
    FROM = sources(page="name")


class PageName(Shape):
    """A page that there is."""

    page: str
    kind: str | None
    title: str
    FROM = sources(page="name")


class Hit(Shape):
    """Where the words occur."""

    page: str
    section: str
    title: str
    line: str
    FROM = sources(section="anchor")


class SchemaName(Shape):
    """A schema that there is."""

    name: str
    id: str
    title: str


Doctor = of_verb("doctor", "Doctor", tuple[CheckShape, ...], "``doctor``.")
Check = of_verb("check", "Check", PluginData, "``check``.")
ConfigPath = of_verb("config", "ConfigPath", ConfigPaths, "``config path``.")
ConfigPrint = of_verb("config", "ConfigPrint", tuple[ConfigKey, ...], "``config print``.")
ConfigInit = of_verb("config", "ConfigInit", Written, "``config init``.")
ConfigValidate = of_verb("config", "ConfigValidate", Validated, "``config validate``.")
ServiceDone = of_verb(
    "service",
    "ServiceDone",
    Done,
    "``service install``, ``uninstall``, ``start``, ``stop`` and ``restart``.",
)
ServiceStatus = of_verb("service", "ServiceStatus", ServiceNow, "``service status``.")
ServicePrint = of_verb("service", "ServicePrint", Unit, "``service print``.")
DriverRelease = of_verb("release", "DriverRelease", ReleaseData, "``release``.")
Checkpointed = of_verb("checkpointed", "Checkpointed", tuple[Saved, ...], "``checkpointed``.")
AskCheckpoint = of_verb("ask-checkpoint", "AskCheckpoint", Asked, "``ask-checkpoint``.")
ProcessHolds = of_verb("hold", "ProcessHolds", tuple[Held, ...], "``hold``.")
Web = of_verb("web", "Web", Serving, "``web``, once it answers, and ``web --token``.")
Metrics = of_verb("metrics", "Metrics", MetricsPage, "``metrics``.")
DemoBegins = of_verb("demo", "DemoBegins", DemoStarted, "``demo``, first line.")
DemoGoesOn = of_verb("demo", "DemoGoesOn", DemoEvent, "``demo``, a line per event.")
DemoEnds = of_verb("demo", "DemoEnds", DemoSummary, "``demo``, last line.")
Completion = of_verb("completion", "Completion", Script, "``completion``.")
PageShown = of_verb("docs", "PageShown", PageText, "``docs PAGE``.")
Pages = of_verb("docs", "Pages", tuple[PageName, ...], "``docs --list``.")
PagesFound = of_verb("docs", "PagesFound", tuple[Hit, ...], "``docs --search``.")
Schemas = of_verb("schema", "Schemas", tuple[SchemaName, ...], "``schema --json`` without a name.")
