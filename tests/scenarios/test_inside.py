"""What a probe is worth, on a few tuning items; ``bench --inside`` prints all figures."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from gpuwatchd.analysis import verdict
from gpuwatchd.core.config import DetectionSection
from gpuwatchd.core.model import Alert
from tests.conftest import present
from tests.scenarios import blind, inside, worlds
from tests.scenarios.bench import inside as bench
from tests.scenarios.bench import tables


def process(family: str, seed: int = 1000) -> inside.Probed:
    return present(inside.probed("lab", family, seed))


def test_every_cause_is_that_of_a_family() -> None:
    assert set(inside.CAUSES) <= set(worlds.FAMILIES) | set(blind.FAMILIES)
    assert {name.partition(":")[0] for name in inside.AGAIN} <= worlds.TUNING
    leaks = {name for name, cause in inside.CAUSES.items() if cause == "kept"}
    assert leaks <= set(worlds.LEAKS) | set(blind.LEAKS)
    ends = {name for name, cause in inside.CAUSES.items() if cause in {"written", "plain"}}
    assert ends <= set(worlds.BENIGN) | set(blind.BENIGN)


@pytest.mark.parametrize("family", ["segments", "segments:pieces", "outside_allocator"])
def test_the_allocator_stays_within_its_process(family: str) -> None:
    probed = process(family)
    seen = probed.allocator()
    used = np.interp(seen.t_s, probed.series.t_s, probed.series.used_bytes)
    assert (seen.allocated_bytes <= seen.reserved_bytes).all()
    assert (seen.reserved_bytes < used).all()
    grown = np.ptp(seen.allocated_bytes) / np.ptp(used)
    assert bool(grown > 0.9) is (family == "segments")
    grown = np.ptp(seen.reserved_bytes) / np.ptp(used)
    assert bool(grown < 0.1) is (family == "outside_allocator")


def test_a_walk_says_what_the_world_keeps() -> None:
    leak, fill = process("rate_changes"), process("long_fill")
    start_s = float(fill.series.t_s[0])
    for literal in (False, True):
        assert present(leak.walk(start_s + 900.0, literal=literal)).bounded_at_bytes is None
    found = present(fill.walk(start_s + 900.0, literal=True))
    assert found.bounded_at_bytes == pytest.approx(float(fill.kept.max()), rel=0.05)
    assert fill.walk(float(fill.series.t_s[-1]), literal=False) is None
    assert process("exp_warmup").walk(start_s + 60.0, literal=True) is None
    named = [process("flat", seed).unnamed for seed in range(1000, 1200)]
    assert np.mean(named) == pytest.approx(inside.UNNAMED, abs=0.06)


def test_the_answer_comes_forty_seconds_after_the_watch_has_opened() -> None:
    probed = process("segments")
    beside = inside.Beside(probed, facts=True)

    def seen(at_s: float, alert: Alert | None) -> float | None:
        end = int(np.searchsorted(probed.series.t_s, at_s, side="right"))
        known = msgspec.structs.replace(
            probed.series, t_s=probed.series.t_s[:end], used_bytes=probed.series.used_bytes[:end]
        )
        series = beside(known, alert)
        assert present(series.allocator).t_s[-1] <= at_s
        return None if series.holder is None else series.holder.at_s

    open_s = float(probed.series.t_s[0]) + 600.0
    finding = verdict.judge(probed.series, DetectionSection())
    watch = Alert(
        key="leak", kind="leak", subject=finding.subject, state="watch", severity="info",
        finding=finding, opened_at_s=open_s - 60.0, changed_at_s=open_s, watch_at_s=open_s,
    )  # fmt: skip
    pending = msgspec.structs.replace(watch, state="pending", watch_at_s=None)
    assert seen(open_s + 300.0, None) is seen(open_s + 300.0, pending) is None
    assert seen(open_s + 35.0, watch) is None
    assert seen(open_s + 80.0, watch) == pytest.approx(open_s + inside.WALK_S)
    assert seen(open_s + 300.0, None) == pytest.approx(open_s + inside.WALK_S)


def test_no_leak_is_lost_and_no_alert_is_added() -> None:
    chosen = [("segments", 1000), ("rate_changes", 1000), ("unfreeze_steps", 1001)]
    rows = [row for item in chosen for row in bench.of_process(("tuning", *item))]
    lines = {line["view"]: line for line in bench.figures(rows)}
    curve, informed, literal = (lines[view] for view in ("curve", "informed", "literal"))
    assert (curve["found"], informed["found"], literal["found"]) == (2, 2, 2)
    assert curve["harmless_alerted"] == informed["harmless_alerted"] == 0
    assert literal["harmless_alerted"] == 0
    assert informed["lost"] == informed["later"] == literal["lost"] == literal["later"] == 0
    assert informed["earlier"][1] > 3.0
    assert informed["left_median"] > curve["left_median"]
    assert tables.inside(list(lines.values())).count("\n") == 1 + len(bench.VIEWS)
