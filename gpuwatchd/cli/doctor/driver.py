"""Why NVIDIA's driver does not answer: module, library, device files, container, nouveau.

Everything is read from files; nothing here opens the driver.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from gpuwatchd.cli.doctor.answer import Check, ok, warning
from gpuwatchd.collect.host.files import inside_container
from gpuwatchd.collect.nvml import library as nvml_library

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuwatchd.cli.doctor.answer import Around

_NAME = "driver"
_NVIDIA = "0x10de"
_DISPLAY = "0x03"
"""PCI class of displays and 3D controllers."""
_VERSION = re.compile(r"\d{3,}\.\d+(?:\.\d+)?")
_RUN_WITH = "docker run --gpus all ... (podman: --device nvidia.com/gpu=all)"


def explain(around: Around, *, works: bool) -> Iterator[Check]:
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
            "driver-container", _NAME,
            "this container was started without its GPUs: /dev/nvidiactl is not in it", _RUN_WITH,
        )  # fmt: skip
    elif not module:
        yield from _not_loaded(root, len(cards))
    elif library is None:
        yield from _no_library(root, module)
    elif (flaw := nvml_library.flaw(library)) is not None:
        words = f"the NVIDIA library cannot be loaded: {flaw.words}"
        yield warning("driver-library-unusable", _NAME, words, flaw.hint)
    elif (ours := _version(library)) and ours != module:
        yield warning(
            "driver-mismatch", _NAME,
            f"the library is {ours}, the kernel module still {module}: the driver was updated "
            "while it was in use", "sudo reboot (or end what uses the GPUs, then: sudo rmmod "
            "nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia)",
        )  # fmt: skip
    elif not node:
        yield warning(
            "driver-nodes", _NAME,
            f"the kernel module {module} is loaded, but its files in /dev are missing",
            "sudo nvidia-modprobe -c 0 -u",
        )  # fmt: skip


def _not_loaded(root: Path, count: int) -> Iterator[Check]:
    cards = f"{count} NVIDIA GPU" + ("" if count == 1 else "s")
    if (root / "sys/module/nouveau").exists():
        yield warning(
            "driver-nouveau", _NAME,
            f"{cards}, run by nouveau, which tells nothing of memory; NVIDIA's driver is needed",
            "sudo apt install nvidia-driver (or your system's package), then: sudo reboot",
        )  # fmt: skip
        return
    hint = "sudo modprobe nvidia; then: sudo dmesg | grep -i -e nvrm -e nvidia"
    yield warning("driver-not-loaded", _NAME, f"{cards}, but no kernel module is loaded", hint)


def _no_library(root: Path, module: str) -> Iterator[Check]:
    if _in_container(root):
        yield warning(
            "driver-container", _NAME,
            f"{nvml_library.NAME} is not in this container, although the host runs driver {module}",
            f"{_RUN_WITH}, with NVIDIA_DRIVER_CAPABILITIES=utility",
        )  # fmt: skip
        return
    major = module.partition(".")[0]
    yield warning(
        "driver-library", _NAME,
        f"the kernel module {module} is loaded, but {nvml_library.NAME} is missing",
        f"sudo apt install libnvidia-compute-{major} (Debian: libnvidia-ml1), of the same version",
    )  # fmt: skip


def _cards(root: Path) -> list[str]:
    """Return the PCI addresses of NVIDIA's GPUs."""
    return [
        card.name
        for card in sorted((root / "sys/bus/pci/devices").glob("*"))
        if _text(card / "vendor") == _NVIDIA and _text(card / "class").startswith(_DISPLAY)
    ]


def _module(root: Path) -> str:
    """Return the version of the kernel module that is loaded; "" when none is."""
    text = _text(root / "sys/module/nvidia/version")
    if not text:
        match = _VERSION.search(_text(root / "proc/driver/nvidia/version"))
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


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
