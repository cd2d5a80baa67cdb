"""What telling people costs: ``python -m tests.bench.bench_notice``.

64 alerts that begin in one tick: decided (grouping, silences, overrides, routes), composed and
written with their decisions and deliveries to two channels, and the same without a history. Once
each alert is told alone, once eight share a notice; then the tick after, in which all of them are
open and nothing is due. Nothing is sent.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gpuwatchd.core import config
from gpuwatchd.core.model import Alert, AlertSubject, EtaRange, Finding, ProcessKey, Subject
from gpuwatchd.store.writer import History
from tests.pipelines import make_pipeline

if TYPE_CHECKING:
    from gpuwatchd.core.model import Delivery
    from gpuwatchd.pipeline.alert_notifier import AlertHolder

ALERTS, RUNS = 64, 15
T0 = 1_700_002_800.0
MIB = 2**20
CHANNELS = ("desktop", "command")
SETTINGS = config.Config(
    policy=config.PolicySection(channels=CHANNELS, max_per_hour=10 * ALERTS),
    store=config.StoreSection(min_free_mib=0),
)


class Kept:
    """What an alert is kept with."""

    def __init__(self, alert: Alert) -> None:
        self.alert: Alert | None = alert
        self.last_known_s = T0


class Deaf:
    """A dispatcher that takes everything and says nothing."""

    def submit(self, delivery: Delivery) -> bool:
        return True

    def results(self) -> list[Delivery]:
        return []

    def close(self, timeout_s: float = 2.0) -> list[Delivery]:
        return []


def begun(number: int, group: int) -> Alert:
    """Return an alert on a process that has just begun to fire, with a reason of usual length."""
    process = ProcessKey(pid=1000 + number, started_at_s=T0 - 7000.0)
    subject = Subject(device_uid=f"GPU-{number % 8}", process=process)
    finding = Finding(
        id=f"f{number}", subject=subject, judged_at_s=T0, pattern="gradual", tier="alert",
        severity="warning", confidence=0.91, rate_bytes_per_s=206_667.0,
        eta=EtaRange(low_s=2340.0, mid_s=2820.0, high_s=3720.0), onset_at_s=T0 - 4000.0,
        growth_bytes=792.0 * MIB, limit_bytes=80.0 * 1024 * MIB, framework="PyTorch",
        reason="grows steadily by 12.4 MB/min for 1 h 6 min, 792 MiB so far, nothing released, "
        "grew in 14 of 16 intervals; 59 % of the free memory is used, 556 MiB left, full in "
        "47 min (39 to 62 min)",
        advice=("Keep numbers (`loss.item()`) or `.detach().cpu()`, in a list that is emptied.",),
    )  # fmt: skip
    return Alert(
        key=f"leak:{subject.id}", kind="leak", subject=subject, state="firing",
        severity="warning", finding=finding, opened_at_s=T0 - 60.0, firing_at_s=T0,
        changed_at_s=T0, next_notice_at_s=T0,
        title=f"GPU {number % 8} (A100-SXM4-80GB): python train.py[{process.pid}] of alice",
        about=AlertSubject(gpu=str(number % 8), user="alice", process="python", pid=process.pid,
                    framework="PyTorch", job=f"slurm {group}.0"),
    )  # fmt: skip


def ours(directory: Path | None, groups: int) -> tuple[float, float]:
    """Tell of all alerts once; return the seconds, and those of the tick after.

    Without a directory they are only decided and composed. Alerts of one group share a notice.
    """
    history = None
    if directory is not None:
        history = History.open(directory, SETTINGS.store, clock=lambda: T0, boot_id="bench")
    pipeline = make_pipeline(
        config=SETTINGS, sources=[], history=history, message_dispatcher=Deaf(), wall=lambda: T0
    )
    alerts = [begun(number, number % groups) for number in range(ALERTS)]
    kept = [Kept(alert) for alert in alerts]
    bearers = cast("list[AlertHolder]", kept)
    # With its log lines, wherever they go.
    with contextlib.redirect_stderr(io.StringIO()):
        start = time.perf_counter()
        pipeline.alert_notifier.notify("bench", bearers, alerts, T0)
        told = time.perf_counter()
        pipeline.alert_notifier.notify("bench", bearers, [], T0)
        after = time.perf_counter()
    assert not pipeline.alert_notifier.failing, pipeline.alert_notifier.failing
    assert all(one.alert is not None and one.alert.notices == 1 for one in kept)
    pipeline.close()
    return told - start, after - told


def main() -> None:
    """Print the figures."""
    print(f"{ALERTS} alerts begin in one tick, {len(CHANNELS)} channels; medians of {RUNS} runs")
    for groups in (ALERTS, ALERTS // 8):
        whole, pure, later = [], [], []
        for _ in range(RUNS):
            with tempfile.TemporaryDirectory() as folder:
                ours_s, later_s = ours(Path(folder), groups)
            whole.append(ours_s)
            later.append(later_s)
            pure.append(ours(None, groups)[0])
        print(f"\nin {groups} groups")
        print(f"decide, compose, write {statistics.median(whole) * 1e3:8.2f} ms")
        print(f"decide, compose only   {statistics.median(pure) * 1e3:8.2f} ms")
        print(f"a tick with all open   {statistics.median(later) * 1e6:8.0f} µs")


if __name__ == "__main__":
    main()
