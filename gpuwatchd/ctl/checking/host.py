"""What is around the program: device files, other people's processes, container, servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.ctl import look, surroundings
from gpuwatchd.ctl.checking.answer import Check, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.ctl.checking.answer import Around

_FAULTS = {"device files": "device-files", "processes": "processes-hidden"}


def check(around: Around) -> Iterator[Check]:
    """Yield what is around us."""
    state, _ = look.read_state()
    alive = state is not None and look.alive(state)
    for name, level, words, hint in surroundings.every(around.settings, state, alive=alive):
        if level == "ok":
            yield ok(name, words)
            continue
        fault = _FAULTS.get(name, "server-silent" if name.startswith("server") else "gpu-unread")
        yield warning(fault, name, words, hint)
