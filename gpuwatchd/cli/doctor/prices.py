"""Is it known what the GPUs cost."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpuwatchd.cli.doctor.answer import Check, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.cli.doctor.answer import Around


def check(around: Around) -> Iterator[Check]:
    """Yield which price is used, and what is doubtful about it."""
    from gpuwatchd.cli import money  # noqa: PLC0415

    state, _ = around.state
    devices = [] if state is None else [item.device for item in state.devices]
    for well, words, hint in money.Book(around.settings, devices, now_s=time.time()).checks():
        yield ok("price", words) if well else warning("price-doubtful", "price", words, hint)
