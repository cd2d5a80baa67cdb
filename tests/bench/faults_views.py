"""What a tool shows of the GPUs, read from its real output: the same few facts for each."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

_SIZE = re.compile(r"([\d.]+)\s*([KMGT]?)i?B")
_SCALE = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_CARD = re.compile(r"(\d+)\s{2,}(\S.*?)\s+(?:Off|On|N/A)$")
_SLICE = re.compile(r"(\d+:\d+)\s+MIG")
_PROCESS = re.compile(
    r"\|\s+(\d+(?::\d+)?)\s+(\d+)\s+[CGX+]+\s+(\S+)\s+(\S+)\s.*\s{2}(\S.*?)\s*\|$"
)


class Held(NamedTuple):
    """One process on one GPU."""

    pid: int
    held_bytes: int | None
    name: str


class Shown(NamedTuple):
    """One GPU or MIG instance."""

    used_bytes: int | None
    total_bytes: int | None
    state: str
    """"ok", or what the tool says is wrong with it."""
    processes: tuple[Held, ...] | None
    """None: the tool says that it does not know them; () is "none"."""

    @property
    def held_bytes(self) -> int:
        """Sum over the processes, as the tool lists them."""
        return sum(held.held_bytes or 0 for held in self.processes or ())

    def holder(self, pid: int) -> Held | None:
        """Return the entry of a process."""
        return next((held for held in self.processes or () if held.pid == pid), None)


class View(NamedTuple):
    """What one tool showed."""

    gpus: dict[str, Shown]
    """"0" is a GPU, "0:1" its second MIG instance."""
    text: str
    """All of its output."""
    wall_s: float = 0.0
    code: int = 0


def sized(text: str) -> int | None:
    """Return bytes; None for N/A.

    >>> sized("9216MiB"), sized("80.00GiB"), sized("N/A")
    (9663676416, 85899345920, None)
    """
    found = _SIZE.search(text)
    return round(float(found.group(1)) * _SCALE[found.group(2)]) if found else None


def of_gpustat(output: str) -> dict[str, Shown]:
    """Return what ``gpustat --json`` shows."""
    gpus: dict[str, Shown] = {}
    start = output.find("{")
    for gpu in json.loads(output[start:])["gpus"] if start >= 0 else []:
        processes = gpu.get("processes")
        gpus[str(gpu["index"])] = Shown(
            used_bytes=_mebibytes(gpu.get("memory.used")),
            total_bytes=_mebibytes(gpu.get("memory.total")),
            state=gpu["name"].strip("()") if gpu["name"].startswith("((") else "ok",
            processes=None
            if processes is None
            else tuple(
                Held(p["pid"], _mebibytes(p["gpu_memory_usage"]), p["command"]) for p in processes
            ),
        )
    return gpus


def _mebibytes(value: Any) -> int | None:
    return None if value is None else int(value) * 2**20


def of_nvitop(output: str) -> dict[str, Shown]:
    """Return what ``nvitop --once --ascii`` shows: two lines per GPU, one per process."""
    gpus: dict[str, Shown] = {}
    processes: dict[str, list[Held]] = {}
    card: str | None = None
    state = "ok"
    for line in output.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:4]] if line.startswith("|") else []
        found = _PROCESS.match(line)
        if found:
            key, pid, _, held, name = found.groups()
            processes.setdefault(key, []).append(Held(int(pid), sized(held), name))
        elif len(cells) == 3 and (begun := _CARD.match(cells[0])):
            card = begun.group(1)
            name = begun.group(2)
            state = name.removeprefix("ERROR: ") if name.startswith("ERROR") else "ok"
        elif len(cells) == 3 and (slice_ := _SLICE.match(cells[0])):
            gpus[slice_.group(1)] = _nvitop_memory(cells[1], "ok")
        elif card is not None and len(cells) == 3 and "/" in cells[1]:
            gpus[card] = _nvitop_memory(cells[1], state)
            card = None
    return {
        key: shown._replace(
            processes=None if shown.state != "ok" else tuple(processes.get(key, ()))
        )
        for key, shown in gpus.items()
    }


def _nvitop_memory(cell: str, state: str) -> Shown:
    used, _, total = cell.partition("/")
    return Shown(sized(used), sized(total), state, None)


def of_gpuwatchctl(output: str) -> dict[str, Shown]:
    """Return what ``gpuwatchctl status --json`` shows."""
    rows = json.loads(output)["data"]
    by_uid = {row["device"]["uid"]: row["device"] for row in rows}
    gpus: dict[str, Shown] = {}
    for row in rows:
        device = row["device"]
        parent = by_uid.get(device["parent_uid"])
        key = f"{parent['index']}:{device['index']}" if parent else str(device["index"])
        # A list that is remembered from before is not what the GPU says now.
        fresh = row["processes"] is not None and row.get("processes_age_s") is None
        gpus[key] = Shown(
            used_bytes=row["used_bytes"],
            total_bytes=device["memory_total_bytes"],
            state=row["state"],
            processes=tuple(Held(p["pid"], p["used_bytes"], p["name"]) for p in row["processes"])
            if fresh
            else None,
        )
    return gpus
