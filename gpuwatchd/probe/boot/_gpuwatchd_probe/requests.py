"""What is asked of a process: what its functions add, and inspections, one census at a time."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any, Iterator

from . import counters

MOST_KEPT = 4
"""Groups of the last inspection that stay in the mailbox."""
WARM_UP_S = 60.0
"""After a framework's import: by then optimizers and caches have made what they keep."""
BETWEEN_S = 60.0
"""From one inspection to the next."""
LEAST_FREE = 0.02
"""Of a device's memory."""


class Inspections:
    """The inspection under way, and the last one."""

    def __init__(self, began_s: float) -> None:
        self.began_s, self.due_s, self.last_s = began_s, 0.0, -BETWEEN_S
        self.last: dict[str, Any] | None = None
        self.result: dict[str, Any] = {}
        self._steps: Iterator[dict[str, Any]] | None = None
        self._every_s = 0.0
        self._answers = True
        self._abort = threading.Event()

    @property
    def running(self) -> str | None:
        """The id of the one under way."""
        return None if self._steps is None else str(self.result["id"])

    def answer(self, asked: dict[str, Any], frameworks: list[str]) -> dict[str, Any] | None:
        """Return the answer to a request; None where it begins an inspection."""
        if asked.get("verb") == "functions":
            module = spans()
            return {"functions": [] if module is None else module.most(calls=True)}
        if asked.get("verb") == "cancel":
            if self.running == asked.get("of"):
                self._steps = None
                if not self.result["censuses"]:
                    self.last_s = -BETWEEN_S
            return None
        error = self._refusal(asked, frameworks)
        if error:
            return {"error": error}
        from . import inspection, tensors

        warm_s = self.began_s + _within(asked.get("warmup_s", WARM_UP_S), 0.0, 600.0)
        self._every_s = _within(asked.get("every_s", 10.0), 0.1, 600.0)
        censuses = int(_within(asked.get("censuses", 4), 4, 16))
        self._steps = inspection.steps(tensors.types(), censuses, is_stopping=self._is_stopping)
        self.result = next(self._steps)
        self.result.update(id=asked["id"], every_s=self._every_s)
        self._answers = bool(asked.get("answer", True))
        self.last_s = self.due_s = max(time.monotonic(), warm_s)
        return None

    def _refusal(self, asked: dict[str, Any], frameworks: list[str]) -> str | None:
        if asked.get("verb") != "census":
            return "unknown-verb"
        if counters_only():
            return "counters-only"
        if self._steps is not None:
            return "running"
        if time.monotonic() < self.last_s + BETWEEN_S:
            return "too-soon"
        if any(counters.free(name) < LEAST_FREE for name in frameworks):
            return "device-memory"
        from . import heap

        longest_s = _within(asked.get("pause_s", 0.3), 0.0, 60.0)
        return "pause" if heap.expected_pause_s() > longest_s else None

    def _is_stopping(self) -> bool:
        return self._abort.is_set()

    def step(self, abort: threading.Event) -> dict[str, Any] | None:
        """Take the next census when it is due; after the last one return what is to be answered.

        The thread may be another than the one before: a fork ends it, which ``abort`` says.
        """
        self._abort = abort
        if self._steps is None or time.monotonic() < self.due_s:
            return None
        before = self.result["censuses"]
        more = next(self._steps, None)
        taken = self.result["censuses"] > before  # else the job forked meanwhile: again, at once
        self.due_s = time.monotonic() + (self._every_s if taken else 0.0)
        if more is not None:
            return None
        self._steps = None
        self.result["at_s"] = time.time()
        from . import oom

        oom.add_lines(self.result["groups"])
        self.last = dict(self.result, groups=self.result["groups"][:MOST_KEPT])
        return self.result if self._answers else None


def spans() -> Any:
    """Return the module of spans, where the job uses them."""
    return sys.modules.get("_gpuwatchd_probe.spans")


def counters_only() -> bool:
    """Say whether the job was started so that nobody looks into its heap."""
    return os.environ.get("GPUWATCHD_PROBE") == "counters"


def _within(value: Any, least: float, most: float) -> float:
    return min(most, max(least, float(value)))
