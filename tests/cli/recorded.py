"""An hour of one process in the history of the tests' own, and what ``explain`` says of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.core.model import DeviceReading, ProcessInfo, ProcessKey, ProcessUse
from tests import making
from tests.cli import world

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.core.model import FloatArray
    from tests.cli.calls import Ctl

GIB, MIB = making.GIB, making.MIB
STEP_S, POINTS = 15.0, 240
OWNER = ProcessInfo(
    key=ProcessKey(pid=4711, started_at_s=1000.0), name="python", argv=("python", "train.py"),
    user="alice", framework="PyTorch", framework_sure=True, program="p",
)  # fmt: skip
SHAPES: dict[str, Callable[[FloatArray], FloatArray]] = {
    "gradual": lambda t: 4 * GIB + t * 4 * MIB,
    "step": lambda t: 4 * GIB + np.floor(t / 300) * 1.5 * GIB,
    "cyclic": lambda t: 4 * GIB + t * 3 * MIB + (t % 240) / 240 * 6 * GIB,
    "sawtooth": lambda t: 4 * GIB + (t % 240) / 240 * 6 * GIB,
    "plateau": lambda t: 4 * GIB + 20 * GIB * (1 - np.exp(-t / 300)),
    "stable": lambda t: 4 * GIB + 0 * t,
    "spike": lambda t: np.where(t > 3300, 13.0 * GIB, 4.0 * GIB),
    "preallocated": lambda t: np.where(t > 600, 71.0 * GIB, 1.0 * GIB),
}


def record(shape: str, *, host: Callable[[FloatArray], FloatArray] | None = None) -> float:
    """Write an hour of one process of this shape; return when it ended."""
    end_s = time.time() - 2.0
    t = np.arange(POINTS, dtype=np.float64) * STEP_S
    used = np.round(SHAPES[shape](t)).astype(int) // 4096 * 4096
    on_host = None if host is None else np.round(host(t)).astype(int)

    def look(k: int) -> list[DeviceReading]:
        use = ProcessUse(
            key=OWNER.key, used_bytes=int(used[k]),
            host_bytes=None if on_host is None else int(on_host[k]),
        )  # fmt: skip
        reading = DeviceReading(
            device_uid=making.CARD.uid, used_bytes=int(used[k]) + GIB, free_bytes=None,
            total_bytes=80 * GIB, util_pct=90.0, uses=(use,),
        )  # fmt: skip
        return [reading]

    return world.watched(POINTS, STEP_S, look, (OWNER,), end_s=end_s)


def explained(ctl: Ctl, *arguments: str, code: int = 0) -> str:
    """Return what ``explain`` says, as one line."""
    return " ".join(ctl("explain --all", *arguments, code=code).split())
