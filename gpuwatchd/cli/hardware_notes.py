"""What the hardware did meanwhile: clean, not readable, or to be looked at first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.analysis import hardware
from gpuwatchd.cli import device_facts
from gpuwatchd.core import units

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.analysis.hardware import Diagnosis
    from gpuwatchd.cli.curve_reasons import Case
    from gpuwatchd.core.model import DeviceReading, Event

_MOST = 6


def events(case: Case) -> list[Event]:
    """Return what happened to the device, or to the card of a MIG instance, lately.

    Since shortly before the growth began; without a growth, of the last day.
    """
    parent = case.item.device.parent_uid
    mine = {case.item.device.uid, parent}
    found = [
        event
        for item in case.view.devices
        if item.device.uid in mine
        for event in item.events
        if event.at_s >= _since_s(case)
    ]
    return sorted(found, key=lambda event: event.at_s)


def _since_s(case: Case) -> float:
    onset_s = case.finding.onset_at_s if case.finding is not None else None
    recent_s = case.now_s - hardware.RECENT_S
    return recent_s if onset_s is None else min(onset_s - hardware.BEFORE_S, case.now_s)


def diagnose(case: Case) -> Diagnosis:
    """Return where to look first."""
    return hardware.diagnose(events(case), _reading(case), now_s=case.now_s, since_s=_since_s(case))


def _reading(case: Case) -> DeviceReading | None:
    """Return what was read of the device; the history keeps nothing of its health."""
    return None if case.view.source == "database" else case.item.reading


def first(case: Case) -> bool:
    """Say whether the hardware or its driver is to be looked at before the program."""
    return diagnose(case).word == "hardware"


def hardware_lines(case: Case) -> Iterator[str]:
    """Yield what is known of the hardware."""
    diagnosis = diagnose(case)
    yield f"clean, {diagnosis.sentence}" if diagnosis.word == "clean" else diagnosis.sentence
    means = device_facts.memory_means(case.item.device)
    if means:
        yield means
    for event in events(case)[-_MOST:]:
        if event is not diagnosis.event:
            yield f"{units.clock(event.at_s, now_s=case.now_s)} {event.text}"
    reading = _reading(case)
    if reading is None:
        return
    if reading.throttle:
        yield f"clocks are held down: {', '.join(reading.throttle)}"
    counts = (
        ("memory errors since the driver was loaded", reading.ecc_errors),
        ("retired pages", reading.retired_pages),
        ("why clocks are held down", None if reading.throttle is None else 0),
    )
    names = [f"{name}: {value}" for name, value in counts[:2] if value is not None]
    if names:
        yield ", ".join(names)
    unknown = [name for name, value in counts if value is None]
    if unknown:
        yield f"not readable here: {', '.join(unknown)}"
