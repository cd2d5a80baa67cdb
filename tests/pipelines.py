"""Puts a pipeline together from keywords, as most tests need few of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gpuwatchd.pipeline.clock import Clocks
from gpuwatchd.pipeline.live_pipeline import LivePipeline
from gpuwatchd.pipeline.live_state import Inputs, Outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from gpuwatchd.core.config import Config
    from gpuwatchd.core.ports import Source
    from gpuwatchd.store.writer import History


def make_pipeline(
    *,
    config: Config,
    sources: Sequence[Source],
    history: History | None = None,
    runtime_dir: Path | None = None,
    message_dispatcher: Any = None,
    wall: Callable[[], float] = time.time,
    mono: Callable[[], float] = time.monotonic,
    **inputs: Any,
) -> LivePipeline:
    """Return a pipeline; ``inputs`` are the other fields of :class:`Inputs`."""
    outputs = Outputs(history, runtime_dir, message_dispatcher)
    return LivePipeline(config, Inputs(sources, **inputs), outputs, Clocks(wall, mono))
