"""What every source owes, as a function: it runs beside the source, in whatever process that is."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, get_args

import msgspec

from gpuwatchd.core.errors import SourceError
from gpuwatchd.core.model import Availability, DeviceReading, DeviceState, Sample
from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.core.model import Device
    from gpuwatchd.core.ports import Source

_KINDS = {"C", "G", "M"}


def broken(source: Source, *, reads: int = 3) -> list[str]:
    """Return the laws that a source breaks, one sentence each, and close it twice."""
    found = list(_probe(source))
    uids: set[str] = set()
    for _ in range(reads):
        try:
            sample = source.read()
        except SourceError as error:
            found += [] if error.message else ["an error without words"]
            continue
        devices = tuple(source.devices())
        found += _devices(source, devices)
        found += _sample(sample, {device.uid for device in devices})
        uids = uids or {device.uid for device in devices}
        if not uids <= {device.uid for device in devices}:
            found.append("a device changed its identity between two looks")
    source.close()
    source.close()
    return list(dict.fromkeys(found))


def states(source: Source) -> list[str]:
    """Return the states of the devices at the next look, and close the source."""
    sample = source.read()
    source.close()
    return [reading.state for reading in sample.readings]


def _probe(source: Source) -> Iterator[str]:
    found = source.probe()
    if not isinstance(found, Availability):
        yield "probe does not answer with an Availability"
    elif not found.reason or "\n" in found.reason + found.hint:
        yield "probe does not answer in one line"


def _devices(source: Source, devices: tuple[Device, ...]) -> Iterator[str]:
    uids = [device.uid for device in devices]
    if len(set(uids)) != len(uids) or not all(uids):
        yield "two devices have one identity, or one has none"
    for device in devices:
        if device.source.partition(":")[0] != source.name:
            yield f"a device says that it is of {device.source!r}"
        if not device.vendor or not device.name or clean(device.name) != device.name:
            yield "a device has no vendor or no clean name"


def _sample(sample: Sample, known: set[str]) -> Iterator[str]:
    if not math.isfinite(sample.taken_at_s) or not math.isfinite(sample.taken_mono_s):
        yield "a sample without a time"
    uids = [reading.device_uid for reading in sample.readings]
    if len(set(uids)) != len(uids) or not set(uids) <= known:
        yield "a reading of an unknown device, or two of one"
    for reading in sample.readings:
        yield from _reading(reading)
    for fault in sample.faults:
        if not fault.why or not fault.where or clean(fault.why, limit=1024) != fault.why:
            yield "a fault without clean words"
        if fault.device_uid is not None and fault.device_uid not in known:
            yield "a fault of an unknown device"


def _reading(reading: DeviceReading) -> Iterator[str]:
    for name, value in msgspec.structs.asdict(reading).items():
        if name.endswith(("_bytes", "_pct", "_c", "_w", "_mhz", "_errors", "_pages")):
            if value is not None and not (math.isfinite(value) and value >= 0):
                yield f"{name} is {value}: unknown is None, and nothing is negative"
            if name.endswith("_bytes") and value is not None and not isinstance(value, int):
                yield f"{name} is no whole number"
    if reading.state not in get_args(DeviceState):
        yield f"no state is called {reading.state}"
    if reading.state != "ok" and reading.used_bytes is not None:
        yield f"a device that is {reading.state} has a reading"
    yield from _uses(reading)


def _uses(reading: DeviceReading) -> Iterator[str]:
    shares = [reading.util_pct, reading.memory_util_pct, *(u.sm_pct for u in reading.uses or ())]
    if any(share is not None and not 0 <= share <= 100 for share in shares):
        yield "a share of less than nothing or more than all"
    if reading.uses is None and not reading.uses_reason:
        yield "processes are unknown, and nobody knows why"
    pids = [use.key for use in reading.uses or ()]
    if len(set(pids)) != len(pids):
        yield "a process is listed twice"
    for use in reading.uses or ():
        if use.used_bytes is not None and use.used_bytes < 0:
            yield "a process holds less than nothing"
        if not set(use.kind.split("+")) <= _KINDS:
            yield f"no kind of use is called {use.kind}"
