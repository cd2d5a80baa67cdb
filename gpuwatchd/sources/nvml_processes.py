"""The process lists of one card: compute, graphics and MPS, merged.

Nothing here imports pynvml: the library that it has loaded and its error class are handed in.
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any, Final

from gpuwatchd.model import ProcessKey, ProcessUse
from gpuwatchd.sources.nvml_card import (
    ABSENT_CODES,
    FUNCTION_NOT_FOUND,
    GLOBAL_CODES,
    GONE_CODES,
    INSUFFICIENT_SIZE,
    OK,
)
from gpuwatchd.sources.nvml_system import read_text

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.sources.nvml_card import Card

UNKNOWN_MEMORY: Final = 0xFFFF_FFFF_FFFF_FFFF
MAX_PIDS: Final = 4_194_304
LIST_TRIES: Final = 4
"""One read, and three more with a larger buffer when the list grew meanwhile."""

_ENTRY: Final = struct.Struct("@IQII")
_ENTRY_V1: Final = struct.Struct("@IQ")
_KINDS: Final = (
    ("C", "nvmlDeviceGetComputeRunningProcesses"),
    ("G", "nvmlDeviceGetGraphicsRunningProcesses"),
    ("M", "nvmlDeviceGetMPSComputeRunningProcesses"),
)
_VERSIONS: Final = ("_v3", "_v2", "")


class ProcessLists:
    """The compute, graphics and MPS lists of a card, merged: each pid once.

    The lists are read straight into a kept buffer, one call instead of two, through the library
    that nvidia-ml-py has loaded; nvidia-ml-py itself cannot fall back to the older structures.
    """

    def __init__(self, library: Any, error: type[Exception], proc: Path) -> None:
        self._library = library
        self._error = error
        # Driver 535 widened the third structure for a while; the second has not changed since.
        widened = hasattr(library, "nvmlDeviceGetConfComputeMemSizeInfo") and not hasattr(
            library, "nvmlDeviceGetRunningProcessDetailList"
        )
        self._newest = 1 if widened else 0
        self._max_pid = int(read_text(proc / "sys/kernel/pid_max") or MAX_PIDS)
        self._keys: dict[int, ProcessKey] = {}

    def read(
        self, card: Card, total_bytes: int | None
    ) -> tuple[tuple[ProcessUse, ...] | None, str | None]:
        """Return (uses, None), or (None, why they are unknown).

        Raises
        ------
        Exception
            NVML's error when the card or NVML itself is gone.
        """
        held: dict[int, tuple[int | None, str]] = {}
        for kind, function in _KINDS:
            if kind in card.refused:
                if kind == "C":
                    return None, "the driver does not list processes"
                continue
            code, entries = self._list(card, kind, function)
            if code != OK:
                reason = self._refusal(card, kind, code)
                if reason is not None:
                    return None, reason
                continue
            for pid, memory_bytes in entries:
                if not 0 < pid <= self._max_pid:
                    return None, f"the driver's process list is not credible (pid {pid})"
                known = None if memory_bytes == UNKNOWN_MEMORY else memory_bytes
                if known is not None and total_bytes is not None and known > total_bytes:
                    return None, "the driver's process list is not credible (more than the GPU has)"
                before = held.get(pid)
                held[pid] = (known, kind) if before is None else _joined(before, known, kind)
        return tuple(
            ProcessUse(key=self._key(pid), used_bytes=used, kind=kind)
            for pid, (used, kind) in held.items()
        ), None

    def _key(self, pid: int) -> ProcessKey:
        key = self._keys.get(pid)
        if key is None:
            if len(self._keys) >= 4096:
                self._keys.clear()
            key = self._keys[pid] = ProcessKey(pid=pid, started_at_s=None)
        return key

    def _refusal(self, card: Card, kind: str, code: int) -> str | None:
        """Return why the lists are unknown; None when this kind merely does not exist here."""
        if code in GLOBAL_CODES or code in GONE_CODES:
            raise self._error(code)
        if code in ABSENT_CODES:
            card.refused.add(kind)
            return "the driver does not list processes" if kind == "C" else None
        if code == INSUFFICIENT_SIZE:
            return "the process list kept growing while it was read"
        return f"the driver refused the process list: {self._error(code)} (code {code})"

    def _list(self, card: Card, kind: str, function: str) -> tuple[int, list[tuple[int, int]]]:
        """Return (NVML code, [(pid, bytes)]), with the newest structure the driver knows."""
        code = FUNCTION_NOT_FOUND
        for version in range(card.versions.get(kind, self._newest), len(_VERSIONS)):
            call = getattr(self._library, function + _VERSIONS[version], None)
            if call is None:
                continue
            code, count = self._call(card, call)
            if code == FUNCTION_NOT_FOUND:
                continue
            card.versions[kind] = version
            if code != OK or not count:
                return code, []
            entry = _ENTRY_V1 if _VERSIONS[version] == "" else _ENTRY
            raw = memoryview(card.buffer)[: count * entry.size]
            return OK, [(fields[0], fields[1]) for fields in entry.iter_unpack(raw)]
        return code, []

    @staticmethod
    def _call(card: Card, call: Any) -> tuple[int, int]:
        """Read one list into the card's buffer; a list that grew gets a larger one."""
        code = INSUFFICIENT_SIZE
        count = ctypes.c_uint(0)
        for _ in range(LIST_TRIES):
            count.value = card.room
            code = call(card.handle, ctypes.byref(count), card.buffer)
            if code != INSUFFICIENT_SIZE:
                break
            card.grow(min(65536, max(card.room * 2, count.value)))
        return code, min(count.value, card.room)


def _joined(before: tuple[int | None, str], known: int | None, kind: str) -> tuple[int | None, str]:
    """Return one entry for a pid that is in several lists: its memory counts once."""
    memory, kinds = before
    if known is not None:
        memory = known if memory is None else max(memory, known)
    return memory, kinds if kind in kinds.split("+") else f"{kinds}+{kind}"
