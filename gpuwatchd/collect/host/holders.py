"""Who has a GPU's device files open: what ``fuser`` answers, without the screen.

A process without memory on a GPU may still keep it from being reset or taken away, and memory that
the driver lists for nobody may belong to one of these. Read from the links under /proc/PID/fd,
which others than root may follow for their own processes only: who could not be read is counted.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuwatchd.collect.host.files import read_bytes
from gpuwatchd.core.model import Value
from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable

NODES: Final = re.compile(r"/dev/(?:nvidia[\w./-]*|kfd|dri/render[D]\d+)")
"""Device files of GPUs: NVIDIA's, AMD's for computing, and those for rendering without a screen."""
MOST_PIDS: Final = 65_536
MOST_FILES: Final = 16_384
"""Descriptors of one process that are looked at."""
DEADLINE_S: Final = 3.0


class Holder(Value, frozen=True, kw_only=True):
    """One process that has device files open."""

    pid: int
    name: str
    nodes: tuple[str, ...]
    """Which, each once, sorted."""

    @property
    def computes(self) -> bool:
        """Whether it has opened what computing needs; a monitor opens the cards alone."""
        return any(node.startswith(("/dev/nvidia-uvm", "/dev/kfd")) for node in self.nodes)


class Holders(Value, frozen=True, kw_only=True):
    """The answer of one scan."""

    found: tuple[Holder, ...] = ()
    looked: int = 0
    """Processes whose open files were read."""
    unreadable: int = 0
    """Processes of others, whose open files only root may see."""
    whole: bool = True
    """False: it took too long, or there are too many processes."""
    possible: bool = True
    """False: this system has no /proc."""


def scan(proc: str | Path = "/proc", *, clock: Callable[[], float] = time.monotonic) -> Holders:
    """Return who has device files of GPUs open. Takes 10 ms and more: on demand only."""
    root = Path(proc)
    try:
        pids = sorted(int(name) for name in os.listdir(root) if name.isdecimal())  # noqa: PTH208
    except OSError:
        return Holders(possible=False, whole=False)
    if not pids:
        return Holders(possible=False, whole=False)
    until_s = clock() + DEADLINE_S
    holders, looked, unreadable = [], 0, 0
    whole = len(pids) <= MOST_PIDS
    for pid in pids[:MOST_PIDS]:
        if clock() > until_s:
            whole = False
            break
        nodes = _nodes(root / str(pid) / "fd")
        if nodes is None:
            # Threads of the kernel have no command line and no files either.
            unreadable += bool(read_bytes(root / str(pid) / "cmdline"))
            continue
        looked += 1
        if nodes:
            name = clean(read_bytes(root / str(pid) / "comm").strip()) or "?"
            holders.append(Holder(pid=pid, name=name, nodes=tuple(sorted(nodes))))
    return Holders(found=tuple(holders), looked=looked, unreadable=unreadable, whole=whole)


def _nodes(folder: Path) -> set[str] | None:
    """Return the device files that a process has open; None where that may not be read."""
    nodes: set[str] = set()
    try:
        with os.scandir(folder) as links:
            for link, _ in zip(links, range(MOST_FILES), strict=False):
                try:
                    target = os.readlink(link.path)  # noqa: PTH115
                except FileNotFoundError:
                    continue  # closed meanwhile
                if target.startswith("/dev/") and NODES.fullmatch(target):
                    nodes.add(clean(target))
    except FileNotFoundError:
        return nodes  # it has ended meanwhile
    except OSError:
        return None
    return nodes
