"""What a worker of ``gpuwatchd fleet`` says of one round."""

from __future__ import annotations

from typing import Literal

from gpuwatchd.core.model import AlertState
from gpuwatchd.view.answers.base import Bytes, Count, Instant, Shape, Verdict, of_verb


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


class FleetRoundData(Shape):
    """One round: what was looked at, and what came of it."""

    at: Instant | None
    """The instant of the values; null before any."""
    gpus: Count
    no_data: Count
    """GPUs without a value for five minutes."""
    judged: Count
    """By the detectors; the screens have settled the rest."""
    failed: Count
    """GPUs that could not be judged."""
    resolved: Count
    """Alerts that this round has ended."""
    dropped: dict[str, int]
    """Why -> values and series that were left out, since the start."""
    failures: dict[str, int]
    """Question and status -> how often it failed, since the start."""
    verdicts: tuple[FleetVerdict, ...]


FleetRound = of_verb("fleet", "FleetRound", FleetRoundData, "A round of a fleet's worker.")
