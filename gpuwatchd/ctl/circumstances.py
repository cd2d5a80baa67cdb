"""What the hardware did meanwhile: clean, not readable, or to be looked at first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd import units
from gpuwatchd.ctl import device_facts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.ctl.reasons import Case
    from gpuwatchd.model import Event

BEFORE_S = 600.0
"""What happened this long before the growth began may be its reason."""


def events(case: Case) -> list[Event]:
    """Return what happened to the device since shortly before the growth began."""
    onset_s = case.finding.onset_at_s if case.finding is not None else None
    since_s = onset_s - BEFORE_S if onset_s is not None else 0.0
    return [event for event in case.item.events if event.at_s >= since_s]


def first(case: Case) -> bool:
    """Say whether the hardware or its driver is to be looked at before the program."""
    reading = case.item.reading
    broken = reading is not None and reading.state in {"lost", "hung", "reset-required"}
    return broken or any(event.hardware for event in events(case))


def hardware(case: Case) -> Iterator[str]:
    """Yield what is known of the hardware."""
    reading = case.item.reading
    means = device_facts.memory_means(case.item.device)
    if means:
        yield means
    if reading is None:
        yield "not readable"
        return
    if reading.state != "ok":
        yield ", ".join(
            part if isinstance(part, str) else part[0]
            for part in device_facts.state(case.item, now_s=case.now_s)
            if (part if isinstance(part, str) else part[0])
        )
    for event in events(case):
        look = {True: ": look at the hardware first", False: ": the application's doing"}
        said = look.get(event.hardware, "") if event.hardware is not None else ""
        yield f"{units.clock(event.at_s, now_s=case.now_s)} {event.text}{said}"
    known = [
        ("ECC errors", reading.ecc_errors),
        ("retired pages", reading.retired_pages),
        ("reasons that hold the clocks down",
         None if reading.throttle is None else len(reading.throttle)),
    ]  # fmt: skip
    bad = [f"{name}: {value}" for name, value in known if value]
    unknown = [name for name, value in known if value is None]
    if bad:
        yield ", ".join(bad)
    elif not first(case) and len(unknown) < len(known):
        yield "clean: no error is counted and nothing has happened to it since the growth began"
    if unknown:
        yield f"not readable here: {', '.join(unknown)}"
