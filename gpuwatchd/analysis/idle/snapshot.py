"""What a single look can prove, where no daemon has looked before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.analysis.idle import signs
from gpuwatchd.analysis.idle.facts import ORDER
from gpuwatchd.core.model import Holding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.analysis.idle.facts import Board, Limits

PROVEN: Final = frozenset({"gone", "defunct", "driver-wait", "ghost"})
"""Kinds that show at once; all others are a matter of time."""


def snapshot(boards: Sequence[Board], limits: Limits) -> tuple[Holding, ...]:
    """Return what seems to be held without work at one look, the surest first.

    Since when is unknown, and what has just ended may still be about to let go. Memory beside that
    of listed processes, or seen from within a container, is a matter of time as well.
    """
    holdings = [
        Holding(
            kind=sign.kind,
            device_uid=sign.device_uid,
            process=sign.process,
            held_bytes=sign.held_bytes,
            evidence=sign.evidence,
            advice=sign.advice,
        )
        for sign in signs.read(boards, (), {}, limits)
        if sign.kind in PROVEN and not (sign.kind == "ghost" and sign.needs_s)
    ]
    return tuple(
        sorted(
            holdings, key=lambda holding: (ORDER.index(holding.kind), -(holding.held_bytes or 0))
        )
    )
