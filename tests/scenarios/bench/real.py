"""Series that real machines recorded: nothing is tuned on them, they are only looked at."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from gpuwatchd.collect.logs.formats import corpus
from gpuwatchd.collect.replay import opened, preview, read_log
from gpuwatchd.core.config import Config
from gpuwatchd.core.decoding import decode
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.core.model import Series
from gpuwatchd.pipeline.replay import analyze
from tests.scenarios import rivals
from tests.scenarios.bench import ramps
from tests.scenarios.bench.figures import poisson_bound

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpuwatchd.collect.replay import LogSeries
    from gpuwatchd.core.model import Subject
    from gpuwatchd.pipeline.replay import Event, SubjectResult

LEAST_SAMPLES = 20
REST = "unattributed"
"""Is not judged by itself."""
DAY_S = 86400.0
COUNTED = (
    "subjects", "hours", "gpu_days", "ramps", "watched", "watches", "soon", "alerted", "alerts",
)  # fmt: skip
SOON_S = 480.0
"""A watch that says "full in 8 minutes" or less; loads were told so."""


def recordings(folder: Path) -> list[dict[str, Any]] | str:
    """Return rows of the files of ``export``, and one per recording of the folder's manifest."""
    manifest = folder / "manifest.json"
    rows = [row for path in sorted(folder.glob("*.jsonl*")) for row in contributed(path)]
    if not manifest.is_file():
        return rows or "the folder of recordings is not here"
    for entry in json.loads(manifest.read_text(encoding="utf-8")):
        path = folder / entry["file"]
        if path.is_file():
            rows.append(recording(path, str(entry.get("label", "unknown"))))
    return rows or "the manifest names no file that is there"


def recording(path: Path, label: str) -> dict[str, Any]:
    """Return what would have been raised, live, on one recording."""
    try:
        log = read_log(path)
        return _row(path, label, log.series, analyze(log, Config()))
    except GpuwatchdError as error:
        return _row(path, label, [], []) | {"called": str(error), "error": str(error)}


def contributed(path: Path) -> list[dict[str, Any]]:
    """Return a row per label of the subjects of a file of ``export``; none for other formats."""
    if preview(path).format != corpus.NAME:
        return []
    log = read_log(path)
    with opened(str(path)) as stream:
        lines = [decode(line, corpus.SubjectLine) for line in stream.readlines()[1:]]
    labels = {(line.device, line.process): label_of(line) for line in lines if line.kind != REST}
    results = analyze(log, Config())
    return [
        _row(
            path,
            label,
            [one for one in log.series if labels[_key(one.subject)] == label],
            [one for one in results if labels[_key(one.subject)] == label],
        )
        for label in sorted({*labels.values()})
    ]


def label_of(line: corpus.SubjectLine) -> str:
    """Return what a subject was: by the user's word, else by what came of its verdicts.

    One that died of its growth without a verdict leaked; of the other ones nothing is known.
    """
    words = [one.feedback for one in line.verdicts if one.feedback is not None]
    if words:
        return {"leak": "leak", "normal": "no-leak"}[words[-1]]
    outcomes = {one.outcome for one in line.verdicts}
    if line.full_at_end_ds is not None or "filled" in outcomes:
        return "leak"
    return "no-leak" if outcomes and outcomes <= {"given-back", "plateaued"} else "unknown"


def _key(subject: Subject) -> tuple[str, str | None]:
    process = subject.process
    return subject.device_uid, None if process is None else f"p{process.pid}"


def _row(
    path: Path, label: str, series: list[LogSeries], results: list[SubjectResult]
) -> dict[str, Any]:
    called = Counter(result.finding.pattern for result in results if result.finding is not None)
    return {
        "file": path.name,
        "label": label,
        "subjects": len(results),
        "gpu_days": _gpu_days(results),
        "ramps": sum(_ramps(one) for one in series if one.process is None),
        "watches": sum(len(_opened(result)) for result in results),
        "soon": sum(_is_soon(event) for result in results for event in _opened(result)),
        "alerts": sum(event.state == "firing" for result in results for event in result.alerts),
        "hours": sum(result.ended_at_s - result.started_at_s for result in results) / 3600.0,
        "watched": sum(bool(result.watches) for result in results),
        "alerted": sum(bool(result.alerts) for result in results),
        "called": ", ".join(f"{name} {count}" for name, count in called.most_common(4)),
        "rivals": _rivals(series) if results else {},
        "error": None,
    }


def _gpu_days(results: Sequence[SubjectResult]) -> float:
    """Return the time that was recorded of each device, however many of its processes were."""
    spans: dict[str, tuple[float, float]] = {}
    for one in results:
        first, last = spans.get(one.device.uid, (one.started_at_s, one.ended_at_s))
        spans[one.device.uid] = min(first, one.started_at_s), max(last, one.ended_at_s)
    return sum(last - first for first, last in spans.values()) / DAY_S


def _ramps(one: LogSeries) -> int:
    total = one.total_bytes or one.device.memory_total_bytes or one.limit_bytes
    return ramps.ramps(one.t_s, one.used_bytes, float(total or one.used_bytes.max(initial=1.0)))


def _opened(result: SubjectResult) -> list[Event]:
    return [event for event in result.watches if event.state == "opened"]


def _is_soon(event: Event) -> bool:
    eta = event.alert.finding.eta
    return eta is not None and eta.mid_s <= SOON_S


def _rivals(series: list[LogSeries]) -> dict[str, int]:
    """Return how many subjects each rule of others alarms on, as documented."""
    out: dict[str, int] = {rival.name: 0 for rival in rivals.RIVALS}
    for one in series:
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
    """Return what was seen and raised by label, and the exact 95 % bound of alerts a day."""
    out: dict[str, Any] = {}
    for row in rows:
        one = out.setdefault(row["label"], dict.fromkeys(COUNTED, 0))
        for key in COUNTED:
            one[key] += row[key]
    for one in out.values():
        days = one["gpu_days"]
        one["per_day_bound"] = poisson_bound(one["alerts"]) / days if days else None
    return dict(sorted(out.items()))
