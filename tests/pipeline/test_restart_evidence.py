"""What the history and the live state know is used at once after a restart, also a long one."""

from __future__ import annotations

import functools
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from gpuwatchd.analysis import numerics
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.model import Sample, Series, Subject
from gpuwatchd.pipeline.track_evaluation import Evaluator
from gpuwatchd.store import live
from tests.making import GIB, MIB, present
from tests.pipeline.restarts import INTERVAL_S, Machine, fill, leak, restarted, steps
from tests.promises.test_restart_memory import rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpuwatchd.core.model import Alert, Delivery, FloatArray
    from gpuwatchd.pipeline.track import Track


@functools.cache
def undisturbed(minutes: float, segments: bool) -> tuple[float, float]:
    """Return when a leak fires and is mailed, seconds, while the daemon runs on."""
    with TemporaryDirectory() as folder:
        machine = Machine(Path(folder), leak(minutes, 24, segments=segments))
        machine.live(0.55 * 60.0 * minutes)
        machine.kill()
    return present(machine.first("firing"))[0], present(machine.mailed_s)


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize(
    ("minutes", "runs_s", "down_s", "segments"),
    [
        (10, (60.0, 60.0, 50.0), 20.0, False),
        (10, (40.0,) * 5, 20.0, False),
        (10, (60.0, 60.0, 50.0), 20.0, True),
        (10, (150.0,), 60.0, False),
        (17, (60.0, 60.0, 50.0), 1.0, False),
        (17, (60.0, 60.0, 50.0), 20.0, False),
        (17, (60.0, 60.0, 50.0), 60.0, False),
        (17, (335.0,), 60.0, False),
        (30, (60.0, 60.0, 50.0), 60.0, False),
        (30, (400.0,), 300.0, False),
    ],
)
def test_a_short_leak_is_mailed_before_half_of_its_time_across_restarts(
    tmp_path: Path,
    minutes: int,
    runs_s: tuple[float, ...],
    down_s: float,
    segments: bool,
    clean: bool,
) -> None:
    fired_s, mailed_s = undisturbed(minutes, segments)
    machine = Machine(tmp_path, leak(minutes, 24, segments=segments))
    restarted(machine, 0.8 * minutes, runs_s, down_s, clean=clean)
    late_s = present(machine.mailed_s) - mailed_s
    assert late_s <= down_s + 30.0
    assert present(machine.mailed_s) < 0.5 * 60.0 * minutes
    assert present(machine.first("firing"))[0] >= fired_s - 2 * INTERVAL_S
    assert [notice for _, notice in machine.messages] == ["firing"]


@pytest.mark.parametrize("run_s", [250.0, 335.0])
def test_a_pause_of_five_minutes_costs_its_length_at_most(tmp_path: Path, run_s: float) -> None:
    machine = Machine(tmp_path, leak(17, 24))
    restarted(machine, 17, (run_s,), 300.0, clean=False)
    assert present(machine.mailed_s) - undisturbed(17, segments=False)[1] <= 330.0
    # It is judged twice more at least before it is told of.
    assert present(machine.first("firing"))[0] >= run_s + 300.0 + 10.0


@pytest.mark.parametrize("down_s", [60.0, 300.0])
@pytest.mark.parametrize(
    "curve",
    [
        fill(9.5, 10.0, 8.0, 3.0),
        fill(9.5, 10.0, 10.0, 3.5),
        steps(1.0, 60.0, 6),
        steps(0.5, 20.0, 14),
    ],
)
def test_what_stops_growing_while_no_daemon_runs_is_no_alert(
    tmp_path: Path, curve: Callable[[float], float], down_s: float
) -> None:
    machine = restarted(Machine(tmp_path, curve), 15, (100.0, 60.0), down_s, clean=False)
    assert not machine.fired


@pytest.mark.parametrize("step_s", [0.0, -1800.0])
def test_a_long_pause_counts_for_no_hold(tmp_path: Path, step_s: float) -> None:
    machine = Machine(tmp_path, leak(30, 24))
    while machine.first("watch") is None or present(machine.track.alert).alert_since_s is None:
        machine.live(machine.age_s + 1.0)
    before = present(machine.track.alert)
    taken_at_s = present(live.read(machine.directory / "run")).taken_at_s
    machine.time.now_s += step_s
    machine.restart(300.0)
    machine.live(machine.age_s + 1.0)
    after = present(machine.track.alert)
    machine.kill()
    moved_s = machine.sampled_ms[-1] / 1000 - taken_at_s  # by the pause and the step
    assert after.alert_since_s == pytest.approx(present(before.alert_since_s) + moved_s, abs=0.01)
    assert after.alert_confirmations == before.alert_confirmations + 1


def test_another_process_of_the_same_pid_begins_its_own_evidence(tmp_path: Path) -> None:
    machine = Machine(tmp_path, leak(17, 24))
    machine.live(335.0)
    machine.kill()
    machine.time.pass_s(20.0)
    machine.begin(4711)
    machine.start()
    before = len(machine.changes)
    machine.live(450.0)
    machine.kill()
    fired = [at_s for at_s, one in machine.changes[before:] if one.state == "firing"]
    assert fired == [pytest.approx(undisturbed(17, segments=False)[0], abs=2 * INTERVAL_S)]


class Listed(Machine):
    """A machine whose process list is as ``hide`` makes it, for so many looks after a start."""

    looks = 0
    hide: Callable[[Sample], Sample] | None = None

    def _look(self) -> Sample:
        one = super()._look()
        if self.looks and self.hide is not None:
            self.looks -= 1
            one = self.hide(one)
        return one


def without(one: Sample) -> Sample:
    reading = msgspec.structs.replace(one.readings[0], uses=())
    return msgspec.structs.replace(one, readings=(reading,), processes=())


def unreadable(one: Sample) -> Sample:
    reading = msgspec.structs.replace(one.readings[0], uses=None, uses_reason="no permission")
    return msgspec.structs.replace(one, readings=(reading,), processes=())


def told(machine: Listed, hide: Callable[[Sample], Sample], looks: int) -> list[str]:
    machine.live(460.0)
    assert [notice for _, notice in machine.messages] == ["firing"]
    machine.hide, machine.looks = hide, looks
    machine.restart()
    machine.live(machine.age_s + 250.0)
    machine.kill()
    return [notice for _, notice in machine.messages[1:]]


@pytest.mark.parametrize(("looks", "endings"), [(1, []), (2, [Ending.ENDED_UNOBSERVED])])
def test_one_list_that_lacks_a_process_after_a_start_ends_nothing(
    tmp_path: Path, looks: int, endings: list[Ending]
) -> None:
    machine = Listed(tmp_path, leak(17, 24))
    messages = told(machine, without, looks)
    over = [one for _, one in machine.changes if one.state == "resolved"]
    # The growth goes on: it is told of the device until the process is plain again.
    assert [one.ended_code for one in over if one.subject.process is not None] == endings
    assert messages == (["resolved", "firing"] if endings else [])
    if not endings:
        assert machine.track.window.count > 100


def test_who_holds_the_memory_stays_known_for_a_while_over_a_restart(tmp_path: Path) -> None:
    # The device as a whole would be told of beside its process, whose alert goes on.
    machine = Listed(tmp_path, leak(17, 24))
    assert told(machine, unreadable, 40) == []
    assert len([one for _, one in machine.changes if one.state == "firing"]) == 1


def test_the_first_judgement_knows_what_the_last_one_knew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, leak(17, 24))
    machine.live(200.0)
    alert = present(machine.track.alert)
    known: list[tuple[str | None, float]] = []
    judge = Evaluator.judge

    def noting(evaluator: Evaluator, tracks: Iterable[Track], now_s: float) -> list[object]:
        track = machine.track
        neighbour = Subject(device_uid=machine.device.uid, unattributed=True)
        known.append((track.run_baseline.asked, sum(track.headroom.others(neighbour))))
        return judge(evaluator, tracks, now_s)  # type: ignore[return-value]

    machine.restart()
    monkeypatch.setattr(Evaluator, "judge", noting)
    machine.live(machine.age_s + 1.0)
    machine.kill()
    assert known[0] == (machine.track.program or "", alert.finding.rate_bytes_per_s)


def test_what_a_process_held_on_the_host_is_known_up_to_the_kill(tmp_path: Path) -> None:
    class Hosted(Machine):
        def _look(self) -> Sample:
            one = super()._look()
            held = 4 * GIB + int(self.age_s * 10) * MIB
            uses = [msgspec.structs.replace(use, host_bytes=held) for use in one.readings[0].uses]  # type: ignore[union-attr]
            reading = msgspec.structs.replace(one.readings[0], uses=tuple(uses))
            return msgspec.structs.replace(one, readings=(reading,))

    machine = Hosted(tmp_path, leak(60, 24))
    written_ms = 0
    machine.live(900.0)
    while machine.time.now_s * 1000 - written_ms < 56_000:
        machine.live(machine.age_s + 1.0)
        written_ms = rows(machine, "SELECT max(ts_ms) FROM process_raw")[0][0]
    last_s = machine.sampled_ms[-1] / 1000
    machine.kill()
    machine.start()
    subject = Subject(device_uid=machine.device.uid, process=machine.info.key, host=True)
    ring = present(machine.pipeline.state.restored.ring(subject))
    machine.kill()
    assert present(ring.last)[0] == pytest.approx(last_s, abs=0.01)


@pytest.mark.parametrize("step_s", [-3600.0, 86_400.0])
def test_a_clock_set_between_the_start_and_the_first_tick(tmp_path: Path, step_s: float) -> None:
    machine = Machine(tmp_path, leak(10, 24))
    machine.live(400.0)
    before = machine.pipeline.tick().state.alerts
    machine.kill()
    machine.start()
    machine.time.now_s += step_s
    after = machine.pipeline.tick().state.alerts
    machine.kill()
    assert [alert.state for alert in before] == ["firing"]
    assert after[0].key == before[0].key
    assert after[0].opened_at_s == pytest.approx(before[0].opened_at_s + step_s, abs=0.1)


@pytest.mark.parametrize("notice", ["firing", "resolved"])
def test_a_message_is_sent_when_memory_was_too_short_to_write_it(
    tmp_path: Path, notice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, leak(10, 24))
    machine.live(10.0 if notice == "firing" else 400.0)
    apply, failed = machine.history.apply, list[int]()

    def refuse(alerts: Sequence[Alert], deliveries: Sequence[Delivery]) -> list[Delivery]:
        if not failed and any(delivery.message.notice == notice for delivery in deliveries):
            failed.append(1)
            raise MemoryError
        return apply(alerts, deliveries)

    monkeypatch.setattr(machine.history, "apply", refuse)
    machine.live(400.0)
    machine.begin(4712)
    machine.curve = lambda _: 4.0 * GIB
    machine.live(200.0)
    machine.pipeline.close()
    assert failed
    assert [name for _, name in machine.messages] == ["firing", "resolved"]
    assert rows(machine, "SELECT count(*), count(resolved_ts_ms) FROM alert") == [(1, 1)]


def size_of_steps(t_s: FloatArray, used_bytes: FloatArray) -> float:
    """Return the mean size of a rise, weighted with the sizes, in MiB."""
    subject = Subject(device_uid="G")
    view = numerics.prepare(
        Series(subject=subject, t_s=t_s, used_bytes=used_bytes, limit_bytes=None)
    )
    return float(view.squares[-1] / (view.floor[-1] - view.floor[0])) / MIB


@pytest.mark.parametrize("pause_s", [25.0, 45.0])
def test_the_rise_over_a_pause_is_no_step_where_growth_went_on(pause_s: float) -> None:
    t_s = np.arange(0.0, 240.0, 5.0)
    t_s = t_s[(t_s <= 100.0) | (t_s >= 100.0 + pause_s)]
    even = t_s * 2.0 * MIB
    assert size_of_steps(t_s, even) == pytest.approx(10.0, rel=0.01)
    # A jump that happened meanwhile stays one, and so does a step among steps.
    jump = even + np.where(t_s > 100.0, 400.0 * MIB, 0.0)
    rise = 400.0 + 2.0 * pause_s
    assert size_of_steps(t_s, jump) > 0.8 * rise * rise / (400.0 + 2.0 * 235.0)
    stairs = np.floor((t_s + 10.0) / 60.0) * 100.0 * MIB
    assert size_of_steps(t_s, stairs) == pytest.approx(100.0, rel=0.01)
