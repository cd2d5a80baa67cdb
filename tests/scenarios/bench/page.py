"""Puts the figures of a run into the page about detection, and into the program."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from gpuwatchd.core.config import DetectionSection
from gpuwatchd.view.queries import operating_points
from tests.scenarios.bench import field, result, tables
from tests.scenarios.bench.runner import ROOT
from tests.scenarios.bench.sets import TITLES

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "explanation" / "detection.md"
FIGURES = ROOT / "docs" / "explanation" / "detection-figures.json"
"""The figures that the page shows, as the benchmark wrote them."""
POINTS = ROOT / "gpuwatchd" / "view" / "queries" / operating_points.FILE
"""Those of each threshold, which ``gpuwatchctl config validate`` shows."""
QUOTE = re.compile(
    r"(<!-- bench-detect:begin ([a-z]+) -->)((?:(?!<!--).)*)(<!-- bench-detect:end -->)"
)
"""Where the README has figures: in cells of a table, within one line."""
EXAMPLE = "50 MB/min, noise 8 MiB"
"""The documented example that the README quotes."""
QUOTED = ("blind", "folds", "seeds", "once-blind")
"""Sets, the one first that says most of what was not tuned on."""
MIX = {
    "f1": "f1", "false_alerts_per_day": "per_day", "false_alerts_low_per_day": "per_day_low",
    "false_alerts_high_per_day": "per_day_high", "ramps_per_day": "ramps_per_day",
}  # fmt: skip
MARKED = re.compile(
    r"(<!-- bench-detect:begin (?P<name>[a-z-]+) -->\n).*?(<!-- bench-detect:end -->)", re.DOTALL
)


def filled(text: str, figures: dict[str, Any]) -> str:
    """Return the page with every marked table made anew."""
    sections = result.sections(figures) | {"run": _run(figures["run"])}

    def put(match: re.Match[str]) -> str:
        name = match["name"]
        text = sections.get(name, f"The last run did not print {name}.")
        return f"{match[1]}\n{text}\n\n{match[3]}"

    return MARKED.sub(put, text)


def _run(run: dict[str, Any]) -> str:
    return (
        f"`{run['command']}`: {run['items']} items in {run['seconds'] / 60.0:.0f} minutes on "
        f"{run['workers']} cores. One family left out means {run.get('weights', 'nothing here')}."
    )


def quoted(figures: dict[str, Any]) -> dict[str, Any]:
    """Return the set of a run whose figures are quoted to users.

    Raises
    ------
    LookupError
        The run has none with figures of both mixes at each threshold.
    """
    for name in QUOTED:
        found: dict[str, Any] = figures["sets"].get(name, {})
        rows = found.get("sweep")
        if rows and all(row["hard"] and row["field"] for row in rows):
            return found
    raise LookupError("no set with figures of both mixes at each threshold")


def thresholds(figures: dict[str, Any]) -> dict[str, Any]:
    """Return what the program is to know of each confidence threshold."""
    found = quoted(figures)
    return {
        "measured_on": found["title"],
        "command": figures["run"]["command"],
        "thresholds": [
            {
                "alert_confidence": row["threshold"],
                "field": {key: row["field"][name] for key, name in MIX.items()},
                "hard": {key: row["hard"][name] for key, name in MIX.items()},
                "lead_share": row["lead"],
                **{f"left_{least}_min_share": row[f"left_{least}"] for least in field.LEFT_MIN},
            }
            for row in found["sweep"]
        ],
    }


def readme(text: str, figures: dict[str, Any]) -> str:
    """Return the README with the figures of a run; what the run has not is left as it is."""
    words = {"mixes": _mixes(quoted(figures))}
    quiet = figures["real"].get("totals", {}).get("no-leak")
    if quiet:
        words["real"] = (
            f"{quiet['subjects']} harmless subjects that real machines recorded |"
            f" {quiet['alerts']} alerts in {quiet['hours']:.0f} hours"
        )
    for row in figures["documented"]:
        if row["example"] == EXAMPLE:
            words["documented"] = (
                f"watch after {tables.whole(row['watch'])} min, alert after"
                f" {tables.whole(row['alert'])}, of four hours"
            )
    return QUOTE.sub(lambda found: found[1] + words.get(found[2], found[3]) + found[4], text)


def _mixes(found: dict[str, Any]) -> str:
    """Return the figures of the default sensitivity: the field mix first."""
    # By its name: what is quoted was the default when it was measured.
    row = next(row for row in found["sweep"] if row["name"] == DetectionSection().sensitivity)
    number = tables.number
    field_words, hard_words = (
        f"F1 {number(mix['f1'])}, {number(mix['per_day'])} false alerts a GPU-day (95 %:"
        f" {number(mix['per_day_low'])} to {number(mix['per_day_high'])}) at"
        f" {number(mix['ramps_per_day'])} straight harmless ramps a day"
        for mix in (row["field"], row["hard"])
    )
    left = f"{number(row['lead'])} of the time is left at the alert (median)"
    new = ", on which nothing was tuned" if found["title"] == TITLES["blind"] else ""
    words = [
        f"{found['summary']['families']} families of simulated runs ({found['title']}){new} |",
        f"weighed as in the field {field_words}; all alike, which is harder: {hard_words};",
        f"{left}, at least 30 min in {number(row['left_30'])} of leaks;",
    ]
    others = [rival["f1"] for rival in found["rivals"]]
    if others:
        low, high = number(min(others)), number(max(others))
        words.append(f"the rules of others, all alike: F1 {low} to {high}")
    return " ".join(words).removesuffix(";")


def fill(source: Path, page: Path = PAGE, kept: Path = FIGURES, points: Path = POINTS) -> int:
    """Write the page, the figures beside it and those of the program; return an exit code."""
    try:
        figures = msgspec.json.decode(source.read_bytes())
        program = result.written(thresholds(figures))
    except (OSError, msgspec.DecodeError, LookupError) as error:
        print(f"cannot take figures of {source}: {error}", file=sys.stderr)
        return 1
    kept.write_bytes(result.written(figures))
    points.write_bytes(program)
    page.write_text(filled(page.read_text(encoding="utf-8"), figures), encoding="utf-8")
    print(f"{page} and {points} show the figures of {source}; now run make docs")
    return 0
