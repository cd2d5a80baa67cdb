"""Writes ``contrib/corpus/example.jsonl``: ``python -m tests.contrib.make_corpus``.

The simulated world "one-leak" is recorded as the daemon does, judged, and exported.
"""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatchd.collect.simulate import SimulateSource
from gpuwatchd.core.config import Config, Seconds, StoreSection
from gpuwatchd.pipeline import corpus, history_log, replay
from gpuwatchd.store.reader import Reader
from gpuwatchd.store.writer import History
from tests.contrib.corpus_check import FOLDER

if TYPE_CHECKING:
    from gpuwatchd.core.model import Alert

BEGIN_S, STEP_S, STEPS = 1_700_000_000.0, 20.0, 300
EXAMPLE = FOLDER / "example.jsonl"


def example() -> bytes:
    """Return the content of the file; but for its labels of programs it is always the same."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recorded(folder)
        span = (BEGIN_S - 60.0, BEGIN_S + STEP_S * STEPS + 60.0)
        with closing(Reader.open(folder)) as history:
            devices = history.devices()
            results = replay.analyze(history_log.load(history, devices[0], *span), Config())
        alerts = [event.alert for one in results for event in (*one.watches, *one.alerts)[-1:]]
        recorded(folder, *alerts)
        with closing(Reader.open(folder)) as history:
            return corpus.collect(history, devices, span, "CC0-1.0").encoded()


def recorded(folder: Path, *alerts: Alert) -> None:
    """Record the world, or write what was raised of it."""
    source = SimulateSource("one-leak", epoch_s=BEGIN_S)
    history = History.open(
        folder, StoreSection(min_free_mib=0, flush=Seconds(1e9)), boot_id="example",
        clock=lambda: source.now_s, monotonic=lambda: 1e6,
    )  # fmt: skip
    for _ in range(0 if alerts else STEPS):
        source.advance(STEP_S)
        sample = source.read()
        infos = {info.key: info for info in sample.processes}
        history.record(sample, tuple(source.devices()), infos, {})
    history.apply(list(alerts), [])
    history.flush(source.now_s)
    history.close()


if __name__ == "__main__":
    EXAMPLE.write_bytes(example())
