"""A machine with an hour of history: one process leaks, and there is an alert on it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core.model import AlertSubject, Blame, Subject
from gpuwatchd.store.live import KnownRuns, LiveProcess
from gpuwatchd.view.queries import current_state
from gpuwatchd.view.queries.current_view import View
from gpuwatchd.view.query import Query
from tests import making
from tests.cli import recorded, world

if TYPE_CHECKING:
    from gpuwatchd.core.model import Alert
    from gpuwatchd.store.live import LiveState

LEAKER = recorded.OWNER
WHO = "python train.py[4711] of alice"


def leave(shape: str = "gradual") -> LiveState:
    """Leave a history and a live state of an hour that ends now; return the state."""
    end_s = recorded.record(shape)
    found = world.leak(
        judged_at_s=end_s, onset_at_s=end_s - 3500, rate_bytes_per_s=4.19e6,
        blame=(
            Blame(process=LEAKER.key, name="python", share=0.97, rate_bytes_per_s=4.1e6),
        ),
        advice=("Check for tensors that are kept with their graph.",),
    )  # fmt: skip
    about = AlertSubject(gpu="0", user="alice", process="python", framework="PyTorch")
    alert = world.firing(
        key="leak:GPU-1/4711@1000.0", finding=found, about=about, opened_at_s=end_s - 2000,
        firing_at_s=end_s - 1500, changed_at_s=end_s - 1500,
        subject=Subject(device_uid="GPU-1", process=LEAKER.key),
    )  # fmt: skip
    world.remember(alert)
    return world.write(state(time.time(), alert))


def state(end_s: float, alert: Alert, *, ended: bool = False) -> LiveState:
    """Return the live state; ``ended``: the process that leaked is there no more."""
    usual = world.state(taken_at_s=end_s, alerts=() if ended else (alert,))
    first, second = usual.devices
    leaker = LiveProcess(
        info=LEAKER, used_bytes=19 * making.GIB, finding=alert.finding, sm_pct=88.0,
        host_bytes=3 * making.GIB, history=KnownRuns(runs=2, word="leak"),
    )  # fmt: skip
    calm = world.process(99, "jupyter", 1)
    first = msgspec.structs.replace(
        first, processes=(calm,) if ended else (leaker, calm),
        finding=None if ended else alert.finding,
    )  # fmt: skip
    return msgspec.structs.replace(usual, devices=(first, second))


def view() -> View:
    """Return what a look gives."""
    return current_state.load_view(Query())


def later(seen: View, seconds: float) -> View:
    """Return the same, seen some time later."""
    again = View(seen.source, seen.taken_at_s + seconds, seen.devices)
    again.stale_s, again.daemon, again.alerts = 0.0, seen.daemon, seen.alerts
    return again
