"""What the page for Prometheus costs: ``python -m tests.bench.bench_metrics``.

Eight GPUs with 64 processes each, some of which leak, with our names alone and with those of the
other exporters. Beside it, in the same run, prometheus-client writes the very same samples from
families that are made already: the ratio bears a busy machine, the milliseconds (of CPU time) less
so.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from gpuwatchd.view import metrics
from tests.bench.measuring import median_s
from tests.tui import world

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric


GPUS, PROCESSES = 8, 64
BUDGET_MS = 15.0
"""Within which a page should be made."""


class Made(Collector):
    """Families that are there already."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Yield them."""
        yield from self._families


def measure(runs: int) -> dict[str, dict[str, float]]:
    """Return the figures of a page with our names, and of one with all of them."""
    seen, found = world.state(GPUS, PROCESSES), {}
    for name, compat in (("ours", ()), ("all names", tuple(filter(None, metrics.DIALECTS)))):
        page = metrics.render(seen, compat=compat, host="h")
        families = list(text_string_to_metric_families(page.decode()))
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Made(families))
        render = partial(metrics.render, seen, compat=compat, host="h")
        ours = 1000 * median_s(render, runs, time.process_time)
        bare = 1000 * median_s(partial(generate_latest, registry), runs, time.process_time)
        samples = sum(len(family.samples) for family in families)
        assert len(generate_latest(registry)) == len(page)
        found[name] = {"samples": samples, "bytes": len(page), "ms": ours, "bare_ms": bare}
    return found


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="cost of the page for Prometheus")
    parser.add_argument("--runs", type=int, default=25)
    options = parser.parse_args()
    found = measure(options.runs)
    print(f"{GPUS} GPUs x {PROCESSES} processes; medians of {options.runs}; budget {BUDGET_MS} ms")
    print(f"{'':10} {'samples':>8} {'KiB':>6} {'ms':>7} {'bare ms':>8} {'ratio':>6}")
    for name, row in found.items():
        ratio = row["ms"] / row["bare_ms"]
        print(f"{name:10} {row['samples']:8.0f} {row['bytes'] / 1024:6.0f} {row['ms']:7.1f} "
              f"{row['bare_ms']:8.1f} {ratio:6.2f}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
