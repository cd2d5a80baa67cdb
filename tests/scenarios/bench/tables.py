"""Figures -> tables in Markdown, for the terminal and for the page alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.scenarios.bench.knowledge import NAMES
from tests.scenarios.bench.sets import TITLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Figures = Mapping[str, Any]
NONE = "–"


def number(value: float | None, digits: int = 2) -> str:
    """Return a figure as people write it: ``.93``, ``1.00``, ``12.4``; a dash for none."""
    if value is None:
        return NONE
    text = f"{value:.{digits}f}"
    return text[1:] if text.startswith("0.") else text


def share(value: float | None) -> str:
    """Return a share with three digits."""
    return number(value, 3)


def whole(value: float | None) -> str:
    """Return a figure without digits."""
    return NONE if value is None else f"{value:.0f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table whose columns line up on a terminal as well."""
    every = [list(head), *(list(row) for row in rows)]
    width = [max(3, *(len(row[k]) for row in every)) for k in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width[k]) for k, cell in enumerate(row)) + " |"
        for row in every
    ]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in width) + "|")
    return "\n".join(lines)


ROWS: tuple[tuple[str, str, Any], ...] = (
    ("families (leaks + harmless items)", "families", None),
    ("precision", "precision", share),
    ("recall", "recall", share),
    ("F1", "f1", share),
    ("F1, 95 % over families drawn again", "f1_low", None),
    ("straight harmless ramps of 20 min or more a day", "ramps", None),
    ("F1 in time (alerted before half of the time)", "f1_in_time", share),
    ("harmless GPU-days", "benign_days", whole),
    ("false alerts", "false_alerts", whole),
    ("false alerts per harmless GPU-day", "per_day", share),
    ("the same, 95 % bound", "per_day_bound", share),
    ("share of the time left at the alert, median", "left_median", number),
    ("the same at the watch", "left_watch_median", number),
    ("leaks alerted before half of their time", "before_half", number),
    ("minutes from onset to watch, median (90 %)", "watch", None),
    ("minutes from onset to alert, median (90 %)", "alert", None),
    ("watch latency / T\\*, median", "watch_ratio", None),
    ("alert latency / T\\*, median", "alert_ratio", None),
    ("truth inside the forecast's interval", "covered", None),
    ("the same at the first alert", "covered_first", None),
    ("error of the forecast, median of the logarithm", "error", None),
    ("pattern named right", "pattern_right", share),
    ("the same, leaks only", "pattern_right_leaks", share),
    ("harmless items watched at some time", "benign_watched", number),
    ("µs an evaluation, median (90 %)", "us", None),
)


def _cell(key: str, shown: Any, one: Figures) -> str:
    if shown is not None:
        text: str = shown(one[key])
        return text
    eta = one["eta"]
    special = {
        "families": lambda: f"{one['families']} ({one['leaks']} + {one['benign']})",
        "f1_low": lambda: f"{share(one['f1_low'])}–{share(one['f1_high'])}",
        "ramps": lambda: number(one.get("ramps_per_day")),
        "watch": lambda: f"{whole(one['watch']['minutes'])} ({whole(one['watch']['minutes_90'])})",
        "alert": lambda: f"{whole(one['alert']['minutes'])} ({whole(one['alert']['minutes_90'])})",
        "watch_ratio": lambda: number(one["watch"]["times_limit"], 1),
        "alert_ratio": lambda: number(one["alert"]["times_limit"], 1),
        "covered": lambda: share(eta["covered"]),
        "covered_first": lambda: share(eta["covered_at_alert"]),
        "error": lambda: share(eta["error"]),
        "us": lambda: f"{whole(one['us_median'])} ({whole(one['us_90'])})",
    }
    return special[key]()


def headline(sets: Mapping[str, Figures]) -> str:
    """Return the figures of several sets beside one another."""
    return table(
        ["figure", *sets],
        [[label, *(_cell(key, shown, one) for one in sets.values())] for label, key, shown in ROWS],
    )


def _mix(name: str, one: Figures) -> list[str]:
    mix = one[name]
    if mix is None:
        return [NONE] * 4
    interval = f"{number(mix['per_day_low'], 3)}–{number(mix['per_day_high'], 3)}"
    return [
        number(mix["ramps_per_day"]), share(mix["f1"]), share(mix["per_day"]), interval,
    ]  # fmt: skip


MIX_HEAD = ("ramps a day", "F1", "false a day", "95 % interval")
LEFT_HEAD = ("lead, median", "10 min left", "30 min left", "60 min left")


def _time_left(one: Figures) -> list[str]:
    return [number(one["lead"]), *(number(one[f"left_{least}"]) for least in (10, 30, 60))]


def mixes(sets: Mapping[str, Figures]) -> str:
    """Return the two mixes of each set, one below the other."""
    rows = []
    for name, one in sets.items():
        for mix in ("hard", "field"):
            precision = NONE if one[mix] is None else share(one[mix]["precision"])
            rows.append([name, mix, *_mix(mix, one), precision, *_time_left(one)])
    return table(["set", "mix", *MIX_HEAD, "precision", *LEFT_HEAD], rows)


def left(sets: Mapping[str, Figures]) -> str:
    """Return lead and time left by how long a leak takes to fill the device."""
    rows = []
    for name, one in sets.items():
        for part in one["by_fill"]:
            low, high = part["hours"]
            span = f"over {low:g} h" if high is None else f"{low:g} to {high:g} h"
            rows.append([name, _rate(one, "hard"), span, str(part["leaks"]), *_time_left(part)])
    return table(["set", "ramps a day", "from onset to full", "leaks", *LEFT_HEAD], rows)


def sweep(rows: Sequence[Figures]) -> str:
    """Return both mixes at each threshold."""
    head = ["threshold", "name"]
    head += [f"{name}: {what}" for name in ("hard", "field") for what in MIX_HEAD]
    return table(
        [*head, *LEFT_HEAD],
        [
            [
                number(row["threshold"]), row["name"] or "", *_mix("hard", row),
                *_mix("field", row), *_time_left(row),
            ]
            for row in rows
        ],
    )  # fmt: skip


def knowledge(rows: Sequence[Figures]) -> str:
    """Return what each kind of knowledge is worth in both mixes; its oracle in brackets."""
    lines = []
    for row in rows:
        read, most = row["read"], row["oracle"]
        cells = [
            [*_mix("hard", one), *_mix("field", one), *_time_left(one)]
            for one in ([read] if most is None else [read, most])
        ]
        lines.append(
            [
                NAMES[row["known"]],
                *(
                    pair[0] if len(pair) == 1 or pair[0] == pair[1] else f"{pair[0]} ({pair[1]})"
                    for pair in zip(*cells, strict=True)
                ),
            ]
        )
    head = [f"{name}: {what}" for name in ("hard", "field") for what in MIX_HEAD]
    return table(["known beside the curve (oracle)", *head, *LEFT_HEAD], lines)


def families(rows: Sequence[Figures]) -> str:
    """Return one line per family."""
    head = [
        "family", "set", "items", "found", "false", "watched", "watch min", "alert min",
        "alert / T\\*", "left", "covered", "named right", "named",
    ]  # fmt: skip
    return table(
        head,
        [
            [
                row["family"],
                "tuning" if row["tuned"] else "unseen",
                str(row["items"]),
                NONE if row["found"] is None else str(row["found"]),
                str(row["false"]),
                str(row["watched"]),
                whole(row["watch_minutes"]),
                whole(row["alert_minutes"]),
                number(row["alert_times_limit"], 1),
                number(row["left"]),
                number(row["covered"]),
                str(row["named"]),
                ", ".join(f"{name} {count}" for name, count in row["names"].items()),
            ]
            for row in rows
        ],
    )


def wrong(rows: Sequence[Figures]) -> str:
    """Return the families in which something was missed, or alerted without reason."""
    lines = [
        [
            row["family"], "leak" if row["leak"] else "harmless", str(row["items"]),
            str(row["items"] - row["found"]) if row["leak"] else NONE, str(row["false"]),
        ]
        for row in rows
        if row["false"] or (row["leak"] and row["found"] < row["items"])
    ]  # fmt: skip
    if not lines:
        return "Nothing was missed, and nothing was alerted without reason."
    lines.sort(key=lambda line: (line[1], line[0]))
    return table(["family", "kind", "runs", "missed", "false alerts"], lines)


def confusion(rows: Mapping[str, Mapping[str, int]]) -> str:
    """Return the matrix of right names against names given."""
    names = sorted({name for row in rows.values() for name in row})
    return table(
        ["right \\ given", *names],
        [
            [truth, *(str(row.get(name, "")) or "" for name in names)]
            for truth, row in sorted(rows.items())
        ],
    )


def calibration(sets: Mapping[str, Figures]) -> str:
    """Return nominal against observed, a column for each set."""
    known = {name: one["eta"] for name, one in sets.items() if one["eta"]["observed"]}
    if not known:
        return "no forecast was made"
    nominal = next(iter(known.values()))["nominal"]
    rows = [
        [
            f"below its {round(100 * level)} % mark",
            *(share(e["observed"][k]) for e in known.values()),
        ]
        for k, level in enumerate(nominal)
    ]
    rows.append(["inside the interval", *(share(e["covered"]) for e in known.values())])
    rows.append(["forecasts of how many leaks", *(str(e["items"]) for e in known.values())])
    return table(["the truth lies", *known], rows)


def forecasts(sets: Mapping[str, Figures]) -> str:
    """Return coverage and error by the hours that were really left."""
    rows = []
    for name, one in sets.items():
        for part in one["eta"]["by_hours_left"]:
            low, high = part["hours"]
            span = f"over {low:g} h" if high is None else f"{low:g} to {high:g} h"
            rows.append([
                name, span, str(part["items"]), share(part["covered"]), share(part["error"]),
            ])  # fmt: skip
    return table(["set", "really left", "leaks", "inside the interval", "error"], rows)


def known(found: Figures) -> str:
    """Return what earlier runs of a program are worth."""
    rows = [
        [
            str(one["known"]), number(one["ramps_per_day"]), share(one["f1"]),
            share(one["per_day"]), share(one["per_day_bound"]),
            *("/".join(str(n) for n in one[f"alarmed_{test}"]) for test in ("i", "iii", "iii'")),
            number(one["left_median"]), number(one["before_half"]), whole(one["alert_minutes"]),
            number(one["watched"]),
        ]
        for one in found["by_count"]
    ]  # fmt: skip
    head = [
        "earlier runs", "ramps a day", "F1", "false a day", "95 % bound", "same again alerted",
        "larger alerted", "growth larger alerted", "left, median", "before half",
        "alert min", "harmless watched",
    ]  # fmt: skip
    return table(head, rows)


def inside(rows: Sequence[Figures]) -> str:
    """Return what the facts from inside a process are worth, one line for each set and view."""
    head = [
        "families", "seen", "ramps a day", "leaks alerted", "left, median", "before half",
        "alert min", "earlier by min (quartiles)", "harmless alerted", "false alerts", "a day",
        "95 % bound", "harmless watches",
    ]  # fmt: skip
    lines = [
        [
            row["set"],
            row["view"],
            number(row["ramps_per_day"]),
            f"{row['found']}/{row['leaks']}",
            number(row["left_median"]),
            number(row["before_half"]),
            whole(row["alert_minutes"]),
            "{1} ({0}–{2})".format(*map(whole, row["earlier"])),
            f"{row['harmless_alerted']}/{row['harmless']}",
            str(row["false_alerts"]),
            share(row["per_day"]),
            share(row["per_day_bound"]),
            str(row["watches"]),
        ]
        for row in rows
    ]
    return table(head, lines)


def rivals(rows: Sequence[Figures], ours: Figures | None = None) -> str:
    """Return the rules of others, and ours above them."""
    head = [
        "rule", "thresholds", "P", "R", "F1", "F1 in time", "false a day", "left, median",
        "before half", "ramps a day", "field: F1", "field: false a day",
    ]  # fmt: skip
    lines = []
    if ours is not None:
        lines.append(["**gpuwatchd**", "default settings", *_rates(ours | ours["mixes"])])
    lines += [[row["name"], f"{row['kind']}: {row['says']}", *_rates(row)] for row in rows]
    return table(head, lines)


def _rates(row: Figures) -> list[str]:
    return [
        number(row["precision"]), number(row["recall"]), number(row["f1"]),
        number(row["f1_in_time"]), number(row["per_day"]), number(row["left_median"]),
        number(row["before_half"]), number(row["ramps_per_day"]),
        *(number(row["field"] and row["field"][key]) for key in ("f1", "per_day")),
    ]  # fmt: skip


def processes(sets: Mapping[str, Figures | None]) -> str:
    """Return the figures of runs judged process by process."""
    known = {name: one for name, one in sets.items() if one is not None}
    labels = (
        ("runs with leaks", "leaks", whole), ("harmless runs", "benign", whole),
        ("precision", "precision", share), ("recall", "recall", share), ("F1", "f1", share),
        ("false alerts per harmless GPU-day", "per_day", share),
        ("the same, 95 % bound", "per_day_bound", share),
        ("share of the time left at the alert, median", "left_median", number),
        ("pattern named right", "pattern_right", share),
        ("straight harmless ramps of 20 min or more a day", "ramps_per_day", number),
    )  # fmt: skip
    rows = [[label, *(shown(one[key]) for one in known.values())] for label, key, shown in labels]
    return table(["figure", *known], rows)


def documented(rows: Sequence[Figures]) -> str:
    """Return when the examples of the documents are seen."""
    return table(
        ["example", "watch", "alert", "called"],
        [
            [row["example"], number(row["watch"], 1), number(row["alert"], 1), row["called"]]
            for row in rows
        ],
    )


def real(rows: Sequence[Figures]) -> str:
    """Return the recorded series, one line each."""
    return table(
        ["recording", "label", "subjects", "hours", "watched", "alerted", "called"],
        [
            [
                row["file"], row["label"], str(row["subjects"]), number(row["hours"], 1),
                str(row["watched"]), str(row["alerted"]), row["called"] or "nothing to judge",
            ]
            for row in rows
        ],
    )  # fmt: skip


def real_totals(rows: Mapping[str, Figures]) -> str:
    """Return what was seen and raised on recordings, by their label."""
    head = [
        "label", "subjects", "GPU-days", "ramps a day", "watches", '"full in minutes"', "alerts",
        "alerts a day, 95 % bound",
    ]  # fmt: skip
    lines = [
        [
            label, str(row["subjects"]), number(row["gpu_days"]),
            number(row["ramps"] / row["gpu_days"] if row["gpu_days"] else None),
            str(row["watches"]), str(row["soon"]), str(row["alerts"]), number(row["per_day_bound"]),
        ]
        for label, row in rows.items()
    ]  # fmt: skip
    return table(head, lines)


def real_alarms(rows: Sequence[Figures]) -> str:
    """Return how many harmless recorded subjects each rule alarms on."""
    quiet = [row for row in rows if row["label"] == "no-leak"]
    subjects = sum(row["subjects"] for row in quiet)
    hours = sum(row["hours"] for row in quiet)
    names = list(dict.fromkeys(name for row in quiet for name in row["rivals"]))
    lines = [["**gpuwatchd**", str(sum(row["alerted"] for row in quiet))]]
    lines += [[name, str(sum(row["rivals"].get(name, 0) for row in quiet))] for name in names]
    return table(
        ["rule, as documented", f"alarms on {subjects} harmless subjects, {hours:.0f} hours"], lines
    )


ELSEWHERE = "not scored here"
"""Of series that stay private."""


def targets(found: Figures) -> str:
    """Return what was aimed at beside what was reached, where these sets can tell."""
    sets = {name: one["summary"].get("mixes") for name, one in found["sets"].items()}
    known = {row["known"]: row for row in found.get("knowledge") or ()}
    outside, everything = known.get("outside"), known.get("all")
    gain = None if outside is None else _gains(known["none"]["read"], outside)
    head = ["what", "scored on", "mix", "ramps a day", "target", "reached"]
    rows = [
        ["the device alone, known families, new seeds", TITLES["seeds"], "hard",
         *_reached(sets.get("seeds"), "hard", "F1 ≥ .94, ≤ .08 false a day, lead ≥ .64")],
        ["the device alone, new families", TITLES["blind"], "hard",
         *_reached(sets.get("blind"), "hard", "F1 ≥ .86, ≤ .40 false a day, lead ≥ .60")],
        ["with knowledge: processes apart, declared sizes, three earlier runs", TITLES["blind"],
         "hard", _rate(outside and outside["read"], "hard"),
         "≥ .90 of the gain of the oracle", gain or NONE],
        ["the same", TITLES["blind"], "field",
         *_reached(outside and outside["read"], "field",
                   "F1 ≥ .96, ≤ .03 false a day, lead ≥ .78; 30 min left in ≥ .90 over 2 h")],
        ["machines with processes, joined logs", "private logs", NONE, NONE,
         "F1 ≥ .93, ≤ .30 false a day, lead ≥ .70, ≤ 2 watches a day", ELSEWHERE],
        ["with the bounds of a probe", TITLES["blind"], "field",
         *_reached(everything and everything["read"], "field",
                   "F1 ≥ .98, ≤ .01 false a day, lead ≥ .85")],
        *_recorded(found["real"].get("totals", {}).get("no-leak")),
        ["real leak reports", "private reports", NONE, NONE,
         "9 of 13 alerted, 12 watched", ELSEWHERE],
    ]  # fmt: skip
    return table(head, rows)


def _rate(one: Figures | None, mix: str) -> str:
    return NONE if one is None or one[mix] is None else number(one[mix]["ramps_per_day"])


def _reached(one: Figures | None, mix: str, target: str) -> tuple[str, str, str]:
    """Return ramps a day, the target, and what was reached."""
    if one is None or one[mix] is None:
        return NONE, target, NONE
    rate, figures = number(one[mix]["ramps_per_day"]), one[mix]
    low, high = figures["per_day_low"], figures["per_day_high"]
    reached = (
        f"F1 {share(figures['f1'])}, {share(figures['per_day'])} false a day ({number(low, 3)}–"
        f"{number(high, 3)}), lead {number(one['lead'])}"
    )
    if mix == "field" and one is not None:
        reached += f"; 30 min left in {number(one['left_30_slow'])} over 2 h"
    return rate, target, reached


def _gains(none: Figures, one: Figures) -> str | None:
    """Return which share of what the oracle gains over the curve alone is gained as it is read."""
    read, most = one["read"], one["oracle"]
    if any(part["hard"] is None for part in (none, read, most)):
        return None
    parts = []
    for name, key in (("F1", "f1"), ("false alerts", "per_day"), ("lead", "lead")):
        base, mine, best = (
            part["hard"].get(key, part.get(key)) or 0.0 for part in (none, read, most)
        )
        parts.append(
            f"{name} {number((mine - base) / (best - base)) if best != base else NONE}"
            f" ({number(base)} → {number(mine)}, oracle {number(best)})"
        )
    return "; ".join(parts)


def _recorded(quiet: Figures | None) -> list[list[str]]:
    """Return the rows of recorded harmless series."""
    scored = "recorded harmless series"
    if quiet is None:
        ramps, reached, soon = NONE, NONE, NONE
    else:
        days = quiet["gpu_days"]
        ramps = number(quiet["ramps"] / days if days else None)
        reached = (
            f"{quiet['alerts']} alerts, {quiet['watches']} watches in {number(days)} GPU-days"
            f" (95 %: ≤ {number(quiet['per_day_bound'])} alerts a day)"
        )
        soon = f"{quiet['soon']} of {quiet['watches']} watches"
    return [
        ["harmless series of real machines", scored, NONE, ramps,
         "no alert, at most one watch", reached],
        ["watches on loads that say \"full in minutes\"", scored, NONE, ramps, "0", soon],
    ]  # fmt: skip
