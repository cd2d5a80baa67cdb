"""Whose peak it is that the driver told."""

from __future__ import annotations

from typing import Any

import msgspec

from gpuwatchd.core.model import Event, ProcessInfo, ProcessKey, Sample
from gpuwatchd.pipeline.peak_notes import with_process_names

OLD = ProcessInfo(key=ProcessKey(pid=7, started_at_s=1.0), name="python", user="bob")
NEW = ProcessInfo(
    key=ProcessKey(pid=7, started_at_s=9.0), name="python3", argv=("python3", "train.py")
)
SAID = "pid 7 has ended; it held 2.0 GiB at most (the driver's accounting)"


class Device:
    """A device none of whose processes is watched any more."""

    processes: dict[ProcessKey, Any] = {}  # noqa: RUF012 - empty for all


def text_of(*infos: ProcessInfo, uid: str = "GPU-1", pid: int | None = 7) -> str:
    event = Event(
        at_s=1.0, kind="process-peak", device_uid="GPU-1", text=SAID, pid=pid, peak_bytes=2**31
    )
    sample = Sample(taken_at_s=1.0, taken_mono_s=1.0, boot_id="b", readings=(), events=(event,))
    devices: Any = {uid: Device()}
    return with_process_names(sample, devices, {info.key: info for info in infos}).events[0].text


def test_it_is_that_of_the_newest_process_with_the_number() -> None:
    rest = SAID.removeprefix("pid 7")
    assert text_of(OLD) == f"python[7] of bob{rest}"
    assert text_of(NEW, OLD) == f"python3 train.py[7]{rest}"


def test_nobody_is_named_who_is_not_known() -> None:
    assert text_of() == SAID
    assert text_of(OLD, uid="GPU-2") == SAID
    assert text_of(OLD, pid=None) == SAID
    assert text_of(msgspec.structs.replace(OLD, foreign=True)) == SAID
    assert text_of(msgspec.structs.replace(OLD, name="")) == SAID


def test_a_sample_without_such_events_stays_what_it_is() -> None:
    sample = Sample(taken_at_s=1.0, taken_mono_s=1.0, boot_id="b", readings=())
    assert with_process_names(sample, {}, {}) is sample
