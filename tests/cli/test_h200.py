"""What was recorded on an H200 is read and judged as it was there."""

from __future__ import annotations

import lzma
import pickle
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
    ("leaker", "pattern", "rate_mb_per_min", "code"),
    [
        ("leak_gradual", "gradual", 800, 3),
        ("leak_steps", "gradual", 800, 0),
        ("leak_cyclic", "cyclic", 800, 0),
        ("sawtooth", "sawtooth", None, 0),
        ("warmup_then_flat", "plateau", None, 0),
    ],
)
def test_it_is_judged(
    ctl: Ctl, leaker: str, pattern: str, rate_mb_per_min: int | None, code: int
) -> None:
    (log,) = ctl.data("analyze", str(DATA / f"{leaker}.csv"), code=code)
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


def test_the_snapshots_name_the_line(tmp_path: Path, ctl: Ctl) -> None:
    whole = lzma.decompress((DATA / "leak_gradual.pickle.xz").read_bytes())
    (file := tmp_path / "leak.pickle").write_bytes(whole)
    (earlier := tmp_path / "earlier.pickle").write_bytes(_earlier(whole, event_count=2000))
    answer = ctl.json("analyze", str(file), str(earlier), code=3)
    log = answer["data"][0]
    assert [s["verdict"]["pattern"] for s in log["subjects"]] == ["gradual"] * 2
    (site,) = log["snapshot"]["sites"]
    assert (site["file"], site["line"], site["function"]) == (
        "contrib/leakers/_gpu.py",
        126,
        "hold",
    )
    assert (site["kind"], site["block_count"]) == ("line", 2955)
    change = answer["change"]
    assert (change["before"], change["same_process"]) == (str(earlier), True)
    (site,) = change["sites"]
    assert site["change_bytes"] == 2 * MIB * site["change_blocks"] > 1000 * MIB


def _earlier(whole: bytes, *, event_count: int) -> bytes:
    """Return the snapshot as it would have been after so many of its events."""
    data = pickle.loads(whole)
    events = data["device_traces"][0][:event_count]
    known = {(event["action"], event["addr"]) for event in events}
    data["device_traces"] = [events]
    data["segments"] = [
        each for each in data["segments"] if ("segment_alloc", each["address"]) in known
    ]
    for segment in data["segments"]:
        for block in segment["blocks"]:
            if ("alloc", block["address"]) not in known:
                block["state"] = "inactive"
    return pickle.dumps(data)
