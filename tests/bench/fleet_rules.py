"""What Prometheus' ``predict_linear`` returns, and what a fleet's worker says, on the same data."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpuwatchd.fleet import config
from gpuwatchd.fleet.client import Client
from gpuwatchd.fleet.judging import Judge
from gpuwatchd.fleet.worker import LAG_S, Worker
from tests.bench import fleet_data, fleet_mix
from tests.fleet import servers

if TYPE_CHECKING:
    from tests.bench.fleet_mix import Mix

BEFORE: Final = 120
"""Minutes before the evening from which rules are evaluated: the longest time one must hold."""
SETTLED: Final = 10
"""Rounds of a worker before the evening: an alert takes several."""
LATE: Final = 60
"""Minutes that a leak must have lasted in the evening before missing it counts."""


class Rule(NamedTuple):
    """One alerting rule: predicted from so many hours, full within so many, held for minutes."""

    back_h: int
    ahead_h: int
    holds: int

    @property
    def text(self) -> str:
        """As it is written in a file of rules."""
        expr = f"predict_linear(used[{self.back_h}h], {self.ahead_h} * 3600) > total"
        return f"`{expr}`" + (f" for {self.holds} min" if self.holds else "")


RULES: Final = (Rule(6, 4, 0), Rule(6, 24, 0), Rule(1, 4, 0), Rule(1, 4, 15), Rule(1, 24, 120))
"""The copied one first; the last two are those of docs/explanation/detection.md."""
Alarms = npt.NDArray[np.bool_]


def compare(count: int, hours: int) -> str:
    """Ask one Prometheus for both over an evening, each minute; return tables."""
    evening = 60 * hours + 1
    minutes = fleet_data.WINDOW + 60 * hours
    mix = fleet_mix.make(count, minutes)
    end_s = float(int(time.time()) // 60 * 60 - 120)
    begin_s = end_s - 3600.0 * hours
    alarms: dict[str, Alarms] = {}
    with tempfile.TemporaryDirectory() as name, servers.running("prometheus", Path(name)) as server:
        fleet_data.fill(server, mix, end_s, 0)
        fleet = config.load(fleet_data.fleet_toml(server, Path(name)))
        for rule in RULES:
            fires = _fires(Client(fleet), rule, count, begin_s - 60.0 * BEFORE, end_s)
            alarms[rule.text] = _held(fires, rule.holds)[:, -evening:]
        alarms["gpuwatchd fleet: watch"], alarms["gpuwatchd fleet: alert"] = _fleet(
            fleet, count, begin_s, evening
        )
    first = minutes - evening
    leaking = np.array([mix.leaking(first + k) for k in range(evening)]).T
    parts = [f"{count:,} GPUs, an evening of {hours} h, each minute: {_shares(mix)}"]
    for title, table in (
        (f"At the last minute: {int(leaking[:, -1].sum())} leak", _instant(mix, alarms, leaking)),
        ("Over the evening", _whole(mix, alarms, leaking, first)),
        ("At each full hour: leaks + others", _hours(alarms, leaking)),
    ):
        parts += ["", title, "", *table]
    return "\n".join(parts)


def _fires(client: Client, rule: Rule, count: int, begin_s: float, end_s: float) -> Alarms:
    """Return at which minutes the expression returns each GPU (S, minutes)."""
    out = np.zeros((count, round((end_s - begin_s) / 60) + 1), dtype=bool)
    query = (
        f"predict_linear(DCGM_FI_DEV_FB_USED[{rule.back_h}h], {rule.ahead_h} * 3600)"
        f" > {fleet_mix.TOTAL_MIB}"
    )
    for first in range(0, out.shape[1], 30):
        last = min(first + 29, out.shape[1] - 1)
        for series in client.query_range(query, begin_s + 60 * first, begin_s + 60 * last, 60.0):
            at = np.rint((series.at_s - begin_s) / 60).astype(np.intp)
            out[fleet_data.row_of(series.labels["UUID"]), at] = True
    return out


def _held(fires: Alarms, holds: int) -> Alarms:
    """Say where it has been true for so many minutes on end."""
    minute = np.arange(fires.shape[1])
    since = np.maximum.accumulate(np.where(fires, -1, minute), axis=1)
    return fires & (minute - since > holds)


def _fleet(fleet: config.Fleet, count: int, begin_s: float, evening: int) -> tuple[Alarms, Alarms]:
    """Do a round each minute; return where it watches, or more, and where alerts are open."""
    worker, judge = Worker(fleet, Client(fleet)), Judge(fleet.detection, fleet.policy)
    watch, alert = np.zeros((2, count, evening), dtype=bool)
    for minute in range(-SETTLED, evening):
        worker.round(begin_s + 60.0 * minute + LAG_S)
        judge.round(worker.rings)
        for row, open_alert in judge.alerts.items() if minute >= 0 else ():
            k = fleet_data.row_of(worker.rings.gpus[row].uuid)
            watch[k, minute] = open_alert.state in {"watch", "firing"}
            alert[k, minute] = open_alert.state == "firing"
    return watch, alert


def _shares(mix: Mix) -> str:
    kinds = np.bincount(mix.kind, minlength=len(fleet_mix.KINDS)).tolist()
    return ", ".join(f"{n} {name}" for name, n in zip(fleet_mix.KINDS, kinds, strict=True))


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _others(mix: Mix, wrong: Alarms) -> list[str]:
    kinds = [fleet_mix.KINDS[k] for k in mix.kind[wrong]]
    return [str(kinds.count(name)) for name in ("job change", "plateau", "cyclic", "idle", "leak")]


OTHERS: Final = ["job changes", "plateaus", "cyclic", "idle", "leaks, before or after"]


def _instant(mix: Mix, alarms: dict[str, Alarms], leaking: Alarms) -> list[str]:
    rows = []
    for name, found in alarms.items():
        now, leaks = found[:, -1], leaking[:, -1]
        rows.append([name, f"{int((now & leaks).sum())}", *_others(mix, now & ~leaks)])
    return _table(["", "leaks", *OTHERS], rows)


def _whole(mix: Mix, alarms: dict[str, Alarms], leaking: Alarms, first: int) -> list[str]:
    due = leaking.sum(axis=1) >= LATE
    fills = due & (mix.full < first + leaking.shape[1])
    rows = []
    for name, found in alarms.items():
        right = (found & leaking).any(axis=1)
        left_h = [
            (mix.full[k] - first - int(np.argmax(found[k] & leaking[k]))) / 60
            for k in np.flatnonzero(right & fills)
        ]
        warned = f"{len(left_h)} of {int(fills.sum())}"
        rows.append(
            [
                name,
                f"{int((right & due).sum())} of {int(due.sum())}",
                warned + (f", {np.median(left_h):.1f} h before" if left_h else ""),
                *_others(mix, np.asarray((found & ~leaking).any(axis=1))),
            ]
        )
    return _table(["", "leaks found", "of those that filled up: before it", *OTHERS], rows)


def _hours(alarms: dict[str, Alarms], leaking: Alarms) -> list[str]:
    at = range(0, leaking.shape[1], 60)
    rows = [["leak", *(str(int(leaking[:, k].sum())) for k in at)]]
    for name, found in alarms.items():
        pairs = [(found[:, k] & leaking[:, k], found[:, k] & ~leaking[:, k]) for k in at]
        rows.append([name, *(f"{int(a.sum())} + {int(b.sum())}" for a, b in pairs)])
    return _table(["", *(f"{k // 60} h" for k in at)], rows)
