"""Series that real machines recorded: nothing was tuned on them, they are only looked at."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.collect.replay import read_log
from tests.conftest import present
from tests.scenarios.bench.real import series_of
from tests.scenarios.replay import Life, replay

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.shared_data


def lives(path: Path) -> list[tuple[str, Life]]:
    """Return the life of every subject of a log."""
    out = []
    for one in read_log(path).series:
        if one.t_s.size < 2:
            continue
        out.append((one.subject.id, replay(series_of(one))))
    return out


def test_no_recorded_harmless_series_alerts(shared_data: Path) -> None:
    manifest = json.loads((shared_data / "traces" / "manifest.json").read_text())
    files = [
        shared_data / "traces" / entry["file"]
        for entry in manifest
        if entry.get("label") == "no-leak"
    ]
    files = [path for path in files if path.is_file()]
    assert files
    seen = 0
    for path in files:
        for subject, life in lives(path):
            seen += 1
            assert life.alert is None, (path.name, subject, life.alert)
    assert seen >= len(files)


def test_a_recorded_row_of_model_reloads_is_seen(shared_data: Path) -> None:
    found = lives(shared_data / "traces" / "issues" / "ollama_10597_model_reload.csv")
    assert found
    last = present(found[0][1].last)
    assert last.tier == "watch"
    assert last.rate_bytes_per_s == pytest.approx(298e6 / 60, rel=0.1)
