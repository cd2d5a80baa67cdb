"""A small machine whose samples the tests of the store write and read."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

from gpuwatchd.core.config import Seconds, StoreSection
from gpuwatchd.core.model import (
    Delivery,
    Device,
    DeviceReading,
    ProcessInfo,
    ProcessKey,
    ProcessUse,
    Sample,
)
from gpuwatchd.store import tables
from gpuwatchd.store.reader import Reader
from gpuwatchd.store.writer import History
from tests import making

if TYPE_CHECKING:
    from pathlib import Path

T0 = 1_700_000_040.0
"""A full minute."""
BOOT = "boot-1"
CARDS = tuple(
    Device(
        uid=f"GPU-{i}",
        vendor="nvidia",
        index=i,
        name="NVIDIA A100",
        memory_total_bytes=80 * 2**30,
        source="nvml",
        pci_bus=f"0000:0{i}:00.0",
    )
    for i in range(2)
)
INFOS = tuple(
    ProcessInfo(
        key=ProcessKey(pid=100 + i, started_at_s=T0 - 77.123456),
        name="python",
        user="alice",
        argv=("python", "my train.py", "--lr=0.1"),
        parent_pid=1,
        job="slurm 7",
        framework="pytorch",
        framework_sure=True,
    )
    for i in range(3)
)
KNOWN = {info.key: info for info in INFOS}


class Time:
    """Both clocks, moved by hand."""

    def __init__(self, now_s: float = T0) -> None:
        self.now_s = now_s
        self.mono_s = 1000.0

    def pass_s(self, seconds: float) -> None:
        """Let time go by."""
        self.now_s += seconds
        self.mono_s += seconds

    def clock(self) -> float:
        """Return the wall clock."""
        return self.now_s

    def monotonic(self) -> float:
        """Return the clock that is never set."""
        return self.mono_s


def settings(**changes: Any) -> StoreSection:
    """Return settings without a floor of free space; durations may be plain numbers."""
    values: dict[str, Any] = {"min_free_mib": 0, **changes}
    for name in ("flush", "raw", "process_raw", "minute", "process_minute", "hour", "events"):
        if name in values:
            values[name] = Seconds(values[name])
    return StoreSection(**values)


def opened(directory: Path, time: Time | None = None, **changes: Any) -> History:
    """Return an open history on a hand-moved clock."""
    time = time or Time()
    return History.open(
        directory,
        settings(**changes),
        clock=time.clock,
        monotonic=time.monotonic,
        boot_id=BOOT,
    )


def actions(directory: Path) -> list[tables.Action]:
    """Return what was done to processes, as the history has it."""
    with Reader.open(directory) as reader:
        return reader.ask(tables.load_actions)


def sample(
    at_s: float,
    used_bytes: int | None = 1000,
    *,
    uses: tuple[int | None, ...] = (),
    cards: tuple[Device, ...] = CARDS[:1],
    boot_id: str = BOOT,
    **fields: Any,
) -> Sample:
    """Return one sample; process i of :data:`INFOS` holds ``uses[i]`` on every card."""
    return Sample(
        taken_at_s=at_s,
        taken_mono_s=at_s - T0,
        boot_id=boot_id,
        readings=tuple(
            DeviceReading(
                device_uid=card.uid,
                used_bytes=used_bytes,
                free_bytes=None,
                total_bytes=card.memory_total_bytes,
                uses=tuple(
                    ProcessUse(key=info.key, used_bytes=used)
                    for info, used in zip(INFOS, uses, strict=False)
                ),
                **fields,
            )
            for card in cards
        ),
    )


def delivery(alert_key: str, number: int = 0, **changes: Any) -> Delivery:
    """Return a pending mail."""
    message = making.message(id=f"<{alert_key}-{number}@host>", subject="GPU 0 fills up")
    values = {"channel": "email", "message": message, "created_at_s": T0}
    return making.delivery(alert_key=alert_key, **{**values, **changes})


def rows(directory: Path, query: str) -> list[tuple[Any, ...]]:
    """Return what the file itself says."""
    with closing(sqlite3.connect(directory / "history.db")) as connection:
        return connection.execute(query).fetchall()
