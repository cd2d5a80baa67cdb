"""From the request's file to the sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core.model import Availability, Device, DeviceReading, DeviceState, Fault, Sample
from gpuwatchd.pipeline.source_workers import DriverRelease, SourceWorker
from gpuwatchd.store import live

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW = 1_000_000.0


class Holder:
    """A source that notes for how long it was asked to let go."""

    name = "holder"

    needs_restart = False

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.faults: tuple[Fault, ...] = ()
        self.readings: tuple[DeviceReading, ...] = ()
        self.worker = SourceWorker(self, deadline_s=1.0)

    def probe(self) -> Availability:
        return Availability(ok=True, reason="")

    def devices(self) -> list[Device]:
        return []

    def read(self) -> Sample:
        return Sample(
            taken_at_s=0.0, taken_mono_s=0.0, boot_id="", readings=self.readings, faults=self.faults
        )

    def close(self) -> None:
        pass

    def release_driver(self, duration_s: float) -> None:
        self.asked.append(duration_s)

    def answer_within(self, seconds: float) -> None:
        self.within_s = seconds


@pytest.fixture
def holder() -> Iterator[Holder]:
    made = Holder()
    yield made
    made.worker.close()


class Plain(Holder):
    """One that holds nothing."""

    release_driver = None  # type: ignore[assignment]


def test_a_request_is_passed_on_once_and_ended_in_time(tmp_path: Path, holder: Holder) -> None:
    plain = SourceWorker(Plain(), deadline_s=1.0)
    letting_go = DriverRelease(tmp_path, [holder.worker, plain])
    assert not letting_go.update(NOW)
    live.ask_release(tmp_path, 60.0, NOW)
    assert letting_go.update(NOW + 1)
    assert not letting_go.update(NOW + 2)
    assert holder.asked == [59.0]
    live.ask_release(tmp_path, 60.0, NOW + 30)
    assert letting_go.update(NOW + 30)
    assert not letting_go.update(NOW + 89)
    assert letting_go.update(NOW + 90)
    assert holder.asked == [59.0, 60.0, 0.0]
    assert live.release_stamp(tmp_path) is None
    assert not letting_go.update(NOW + 91)
    plain.close()


def test_a_request_that_is_taken_back_ends_at_once(tmp_path: Path, holder: Holder) -> None:
    letting_go = DriverRelease(tmp_path, [holder.worker])
    live.ask_release(tmp_path, 60.0, NOW)
    letting_go.update(NOW)
    live.end_release(tmp_path)
    assert letting_go.update(NOW + 1)
    assert holder.asked == [60.0, 0.0]


def test_a_new_daemon_honours_what_is_left_and_clears_what_is_over(
    tmp_path: Path, holder: Holder
) -> None:
    live.ask_release(tmp_path, 60.0, NOW)
    assert DriverRelease(tmp_path, [holder.worker]).update(NOW + 40)
    assert holder.asked == [20.0]
    DriverRelease(tmp_path, [holder.worker]).update(NOW + 61)
    assert live.release_stamp(tmp_path) is None


def test_garbage_is_told_once_and_ends_no_release(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, holder: Holder
) -> None:
    letting_go = DriverRelease(tmp_path, [holder.worker])
    live.ask_release(tmp_path, 60.0, NOW)
    letting_go.update(NOW)
    (tmp_path / live.RELEASE_FILE).write_text("garbage")
    for second in range(5):
        assert not letting_go.update(NOW + second)
    assert len([r for r in caplog.records if "ignored" in r.getMessage()]) == 1
    assert holder.asked == [60.0]


def test_a_clock_that_is_set_back_makes_no_request_longer(tmp_path: Path, holder: Holder) -> None:
    mono_s = [7.0]
    letting_go = DriverRelease(tmp_path, [holder.worker], lambda: mono_s[0])
    live.ask_release(tmp_path, 60.0, NOW)
    assert letting_go.update(NOW)
    mono_s[0] += 59
    assert not letting_go.update(NOW - 3600 + 59)
    mono_s[0] += 1
    assert letting_go.update(NOW - 3600 + 60)
    assert holder.asked == [60.0, 0.0]
    assert live.release_stamp(tmp_path) is None


def test_a_new_daemon_after_a_step_back_honours_no_more_than_was_asked(
    tmp_path: Path, holder: Holder
) -> None:
    live.ask_release(tmp_path, 60.0, NOW)
    assert DriverRelease(tmp_path, [holder.worker]).update(NOW - 3600)
    assert holder.asked == [60.0]


def test_a_source_learns_how_long_it_may_take_also_after_a_reload(holder: Holder) -> None:
    at_first_s = holder.within_s
    holder.worker.answer_within(0.5)
    assert (at_first_s, holder.within_s) == (1.0, 0.5)


def test_what_a_sample_says_of_the_whole_source_is_shown(holder: Holder) -> None:
    holder.faults = (
        Fault(where="holder/0", why="one card", device_uid="GPU-0"),
        Fault(where="holder", why="all of it"),
    )
    assert isinstance(holder.worker.read(0.0), Sample)
    assert holder.worker.absent == holder.faults[1]
    holder.faults = ()
    holder.worker.read(1.0)
    assert holder.worker.absent is None
    restarts = [holder.worker.needs_restart]
    holder.needs_restart = True
    assert [*restarts, holder.worker.needs_restart] == [False, True]


@pytest.mark.parametrize(
    ("states", "absent"),
    [
        (("released", "released"), False),
        (("asleep", "released"), False),
        (("released", "lost"), True),
        ((), True),
    ],
)
def test_what_is_left_alone_on_purpose_is_no_problem(
    states: tuple[DeviceState, ...], absent: bool, holder: Holder
) -> None:
    holder.faults = (Fault(where="holder", why="let go"),)
    holder.readings = tuple(
        DeviceReading(
            device_uid=f"GPU-{n}", used_bytes=None, free_bytes=None, total_bytes=None, state=state
        )
        for n, state in enumerate(states)
    )
    holder.worker.read(0.0)
    assert (holder.worker.absent is not None) is absent


def test_a_world_older_than_the_boot_is_read(holder: Holder) -> None:
    assert isinstance(holder.worker.read(-3600.0), Sample)
    holder.worker.release_driver(1.0)
    assert isinstance(holder.worker.read(-3599.0), Sample)
