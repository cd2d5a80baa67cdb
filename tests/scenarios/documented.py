"""The examples that documents of the trade give, and harmless series not to confuse with them.

``python -m tests.scenarios.documented`` prints when each is watched and alerted by default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tests.scenarios.replay import make, replay
from tests.scenarios.world import GIB, HOUR, MIB

if TYPE_CHECKING:
    from gpuwatchd.core.model import Series
    from tests.scenarios.world import Array

MB = 1e6


def clock(hours: float, interval_s: float = 5.0) -> Array:
    """Return sample times."""
    return np.arange(0.0, hours * HOUR, interval_s)


def series(t: Array, x: Array, total_gib: float = 24.0, *, sd_mib: float = 0.0) -> Series:
    """Return the series in quanta of 2 MiB, with white noise."""
    noise = np.random.default_rng(5).normal(0.0, sd_mib * MIB, t.size) if sd_mib else 0.0
    return make(t + 1.7e9, np.round((x + noise) / (2 * MIB)) * 2 * MIB, total_gib * GIB)


def fast(interval_s: float) -> Series:
    """40 MiB/s on an 80 GB card from 20 GiB; ten quiet minutes before."""
    t = clock(0.55, interval_s)
    return series(t, 20 * GIB + 40 * MIB * np.maximum(t - 600.0, 0.0), 80.0)


def line(mb_per_min: float, sd_mib: float, hours: float, *, quiet_s: float = 0.0) -> Series:
    """Steady growth from 12 GB on a 24 GB card."""
    t = clock(hours)
    return series(t, 12e9 + mb_per_min * MB / 60 * np.maximum(t - quiet_s, 0.0), sd_mib=sd_mib)


def epoch_stairs() -> Series:
    """+500 MB every 10 minutes."""
    t = clock(3.0)
    return series(t, 8e9 + np.floor(t / 600) * 500 * MB, sd_mib=8.0)


def rising_peaks() -> Series:
    """A 5-minute cycle of 3 GB whose floor and peaks rise by 120 MB each."""
    t = clock(3.0)
    return series(t, 6e9 + np.floor(t / 300) * 120 * MB + 3e9 * ((t % 300) / 300), sd_mib=8.0)


def reload_sawtooth() -> Series:
    """A 5 GB model loaded and unloaded every 7 minutes; 298 MB stay each time."""
    t = clock(3.0)
    loaded = (t % 420 > 30) & (t % 420 < 360)
    return series(t, 1e9 + np.floor(t / 420) * 298 * MB + 5e9 * loaded)


def reload_stairs() -> Series:
    """+298 MB at each reload, the model staying in memory."""
    t = clock(3.0)
    return series(t, 6e9 + np.floor(t / 420) * 298 * MB)


def harmless() -> dict[str, Series]:
    """Return the series that must not alert."""
    t = clock(3.0)
    rng = np.random.default_rng(9)
    day = np.zeros(t.size)
    for k, (begin, length) in enumerate(((120, 900), (1300, 2400), (4000, 1500), (5900, 4000))):
        age = t - begin
        job = (3e9 + 4e9 * k) * (0.75 + 0.25 * (1 - np.exp(-np.maximum(age, 0) / 90)))
        day = np.where((age >= 0) & (age < length), job, day)
    wave = np.convolve(rng.normal(0.0, 1.0, t.size + 119), np.ones(120), "valid")
    spikes = 2.5e9 * ((t % 1500) < 20)
    return {
        "warm-up": series(t, 4e9 + 6e9 * (1 - np.exp(-t / 900)), sd_mib=8.0),
        "model-load": series(t, np.minimum(1e9 + t * 100e6, 15e9), sd_mib=8.0),
        "train-eval": series(t, 6e9 + 3e9 * (t % 600 > 480), sd_mib=8.0),
        "noise": series(t, np.full(t.size, 6e9), sd_mib=100.0),
        "saturating-cache": series(t, 6e9 + 5e9 * (1 - np.exp(-t / 1500)), sd_mib=2.0),
        "spikes": series(t, 6e9 + spikes, sd_mib=8.0),
        "developer-day": series(t, 0.4e9 + day, sd_mib=4.0),
        "serving-load": series(t, 9e9 + 40e6 * wave),
        "preallocated": series(t, np.where(t < 60, 0.5e9, 23.2e9)),
        "neighbours": series(
            t, 6e9 + 2e9 * ((t > 1500) & (t < 4000)) + 3e9 * ((t > 3000) & (t < 9000))
        ),
        "flat": series(t, np.full(t.size, 6e9)),
    }


def examples() -> dict[str, tuple[Series, float]]:
    """Return each leak with its onset, seconds after its first sample."""
    return {
        "40 MiB/s on 80 GB": (fast(5.0), 600.0),
        "50 MB/min, noise 8 MiB": (line(50.0, 8.0, 3.5), 0.0),
        "50 MB/min, noise 50 MiB": (line(50.0, 50.0, 3.5), 0.0),
        "12.4 MB/min, noise 8 MiB": (line(12.4, 8.0, 6.0), 0.0),
        "12.4 MB/min, noise 50 MiB": (line(12.4, 50.0, 6.0), 0.0),
        "3 MB/min, noise 50 MiB": (line(3.0, 50.0, 8.0), 0.0),
        "500 MB per epoch of 10 min": (epoch_stairs(), 600.0),
        "298 MB per reload, loaded": (reload_stairs(), 420.0),
        "298 MB per reload, unloaded": (reload_sawtooth(), 420.0),
        "rising peaks, 120 MB per 5 min": (rising_peaks(), 300.0),
    }


def main() -> None:
    """Print when each example is watched and alerted, in minutes after its onset."""
    print(f"{'example':32} {'watch':>7} {'alert':>7}  pattern")
    for name, (whole, onset_s) in examples().items():
        life = replay(whole)
        cells = [
            "-" if at_s is None else f"{(at_s - onset_s) / 60:.1f}"
            for at_s in (life.watch_s, life.alert_s)
        ]
        print(f"{name:32} {cells[0]:>7} {cells[1]:>7}  {life.pattern}")
    for name, whole in harmless().items():
        life = replay(whole)
        print(
            f"harmless: {name:22} {life.watches:4} watches {life.alerts:2} alerts  {life.pattern}"
        )


if __name__ == "__main__":
    main()
