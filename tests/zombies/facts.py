"""Small facts for tests: a process on a card, a card, a server, and looks one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuwatchd.analysis.idle import DeviceSnapshot, Limits, PersistenceCheck, ProcessMemory, Server
from gpuwatchd.core.model import Ledger, ProcessInfo, ProcessKey, ServedModel, ServerReading

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.core.model import Holding

MIB, GIB = 2**20, 2**30
EVERY_S = 30.0


def info(pid: int = 4711, **changes: Any) -> ProcessInfo:
    values: dict[str, Any] = {
        "key": ProcessKey(pid=pid, started_at_s=5.0),
        "name": "python",
        "user": "alice",
        "argv": ("python", "train.py"),
        "parent_pid": 4600,
    }
    return ProcessInfo(**{**values, **changes})


def held(
    pid: int = 4711, gib: float | None = 9.0, *, who: dict[str, Any] | None = None, **changes: Any
) -> ProcessMemory:
    """Return a healthy process; ``who`` changes its identity."""
    values: dict[str, Any] = {
        "info": info(pid, **(who or {})),
        "used_bytes": None if gib is None else int(gib * GIB),
        "exists": True,
        "state": "S",
    }
    return ProcessMemory(**{**values, **changes})


def ledger(unowned_gib: float, *, owned_gib: float = 0.0, **changes: Any) -> Ledger:
    values: dict[str, Any] = {
        "state": "whole",
        "total_bytes": 80 * GIB,
        "owned_bytes": int(owned_gib * GIB),
        "unattributed_bytes": int(unowned_gib * GIB),
        "baseline_bytes": 400 * MIB,
    }
    return Ledger(**{**values, **changes})


def board(*uses: ProcessMemory, uid: str = "GPU-1", **changes: Any) -> DeviceSnapshot:
    """Return a card that is at work."""
    values: dict[str, Any] = {
        "uid": uid,
        "total_bytes": 80 * GIB,
        "util_pct": 70.0,
        "memory_util_pct": 30.0,
        "ledger": ledger(0.4),
        "uses": uses,
    }
    return DeviceSnapshot(**{**values, **changes})


def blind(uid: str = "GPU-1") -> DeviceSnapshot:
    """Return a card whose process list is unknown."""
    return DeviceSnapshot(uid=uid)


def server(
    kind: str = "Ollama",
    *,
    pid: int | None = 900,
    models: int | None = 0,
    left: float | None = None,
    **changes: Any,
) -> Server:
    values: dict[str, Any] = {
        "kind": kind,
        "url": "http://127.0.0.1:11434",
        "at_s": 1000.0,
        "pid": pid,
        "models": None if models is None else (ServedModel(name="m"),) * models,
    }
    reading = ServerReading(**{**values, **changes})
    return Server(reading=reading, kv_left=left, kv_idle_s=None if left is None else 700.0)


def look(
    *boards: DeviceSnapshot,
    servers: Iterable[Server] = (),
    looks: int = 3,
    vigil: PersistenceCheck | None = None,
    at_s: float = 0.0,
    every_s: float = EVERY_S,
    limits: Limits | None = None,
) -> tuple[Holding, ...]:
    """Look several times at the same, and return what is listed at the end."""
    vigil = vigil or PersistenceCheck()
    found: tuple[Holding, ...] = ()
    for turn in range(looks):
        found = vigil.update(boards, tuple(servers), at_s + turn * every_s, limits or Limits())
    return found


def kinds(found: Iterable[Holding]) -> list[str]:
    return [holding.kind for holding in found]
