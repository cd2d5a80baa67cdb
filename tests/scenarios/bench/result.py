"""All figures of a run as plain data, and the report that is printed from them."""

from __future__ import annotations

import platform
import re
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tests.scenarios import documented
from tests.scenarios.bench import field, real, sweep, tables
from tests.scenarios.bench import figures as made
from tests.scenarios.bench.outcome import is_false, is_hit
from tests.scenarios.bench.sets import TITLES
from tests.scenarios.replay import replay

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.scenarios.bench.outcome import Outcome

DIGITS = 4


def figures(
    outcomes: Sequence[Outcome],
    words: dict[str, str],
    recorded: Path | None,
    known: dict[str, Any] | None = None,
    inside: list[dict[str, Any]] | None = None,
    knowledge: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return everything that the report and the page are made of."""
    groups = {name: [one for one in outcomes if one.group == name] for name in TITLES}
    groups = {name: mine for name, mine in groups.items() if mine}
    validation = [one for one in groups.get("folds", []) if not one.tuned]
    tuning = [one for one in outcomes if one.tuned and one.group in {"folds", "seeds"}]
    out: dict[str, Any] = {
        "run": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "items": len(outcomes),
            **words,
        },
        "sets": {
            name: {
                "title": TITLES[name],
                "summary": _summary(mine),
                "sweep": sweep.figures(mine),
                "processes": made.by_process(mine),
                "families": made.families(each),
                "confusion": made.confusion(mine),
                "rivals": _rivals(mine, tuning),
                "latencies": made.latencies(mine),
                "wrong": wrong(each),
            }
            for name, mine in groups.items()
            # Nobody looks at single families of what is reported.
            for each in [() if name == "blind" else mine]
        },
        "validation": _summary(validation) if validation else None,
        "documented": documented_rows(),
        "known": known,
        "inside": inside,
        "knowledge": knowledge,
        "real": _real(recorded),
    }
    rounded: dict[str, Any] = _rounded(out)
    return rounded


def _summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return made.summary(outcomes) | {"mixes": field.mixes([field.row_of(o) for o in outcomes])}


def _rivals(outcomes: Sequence[Outcome], tuning: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return the rules of others, each with the figures of its first alarms in the field mix."""
    seen = [one for one in outcomes if one.rivals]
    out = []
    for row in made.rivals_table(outcomes, tuning):
        pair = row.pop("pair")
        first = [
            msgspec.structs.replace(one, alert_s=one.rivals[row["name"]][pair], alerts=1)
            for one in seen
        ]
        mix = field.mixes([field.row_of(one) for one in first])["field"]
        kept = None if mix is None else {key: mix[key] for key in ("f1", "per_day")}
        out.append(row | {"field": kept})
    return out


def documented_rows() -> list[dict[str, Any]]:
    """Return when each example of the documents is watched and alerted, minutes after its onset."""
    rows = []
    for name, (whole, onset_s) in documented.examples().items():
        life = replay(whole)
        rows.append({
            "example": name,
            "watch": None if life.watch_s is None else (life.watch_s - onset_s) / 60.0,
            "alert": None if life.alert_s is None else (life.alert_s - onset_s) / 60.0,
            "called": life.alert.pattern if life.alert is not None else life.pattern,
        })  # fmt: skip
    return rows


def _real(folder: Path | None) -> dict[str, Any]:
    if folder is None:
        return {"skipped": "not asked for"}
    rows = real.recordings(folder)
    if isinstance(rows, str):
        return {"skipped": rows}
    return {"rows": rows, "totals": real.totals(rows)}


def written(found: dict[str, Any]) -> bytes:
    """Return the figures as JSON: indented, but plain lists and small objects on one line."""
    text = msgspec.json.format(msgspec.json.encode(found), indent=1).decode()
    flat = re.sub(r"([\[{])\s+([^\[\]{}]*?)\s+([\]}])", _on_one_line, text)
    # Text with brackets of its own would be bent by that.
    whole = flat if msgspec.json.decode(flat) == msgspec.json.decode(text) else text
    return whole.encode() + b"\n"


def _on_one_line(match: re.Match[str]) -> str:
    return match[1] + re.sub(r"\n\s+", " ", match[2]) + match[3]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return value


def wrong(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return every item that was alerted while harmless, or not alerted though it leaked."""
    return [
        {
            "family": one.family,
            "seed": one.seed,
            "what": "false alert" if is_false(one) else "missed",
            "at_s": one.alert_s,
        }
        for one in outcomes
        if is_false(one) or (one.leak and not is_hit(one))
    ]


def summaries(found: dict[str, Any]) -> dict[str, Any]:
    """Return title -> figures of each set, and of the families that nothing was chosen on."""
    out: dict[str, Any] = {}
    for name, one in found["sets"].items():
        out[one["title"]] = one["summary"]
        if name == "folds" and found["validation"] is not None:
            out["of these, validation"] = found["validation"]
    return out


def sections(found: dict[str, Any]) -> dict[str, str]:
    """Return every table by the name under which a page may ask for it."""
    sums = summaries(found)
    out = {"targets": tables.targets(found)}
    if sums:
        out |= {
            "headline": tables.headline(sums),
            "calibration": tables.calibration(sums),
            "forecasts": tables.forecasts(sums),
        }
    both = {title: one["mixes"] for title, one in sums.items() if one.get("mixes")}
    if both:
        out |= {"mixes": tables.mixes(both), "left": tables.left(both)}
    processes = {one["title"]: one["processes"] for one in found["sets"].values()}
    if any(processes.values()):
        out["processes"] = tables.processes(processes)
    if found["known"] is not None:
        out["known"] = tables.known(found["known"])
    if found.get("inside"):
        out["inside"] = tables.inside(found["inside"])
    if found.get("knowledge"):
        out["knowledge"] = tables.knowledge(found["knowledge"])
    out["documented"] = tables.documented(found["documented"])
    out["real"] = _real_table(found["real"])
    for name, one in found["sets"].items():
        if one["families"]:
            out[f"families-{name}"] = tables.families(one["families"])
            out[f"wrong-{name}"] = tables.wrong(one["families"])
        if one.get("sweep"):
            out[f"sweep-{name}"] = tables.sweep(one["sweep"])
        out[f"confusion-{name}"] = tables.confusion(one["confusion"])
        out[f"rivals-{name}"] = tables.rivals(one["rivals"], one["summary"])
    return out


def _real_table(found: dict[str, Any]) -> str:
    if "rows" not in found:
        return f"Recorded series were left out: {found['skipped']}."
    parts = [tables.real_alarms(found["rows"]), tables.real(found["rows"])]
    if all("gpu_days" in one for one in found["totals"].values()):
        parts.insert(0, tables.real_totals(found["totals"]))
    return "\n\n".join(parts)


HEADINGS = {
    "headline": "Figures",
    "mixes": "Two mixes",
    "left": "Time left at the alert",
    "sweep": "Other thresholds",
    "knowledge": "With and without what is known beside the curve",
    "targets": "Targets",
    "calibration": "Forecasts: claimed and observed",
    "forecasts": "Forecasts by the time that was left",
    "known": "Programs that have run before",
    "inside": "With the probe inside the process",
    "documented": "Documented examples",
    "processes": "Judged process by process",
    "real": "Recorded series",
    "families": "Families",
    "wrong": "Families with errors",
    "confusion": "Patterns",
    "rivals": "The rules of others",
}


def report(found: dict[str, Any]) -> str:
    """Return the whole report in Markdown."""
    run = found["run"]
    lines = ["# Detection", "", f"`{run['command']}`", ""]
    lines += [f"{run['items']} items, {run['seconds']} s with {run['workers']} workers.", ""]
    if "weights" in run:
        lines += [f"One family left out: {run['weights']}.", ""]
    for name, text in sections(found).items():
        kind, _, of = name.partition("-")
        title = HEADINGS[kind] + (f": {TITLES[of]}" if of else "")
        lines += [f"## {title}", "", text, ""]
    for one in found["sets"].values():
        if one["wrong"]:
            lines += [f"## Wrong items: {one['title']}", ""]
            lines += [
                f"* {row['what']}: {row['family']} {row['seed']}"
                + ("" if row["at_s"] is None else f" after {row['at_s'] / 60:.0f} min")
                for row in one["wrong"]
            ]
            lines.append("")
    return "\n".join(lines)
