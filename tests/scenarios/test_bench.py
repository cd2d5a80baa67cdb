"""The benchmark counts what it says it counts."""

from __future__ import annotations

import gzip
import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from gpuwatchd.analysis.forecast.eta import SCORE
from gpuwatchd.collect.logs.formats import corpus
from tests.conftest import ROOT, present
from tests.scenarios import rivals, train, worlds
from tests.scenarios.bench import __main__ as program
from tests.scenarios.bench import figures, measure, page, real, result, runner, sets, tables
from tests.scenarios.bench.limit import limit
from tests.scenarios.bench.outcome import Forecast, Outcome, is_false, is_hit
from tests.scenarios.replay import make
from tests.scenarios.world import leak

if TYPE_CHECKING:
    from pathlib import Path

GB, HOUR = 1e9, 3600.0


def outcome(**changes: Any) -> Outcome:
    """A leak found half an hour after its onset, with two hours to go."""
    base = Outcome(
        group="folds", family="linear_slow", seed=1, tuned=True, leak=True, patterns=("gradual",),
        length_s=8 * HOUR, onset_s=HOUR, oom_s=3 * HOUR, t_star_s=120.0, watch_s=HOUR + 240.0,
        alert_s=1.5 * HOUR, watches=1, alerts=1, pattern="gradual", evaluations=100,
        judged_us=500.0,
    )  # fmt: skip
    return msgspec.structs.replace(base, **changes)


def harmless(**changes: Any) -> Outcome:
    """Six hours of quiet."""
    return outcome(
        **{
            "family": "flat", "leak": False, "patterns": ("stable",), "pattern": "stable",
            "onset_s": 0.0, "oom_s": None, "t_star_s": None, "watch_s": None, "alert_s": None,
            "watches": 0, "alerts": 0, "length_s": 6 * HOUR, **changes,
        }
    )  # fmt: skip


def test_an_alert_before_the_onset_is_a_false_one() -> None:
    early = outcome(alert_s=0.9 * HOUR)
    assert is_false(early)
    assert not is_hit(early)
    assert is_hit(outcome())
    assert not is_false(outcome(alert_s=None))
    assert is_false(harmless(alert_s=5.0))


def test_the_summary_of_a_handful_can_be_worked_out_by_hand() -> None:
    rows = [
        outcome(),
        outcome(seed=2, alert_s=None, watch_s=None),
        harmless(),
        harmless(seed=2, alert_s=HOUR, watch_s=HOUR, alerts=2, pattern="gradual"),
    ]
    found = figures.summary(rows)
    assert (found["precision"], found["recall"], found["f1"]) == (0.5, 0.5, 0.5)
    assert found["f1_in_time"] == 0.5
    assert found["false_items"] == 1
    assert found["false_alerts"] == 2
    # Six hours twice, and the hour before the onset twice.
    assert found["benign_days"] == pytest.approx(14.0 / 24.0)
    assert found["per_day"] == pytest.approx(2.0 * 24.0 / 14.0)
    assert found["left_median"] == pytest.approx(0.75)
    assert found["before_half"] == 0.5
    assert found["alert"]["minutes"] == pytest.approx(30.0)
    assert found["watch"]["times_limit"] == pytest.approx(2.0)
    assert found["benign_watched"] == 0.5
    assert found["pattern_right"] == pytest.approx(2.0 / 3.0)


def test_a_late_alert_is_found_but_not_in_time() -> None:
    found = figures.summary([outcome(alert_s=2.9 * HOUR)])
    assert found["recall"] == 1.0
    assert found["f1_in_time"] == 0.0


def test_every_family_weighs_the_same_in_f1_and_all_time_counts_per_day() -> None:
    rows = [outcome(), *(harmless(seed=k) for k in range(9)), harmless(seed=9, alert_s=9.0)]
    found = figures.summary(rows)
    assert found["benign"] == 1
    assert found["precision"] == 1.0
    assert found["false_items"] == 1


def test_no_false_alarm_is_bounded_by_the_rule_of_three() -> None:
    assert figures.poisson_bound(0) == pytest.approx(-math.log(0.05), abs=1e-6)
    # The usual table: 3 seen, at most 7.75 with 95 % confidence.
    assert figures.poisson_bound(3) == pytest.approx(7.754, abs=1e-3)


def test_the_bootstrap_draws_families() -> None:
    perfect = [outcome(family=f"leak{k}") for k in range(5)]
    assert figures.bootstrap_f1(perfect) == (1.0, 1.0)
    mixed = perfect + [outcome(family=f"missed{k}", alert_s=None) for k in range(5)]
    low, high = figures.bootstrap_f1(mixed)
    assert low < 2.0 / 3.0 < high


def test_calibration_weighs_every_item_the_same() -> None:
    good = Forecast(real_s=100.0, low_s=50.0, mid_s=100.0, high_s=200.0)
    late = Forecast(real_s=500.0, low_s=50.0, mid_s=100.0, high_s=200.0)
    open_ended = Forecast(real_s=9e9, low_s=50.0, mid_s=100.0, high_s=None)
    rows = [(good,) * 9, (late,), (open_ended,)]
    found = figures.calibration([outcome(forecasts=row) for row in rows])
    assert found["covered"] == pytest.approx(2.0 / 3.0)
    assert found["observed"] == pytest.approx([0.0, 0.0, 2.0 / 3.0])
    assert found["items"] == 3


def test_confusion_leaves_out_leaks_that_nobody_saw() -> None:
    rows = [
        outcome(), outcome(pattern="step"), outcome(watch_s=None, alert_s=None), harmless(),
    ]  # fmt: skip
    assert figures.confusion(rows) == {
        "gradual": {"gradual": 1, "step": 1},
        "stable": {"stable": 1},
    }


@pytest.mark.parametrize(
    ("rate", "sd", "expected_s"), [(1e6, 0.0, 60.0), (1e4, 0.0, 3.5 * 2**21 / 1e4)]
)
def test_the_limit_of_a_straight_leak_is_its_quantum(
    rate: float, sd: float, expected_s: float
) -> None:
    t = np.arange(0.0, 4 * HOUR, 5.0)
    x = np.floor((2 * GB + rate * t + sd) / 2**21) * 2**21
    found = present(limit(make(t, x, 80 * GB), leak(0.0, rate, 70 * GB / rate, "gradual")))
    # Cells of ten seconds blur a fast quantum.
    assert found == pytest.approx(expected_s, rel=0.2)


def test_the_limit_of_a_noisy_leak_grows_with_the_noise() -> None:
    t = np.arange(0.0, 8 * HOUR, 10.0)
    rng = np.random.default_rng(5)
    truth = leak(0.0, 1e5, 1e6, "gradual")
    found = [
        limit(make(t, 9 * GB + 1e5 * t + rng.normal(0.0, sd, t.size), 80 * GB), truth)
        for sd in (5e7, 4e8)
    ]
    assert found[0] is not None
    assert found[1] is not None
    # (6 h sd^2 2 tau / r^2)^(1/3) with tau half a cell: four times for eight times the noise.
    assert found[1] == pytest.approx(4.0 * found[0], rel=0.25)
    expected = (6.0 * math.log(43200.0) * 5e7**2 * 10.0 / 1e10) ** (1.0 / 3.0)
    assert found[0] == pytest.approx(expected, rel=0.25)


def test_the_limit_of_cycles_is_three_periods() -> None:
    t = np.arange(0.0, 6 * HOUR, 5.0)
    x = 6 * GB + 2e5 * 600.0 * np.floor(t / 600.0) + 3 * GB * ((t % 600.0) / 600.0)
    found = present(limit(make(t, x, 80 * GB), leak(0.0, 2e5, 1e6, "cyclic")))
    assert found == pytest.approx(1800.0, rel=0.15)


def test_a_harmless_run_has_no_limit() -> None:
    item = worlds.build("flat", 1)
    assert limit(item.series, item.truth) is None


def test_weights_are_put_back() -> None:
    shipped = dict(SCORE.coefficients)
    with measure.weighing({"one": 1.0}):
        assert SCORE.coefficients == {"one": 1.0}
    assert SCORE.coefficients == shipped


def task(family: str, **changes: Any) -> measure.Task:
    return msgspec.structs.replace(
        measure.Task(group="folds", corpus=sets.LAB, family=family, seed=1000), **changes
    )


def test_an_item_is_judged_with_the_weights_of_its_fold() -> None:
    usual = measure.run(task("segments", rivals=False, processes=False))
    deaf = measure.run(task("segments", rivals=False, processes=False, weights={"one": -50.0}))
    assert usual.alert_s is not None
    assert deaf.alert_s is None


def test_a_run_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    tasks = [task("growing_peaks"), task("long_fill")]
    path = tmp_path / "outcomes.jsonl"
    first = runner.evaluate(tasks[:1], path, workers=1, code="a")
    with path.open("ab") as sink:
        sink.write(b"0123 {torn")
    both = runner.evaluate(tasks, path, workers=1, code="a")
    assert both[0] == first[0]
    assert [one.family for one in both] == ["growing_peaks", "long_fill"]
    assert len(runner.Kept(path, Outcome).found) == 2
    # Other code, other outcomes.
    assert runner.mark(tasks[0], "a") != runner.mark(tasks[0], "b")


def test_every_family_is_fitted_without_itself_and_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fold(family: str) -> dict[str, float]:
        asked.append(family)
        return {"one": float(len(family))}

    monkeypatch.setattr(train, "fold", fold)
    path = tmp_path / "weights.jsonl"
    first, words = sets.fold_weights(["flat", "noisy"], path, "code")
    again, _ = sets.fold_weights(["flat", "noisy"], path, "code")
    assert first == again == {"flat": {"one": 4.0}, "noisy": {"one": 5.0}}
    assert asked == ["flat", "noisy"]
    assert "but the one that is judged" in words
    sets.fold_weights(["flat"], path, "other code")
    assert asked == ["flat", "noisy", "flat"]


def test_harmless_items_are_added_until_there_are_enough_days() -> None:
    tasks = sets.blind(sets.LAB, 1, days=25.0)
    benign = [one for one in tasks if one.family in worlds.BENIGN]
    days = sum(worlds.build(one.family, one.seed).length_s for one in benign) / 86400.0
    assert days >= 25.0
    assert days - len(worlds.BENIGN) / 3.0 < 25.0
    assert sum(one.family in worlds.LEAKS for one in tasks) == len(worlds.LEAKS)


def test_the_program_prints_and_writes_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Fitting takes minutes and has tests of its own.
    monkeypatch.setattr(train, "fold", lambda _: dict(SCORE.coefficients))
    arguments = [
        "--seeds", "1", "--tuning", "--family", "segments", "--family", "growing_peaks",
        "--workers", "1", "--output", str(tmp_path), "--real", str(tmp_path / "nowhere"),
    ]  # fmt: skip
    assert program.main(arguments) == 0
    printed = capsys.readouterr().out
    found = msgspec.json.decode((tmp_path / "figures.json").read_bytes())
    assert set(found["sets"]) == {"folds", "seeds"}
    assert (tmp_path / "report.md").read_text() in printed
    assert tables.headline(result.summaries(found)) in printed
    rows = found["sets"]["folds"]["rivals"]
    assert len(rows) == 2 * len(rivals.RIVALS)
    text = "a\n<!-- bench-detect:begin headline -->\nold\n<!-- bench-detect:end -->\nb\n"
    filled = page.filled(text, found)
    assert "old" not in filled
    assert tables.headline(result.summaries(found)) in filled
    assert page.filled(filled, found) == filled


def test_a_recording_is_judged_as_analyze_does(tmp_path: Path) -> None:
    t = np.arange(0, 3600, 10)
    lines = ["timestamp, index, memory.used [MiB], memory.total [MiB]"]
    lines += [f"2026-01-01 00:{s // 60:02d}:{s % 60:02d}, 0, 4000 MiB, 24576 MiB" for s in t]
    (tmp_path / "flat.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "manifest.json").write_text('[{"file": "flat.csv", "label": "no-leak"}]')
    rows = real.recordings(tmp_path)
    assert isinstance(rows, list)
    assert (rows[0]["subjects"], rows[0]["alerted"], rows[0]["watched"]) == (1, 0, 0)
    assert real.totals(rows)["no-leak"]["hours"] == pytest.approx(1.0, abs=0.01)
    assert real.totals(rows)["no-leak"]["gpu_days"] == pytest.approx(1.0 / 24.0, rel=0.01)
    # The rule of three, over an hour.
    assert real.totals(rows)["no-leak"]["per_day_bound"] == pytest.approx(72.0, rel=0.02)
    assert (rows[0]["watches"], rows[0]["soon"], rows[0]["alerts"], rows[0]["ramps"]) == (0,) * 4
    assert "72." in tables.real_totals(real.totals(rows))
    assert "alarms on 1 harmless subjects, 1 hours" in tables.real_alarms(rows)
    assert "flat.csv" in tables.real(rows)


def test_a_folder_without_recordings_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(["--only", "real", "--real", str(tmp_path)])
    assert ended.value.code


def test_what_people_share_has_the_labels_of_its_outcomes(tmp_path: Path) -> None:
    example = ROOT / "contrib" / "corpus" / "example.jsonl"
    (tmp_path / "one.jsonl.gz").write_bytes(gzip.compress(example.read_bytes()))
    rows = real.recordings(tmp_path)
    assert isinstance(rows, list)
    assert [(row["label"], row["subjects"], row["alerted"]) for row in rows] == [
        ("leak", 1, 1), ("unknown", 2, 0),
    ]  # fmt: skip
    assert rows[0]["rivals"].keys() == {rival.name for rival in rivals.RIVALS}


@pytest.mark.parametrize(
    ("words", "outcomes", "died", "label"),
    [
        (["normal"], ["filled"], 5, "no-leak"),
        (["normal", "leak"], ["plateaued"] * 2, None, "leak"),
        ([None], ["filled"], None, "leak"),
        ([None] * 2, ["plateaued", "given-back"], None, "no-leak"),
        ([None] * 2, ["plateaued", "open"], None, "unknown"),
        ([None], [None], None, "unknown"),
        ([], [], 5, "leak"),
        ([], [], None, "unknown"),
    ],
)
def test_the_label_of_a_shared_subject(
    words: list[str | None], outcomes: list[str | None], died: int | None, label: str
) -> None:
    text = (ROOT / "contrib" / "corpus" / "example.jsonl").read_text().splitlines()[2]
    line = msgspec.json.decode(text, type=corpus.SubjectLine)
    pairs = zip(words, outcomes, strict=True)
    verdicts = [
        msgspec.structs.replace(line.verdicts[0], feedback=word, outcome=outcome)
        for word, outcome in pairs
    ]
    changed = msgspec.structs.replace(line, verdicts=tuple(verdicts), full_at_end_ds=died)
    assert real.label_of(changed) == label
