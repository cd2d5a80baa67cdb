"""What is around the program: device files, other people's processes, container, servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.cli import environment
from gpuwatchd.cli.doctor.answer import Check, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.cli.doctor.answer import Around

_FAULTS = {"device files": "device-files", "processes": "processes-hidden"}


def check(around: Around) -> Iterator[Check]:
    """Yield what is around us."""
    state, _ = around.state
    found = environment.every(around.settings, state, alive=around.alive)
    for name, level, words, hint in found:
        if level == "ok":
            yield ok(name, words)
            continue
        fault = _FAULTS.get(name, "server-silent" if name.startswith("server") else "gpu-unread")
        yield warning(fault, name, words, hint)
