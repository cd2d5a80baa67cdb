"""A daemon that is killed and started again goes on where it was."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.store import live
from gpuwatchd.store.schema import FILE_NAME
from tests.making import GIB, present
from tests.pipeline.restarts import DOWN_S, Machine, fill, leak, steps

if TYPE_CHECKING:
    from pathlib import Path

THREE = (60.0, 120.0, 170.0)
LAST = "SELECT max(ts_ms) FROM gpu_raw"
LOOP = tuple(range(40, 301, 40))
"""Killed every 40 s for five minutes."""


def rows(machine: Machine, statement: str) -> list[tuple[int, ...]]:
    file = machine.directory / "state" / FILE_NAME
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(statement).fetchall()


def lived(machine: Machine, until_s: float) -> Machine:
    machine.live(until_s)
    machine.kill()
    return machine


def mailed_share(machine: Machine, minutes: float) -> float:
    return present(machine.mailed_s) / (60.0 * minutes)


@pytest.mark.parametrize("gib", [24, 80])
@pytest.mark.parametrize("kills_s", [THREE, LOOP])
def test_a_leak_of_17_minutes_is_mailed_before_half_of_its_time_though_the_daemon_is_killed(
    tmp_path: Path, kills_s: tuple[float, ...], gib: int
) -> None:
    machine = lived(Machine(tmp_path, leak(17, gib), gib, kills_s=kills_s), 17 * 60.0)
    assert mailed_share(machine, 17) < 0.45
    fired = present(machine.first("firing"))
    assert fired[1].finding.onset_at_s == pytest.approx(machine.began_s, abs=60.0)
    assert [notice for _, notice in machine.messages] == ["firing"]


@pytest.mark.parametrize("gib", [24, 80])
@pytest.mark.parametrize("minutes", [10, 12, 15, 20, 30])
@pytest.mark.parametrize("segments", [False, True])
def test_a_leak_of_10_to_30_minutes_is_mailed_before_half_of_its_time(
    tmp_path: Path, minutes: int, gib: int, segments: bool
) -> None:
    curve = leak(minutes, gib, segments=segments)
    machine = lived(Machine(tmp_path, curve, gib), 0.55 * 60.0 * minutes)
    assert mailed_share(machine, minutes) < 0.5


@pytest.mark.parametrize("minutes", [10, 12, 20])
def test_growth_at_random_times_is_mailed_in_time_in_nine_of_ten_draws(
    tmp_path: Path, minutes: int
) -> None:
    shares = []
    for seed in range(10):
        curve = leak(minutes, 24, segments=True, seed=seed)
        machine = lived(Machine(tmp_path / str(seed), curve, 24), 0.6 * 60.0 * minutes)
        shares.append(mailed_share(machine, minutes))
    assert sum(share < 0.5 for share in shares) >= 9
    assert max(shares) < 0.55


def test_the_growth_after_a_load_is_as_old_as_it_is(tmp_path: Path) -> None:
    machine = lived(Machine(tmp_path, leak(10, 24, load_s=15.0)), 15.0 + 300.0)
    assert present(machine.mailed_s) - 15.0 < 300.0
    fired = present(machine.first("firing"))
    assert fired[1].finding.onset_at_s == pytest.approx(machine.began_s + 15.0, abs=10.0)


def test_a_kill_long_after_the_start_does_not_begin_the_evidence_anew(tmp_path: Path) -> None:
    machine = Machine(tmp_path, leak(60, 24))
    machine.live(900.0)
    written_ms = rows(machine, LAST)[0][0]
    while machine.time.now_s * 1000 - written_ms < 56_000:
        machine.live(machine.age_s + 1.0)
        written_ms = rows(machine, LAST)[0][0]
    machine.restart()
    # What was not written and the restart are longer than a pause in the record may be.
    assert machine.time.now_s * 1000 - written_ms > 60_000
    machine.live(machine.age_s + 1.0)
    finding = machine.track.finding
    machine.kill()
    assert finding is not None
    assert finding.samples > 150
    assert finding.onset_at_s == pytest.approx(machine.began_s, abs=60.0)


def test_a_daemon_that_is_killed_every_40_seconds_keeps_nine_tenths_of_its_samples(
    tmp_path: Path,
) -> None:
    machine = lived(Machine(tmp_path, leak(17, 24), kills_s=LOOP), 320.0)
    for table in ("gpu_raw", "process_raw"):
        kept = [at_ms for (at_ms,) in rows(machine, f"SELECT ts_ms FROM {table}")]
        assert set(kept) <= set(machine.sampled_ms)
        assert len(kept) == len(set(kept)) >= 0.9 * len(machine.sampled_ms)


def test_minutes_in_which_a_daemon_was_killed_are_rolled_up_as_they_were(tmp_path: Path) -> None:
    machine = lived(Machine(tmp_path, leak(17, 24), kills_s=THREE), 1000.0)
    whole = rows(
        machine,
        "SELECT ts_ms / 60000 * 60, count(*), min(used_bytes), max(used_bytes) FROM gpu_raw"
        " GROUP BY 1 ORDER BY 1",
    )
    rolled = rows(
        machine, "SELECT ts_s, n, used_min_bytes, used_max_bytes FROM gpu_minutes ORDER BY ts_s"
    )
    assert len(rolled) >= 15
    assert rolled == whole[: len(rolled)]


def test_how_long_an_alert_has_had_its_evidence_outlives_a_kill(tmp_path: Path) -> None:
    machine = Machine(tmp_path, leak(60, 24))
    while machine.first("watch") is None or machine.track.alert.alert_since_s is None:  # type: ignore[union-attr]
        machine.live(machine.age_s + 1.0)
    before = present(machine.track.alert)
    assert before.state == "watch"
    machine.restart()
    machine.live(machine.age_s + 1.0)
    after = present(machine.track.alert)
    assert after.alert_since_s == before.alert_since_s
    assert present(after.evidence) > present(before.evidence)
    assert after.alert_confirmations == before.alert_confirmations + 1
    # After a long pause nobody knows what has been in between.
    machine.restart(600.0)
    machine.live(machine.age_s + 1.0)
    later = machine.track.alert
    machine.kill()
    assert later is None or later.alert_since_s is None or later.alert_since_s > before.changed_at_s


def test_evidence_that_has_opened_nothing_yet_outlives_a_kill(tmp_path: Path) -> None:
    machine = Machine(tmp_path, leak(60, 24))
    machine.live(90.0)
    while machine.track.alert is None:
        machine.live(machine.age_s + 1.0)
    before = machine.track.alert
    assert before.state == "pending"
    machine.restart()
    machine.live(machine.age_s + 1.0)
    after = present(machine.track.alert)
    assert (after.opened_at_s, after.confirmations) == (
        before.opened_at_s,
        before.confirmations + 1,
    )
    machine.restart(600.0)
    machine.live(machine.age_s + 1.0)
    machine.kill()
    assert not machine.pipeline.state.restored.pending


@pytest.mark.parametrize("step_s", [-1800.0, 1800.0])
def test_a_clock_that_is_set_between_two_runs_moves_what_was_before(
    tmp_path: Path, step_s: float
) -> None:
    machine = Machine(tmp_path, leak(60, 24))
    machine.live(400.0)
    count = machine.track.window.count
    machine.kill()
    machine.time.pass_s(DOWN_S)
    machine.time.now_s += step_s
    machine.start()
    machine.live(machine.age_s + 1.0)
    finding = machine.track.finding
    assert machine.track.window.count >= 0.9 * count
    machine.kill()
    assert present(finding).onset_at_s == pytest.approx(machine.began_s + step_s, abs=60.0)
    assert rows(machine, "SELECT count(*) FROM segment WHERE reason = 'clock-step'") == [(1,)]


@pytest.mark.parametrize("ahead_s", [3600.0, 4e9, -1e18, 1e308])
def test_a_live_state_from_the_future_or_of_no_time_hides_nothing(
    tmp_path: Path, ahead_s: float
) -> None:
    machine = Machine(tmp_path, leak(60, 24))
    machine.live(200.0)
    count = machine.track.window.count
    machine.kill()
    before = present(live.read(machine.directory / "run"))
    forged = msgspec.structs.replace(before, taken_at_s=before.taken_at_s + ahead_s)
    live.write(machine.directory / "run", forged)
    machine.time.pass_s(DOWN_S)
    machine.start()
    machine.live(machine.age_s + 60.0)
    assert machine.track.window.count >= 0.9 * count + 10
    machine.kill()


def test_nothing_is_carried_over_a_reboot(tmp_path: Path) -> None:
    machine = Machine(tmp_path, leak(17, 24))
    machine.live(200.0)
    assert machine.first("watch") is not None
    machine.kill()
    machine.boot_id = "boot-2"
    machine.time.mono_s = 20.0
    machine.time.now_s += 40.0
    machine.begin(4711)
    machine.start()
    machine.live(machine.age_s + 1.0)
    whole = machine.pipeline.state.tracks["GPU-1"]
    assert (machine.track.window.count, whole.window.count) == (1, 1)
    assert machine.track.alert is None
    machine.live(300.0)
    assert present(machine.track.finding).onset_at_s == pytest.approx(machine.began_s, abs=60.0)
    machine.kill()


def test_what_rose_while_no_daemon_ran_is_no_growth(tmp_path: Path) -> None:
    def curve(age_s: float) -> float:
        return (8.0 if age_s < 3000.0 else 14.0) * GIB

    machine = Machine(tmp_path, curve)
    machine.live(900.0)
    machine.restart(3600.0)
    machine.live(machine.age_s + 900.0)
    machine.kill()
    assert machine.track.window.count > 300
    assert machine.changes == []


HARMLESS = {
    "60 GiB are loaded in three minutes": (80, fill(60.0, 180.0, 0.0, 1.0)),
    "60 GiB are loaded in five minutes": (80, fill(60.0, 300.0, 0.0, 1.0)),
    "first from memory, then from a disk": (80, fill(12.0, 15.0, 45.0, 4.5)),
    "a cache fills for three minutes": (24, fill(9.5, 10.0, 8.0, 3.0)),
    "a cache fills for three and a half minutes": (24, fill(9.5, 10.0, 10.0, 3.5)),
    "the batch grows every minute": (24, steps(1.0, 60.0, 6)),
    "the batch grows every 20 seconds": (24, steps(0.5, 20.0, 14)),
}


@pytest.mark.parametrize("kills_s", [(), THREE, LOOP])
@pytest.mark.parametrize("name", HARMLESS)
def test_what_begins_with_a_rise_and_stops_is_no_alert(
    tmp_path: Path, name: str, kills_s: tuple[float, ...]
) -> None:
    gib, curve = HARMLESS[name]
    assert not lived(Machine(tmp_path, curve, gib, kills_s=kills_s), 900.0).fired
