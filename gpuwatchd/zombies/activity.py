"""Whether a process uses its GPU, as far as that can be told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from gpuwatchd.zombies.facts import Board, Held

STILL_CPU_PCT: Final = 0.5
"""A process that only keeps its connections alive uses less of a core."""
FULL_PCT: Final = 90.0
SPIN_MEMORY_PCT: Final = 1.0
"""A kernel that only waits for other GPUs keeps a GPU busy and moves no memory."""

Activity = Literal["busy", "still", "spins"] | None


def alone(board: Board) -> bool:
    """Say whether one process has a device to itself."""
    return sum(not held.exempt for held in board.uses or ()) == 1


def use(board: Board, held: Held) -> float | None:
    """Return how much of the GPU a process uses, %; None where it cannot be told.

    Its own share; else the device's, where that can only be its own, or nobody's.
    """
    if held.busy_pct is not None:
        return held.busy_pct
    return board.util_pct if board.util_pct == 0 or alone(board) else None


def of(board: Board, held: Held) -> Activity:
    """Say what a process does: busy, still, or only waiting on the GPU; None: it cannot be told.

    Where its use of the GPU is unknown, that of the CPU decides: whatever gives a GPU work needs a
    CPU for it.
    """
    util = use(board, held)
    if util is None:
        return "still" if held.cpu_pct is not None and held.cpu_pct < STILL_CPU_PCT else None
    if util <= 0:
        return "still"
    moved = board.memory_util_pct
    waits = util >= FULL_PCT and moved is not None and moved <= SPIN_MEMORY_PCT and alone(board)
    return "spins" if waits else "busy"
