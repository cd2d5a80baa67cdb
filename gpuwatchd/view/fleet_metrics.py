"""The page of a fleet's worker: how its rounds go, and how many alerts are open; no GPU by name.

What is said of single GPUs goes to Alertmanager. Names and meanings: docs/how-to/fleet.md.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gpuwatchd import __version__
from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuwatchd.view.queries.fleet_state import FleetRoundState

_NAME = "gpuwatchd_fleet"
_STATES = ("pending", "watch", "firing")


def render(
    found: FleetRoundState, *, shard: str, rounds: int, judged: int, round_s: float | None
) -> bytes:
    """Return the page.

    Parameters
    ----------
    found
        What the last round has come to.
    shard
        Which of how many, such as "2/4".
    rounds, judged
        Rounds and judgements since the start.
    round_s
        How long the last round took; None before any.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(found, shard, (rounds, judged), round_s))
    return generate_latest(registry)


class _Page(Collector):
    def __init__(
        self,
        found: FleetRoundState,
        shard: str,
        since_start: tuple[int, int],
        round_s: float | None,
    ) -> None:
        self._found = found
        self._shard = shard
        self._since_start = since_start
        self._round_s = round_s

    def collect(self) -> Iterator[Any]:
        """Yield the families; called by the registry."""
        found = self._found
        rounds, judged = self._since_start
        yield _family("build_info", "Version and shard of the worker.", ("version", "shard"), {
            (__version__, self._shard): 1.0
        })  # fmt: skip
        yield CounterMetricFamily(f"{_NAME}_rounds", "Rounds that were done.", rounds)
        yield CounterMetricFamily(f"{_NAME}_judgements", "GPUs judged by the detectors.", judged)
        if self._round_s is not None:
            yield GaugeMetricFamily(
                f"{_NAME}_round_duration_seconds", "How long the last round took.", self._round_s
            )
        if found.at_s is not None:
            yield GaugeMetricFamily(
                f"{_NAME}_last_round_timestamp_seconds",
                "Instant of the values of the last round (since 1970).",
                found.at_s,
            )
        data = {"none": found.no_data, "late": found.late}
        data["fresh"] = max(0, found.gpus - sum(data.values()))
        yield _family("gpus", "GPUs, by whether they had a value.", ("data",), data)
        yield GaugeMetricFamily(
            f"{_NAME}_gpus_failed", "GPUs that could not be judged.", found.failed
        )
        states = Counter(gpu.state for gpu in found.verdicts)
        alerts = {state: states[state] for state in _STATES}
        yield _family("alerts", "Open alerts, by state.", ("state",), alerts)
        yield _counts("dropped", "Values and series left out, by why.", "reason", found.dropped)
        yield _counts("failures", "Questions without an answer.", "kind", found.failures)


def _family(
    name: str, meaning: str, labels: tuple[str, ...], values: Mapping[Any, float]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"{_NAME}_{name}", meaning, labels=labels)
    for of, value in values.items():
        family.add_metric([of] if isinstance(of, str) else list(of), value)
    return family


def _counts(name: str, meaning: str, label: str, values: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"{_NAME}_{name}", meaning, labels=[label])
    for of, value in values.items():
        family.add_metric([clean(of)], value)
    return family
