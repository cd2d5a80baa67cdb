"""Can the GPUs be read, what keeps us from it, and what else of the machine can be seen."""

from __future__ import annotations

import os
import re
import stat
import time
from typing import TYPE_CHECKING

from gpuwatchd.cli.doctor import Check, PendingCheck, failed, named, ok, warning
from gpuwatchd.collect.host.procfs import inside_container, mounts
from gpuwatchd.collect.nvml import driver as nvml_library
from gpuwatchd.collect.nvml.driver_files import nvidia_cards, read_text
from gpuwatchd.core import units
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.store.live import LiveDevice
from gpuwatchd.view.text import subject_facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from gpuwatchd.cli.doctor import CheckContext
    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import Device, Sample, ServerReading

_READABLE = frozenset({"ok", "asleep", "released"})
"""States of a GPU that need no mending."""


def check(around: CheckContext) -> Iterator[Check]:
    """Yield whether each source works, then what keeps it from reading a GPU."""
    from gpuwatchd.collect import SOURCES, selection  # noqa: PLC0415

    choices = selection.choices(around.settings.sources)
    asked = [(word, optional, _ask(word, around)) for word, optional in choices]
    found = [(word, optional, one.answers()) for word, optional, one in asked]
    works = any(answers[0].level == "ok" for _, _, answers in found)
    for _, optional, (first, *others) in found:
        # What is merely tried needs no mending while another source works.
        yield ok(first.text, name=first.name) if works and optional else first
        if not around.alive:  # else the daemon's own view follows
            yield from others
    for word, _, answers in found:
        if word.partition(":")[0] == "nvml":
            yield from named(explain(around, works=answers[0].level == "ok"), "driver")
    for kind in selection.HARDWARE:
        if kind in SOURCES and all(kind != word for word, _ in choices):
            text = "not enabled" if selection.suits(kind) else "not for this system"
            yield ok(text, name=f"source {kind}")
    if not works:
        yield failed(
            "gpu-none",
            "no GPU can be watched here",
            "one of the sources above has to work; to try it without a GPU: gpuwatchctl demo",
            name="gpu",
        )


def _ask(word: str, around: CheckContext) -> PendingCheck:
    hung = failed(
        "source-hangs",
        "does not answer: the driver hangs",
        "sudo dmesg | tail; often only this helps: sudo reboot",
        name=f"source {word}",
    )
    return PendingCheck(lambda: _source(word, around), hung)


def _source(word: str, around: CheckContext) -> list[Check]:
    from gpuwatchd.collect import selection  # noqa: PLC0415

    if word == "nvml" and (until_s := around.released_until_s) is not None:
        # Asking the driver anything would hold the GPUs again, which somebody wants free.
        until = units.clock(until_s, now_s=time.time())
        return [ok(f"released on request until {until}, and not asked")]
    try:
        source = selection.make(word, around.settings.sources)
        availability = source.probe()
        if not availability.ok:
            return [warning("source-unusable", availability.reason, availability.hint)]
        sample = source.read()
        devices = tuple(source.devices())
        source.close()
    except GpuwatchdError as error:
        return [warning("source-unusable", error.message, error.hint)]
    if not devices:
        return [warning("source-empty", f"{availability.reason}; it has no GPU")]
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
        return [ok(f"{count}; {availability.reason}"), *blind]
    words = f"{count}, {len(unread)} of them cannot be read; {availability.reason}"
    lost = warning("gpu-unread", words, "sudo dmesg | tail")
    lost_ones = [check for device in unread for check in _troubles(device, sample)]
    return [ok(words) if read else lost, *lost_ones, *blind]


def _counted(devices: Sequence[Device]) -> str:
    """Return "5 GPUs and 2 MIG instances"."""
    cards = sum(device.parent_uid is None for device in devices)
    parts = [
        units.count(number, name)
        for number, name in ((cards, "GPU"), (len(devices) - cards, "MIG instance"))
        if number
    ]
    return " and ".join(parts)


def _troubles(device: Device, sample: Sample) -> list[Check]:
    """Say what keeps a GPU or its processes from being read, in the words of ``status``."""
    faults = tuple(fault.why for fault in sample.faults if fault.device_uid == device.uid)
    reading = next((one for one in sample.readings if one.device_uid == device.uid), None)
    item = LiveDevice(device=device, reading=reading, faults=faults)
    return [one for one in device_state(item, now_s=sample.taken_at_s) if one.level != "ok"]


# Why NVIDIA's driver does not answer: module, library, device files, container, nouveau.
# Everything is read from files; nothing here opens the driver.

_VERSION = re.compile(r"\d{3,}\.\d+(?:\.\d+)?")
_LIMITS_SINCE = 615
_LIMITS = (
    "root limits the memory of a control group, in MiB: sudo nvidia-smi memory-limits --set "
    "--namespace /sys/fs/cgroup/GROUP --soft-limit SOFT --hard-limit HARD -i GPU"
)
"""As "MPS v3 Memory Partitioning" in NVIDIA's documentation of MPS has it; not tried."""
_RUN_WITH = "docker run --gpus all ... (podman: --device nvidia.com/gpu=all)"


def explain(around: CheckContext, *, works: bool) -> Iterator[Check]:
    """Yield what the driver is, and where it does not work why.

    Where NVIDIA's library ``works``, nothing is wrong whatever the files look like.
    """
    root = around.root
    cards = nvidia_cards(root / "sys")
    match = _VERSION.search(read_text(root / "proc/driver/nvidia/version"))
    module = read_text(root / "sys/module/nvidia/version") or (match[0] if match else "")
    library = nvml_library.find(root, around.environ)
    if works:
        yield from _works(module, library)
        return
    if not cards and not module:
        return  # no NVIDIA GPU here: nothing to mend
    node = (root / "dev/nvidiactl").exists()
    if not node and _in_container(root):
        yield warning(
            "driver-container",
            "this container was started without its GPUs: /dev/nvidiactl is not in it",
            _RUN_WITH,
        )
    elif not module:
        yield from _not_loaded(root, len(cards))
    elif library is None:
        yield from _no_library(root, module)
    elif (flaw := nvml_library.library_defect(library)) is not None:
        words = f"the NVIDIA library cannot be loaded: {flaw.words}"
        yield warning("driver-library-unusable", words, flaw.hint)
    elif (ours := _version(library)) and ours != module:
        yield warning(
            "driver-mismatch",
            f"the library is {ours}, the kernel module still {module}: the driver was updated "
            "while it was in use",
            "sudo reboot (or end what uses the GPUs, then: sudo rmmod "
            "nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia)",
        )
    elif not node:
        yield warning(
            "driver-nodes",
            f"the kernel module {module} is loaded, but its files in /dev are missing",
            "sudo nvidia-modprobe -c 0 -u",
        )


def _works(module: str, library: Path | None) -> Iterator[Check]:
    if module or library:
        yield ok(f"kernel module {module or '?'}, library {_version(library) or '?'}")
    release = (module or _version(library)).partition(".")[0]
    if release.isdigit() and int(release) >= _LIMITS_SINCE:
        yield ok(_LIMITS)


def _not_loaded(root: Path, count: int) -> Iterator[Check]:
    cards = units.count(count, "NVIDIA GPU")
    if (root / "sys/module/nouveau").exists():
        yield warning(
            "driver-nouveau",
            f"{cards}, run by nouveau, which reports no memory use; NVIDIA's driver is needed",
            "sudo apt install nvidia-driver (or your system's package), then: sudo reboot",
        )
        return
    hint = "sudo modprobe nvidia; then: sudo dmesg | grep -i -e nvrm -e nvidia"
    yield warning("driver-not-loaded", f"{cards}, but no kernel module is loaded", hint)


def _no_library(root: Path, module: str) -> Iterator[Check]:
    if _in_container(root):
        yield warning(
            "driver-container",
            f"{nvml_library.NAME} is not in this container, although the host runs driver {module}",
            f"{_RUN_WITH}, with NVIDIA_DRIVER_CAPABILITIES=utility",
        )
        return
    major = module.partition(".")[0]
    yield warning(
        "driver-library",
        f"the kernel module {module} is loaded, but {nvml_library.NAME} is missing",
        f"sudo apt install libnvidia-compute-{major} (Debian: libnvidia-ml1), of the same version",
    )


def _version(library: Path | None) -> str:
    """Return the version in the real name of the library; "" where it has none."""
    name = "" if library is None else os.path.basename(os.path.realpath(library))  # noqa: PTH119
    match = _VERSION.search(name)
    return match[0] if match else ""


def _in_container(root: Path) -> bool:
    marks = (root / ".dockerenv", root / "run/.containerenv", root / "run/systemd/container")
    return any(mark.exists() for mark in marks) or inside_container(root / "proc", root)


# What is around us: device files, other people's processes, container, servers.

_NODES = ("dev/nvidiactl", "dev/nvidia[0-9]*", "dev/dri/render*", "dev/kfd")
_HIDING = {"1", "2", "4", "noaccess", "invisible", "ptraceable"}
_INSIDE = (
    "inside one: the driver's pids are those of the host; foreign ones stay unnamed and are never "
    "signalled (a daemon on the host names them)"
)


def surroundings(around: CheckContext) -> Iterator[Check]:
    """Yield what is around us, in order."""
    yield from device_files(around.root)
    yield from processes(around.root)
    yield from container(around.root)
    state, _ = around.state
    if state is None or not around.alive:
        yield from servers(around.settings, ())
        return
    for item in state.devices:
        yield from device_state(item, now_s=state.taken_at_s)
    yield from servers(around.settings, state.servers, now_s=state.taken_at_s)
    if around.settings.endpoints.enabled and not state.servers:
        yield ok("no serving engine is seen to run here", name="servers")


def device_files(root: Path) -> Iterator[Check]:
    """Yield whether the files of GPUs may be opened; nothing where there are none."""
    paths = sorted(node for pattern in _NODES for node in root.glob(pattern))
    closed = [node for node in paths if not os.access(node, os.R_OK | os.W_OK)]
    if not paths:
        return
    if not closed:
        names = ", ".join(str(node) for node in paths[:4])
        more = f" and {len(paths) - 4} more" if len(paths) > 4 else ""
        yield ok(f"may be opened: {names}{more}", name="device files")
        return
    group = _group(closed[0])
    hint = f"sudo usermod -aG {group} $USER" if group else f"ls -l {closed[0]}"
    names = ", ".join(str(node) for node in closed[:4])
    yield warning("device-files", f"may not be opened by you: {names}", hint, name="device files")


def _group(node: Path) -> str:
    """Return the group that may open a file; "" when none may, or it is root's own."""
    import grp  # noqa: PLC0415 - only where a file is closed

    try:
        about = node.stat()
        if not about.st_mode & stat.S_IWGRP or about.st_gid == 0:
            return ""
        return grp.getgrgid(about.st_gid).gr_name
    except (OSError, KeyError):
        return ""


def processes(root: Path) -> Iterator[Check]:
    """Yield how much of other people's processes can be read."""
    hiding = hidden(root)
    if hiding:
        yield warning(
            "processes-hidden",
            "those of other users are hidden (hidepid): they are shown as mere pids",
            "ask for the group that /proc names (gid=), or run the daemon as root",
            name="processes",
        )
    elif hiding is not None:
        words = "others' are named; their libraries cannot be read: their frameworks are guesses"
        yield ok("all can be read" if os.geteuid() == 0 else words, name="processes")


def hidden(root: Path) -> bool | None:
    """Say whether /proc hides the processes of others (hidepid); None where there is no /proc.

    Root sees them all the same.
    """
    file = root / "proc/self/mountinfo"
    if not file.exists():
        return None
    for point, kind, option_words in mounts(file):
        if (point, kind) == ("/proc", "proc"):
            options = dict(word.partition("=")[::2] for word in option_words.split(","))
            if "hidepid" in options:
                return options["hidepid"] in _HIDING and os.geteuid() != 0
    return False


def container(root: Path) -> Iterator[Check]:
    """Yield whether the driver's pids are not ours."""
    if (root / "proc/self").exists() and inside_container(root / "proc", root):
        yield ok(_INSIDE, name="container")


def device_state(item: LiveDevice, *, now_s: float) -> Iterator[Check]:
    """Yield what keeps the daemon from reading a device, and why its processes are unknown."""
    label, reading = item.device.label, item.reading
    parts = subject_facts.state(item, now_s=now_s)
    unknown = subject_facts.processes(item)
    if parts:
        texts = [part if isinstance(part, str) else part[0] for part in parts[:2]]
        sentence = "; ".join(text for text in texts if text)
        if reading is not None and reading.state in {"asleep", "released"}:
            yield ok(sentence, name=label)
        else:
            yield warning("gpu-unread", sentence, subject_facts.remedy(reading), name=label)
    elif unknown:
        yield warning("gpu-unread", unknown, "compare with what nvidia-smi lists", name=label)


def servers(
    settings: Config, found: Iterable[ServerReading], *, now_s: float = 0.0
) -> Iterator[Check]:
    """Yield whether the serving engines that were found answer."""
    if not settings.endpoints.enabled:
        yield ok("serving engines are not asked (endpoints.enabled)", name="servers")
        return
    for server in found:
        name = f"server {server.kind}"
        if server.ok:
            ago = units.duration(max(0.0, now_s - server.at_s))
            yield ok(f"{server.url} answered {ago} ago", name=name)
        else:
            yield warning(
                "server-silent",
                f"{server.url} does not answer: {server.why or 'no reason given'}",
                f"curl -v {server.url}, or name its address in [endpoints] urls",
                name=name,
            )
