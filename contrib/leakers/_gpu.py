# ruff: noqa: INP001, T201
"""What the leakers share: holding a wished amount of GPU memory over time, and the flags."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MB = 1_000_000
BROKEN_PIPE = 141
"""Exit code of one whose output nobody reads any more, as the shell has it."""
MIB = 1024**2
BLOCK_BYTES = 2 * MIB
"""The driver hands memory out in these; smaller wishes would not be seen from outside."""
_SHOW_EVERY_S = 10.0


def parser(
    description: str, *, rate: float, rate_help: str, snapshot: bool = True
) -> argparse.ArgumentParser:
    """Return the flags that every leaker has.

    Parameters
    ----------
    description
        One sentence: what it does to the GPU.
    rate
        Default of ``--rate``, MB/min (1 MB = 1,000,000 bytes).
    rate_help
        What the rate means here.
    snapshot
        Whether it can write a snapshot of torch's allocator.
    """
    flags = argparse.ArgumentParser(description=description)
    flags.add_argument("--device", default="cuda:0", help="torch device (default %(default)s)")
    flags.add_argument("--rate", type=float, default=rate, metavar="MB/MIN", help=rate_help)
    flags.add_argument(
        "--start", type=float, default=1000.0, metavar="MB", help="held from the start"
    )
    flags.add_argument(
        "--seconds", type=float, default=0.0, metavar="S", help="stop after this (default: Ctrl-C)"
    )
    flags.add_argument(
        "--leave",
        type=float,
        default=2000.0,
        metavar="MB",
        help="stop growing when less than this is free; 0 runs into out-of-memory",
    )
    flags.add_argument(
        "--dry-run",
        action="store_true",
        help="print what would be held; needs neither torch nor GPU",
    )
    if snapshot:
        flags.add_argument(
            "--snapshot",
            metavar="FILE",
            help="record torch's allocations and write a snapshot at the end",
        )
    return flags


def piped(main: Callable[[], int]) -> int:
    """Run a leaker; where its output is not read to the end (``| head``), end without a word."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered would break the pipe once more at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return code


class Memory:
    """Blocks on one torch device."""

    def __init__(self, device: str) -> None:
        try:
            import torch  # noqa: PLC0415 - the dry run and the help work without it
        except ImportError:
            sys.exit("this needs PyTorch: pip install torch (or try --dry-run)")
        self._torch: Any = torch
        self._cuda = device.startswith("cuda")
        if self._cuda and not torch.cuda.is_available():
            sys.exit("PyTorch sees no CUDA device here (try --dry-run, or --device cpu)")
        self._device = torch.device(device)
        self._blocks: list[Any] = []

    @property
    def held_bytes(self) -> int:
        """What is held now."""
        return len(self._blocks) * BLOCK_BYTES

    def free_bytes(self) -> int | None:
        """Return what is free on the device; None where torch cannot tell."""
        if not self._cuda:
            return None
        free: int = self._torch.cuda.mem_get_info(self._device)[0]
        return free

    def record(self) -> None:
        """Have torch remember who allocates what from now on."""
        self._torch.cuda.memory._record_memory_history(max_entries=100_000)  # noqa: SLF001

    def dump(self, file: str) -> None:
        """Write torch's snapshot: what is allocated, and by which lines."""
        self._torch.cuda.memory._dump_snapshot(file)  # noqa: SLF001 - its documented name

    def hold(self, wish_bytes: float) -> None:
        """Take or give back blocks until about ``wish_bytes`` are held."""
        count = round(wish_bytes / BLOCK_BYTES)
        shrunk = count < len(self._blocks)
        del self._blocks[count:]
        if shrunk and self._cuda:
            # Without this the allocator keeps the memory, and nvidia-smi shows no fall.
            self._torch.cuda.empty_cache()
        while len(self._blocks) < count:
            block = self._torch.empty(BLOCK_BYTES, dtype=self._torch.uint8, device=self._device)
            self._blocks.append(block.fill_(1))  # touched: some devices only reserve until then


def plan(
    shape: Callable[[float], float], flags: argparse.Namespace, *, where: str | None = None
) -> None:
    """Print what would be held, one line every minute of the first ten."""
    print(f"would hold on {where or flags.device}:")
    for minute in range(11):
        print(f"  after {minute:2d} min  {shape(60.0 * minute) / MB:10,.0f} MB")


def run(shape: Callable[[float], float], flags: argparse.Namespace) -> int:
    """Hold what the shape says until the time is up or Ctrl-C; return the exit code.

    Parameters
    ----------
    shape
        Seconds since the start -> bytes to hold.
    flags
        Parsed from :func:`parser`.
    """
    if flags.dry_run:
        plan(shape, flags)
        return 0
    memory = Memory(flags.device)
    if flags.snapshot:
        memory.record()
    code = 0
    began_s = time.monotonic()
    shown_s = -_SHOW_EVERY_S
    try:
        while not flags.seconds or time.monotonic() - began_s < flags.seconds:
            age_s = time.monotonic() - began_s
            wish = shape(age_s)
            free = memory.free_bytes()
            room = free is None or free - (wish - memory.held_bytes) > flags.leave * MB
            if wish < memory.held_bytes or room or not flags.leave:
                memory.hold(wish)
            if age_s - shown_s >= _SHOW_EVERY_S:
                shown_s = age_s
                print(f"{age_s:7.0f} s  {memory.held_bytes / MB:10,.0f} MB held", flush=True)
            time.sleep(0.5)
    except KeyboardInterrupt:
        code = 130
    if flags.snapshot:
        memory.dump(flags.snapshot)
    return code
