"""In which order alerts are told, and how many there are, wherever they are listed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpuwatchd.cli import current_state, ranking
from gpuwatchd.cli.flags import Globals
from gpuwatchd.core.model import EtaRange
from gpuwatchd.web.pages import responses
from tests.cli import world

if TYPE_CHECKING:
    from gpuwatchd.core.model import Alert


def alert(name: str, left_s: float, opened_s: float, **changes: object) -> Alert:
    eta = EtaRange(low_s=left_s, mid_s=left_s, high_s=left_s)
    found = world.leak(eta=eta)
    return world.firing(
        key=f"leak:GPU-1/{name}", title=name, finding=found, opened_at_s=opened_s, **changes
    )


def crowd() -> tuple[Alert, ...]:
    now_s = time.time()
    return (
        alert("five-watch", 60.0, now_s - 9000, state="watch"),
        alert("four-late", 9000.0, now_s - 5000, severity="warning"),
        alert("three-soon", 600.0, now_s - 4000, severity="warning"),
        alert("one-soon", 900.0, now_s - 3000, severity="critical"),
        alert("two-stopped", 1.0, now_s - 1000, severity="critical",
              clear_since_s=now_s - 60),
    )  # fmt: skip


ORDER = ["one-soon", "two-stopped", "three-soon", "four-late", "five-watch"]


def test_the_worst_comes_first_then_the_soonest_to_be_full_everywhere() -> None:
    world.write(alerts=crowd())
    flags = Globals()
    assert [one.title for one in ranking.shown(current_state.see(flags).alerts)] == ORDER
    for name, key in (("overview", "alerts"), ("alerts", "open")):
        assert [one["title"] for one in responses.answer(name, flags, {})[key]] == ORDER
    for verb in ("status", "alerts"):
        shown = world.run(verb).stdout
        at = [shown.index(name) for name in ORDER]
        assert at == sorted(at), verb


def test_what_is_over_is_listed_the_newest_first() -> None:
    past = [
        world.firing(key=name, title=name, state="resolved", opened_at_s=float(at), severity=how)
        for name, at, how in (("old", 10, "critical"), ("new", 30, "info"), ("mid", 20, "info"))
    ]
    found = ranking.ordered([*past, crowd()[0]])
    assert [one.title for one in found] == ["five-watch", "new", "mid", "old"]


def test_alerts_and_watches_are_counted_apart() -> None:
    world.write(alerts=crowd())
    assert ranking.counted(crowd()) == "4 alerts, 1 watch"
    assert ranking.counted(()) == ""
    page = responses.answer("overview", Globals(), {})["page"]
    assert page["counted"] == "4 alerts, 1 watch"
    assert [one["watched"] for one in page["open"]] == [False] * 4 + [True]
