"""Can the GPUs be read, and what keeps us from it."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

from gpuwatchd.cli.doctor.checks import Check, PendingCheck, failed, ok, warning
from gpuwatchd.collect.host.procfs import inside_container
from gpuwatchd.collect.nvml import driver as nvml_library
from gpuwatchd.collect.nvml.driver_files import read_text
from gpuwatchd.core import units
from gpuwatchd.core.errors import GpuwatchdError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from gpuwatchd.cli.doctor.checks import CheckContext
    from gpuwatchd.core.model import Device, Sample

_READABLE = frozenset({"ok", "asleep", "released"})
"""States of a GPU that need no mending."""


def check(around: CheckContext) -> Iterator[Check]:
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
            yield from explain(around, works=answers[0].level == "ok")
    for kind in selection.HARDWARE:
        if kind not in SOURCES or any(kind == word for word, _ in choices):
            continue
        text = "not enabled" if selection.suits(kind) else "not for this system"
        yield ok(f"source {kind}", text)
    if not works:
        yield failed(
            "gpu-none",
            "gpu",
            "no GPU can be watched here",
            "one of the sources above has to work; to try it without a GPU: gpuwatchctl demo",
        )


def _ask(word: str, around: CheckContext) -> PendingCheck:
    hung = failed(
        "source-hangs",
        f"source {word}",
        "does not answer: the driver hangs",
        "sudo dmesg | tail; often only this helps: sudo reboot",
    )
    return PendingCheck(lambda: _source(word, around), hung)


def _source(name: str, around: CheckContext) -> list[Check]:
    from gpuwatchd.collect import selection  # noqa: PLC0415

    word = f"source {name}"
    if name == "nvml" and (until_s := around.released_until_s) is not None:
        # Asking the driver anything would hold the GPUs again, which somebody wants free.
        until = units.clock(until_s, now_s=time.time())
        return [ok(word, f"released on request until {until}, and not asked")]
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
    from gpuwatchd.cli.doctor import environment  # noqa: PLC0415
    from gpuwatchd.store.live import LiveDevice  # noqa: PLC0415

    faults = tuple(fault.why for fault in sample.faults if fault.device_uid == device.uid)
    reading = next((one for one in sample.readings if one.device_uid == device.uid), None)
    item = LiveDevice(device=device, reading=reading, faults=faults)
    checks = environment.device(item, now_s=sample.taken_at_s)
    return [check for check in checks if check.level != "ok"]


# Why NVIDIA's driver does not answer: module, library, device files, container, nouveau.
# Everything is read from files; nothing here opens the driver.

_NAME = "driver"
_NVIDIA = "0x10de"
_DISPLAY = "0x03"
"""PCI class of displays and 3D controllers."""
_VERSION = re.compile(r"\d{3,}\.\d+(?:\.\d+)?")
_RUN_WITH = "docker run --gpus all ... (podman: --device nvidia.com/gpu=all)"


def explain(around: CheckContext, *, works: bool) -> Iterator[Check]:
    """Yield what the driver is, and where it does not work why.

    Parameters
    ----------
    around
        The machine.
    works
        Whether NVIDIA's library answers; then nothing is wrong whatever the files look like.
    """
    root = around.root
    cards = _cards(root)
    module, library = _module(root), nvml_library.find(root, around.environ)
    if works:
        if module or library:
            yield ok(_NAME, f"kernel module {module or '?'}, library {_version(library) or '?'}")
        return
    if not cards and not module:
        return  # no NVIDIA GPU here: nothing to mend
    node = (root / "dev/nvidiactl").exists()
    if not node and _in_container(root):
        yield warning(
            "driver-container",
            _NAME,
            "this container was started without its GPUs: /dev/nvidiactl is not in it",
            _RUN_WITH,
        )
    elif not module:
        yield from _not_loaded(root, len(cards))
    elif library is None:
        yield from _no_library(root, module)
    elif (flaw := nvml_library.library_defect(library)) is not None:
        words = f"the NVIDIA library cannot be loaded: {flaw.words}"
        yield warning("driver-library-unusable", _NAME, words, flaw.hint)
    elif (ours := _version(library)) and ours != module:
        yield warning(
            "driver-mismatch",
            _NAME,
            f"the library is {ours}, the kernel module still {module}: the driver was updated "
            "while it was in use",
            "sudo reboot (or end what uses the GPUs, then: sudo rmmod "
            "nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia)",
        )
    elif not node:
        yield warning(
            "driver-nodes",
            _NAME,
            f"the kernel module {module} is loaded, but its files in /dev are missing",
            "sudo nvidia-modprobe -c 0 -u",
        )


def _not_loaded(root: Path, count: int) -> Iterator[Check]:
    cards = f"{count} NVIDIA GPU" + ("" if count == 1 else "s")
    if (root / "sys/module/nouveau").exists():
        yield warning(
            "driver-nouveau",
            _NAME,
            f"{cards}, run by nouveau, which reports no memory use; NVIDIA's driver is needed",
            "sudo apt install nvidia-driver (or your system's package), then: sudo reboot",
        )
        return
    hint = "sudo modprobe nvidia; then: sudo dmesg | grep -i -e nvrm -e nvidia"
    yield warning("driver-not-loaded", _NAME, f"{cards}, but no kernel module is loaded", hint)


def _no_library(root: Path, module: str) -> Iterator[Check]:
    if _in_container(root):
        yield warning(
            "driver-container",
            _NAME,
            f"{nvml_library.NAME} is not in this container, although the host runs driver {module}",
            f"{_RUN_WITH}, with NVIDIA_DRIVER_CAPABILITIES=utility",
        )
        return
    major = module.partition(".")[0]
    yield warning(
        "driver-library",
        _NAME,
        f"the kernel module {module} is loaded, but {nvml_library.NAME} is missing",
        f"sudo apt install libnvidia-compute-{major} (Debian: libnvidia-ml1), of the same version",
    )


def _cards(root: Path) -> list[str]:
    """Return the PCI addresses of NVIDIA's GPUs."""
    return [
        card.name
        for card in sorted((root / "sys/bus/pci/devices").glob("*"))
        if read_text(card / "vendor") == _NVIDIA and read_text(card / "class").startswith(_DISPLAY)
    ]


def _module(root: Path) -> str:
    """Return the version of the kernel module that is loaded; "" when none is."""
    text = read_text(root / "sys/module/nvidia/version")
    if not text:
        match = _VERSION.search(read_text(root / "proc/driver/nvidia/version"))
        text = match[0] if match else ""
    return text


def _version(library: Path | None) -> str:
    """Return the version in the real name of the library; "" where it has none."""
    if library is None:
        return ""
    match = _VERSION.search(os.path.basename(os.path.realpath(library)))  # noqa: PTH119
    return match[0] if match else ""


def _in_container(root: Path) -> bool:
    marks = (root / ".dockerenv", root / "run/.containerenv", root / "run/systemd/container")
    return any(mark.exists() for mark in marks) or inside_container(root / "proc", root)
