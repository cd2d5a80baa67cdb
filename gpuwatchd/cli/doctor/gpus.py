"""Can the GPUs be read, and what keeps us from it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpuwatchd.cli.doctor import driver
from gpuwatchd.cli.doctor.answer import Asked, Check, failed, ok, warning
from gpuwatchd.core import units
from gpuwatchd.core.errors import GpuwatchdError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatchd.cli.doctor.answer import Around
    from gpuwatchd.core.model import Device, Sample

_READABLE = frozenset({"ok", "asleep", "released"})
"""States of a GPU that need no mending."""


def check(around: Around) -> Iterator[Check]:
    """Yield whether each source works, then what keeps it from reading a GPU."""
    from gpuwatchd.collect import SOURCES, selection  # noqa: PLC0415

    settings = around.settings
    choices = selection.choices(settings.sources)
    asked = [(word, optional, _ask(word, around)) for word, optional in choices]
    found = [(word, optional, one.answers()) for word, optional, one in asked]
    works = any(answers[0].level == "ok" for _, _, answers in found)
    for _, optional, (first, *others) in found:
        # What is merely tried needs no mending while another source works.
        yield ok(first.name, first.text) if works and optional else first
        if not around.alive:  # else the daemon's own view follows
            yield from others
    for word, _, answers in found:
        if word.partition(":")[0] == "nvml":
            yield from driver.explain(around, works=answers[0].level == "ok")
    for kind in selection.HARDWARE:
        if kind not in SOURCES or any(kind == word for word, _ in choices):
            continue
        text = "not enabled" if selection.suits(kind) else "not for this system"
        yield ok(f"source {kind}", text)
    if not works:
        yield failed(
            "gpu-none", "gpu", "no GPU can be watched here",
            "one of the sources above has to work; to try it without a GPU: gpuwatchctl demo",
        )  # fmt: skip


def _ask(word: str, around: Around) -> Asked:
    hung = failed(
        "source-hangs", f"source {word}", "does not answer: the driver hangs",
        "sudo dmesg | tail; often only this helps: sudo reboot",
    )  # fmt: skip
    return Asked(lambda: _source(word, around), hung)


def _source(name: str, around: Around) -> list[Check]:
    from gpuwatchd.collect import selection  # noqa: PLC0415

    word = f"source {name}"
    if name == "nvml" and (until_s := around.released_until_s) is not None:
        # Asking the driver anything would hold the GPUs again, which somebody wants free.
        until = units.clock(until_s, now_s=time.time())
        return [ok(word, f"let go on request until {until}, and not asked")]
    try:
        source = selection.make(name, around.settings.sources)
        availability = source.probe()
        if not availability.ok:
            return [warning("source-unusable", word, availability.reason, availability.hint)]
        sample = source.read()
        devices = tuple(source.devices())
        source.close()
    except GpuwatchdError as error:
        return [warning("source-unusable", word, error.message, error.hint)]
    if not devices:
        return [warning("source-empty", word, f"{availability.reason}; it has no GPU")]
    count = _counted(devices)
    read = {reading.device_uid for reading in sample.readings if reading.state in _READABLE}
    unread = [device for device in devices if device.uid not in read]
    # A system that never tells of processes (a recording, macOS) is no fault to be mended.
    faulty = {fault.device_uid for fault in sample.faults}
    blind = [
        check
        for reading in sample.readings
        if reading.device_uid in read and reading.uses is None and reading.device_uid in faulty
        for check in _troubles(next(d for d in devices if d.uid == reading.device_uid), sample)
    ]
    if not unread:
        return [ok(word, f"{count}; {availability.reason}"), *blind]
    words = f"{count}, {len(unread)} of them cannot be read; {availability.reason}"
    lost = warning("gpu-unread", word, words, "sudo dmesg | tail")
    lost_ones = [check for device in unread for check in _troubles(device, sample)]
    return [ok(word, words) if read else lost, *lost_ones, *blind]


def _counted(devices: Sequence[Device]) -> str:
    """Return "5 GPUs and 2 MIG instances"."""
    cards = sum(device.parent_uid is None for device in devices)
    pieces = len(devices) - cards
    parts = [
        f"{number} {name}{'' if number == 1 else 's'}"
        for number, name in ((cards, "GPU"), (pieces, "MIG instance"))
        if number
    ]
    return " and ".join(parts)


def _troubles(device: Device, sample: Sample) -> list[Check]:
    """Say what keeps a GPU or its processes from being read, in the words of ``status``."""
    from gpuwatchd.cli import environment  # noqa: PLC0415
    from gpuwatchd.store.live import LiveDevice  # noqa: PLC0415

    faults = tuple(fault.why for fault in sample.faults if fault.device_uid == device.uid)
    reading = next((one for one in sample.readings if one.device_uid == device.uid), None)
    item = LiveDevice(device=device, reading=reading, faults=faults)
    return [
        warning("gpu-unread", name, words, hint)
        for name, level, words, hint in environment.device(item, now_s=sample.taken_at_s)
        if level != "ok"
    ]
