"""What was recorded on an H200 is read and judged as it was there."""

from __future__ import annotations

import lzma
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpuwatchd.collect.replay import read_log
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calls import Ctl

DATA = ROOT / "tests/data/h200"
MIB = 1 << 20


@pytest.mark.parametrize(
    ("leaker", "pattern", "rate_mb_per_min"),
    [
        ("leak_gradual", "gradual", 800),
        ("leak_steps", "gradual", 800),
        ("leak_cyclic", "cyclic", 800),
        ("sawtooth", "sawtooth", None),
        ("warmup_then_flat", "plateau", None),
    ],
)
def test_it_is_judged(ctl: Ctl, leaker: str, pattern: str, rate_mb_per_min: int | None) -> None:
    (log,) = ctl.data("analyze", str(DATA / f"{leaker}.csv"))
    verdict = next(s["verdict"] for s in log["subjects"] if s["process"] and s["samples"] > 20)
    assert verdict["pattern"] == pattern
    assert verdict["leak"] is (rate_mb_per_min is not None)
    if rate_mb_per_min:
        assert verdict["rate_bytes_per_s"] * 60e-6 == pytest.approx(rate_mb_per_min, rel=0.02)


def test_used_is_what_nvidia_smi_says() -> None:
    at_s, used, free, reserved, total, _ = np.loadtxt(DATA / "nvidia_smi.csv", delimiter=",").T
    assert np.abs(used + free + reserved - total).max() <= 2  # each is rounded
    (ours,) = read_log(DATA / "device.csv").series
    apart = np.interp(at_s, ours.t_s, ours.used_bytes / MIB) - used
    assert not apart[-2:].any()
    assert np.median(np.abs(apart)) < 300  # not read at the same moment


def test_the_snapshot_names_the_line(tmp_path: Path, ctl: Ctl) -> None:
    file = tmp_path / "leak.pickle"
    file.write_bytes(lzma.decompress((DATA / "leak_gradual.pickle.xz").read_bytes()))
    (log,) = ctl.data("analyze", str(file))
    assert [s["verdict"]["pattern"] for s in log["subjects"]] == ["gradual"] * 2
    assert any("_gpu.py:126 hold" in note for note in log["warnings"])
