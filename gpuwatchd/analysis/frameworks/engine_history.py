"""What the answers of a serving engine amount to, over time. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.core.model import ServerReading

COUNTS_LIVE: Final = frozenset({"vLLM", "SGLang"})
"""Engines whose share of KV in use leaves out what a prefix cache could give away at once."""
LEAST_S: Final = 600.0
"""Idle for less than this proves nothing: with split prefill and decode, blocks are held for
minutes until the other side has fetched them."""
LEAST_SHARE: Final = 0.01
LEAST_READINGS: Final = 4
_FALLING: Final = 0.9


class IdleKv(NamedTuple):
    """KV cache that is in use although nobody uses it."""

    since_s: float
    """Instant of the first answer of the idle time, epoch seconds."""
    for_s: float
    share: float
    """Least share of the KV cache in use during it, 0-1."""
    readings: int


def idle_kv(readings: Sequence[ServerReading], *, least_s: float = LEAST_S) -> IdleKv | None:
    """Return KV cache that stays in use while no request runs or waits; None when none does.

    Blocks of a request are given back when it ends, so that an idle engine uses (almost) nothing.
    A prefix cache that can be evicted at once does not count as used in the answers of vLLM and
    SGLang; llama.cpp keeps the last prompt of each slot on purpose, so that it is never judged.

    Parameters
    ----------
    readings
        Answers of one server, oldest first.
    least_s
        Idle for less than this proves nothing.

    Notes
    -----
    A server that publishes its figures only while it works may go on showing the last ones: what
    is said of it should ask for one more request before anything is believed.
    """
    if not readings or readings[-1].kind not in COUNTS_LIVE:
        return None
    idle: list[ServerReading] = []
    for reading in reversed(readings):
        if (
            not reading.ok
            or reading.running != 0
            or reading.waiting != 0
            or reading.kv_share is None
        ):
            break
        idle.append(reading)
    if len(idle) < LEAST_READINGS:
        return None
    shares = [
        server_reading.kv_share for server_reading in idle if server_reading.kv_share is not None
    ]
    newest, for_s = shares[0], idle[0].at_s - idle[-1].at_s
    half = shares[len(shares) // 2]
    if for_s < least_s or min(shares) < LEAST_SHARE or newest < _FALLING * half:
        return None
    return IdleKv(idle[-1].at_s, for_s, min(shares), len(idle))


def only_model(reading: ServerReading) -> str | None:
    """Return the model that a server certainly has on the GPU: the only one that is loaded."""
    if not reading.ok or reading.models is None or len(reading.models) != 1:
        return None
    return reading.models[0].name or None
