"""A picture as JSON, for ``plot --json``, the report and the live page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuwatchd.core import units

if TYPE_CHECKING:
    from gpuwatchd.charts.drawing import Curve, Picture


def to_json(picture: Picture) -> dict[str, Any]:
    """Return a picture with RFC 3339 instants; curves are arrays of epoch seconds and bytes."""
    forecast = picture.forecast
    return {
        "key": picture.key,
        "title": picture.title,
        "kind": picture.kind,
        "verdict": picture.verdict,
        "begin_at": units.instant(picture.begin_s),
        "end_at": units.instant(picture.end_s),
        "now_at": units.instant(picture.now_s),
        "curve": _curve(picture.curve),
        "floor": None if picture.floor is None else _curve(picture.floor),
        "limit_bytes": picture.limit_bytes,
        "forecast": None if forecast is None else {
            "judged_at": units.instant(forecast.judged_at_s),
            "level_bytes": forecast.level_bytes,
            "rate_bytes_per_s": forecast.rate_bytes_per_s,
            "onset_at": units.instant(forecast.onset_at_s),
            "limit_bytes": forecast.limit_bytes,
            "low_s": forecast.low_s,
            "mid_s": forecast.mid_s,
            "high_s": forecast.high_s,
        },
        "marks": [
            {"at": units.instant(m.at_s), "kind": m.kind, "text": m.text, "severity": m.severity}
            for m in picture.marks
        ],
        "gaps": [
            {"begin_at": units.instant(g.begin_s), "end_at": units.instant(g.end_s), "why": g.why}
            for g in picture.gaps
        ],
        "notes": list(picture.notes),
    }  # fmt: skip


def _curve(curve: Curve) -> dict[str, Any]:
    return {
        "at_s": list(curve.at_s),
        "used_bytes": list(curve.used_bytes),
        "low_bytes": list(curve.low_bytes),
        "high_bytes": list(curve.high_bytes),
        "width_s": curve.width_s,
    }
