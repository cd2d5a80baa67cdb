"""Whether a process uses its GPU, as far as that can be told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from gpuwatchd.analysis.idle.facts import Board, Held

STILL_CPU_PCT: Final = 0.5
"""A process that only keeps its connections alive uses less of a core."""
FULL_PCT: Final = 90.0
SPIN_MEMORY_PCT: Final = 1.0
"""A kernel that only waits for other GPUs keeps a GPU busy and moves no memory."""

Activity = Literal["busy", "still", "spins"] | None


class Scene(NamedTuple):
    """What the processes of one device together tell of each."""

    alone: bool
    """One has the device to itself."""
    cpu_tells: bool
    """Who uses no CPU uses no GPU either: nobody uses that, or another can be who does."""


def scene(board: Board) -> Scene:
    """Return what the processes of a device together tell."""
    uses = board.uses or ()
    count, working = 0, False
    for held in uses:
        if held.cpu_pct is not None and held.cpu_pct >= STILL_CPU_PCT:
            working = True
        if not held.exempt:
            count += 1
    return Scene(count == 1, working or not board.util_pct)


def use(board: Board, held: Held, around: Scene) -> float | None:
    """Return how much of the GPU a process uses, %; None where it cannot be told.

    Its own share; else the device's, where that can only be its own, or nobody's.
    """
    if held.busy_pct is not None:
        return held.busy_pct
    return board.util_pct if around.alone or board.util_pct == 0 else None


def of(board: Board, held: Held, around: Scene) -> Activity:
    """Say what a process does: busy, still, or only waiting on the GPU; None: it cannot be told.

    Where its use of the GPU is unknown, that of the CPU decides: whatever gives a GPU work needs a
    CPU for it. That holds only as long as the work of the device can be another's.
    """
    util = use(board, held, around)
    if util is None:
        cpu = held.cpu_pct
        return "still" if around.cpu_tells and cpu is not None and cpu < STILL_CPU_PCT else None
    if util <= 0:
        return "still"
    moved = board.memory_util_pct
    spins = util >= FULL_PCT and moved is not None and moved <= SPIN_MEMORY_PCT
    return "spins" if spins and around.alone else "busy"
