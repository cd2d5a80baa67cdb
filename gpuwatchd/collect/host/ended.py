"""Who had the pids of processes that have ended: the one place that names the gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpuwatchd.core.codes import NameKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.core.model import ProcessInfo

MAX_GONE: Final = 1024
WAS: Final = "gone, was "
"""Begins the name that one is shown with whom only this place still knew."""
_NAMELESS: Final = frozenset({"", "?"})


class Gone:
    """The last known identity of up to :data:`MAX_GONE` pids whose process has ended."""

    def __init__(self) -> None:
        self._who: dict[int, ProcessInfo] = {}

    def of(self, pid: int) -> ProcessInfo | None:
        """Return who had a pid, or None."""
        return self._who.get(pid)

    def note(self, info: ProcessInfo) -> None:
        """Remember a process that has ended; the oldest is forgotten when there are too many."""
        pid = info.key.pid
        self._who.pop(pid, None)
        self._who[pid] = info
        if len(self._who) > MAX_GONE:
            del self._who[next(iter(self._who))]

    def forget(self, pid: int) -> None:
        """Take note that somebody has the pid again."""
        self._who.pop(pid, None)

    def recall(self, infos: Iterable[ProcessInfo]) -> None:
        """Take over whom an earlier run of the daemon knew; whoever lives is forgotten later."""
        for info in infos:
            if info.name_kind is NameKind.GONE:
                info = replace(info, name=info.was, name_kind=NameKind.OWN, was="")  # noqa: PLW2901
            if info.name not in _NAMELESS and not info.foreign:
                self.note(info)
