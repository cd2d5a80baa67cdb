"""What a worker of ``gpuwatchd fleet`` says of a round, and what its state file tells."""

from __future__ import annotations

from typing import Literal

from gpuwatchd.core.model import AlertState
from gpuwatchd.view.answers.base import (
    Bytes,
    Count,
    FilePath,
    Instant,
    Pid,
    Seconds,
    Sentence,
    Shape,
    Verdict,
    of_verb,
    sources,
)


class FleetFailingMember(Shape):
    """A member of Alertmanager that does not take alerts, or not all of them."""

    name: str
    error: Sentence
    since_at: Instant


class FleetVerdict(Shape):
    """A GPU whose judgement is more than nothing, or whose alert is open."""

    id: str
    """The UUID, with instance and host where it takes these to be told apart."""
    uuid: str
    host: str
    gpu: str
    """Its number on the host, as its exporter counts; may be empty."""
    instance: str
    """Of a MIG instance; may be empty."""
    job: str
    """As the labels name it; may be empty."""
    namespace: str
    state: AlertState | Literal["none"]
    """Of its alert: what the judgements of several rounds come to."""
    data: Literal["fresh", "late", "none"]
    """Whether it had a value in this round; none: not for five minutes, and nothing is judged."""
    used_bytes: Bytes | None
    limit_bytes: Bytes | None
    verdict: Verdict
    FROM = sources(verdict="finding")


class FleetAlert(Shape):
    """What the judgements of several rounds come to."""

    key: str
    state: AlertState
    opened_at: Instant
    firing_at: Instant | None
    confirmations: Count
    """Rounds in a row that support at least a watch."""
    alert_confirmations: Count


class FleetRoundData(Shape):
    """One round: what was looked at, and what came of it."""

    at: Instant | None
    """The instant of the values; null before any."""
    gpus: Count
    """With --gpu this, `no_data` and `late` are of the GPUs that it names."""
    no_data: Count
    """GPUs without a value for five minutes."""
    late: Count
    """GPUs without a value in this round alone."""
    judged: Count
    """By the detectors; the screens have settled the rest: those are calm."""
    failed: Count
    """GPUs that could not be judged."""
    resolved: Count
    """Alerts that this round has ended."""
    dropped: dict[str, int]
    """Why -> values and series that were left out, since the start."""
    failures: dict[str, int]
    """Question and status -> how often it failed, since the start."""
    verdicts: tuple[FleetVerdict, ...]


class FleetWorker(Shape):
    """One worker, as its state file has it."""

    file: FilePath
    shard: str
    """Which of how many, such as 2/4."""
    server: str
    host: str
    """Where it runs; there `pid` is its process."""
    pid: Pid
    version: str
    running: bool
    """False: it has stopped, its process has ended, or it has done nothing since it had to."""
    process_runs: bool | None
    """Whether that process is still there; null of another machine or container."""
    stopped: bool
    """It has stopped in order."""
    started_at: Instant
    written_at: Instant
    due_at: Instant
    """When its next round begins."""
    rounds: Count
    round_s: Seconds | None
    """How long the last one took."""
    round_at: Instant | None
    """When it ended; null before any."""
    dry_run: bool
    """It sends no alerts."""
    error: Sentence | None
    """Why there was no round since; null where the last try was one."""
    failed_at: Instant | None
    """When something in `round.failures` failed last; null: nothing has since the start."""
    failing_members: tuple[FleetFailingMember, ...]
    """Members of Alertmanager that do not take alerts now."""
    left_out: Count
    """GPUs that the file has no room for."""
    round: FleetRoundData


class FleetStatusData(Shape):
    """All workers whose state is here."""

    workers: tuple[FleetWorker, ...]


class FleetExplained(Shape):
    """What a worker knows of one GPU."""

    id: str
    host: str
    gpu: str
    data: Literal["fresh", "late", "none"]
    calm_since_at: Instant | None
    """The first round from which there is nothing to say of it; null where there is."""
    verdict: FleetVerdict | None
    """Null of a calm GPU."""
    judged_at: Instant | None
    alert: FleetAlert | None
    """Null where none is open."""
    worker: FleetWorker
    """Its round has this GPU alone."""


FleetRound = of_verb("fleet", "FleetRound", FleetRoundData, "A round of a fleet's worker.")
FleetStatus = of_verb("fleet", "FleetStatus", FleetStatusData, "``fleet status``.")
FleetExplain = of_verb("fleet", "FleetExplain", FleetExplained, "``fleet explain``.")
