"""The field mix weighs by what a record looks like, and says what people feel."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from gpuwatchd.core.codes import FactName
from gpuwatchd.core.config import DetectionSection
from gpuwatchd.core.model import Profile
from gpuwatchd.core.model.findings import GrowthFact, Holder, Stage
from gpuwatchd.view.queries.operating_points import Measured
from tests.scenarios import worlds
from tests.scenarios.bench import __main__ as program
from tests.scenarios.bench import field, knowledge, page, ramps, result, sets, sweep, tables
from tests.scenarios.replay import Life, make, replay
from tests.scenarios.test_bench import harmless, outcome
from tests.scenarios.world import GIB, Truth, fine, leak

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpuwatchd.core.model import FloatArray, Series

HOUR, DAY = 3600.0, 86400.0
T: FloatArray = np.arange(0.0, 6 * HOUR, 10.0)


def counted(x: Any, t: Any = T) -> int:
    return ramps.ramps(t, np.asarray(x, dtype=np.float64) * GIB, 24 * GIB)


def test_straight_ramps_are_counted_as_often_as_they_come() -> None:
    once = 8 + 4 * np.clip((T - HOUR) / 1800.0, 0.0, 1.0)
    assert counted(once) == 1
    assert counted(once + 4 * np.clip((T - 4 * HOUR) / 1800.0, 0.0, 1.0)) == 2
    assert counted(8 + np.floor(np.clip((T - HOUR) / 600.0, 0.0, 6.0))) == 1
    assert counted(once[::6], T[::6]) == 1


@pytest.mark.parametrize(
    "level",
    [
        np.full(T.size, 8.0),
        8 + 4 * np.clip((T - HOUR) / 600.0, 0.0, 1.0),
        8.0 + 2.0 * (T > HOUR) + 2.0 * (T > 1.4 * HOUR),
        8 + 4 * (1 - np.exp(-T / 600.0)),
        8 + 4 * ((T % 2400.0) / 2400.0) * (T < 5 * HOUR),
        8 + 0.1 * np.clip((T - HOUR) / 1800.0, 0.0, 1.0),
        8 + np.random.default_rng(3).normal(0.0, 0.5, T.size),
    ],
    ids=["flat", "ten minutes", "two stairs", "warm-up", "teeth", "under 1 %", "noise"],
)
def test_what_is_short_or_few_or_given_back_is_no_ramp(level: Any) -> None:
    assert counted(level) == 0


def test_a_record_moves_when_its_maximum_is_neared_or_raised_late() -> None:
    assert not ramps.is_moving(T, 8.0 + 2.0 * (T > 50.0))
    assert ramps.is_moving(T, 8.0 + 2.0 * (T > 70.0))
    assert not ramps.is_moving(T, 8.0 + 0.2 * (T > 70.0))
    assert ramps.is_moving(T, 8.0 + 0.2 * (T > 1900.0))
    assert not ramps.is_moving(T, 8.0 + 0.05 * (T > 1900.0))
    assert not ramps.is_moving(T[:5], 1.0 + T[:5])


def row(kind: str = "still", **changes: Any) -> field.Row:
    """A harmless day of a kind."""
    base = field.Row(
        family=kind, seed=1, leak=False, false=0, quiet_s=DAY, ramps=2 * (kind == "ramp"),
        moving=kind == "moving",
    )  # fmt: skip
    return msgspec.structs.replace(base, **changes)


def found(seed: int, left_s: float | None, fill_s: float = HOUR) -> field.Row:
    return row(leak=True, family="leak", seed=seed, left_s=left_s, fill_s=fill_s, quiet_s=0.0)


def test_the_field_mix_has_the_ramps_of_the_field() -> None:
    rows = [row("ramp", false=1), row("moving"), row(), found(1, 1800.0)]
    mixed = field.mixes(rows)
    rate = 2.5 / 12.3
    assert mixed["hard"]["ramps_per_day"] == pytest.approx(2.0 / 3.0)
    assert mixed["field"]["ramps_per_day"] == pytest.approx(rate)
    assert mixed["hard"]["per_day"] == pytest.approx(1.0 / 3.0)
    # Half an alert a ramp.
    assert mixed["field"]["per_day"] == pytest.approx(0.5 * rate)
    assert mixed["hard"]["f1"] == pytest.approx(2.0 / 3.0)
    false = 3.0 * rate / 2.0
    assert mixed["field"]["precision"] == pytest.approx(1.0 / (1.0 + false))
    time = mixed["field"]["time"]
    assert time["moving"] / (1.0 - time["ramp"]) == pytest.approx(1.0 / 3.0)
    assert sum(time.values()) == pytest.approx(1.0)


def test_the_interval_knows_how_little_is_known_of_the_field() -> None:
    many = [
        row(kind, seed=seed, false=int(kind == "ramp"))
        for kind in field.KINDS
        for seed in range(400)
    ]
    mix = field.mixes(many)["field"]
    # With all counts known, what is left is the law of the base rate: 0.5 x Gamma(2.5, 12.3).
    assert mix["per_day_low"] == pytest.approx(0.5 * 0.0338, rel=0.25)
    assert mix["per_day_high"] == pytest.approx(0.5 * 0.5216, rel=0.1)
    assert field.mixes(many) == field.mixes(many)
    few = field.mixes([row("ramp", false=1), row("moving"), row()])["field"]
    assert few["per_day_high"] > mix["per_day_high"]


@pytest.mark.parametrize(
    ("kinds", "ramp_rate"),
    [
        (["still"], 0.0),
        (["moving"], 0.0),
        (["ramp"], 2.0),
        (["ramp", "moving"], 2.5 / 12.3),
        (["ramp", "still"], 2.5 / 12.3),
    ],
)
def test_a_kind_of_which_there_is_nothing_takes_no_time(kinds: list[str], ramp_rate: float) -> None:
    mix = field.mixes([row(kind) for kind in kinds])["field"]
    assert mix["ramps_per_day"] == pytest.approx(ramp_rate)
    assert {kind for kind, share in mix["time"].items() if share} == set(kinds)


def test_without_harmless_time_there_is_no_mix() -> None:
    mixed = field.mixes([found(1, 1800.0)])
    assert (mixed["hard"], mixed["field"], mixed["left_30"]) == (None, None, 1.0)
    assert tables.mixes({"one": mixed}).count(tables.NONE) > 5


def test_a_missed_leak_leaves_no_time() -> None:
    leaks = [
        found(1, 600.0), found(2, 1800.0, 4 * HOUR), found(3, 5 * HOUR, 10 * HOUR), found(4, None),
    ]  # fmt: skip
    felt = field.time_left(leaks)
    assert [felt[f"left_{least}"] for least in field.LEFT_MIN] == [0.75, 0.5, 0.25]
    assert felt["lead"] == pytest.approx(1.0 / 6.0)
    assert felt["left_30_slow"] == 1.0
    assert [part["leaks"] for part in felt["by_fill"]] == [2, 1, 1]
    assert felt["by_fill"][0]["left_30"] == 0.0
    assert felt["by_fill"][2]["lead"] == 0.5


def test_a_row_counts_what_its_outcome_says() -> None:
    hit = field.row_of(outcome(ramps=1))
    assert (hit.left_s, hit.fill_s, hit.false, hit.kind) == (1.5 * HOUR, 2 * HOUR, 0, "ramp")
    early = field.row_of(outcome(alert_s=60.0, alerts=3))
    assert (early.left_s, early.false) == (None, 1)
    twice = field.row_of(harmless(alert_s=60.0, alerts=2, moving=True))
    assert (twice.false, twice.kind, twice.quiet_s) == (2, "moving", 6 * HOUR)


@pytest.mark.parametrize(("family", "seed"), [("cyclic_floor", 1006), ("unfreeze_steps", 1002)])
def test_every_threshold_alerts_when_a_replay_of_its_own_does(family: str, seed: int) -> None:
    series = worlds.build(family, seed).series
    life, first = sweep.lives(series, levels=sweep.LEVELS)
    plain = replay(series)
    assert (life.watch_s, life.alert_s, life.alerts) == (plain.watch_s, plain.alert_s, plain.alerts)
    assert (life.etas, life.patterns) == (plain.etas, plain.patterns)
    for level in (sweep.LEVELS[0], sweep.LEVELS[-1]):
        own = replay(series, DetectionSection(confidence_threshold=level), stop_at_alert=True)
        assert first[sweep.LEVELS.index(level)] == own.alert_s
    assert first[sweep.LEVELS.index(sweep.DEFAULT)] == plain.alert_s


def test_the_table_of_thresholds_names_the_operating_points() -> None:
    never = (None,) * (len(sweep.LEVELS) - 1)
    rows = sweep.figures([
        outcome(first_alerts=(1.5 * HOUR, *never)),
        harmless(first_alerts=(HOUR, *never), ramps=1),
    ])  # fmt: skip
    assert [one["threshold"] for one in rows] == list(sweep.LEVELS)
    assert {one["name"] for one in rows} - {None} == set(sweep.POINTS)
    assert (rows[0]["hard"]["f1"], rows[0]["left_60"]) == (pytest.approx(2.0 / 3.0), 1.0)
    assert (rows[1]["hard"]["f1"], rows[1]["hard"]["per_day"]) == (0.0, 0.0)
    assert len(tables.sweep(rows).splitlines()) == 2 + len(sweep.LEVELS)
    # What an earlier run kept has none.
    assert sweep.figures([outcome()]) == []


@dataclass(frozen=True, kw_only=True, eq=False)
class Fake:
    """A run of one program beside a quiet one: which facts it was asked for."""

    series: Series
    truth: Truth
    family: str = "straight"
    seed: int = 0
    parts: tuple[Fake, ...] = ()
    tells: bool = True
    asked: set[tuple[str, bool]]

    def limit_bytes(self, at_s: float) -> float | None:
        assert self.series.t_s[0] <= at_s <= self.series.t_s[-1]
        return self.series.limit_bytes

    def knows(self, kind: str, *, oracle: bool) -> bool:
        assert kind in knowledge.KINDS
        return self.tells

    def walk(self, asked_s: float, *, oracle: bool) -> Holder | None:
        self.asked.add(("walk", oracle))
        return Holder(name="kept", kind="list", at_s=asked_s)

    def facts(self, kind: str, at_s: float, *, oracle: bool) -> tuple[GrowthFact, ...]:
        assert self.series.t_s[0] <= at_s <= self.series.t_s[-1]
        self.asked.add((kind, oracle))
        return (GrowthFact(name=FactName.OTHER, source="fake", weight=0.5),)

    def runs(self, *, oracle: bool) -> tuple[Profile, ...]:
        self.asked.add(("runs", oracle))
        rise = Stage(age_s=60.0, rise_s=60.0, rise_bytes=GIB)
        return (
            Profile(
                ended_at_s=0.0, run_s=DAY, base_bytes=GIB, hold_s=0.0, proven_bytes=2 * GIB,
                top_bytes=2 * GIB, stages=(rise,),
            ),
        )  # fmt: skip

    def apart(self, *, oracle: bool) -> Sequence[Fake]:
        self.asked.add(("processes", oracle))
        return self.parts


def fake(*, leaks: bool, hours: float = 3.0, tells: bool = True) -> Fake:
    """A process that leaks from its start, 30 min after the first sample, and one that is flat."""
    asked: set[tuple[str, bool]] = set()
    t = T[hours * HOUR >= T] + 1.7e9
    own = t[t >= t[0] + 1800.0]
    used = (8 + 4 * (own - own[0]) / HOUR) * GIB if leaks else np.full(own.size, 8 * GIB)
    truth = leak(1800.0, 4 * GIB / HOUR, 4.25 * HOUR, "gradual") if leaks else fine("stable")
    inner = leak(0.0, 4 * GIB / HOUR, 3.75 * HOUR, "gradual") if leaks else fine("stable")
    whole = np.concatenate((np.full(t.size - own.size, 1 * GIB), used + 1 * GIB))
    parts = tuple(
        Fake(series=make(x, y, 24 * GIB), truth=truth, asked=asked, tells=tells)
        for x, y, truth in ((own, used, inner), (t, np.full(t.size, 1 * GIB), fine("stable")))
    )
    return Fake(series=make(t, whole, 24 * GIB), truth=truth, parts=parts, asked=asked)


def test_a_kind_of_knowledge_is_switched_on_alone() -> None:
    item = fake(leaks=True)
    alone = knowledge.judged(item, (), oracle=False)
    assert not item.asked
    assert alone.left_s is not None
    # The lead of the device's jump at the start of the process does not count as found.
    assert 0.0 < alone.left_s <= alone.fill_s == 3.75 * HOUR
    apart = knowledge.judged(item, {"processes"}, oracle=True)
    assert item.asked == {("processes", True)}
    assert (apart.false, apart.quiet_s) == (0, 1800.0)
    assert apart.left_s is not None
    assert 0.0 < apart.left_s <= 3.75 * HOUR
    item.asked.clear()
    knowledge.judged(item, {"sizes"}, oracle=False)
    assert item.asked == {("sizes", False)}
    item.asked.clear()
    knowledge.judged(item, knowledge.KINDS, oracle=False)
    assert item.asked == {(kind, False) for kind in (*knowledge.KINDS, "walk")}


def test_facts_are_put_beside_the_curve() -> None:
    item = fake(leaks=True)
    beside = knowledge._Beside(item, ["sizes", "stages"], oracle=False)
    assert len(beside(item.series, None).facts) == 2
    assert knowledge._Beside(item, [], oracle=False)(item.series, None).facts == ()


@pytest.mark.parametrize(("kinds", "stages"), [({"runs"}, 0), ({"stages"}, 1), ({"sizes"}, None)])
def test_stages_are_a_kind_of_their_own(
    kinds: set[str], stages: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    past: list[Profile] = []

    def replayed(whole: Series, **given: Any) -> Life:
        past.extend(given["history"](0.0))
        return Life()

    monkeypatch.setattr(knowledge, "replay", replayed)
    knowledge.judged(fake(leaks=False), kinds, oracle=False)
    assert [len(run.stages) for run in past] == ([] if stages is None else [stages])


@pytest.mark.parametrize(("tells", "times"), [(False, 1 + 2), (True, 1 + 2 * 2 * 7)])
def test_what_a_kind_says_nothing_of_is_not_replayed_again(
    tells: bool, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    item, lives = fake(leaks=False, tells=tells), []

    def replayed(whole: Series, **_: Any) -> Life:
        lives.append(whole)
        return Life()

    name = "tests.scenarios.fake_corpus"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(build=lambda family, seed: item))
    monkeypatch.setattr(knowledge, "replay", replayed)
    assert len(knowledge.of_item((name, "flat", 0))) == 1 + 2 * 7
    assert len(lives) == times


def test_the_table_of_knowledge_has_each_kind_and_its_oracle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "tests.scenarios.fake_corpus"
    corpus = SimpleNamespace(
        FAMILIES=("quiet",), build=lambda family, seed: fake(leaks=False, hours=0.8)
    )
    monkeypatch.setitem(sys.modules, name, corpus)
    seen = knowledge.rows(name, 1, tmp_path / "seen.jsonl", workers=1, code="a")
    assert len(seen) == 1 + 2 * (len(knowledge.KINDS) + len(knowledge.COMBINED))
    rows = knowledge.figures(seen)
    assert [one["known"] for one in rows] == [*knowledge.NAMES]
    assert [one["oracle"] is None for one in rows] == [True] + [False] * 7
    text = tables.knowledge(rows)
    assert len(text.splitlines()) == 2 + len(rows)
    assert knowledge.figures([]) == []
    options = program.parser().parse_args([])
    assert program.beside(options, 1, "a") == []


def test_both_mixes_are_in_the_figures_of_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "documented_rows", list)
    found = result.figures([outcome(), harmless(ramps=1)], {}, None)
    one = found["sets"]["folds"]
    assert one["summary"]["mixes"]["left_30"] == 1.0
    # A set that kept no other thresholds has no table of them.
    assert one["sweep"] == []
    names = result.sections(found)
    assert {"mixes", "left"} <= set(names)
    assert "sweep-folds" not in names


def test_no_single_family_is_shown_of_what_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "documented_rows", list)
    groups = {sets.blind(name, 1, 0.0)[0].group for name in (sets.BLIND, sets.ONCE_BLIND)}
    assert groups == {"blind", "once-blind"}
    found = result.figures([outcome(group=group, alert_s=None) for group in groups], {}, None)
    assert found["sets"]["blind"]["summary"] == found["sets"]["once-blind"]["summary"]
    assert [len(found["sets"][group]["wrong"]) for group in ("blind", "once-blind")] == [0, 1]
    names = result.sections(found).keys()
    assert {"families-once-blind", "wrong-once-blind", "confusion-blind"} <= names
    assert not {"families-blind", "wrong-blind"} & names


def measured(monkeypatch: pytest.MonkeyPatch, group: str = "folds", **changes: Any) -> Any:
    """Figures of a set with a leak, found at the lowest thresholds, and a harmless ramp."""
    monkeypatch.setattr(result, "documented_rows", list)
    never = (None,) * (len(sweep.LEVELS) - 1)
    rows = [
        outcome(group=group, first_alerts=(1.5 * HOUR, *never), **changes),
        harmless(group=group, first_alerts=(HOUR, *never), ramps=1),
    ]
    found = result.figures(rows, {}, None)
    found["run"]["command"] = "this"
    return found


def test_the_figures_of_the_program_are_those_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = measured(monkeypatch)
    source, text, kept, points = (tmp_path / name for name in ("in.json", "page", "kept", "points"))
    text.write_text("")
    figures["run"] |= {"items": 2, "seconds": 1, "workers": 1}
    source.write_bytes(result.written(figures))
    assert page.fill(source, text, kept, points) == 0
    known = msgspec.json.decode(points.read_bytes(), type=Measured)
    assert [row.alert_confidence for row in known.thresholds] == list(sweep.LEVELS)
    first, swept = known.thresholds[0], figures["sets"]["folds"]["sweep"][0]
    assert (first.hard.f1, first.field.f1) == (swept["hard"]["f1"], swept["field"]["f1"])
    assert first.hard.false_alerts_per_day == swept["hard"]["per_day"] > 0.0
    assert first.hard.false_alerts_high_per_day == swept["hard"]["per_day_high"]
    assert (first.lead_share, first.left_60_min_share) == (0.75, 1.0)


def test_a_run_without_thresholds_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = measured(monkeypatch)
    figures["sets"]["folds"]["sweep"] = []
    source, text = tmp_path / "in.json", tmp_path / "page"
    source.write_bytes(result.written(figures))
    assert page.fill(source, text, tmp_path / "kept", tmp_path / "points") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["in.json"]


def test_what_is_reported_is_quoted_before_what_was_tuned_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures = measured(monkeypatch)
    blind = measured(monkeypatch, group="blind")
    figures["sets"] |= blind["sets"]
    assert page.quoted(figures) is blind["sets"]["blind"]


def test_the_readme_quotes_the_default_with_the_field_mix_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures = measured(monkeypatch)
    rows = figures["sets"]["folds"]["sweep"]
    row = next(row for row in rows if row["threshold"] == sweep.DEFAULT)
    row["field"] |= {"f1": 0.87, "per_day": 0.11}
    row["hard"] |= {"f1": 0.76, "per_day": 0.22}
    text = "".join(
        f"| <!-- bench-detect:begin {name} -->old<!-- bench-detect:end --> | this |\n"
        for name in ("mixes", "documented")
    )
    filled = page.readme(text, figures)
    places = [filled.index(figure) for figure in (".87", ".11", ".76", ".22")]
    assert places == sorted(places)
    assert filled.count("|") == text.count("|") + 1
    # The run has no such example.
    assert filled.count("old") == 1
    assert page.readme(filled, figures) == filled


def test_targets_show_the_gain_over_the_curve_beside_that_of_the_oracle() -> None:
    def mixed(f1: float, per_day: float, lead: float) -> dict[str, Any]:
        mix = {
            "f1": f1, "per_day": per_day, "per_day_low": 0.0, "per_day_high": 1.0,
            "ramps_per_day": 0.7,
        }  # fmt: skip
        return {"hard": mix, "field": mix, "lead": lead, "left_30_slow": 0.9}

    none, read, oracle = mixed(0.8, 0.4, 0.6), mixed(0.89, 0.2, 0.6), mixed(0.9, 0.1, 0.6)
    known = [
        {"known": "none", "read": none, "oracle": None},
        *({"known": name, "read": read, "oracle": oracle} for name in knowledge.COMBINED),
    ]
    text = tables.targets({"sets": {}, "knowledge": known, "real": {}})
    (gains,) = (line for line in text.splitlines() if "oracle .90" in line)
    assert re.findall(r"(\S+) \(", gains) == [".90", ".67", tables.NONE]
    assert text.count(tables.ELSEWHERE) == 2
    assert text.count("F1 .890") == 2
