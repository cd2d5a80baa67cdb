"""The documented examples are caught with default settings; the harmless ones are not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conftest import present
from tests.scenarios import documented
from tests.scenarios.replay import Life, replay
from tests.scenarios.world import GIB

if TYPE_CHECKING:
    from gpuwatchd.core.model import Series

MINUTE = 60.0


def _named_by(life: Life, names: set[str], at_s: float) -> bool:
    """Say whether the pattern was named and at least watched some time before ``at_s``."""
    return any(p in names and tier != "none" for at, p, tier in life.patterns if at <= at_s)


@pytest.mark.parametrize("interval_s", [5.0, 1.0])
@pytest.mark.requirement("W6")
def test_fast_leak_is_watched_and_alerted_in_time(
    interval_s: float,
) -> None:
    life = replay(documented.fast(interval_s), until_s=600 + 620)
    onset = 600.0
    assert 0.0 < present(life.watch_s) - onset <= 90.0
    assert present(life.alert_s) - onset <= 420.0
    assert present(life.alert).severity == "critical"
    oom_s = onset + 60 * 1024 / 40
    assert present(present(life.alert).eta).mid_s == pytest.approx(
        oom_s - present(life.alert_s), rel=0.1
    )


@pytest.mark.parametrize(
    ("mb_per_min", "sd_mib", "watch_min", "hours", "quiet_s"),
    [
        (50.0, 8.0, 15.0, 0.5, 0.0),
        (50.0, 50.0, 15.0, 0.5, 0.0),
        (50.0, 8.0, 15.0, 1.5, 3600.0),
        (12.4, 8.0, 15.0, 0.5, 0.0),
        (12.4, 50.0, 40.0, 0.8, 0.0),
        (3.0, 50.0, 180.0, 3.1, 0.0),
    ],
)
@pytest.mark.requirement("B1", "B2", "B19", "G18")
def test_steady_leak_is_watched_in_time(
    mb_per_min: float, sd_mib: float, watch_min: float, hours: float, quiet_s: float
) -> None:
    life = replay(documented.line(mb_per_min, sd_mib, hours, quiet_s=quiet_s))
    assert present(life.watch_s) - quiet_s <= watch_min * MINUTE
    assert present(life.watch).pattern == "gradual"


@pytest.mark.requirement("B2")
def test_blog_leak_is_alerted_while_most_of_the_time_is_left() -> None:
    life = replay(documented.line(50.0, 8.0, 2.0), stop_at_alert=True)
    assert life.alert is not None
    assert present(life.alert_s) <= 75 * MINUTE
    rate = 50e6 / 60
    assert life.alert.rate_bytes_per_s == pytest.approx(rate, rel=0.05)
    left = (24 * GIB - 12e9) / rate - present(life.alert_s)
    assert present(life.alert.eta).low_s <= left
    assert present(life.alert.eta).mid_s == pytest.approx(left, rel=0.1)


@pytest.mark.parametrize(
    ("series", "names", "watch_s"),
    [
        (documented.epoch_stairs(), {"step"}, 4 * 600 + 120),
        (documented.reload_stairs(), {"step"}, 4 * 420 + 120),
        (documented.reload_sawtooth(), {"step", "cyclic"}, 5 * 420 + 120),
        (documented.rising_peaks(), {"cyclic"}, 6 * 300 + 120),
    ],
    ids=["epoch-stairs", "reload-stairs", "reload-sawtooth", "rising-peaks"],
)
@pytest.mark.requirement("W7")
def test_repeating_growth_is_named(series: Series, names: set[str], watch_s: float) -> None:
    life = replay(series)
    assert _named_by(life, names, watch_s)
    assert present(life.alert).pattern in names


@pytest.mark.parametrize("name", sorted(documented.harmless()))
@pytest.mark.requirement("M32", "W4")
def test_harmless_series_do_not_alert(name: str) -> None:
    life = replay(documented.harmless()[name])
    assert life.alert_s is None, life.alert
