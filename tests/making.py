"""Small values for tests, so that a test states only what it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpuwatchd.core.codes import AllocatorVerdict
from gpuwatchd.core.model import (
    Alert,
    AllocatorState,
    Delivery,
    Device,
    DeviceReading,
    EtaRange,
    Finding,
    Holder,
    Message,
    ProcessInfo,
    ProcessKey,
    ProcessUse,
    Sample,
    Series,
    Subject,
)
from gpuwatchd.store import legacy_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeVar

    import numpy.typing as npt

    _T = TypeVar("_T")

MIB = 1024**2
GIB = 1024**3
CARD = Device(
    uid="GPU-1", vendor="nvidia", index=0, name="NVIDIA A100", memory_total_bytes=80 * GIB
)
KEY = ProcessKey(pid=4711, started_at_s=1_000.0)
HOLDER = Holder(
    name="losses in train()", kind="list", at_s=9_990.0, length=426, file="train.py", line=22,
    held_bytes=3.0 * GIB, rate_bytes_per_s=206_667.0,
)  # fmt: skip
ALLOCATOR = AllocatorState(
    verdict=AllocatorVerdict.TENSORS, allocated_bytes=3.1 * GIB, reserved_bytes=3.6 * GIB
)
LEAKER = ProcessInfo(key=KEY, name="python", user="alice", argv=("python", "train.py"))


def present(value: _T | None) -> _T:
    """Return what must be there."""
    assert value is not None
    return value


def series(
    t: npt.NDArray[np.floating[Any]], used: npt.NDArray[np.floating[Any]], **changes: Any
) -> Series:
    """Return a series of a whole device without a limit; any field can be changed."""
    values: dict[str, Any] = {"subject": Subject(device_uid="G"), "limit_bytes": None}
    t_s, used_bytes = np.asarray(t, dtype=np.float64), np.asarray(used, dtype=np.float64)
    return Series(t_s=t_s, used_bytes=used_bytes, **{**values, **changes})


def finding(**changes: Any) -> Finding:
    """Return an alert-worthy gradual leak of one process; any field can be changed."""
    values: dict[str, Any] = {
        "id": "f",
        "subject": Subject(device_uid=CARD.uid, process=KEY),
        "judged_at_s": 10_000.0,
        "pattern": "gradual",
        "tier": "alert",
        "severity": "warning",
        "confidence": 0.91,
        "rate_bytes_per_s": 206_667.0,
        "eta": EtaRange(low_s=2340, mid_s=2820, high_s=3720),
        "r_squared": 0.982,
        "detector": "trend",
        "onset_at_s": 9_000.0,
        "reason": "the floor rose in 14 of 16 windows",
        "samples": 200,
    }
    return Finding(**{**values, **changes})


def calm(**changes: Any) -> Finding:
    """Return a judgement that finds nothing."""
    plain = {"pattern": "stable", "tier": "none", "eta": None, "severity": "info"}
    return finding(**{**plain, **changes})


def alert(**changes: Any) -> Alert:
    """Return a firing alert."""
    values: dict[str, Any] = {
        "key": "leak:x",
        "kind": "leak",
        "subject": Subject(device_uid=CARD.uid, process=KEY),
        "state": "firing",
        "severity": "warning",
        "finding": finding(),
        "opened_at_s": 9_500.0,
        "changed_at_s": 9_900.0,
        "firing_at_s": 9_900.0,
        "title": "GPU 0 (A100): python[4711] of alice",
    }
    return legacy_text.alert(Alert(**{**values, **changes}))


def message(**changes: Any) -> Message:
    """Return the first notice of a leak; any field can be changed."""
    values: dict[str, Any] = {
        "id": "m1",
        "notice": "firing",
        "severity": "warning",
        "subject": "GPU 0: python[4711] leaks",
        "body": "It grows 12.4 MB/min.\nFull in 47 min.",
        "command": "gpuwatchctl explain 4711",
    }
    return Message(**{**values, **changes})


def delivery(**changes: Any) -> Delivery:
    """Return one that waits to be sent; any field can be changed."""
    values: dict[str, Any] = {"alert_key": "k", "channel": "desktop", "state": "pending"}
    values |= {"attempts": 0, "created_at_s": 1000.0}
    return Delivery(**{**values, "message": message(), **changes})


def sample(
    t_s: float,
    uses: Sequence[tuple[ProcessInfo, int | None]] | None,
    *,
    device: Device = CARD,
    used_bytes: int | None = None,
    wall_s: float | None = None,
) -> Sample:
    """Return one sample of one device with these processes (None: the list is unknown)."""
    total = device.memory_total_bytes or 0
    held = sum(b or 0 for _, b in uses) if uses is not None else 0
    used = held if used_bytes is None else used_bytes
    return Sample(
        taken_at_s=t_s if wall_s is None else wall_s,
        taken_mono_s=t_s,
        boot_id="boot",
        readings=(
            DeviceReading(
                device_uid=device.uid,
                used_bytes=used,
                free_bytes=total - used,
                total_bytes=total,
                uses=None
                if uses is None
                else tuple(ProcessUse(key=info.key, used_bytes=b) for info, b in uses),
                uses_reason="no permission" if uses is None else None,
            ),
        ),
        processes=() if uses is None else tuple(info for info, _ in uses),
    )
