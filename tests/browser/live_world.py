"""A machine for the live page to show, and the real server that shows it."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from gpuwatchd.cli.global_flags import Globals
from gpuwatchd.core import config
from gpuwatchd.core.model import Holding
from gpuwatchd.view.queries import history_query
from tests import histories, making
from tests.cli import recorded, world
from tests.web import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

    from gpuwatchd.core.model import Alert
    from gpuwatchd.store.live import LiveState
    from tests.web.serving import Served

INTERVAL_S = 1.0
_OPENED_S = float(round(time.time()) - 3000)


@contextmanager
def serve(port: int = 0) -> Iterator[Served]:
    """Run `gpuwatchctl web` in the test's own directories until the block is left."""
    with serving.serve("--port", str(port)) as found:
        yield found


def firing(**changes: Any) -> Alert:
    """Return the open alert of the leak, always the same one."""
    return world.firing(**{"opened_at_s": _OPENED_S, "firing_at_s": _OPENED_S + 500, **changes})


def tick(**changes: Any) -> LiveState:
    """Write what a daemon sees now: one leak, one calm GPU, one alert, memory held for nothing."""
    state = world.state()
    first, second = state.devices
    held = Holding(
        kind="idle", device_uid=world.SECOND.uid, process=world.process(99, "jupyter", 1).info,
        held_bytes=10 * making.GIB, since_s=time.time() - 9000, evidence="no work for 2 h 30 min",
        advice=("end it if nobody needs it",), gib_hours=25.0,
    )  # fmt: skip
    calm = msgspec.structs.replace(second, processes=(world.process(99, "jupyter", 10),))
    values: dict[str, Any] = {
        "alerts": (firing(),),
        "interval_s": INTERVAL_S,
        "devices": (first, calm),
        "holdings": (held,),
    }
    return world.write(msgspec.structs.replace(state, **{**values, **changes}))


def remember(*alerts: Alert) -> None:
    """Write an hour of the leak, and alerts, into the history."""
    recorded.record("gradual")
    over = world.over(
        opened_at_s=time.time() - 7200, resolved_at_s=time.time() - 3600, ended="it ended",
        title="GPU 0 (A100): python[5] of bob",
    )  # fmt: skip
    world.remember(*(alerts or (firing(),)), over)


def month() -> None:
    """Write thirty days of eight GPUs, and what a daemon that goes on sees now."""
    config.state_dir().mkdir(parents=True, exist_ok=True)
    histories.thirty_days(config.state_dir())
    view = history_query.judged(Globals(), [])
    assert view is not None
    world.write(
        pid=os.getpid(), devices=view.devices, alerts=(), taken_at_s=time.time(), interval_s=5.0
    )


def used(gib: float, **changes: Any) -> LiveState:
    """Write the next look: the first GPU uses so much."""
    first, *rest = world.state().devices
    now = msgspec.structs.replace(first, reading=world.reading(making.CARD.uid, gib))
    return tick(devices=(now, *rest), **changes)


def asked(page: Page, what: str) -> Any:
    """Wait for the answer to a question of the page, while the block runs."""
    return page.expect_response(lambda one: what in one.url and one.request.method == "GET")
