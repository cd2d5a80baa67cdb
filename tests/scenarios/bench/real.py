"""Series that real machines recorded: nothing is tuned on them, they are only looked at."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from gpuwatchd.collect.replay import read_log
from gpuwatchd.core.config import Config
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.core.model import Series
from gpuwatchd.pipeline.replay import analyze
from tests.scenarios import rivals

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.collect.replay import LogFile, LogSeries

LEAST_SAMPLES = 20


def recordings(folder: Path) -> list[dict[str, Any]] | str:
    """Return one row per recording of the folder's manifest, or why there is none."""
    manifest = folder / "manifest.json"
    if not manifest.is_file():
        return "the folder of recordings is not here"
    rows = []
    for entry in json.loads(manifest.read_text(encoding="utf-8")):
        path = folder / entry["file"]
        if path.is_file():
            rows.append(recording(path, str(entry.get("label", "unknown"))))
    return rows or "the manifest names no file that is there"


def recording(path: Path, label: str) -> dict[str, Any]:
    """Return what would have been raised, live, on one recording."""
    row: dict[str, Any] = {"file": path.name, "label": label}
    try:
        log = read_log(path)
        results = analyze(log, Config())
    except GpuwatchdError as error:
        return row | {
            "subjects": 0, "hours": 0.0, "watched": 0, "alerted": 0, "called": str(error),
            "rivals": {}, "error": str(error),
        }  # fmt: skip
    called = Counter(result.finding.pattern for result in results if result.finding is not None)
    return row | {
        "subjects": len(results),
        "hours": sum(result.ended_at_s - result.started_at_s for result in results) / 3600.0,
        "watched": sum(bool(result.watches) for result in results),
        "alerted": sum(bool(result.alerts) for result in results),
        "called": ", ".join(f"{name} {count}" for name, count in called.most_common(4)),
        "rivals": _rivals(log),
        "error": None,
    }


def _rivals(log: LogFile) -> dict[str, int]:
    """Return how many subjects each rule of others alarms on, as documented."""
    out: dict[str, int] = {rival.name: 0 for rival in rivals.RIVALS}
    for one in log.series:
        if one.t_s.size < LEAST_SAMPLES:
            continue
        for name, times in rivals.first_alarms(series_of(one)).items():
            out[name] += times[0] is not None
    return out


def series_of(one: LogSeries) -> Series:
    """Return a recorded series as it is judged."""
    total = one.device.memory_total_bytes
    return Series(
        subject=one.subject, t_s=one.t_s, used_bytes=one.used_bytes, limit_bytes=one.limit_bytes,
        total_bytes=None if total is None else float(total),
    )  # fmt: skip


def totals(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return subjects, hours and alerts by label."""
    out: dict[str, Any] = {}
    for row in rows:
        one = out.setdefault(
            row["label"], {"subjects": 0, "hours": 0.0, "watched": 0, "alerted": 0}
        )
        for key in one:
            one[key] += row[key]
    return dict(sorted(out.items()))
