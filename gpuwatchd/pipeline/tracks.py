"""Who is watched: the tracks of all devices, and who their processes are."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from gpuwatchd.pipeline.ranks import Ranks

if TYPE_CHECKING:
    from gpuwatchd.core.model import Alert, Finding, ProcessInfo, ProcessKey
    from gpuwatchd.pipeline.track import EndedProcess, Track

_MOST_ENDED = 256


class ProcessInfos(dict["ProcessKey", "ProcessInfo"]):
    """Who everybody is; counts its changes, so that nobody need compare."""

    changes = 0

    def __setitem__(self, key: ProcessKey, info: ProcessInfo) -> None:
        if self.get(key) is not info:
            self.changes += 1
            super().__setitem__(key, info)

    def __delitem__(self, key: ProcessKey) -> None:
        self.changes += 1
        super().__delitem__(key)

    def setdefault(self, key: ProcessKey, default: ProcessInfo) -> ProcessInfo:
        """Return who this is; ``default`` from now on where that is not known."""
        process = self.get(key)
        if process is None:
            self[key] = process = default
        return process


class Tracks(dict[str, "Track"]):
    """The tracks by subject id, and what has become of those that have gone."""

    def __init__(self) -> None:
        super().__init__()
        self.ranks = Ranks()
        self.passed_on: list[Alert] = []
        """Alerts that went on with another rank of their job, until somebody takes them."""
        self.looks = 0
        """Judgements ever made, and subjects forgotten."""
        self.unjudged: dict[str, str] = {}
        """Subject id -> why its last judgement failed."""
        self.died: dict[str, Track] = {}
        """Key of an alert -> what ran out of memory last: its curve goes with the message."""
        self.ended: deque[EndedProcess] = deque(maxlen=_MOST_ENDED)
        """Who has ended and has not been learned from."""
        self.created = 0
        """Tracks ever made."""
        self.renamed = False
        """Whether what a process runs has become known since."""
        self._findings: tuple[int, dict[str, Finding]] = (-1, {})

    def findings(self) -> dict[str, Finding]:
        """Return every newest judgement; the same dictionary until there is a newer one."""
        looks, findings = self._findings
        if looks != self.looks:
            findings = {key: it.finding for key, it in self.items() if it.finding is not None}
            self._findings = (self.looks, findings)
        return findings

    def take_passed_on(self) -> list[Alert]:
        """Return the alerts that went on with another rank, once."""
        passed_on, self.passed_on = self.passed_on, []
        return passed_on
