"""No order of events loses an alert, or tells it more often than the daemon has crashed.

Channels fail and recover, messages are held, the daemon is killed and reloaded and the clock is
set, in any order; in the end everything works for a while, and everything must have been told.
"""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.promises.post_office import DOWN, WRONG, Channel, Office

HOUR_S = 3600.0
CHANNELS = ("desktop", "email", "chat")

_EVENTS = st.one_of(
    st.tuples(st.just("tell"), st.integers(0, 4), st.sampled_from(["warning", "critical"])),
    st.tuples(st.just("hold"), st.integers(0, 4), st.floats(1.0, 12 * HOUR_S)),
    st.tuples(st.just("over"), st.integers(0, 4)),
    st.tuples(st.just("fail"), st.sampled_from(CHANNELS), st.sampled_from([DOWN, WRONG])),
    st.tuples(st.just("fail_all"), st.sampled_from([DOWN, WRONG])),
    st.tuples(st.just("work"), st.sampled_from(CHANNELS)),
    st.tuples(st.just("pass"), st.sampled_from([1.0, 30.0, 119.0, 125.0, 700.0, 2 * HOUR_S])),
    st.tuples(st.just("crash"), st.booleans()),
    st.tuples(st.just("hang"), st.sampled_from(CHANNELS)),
    st.tuples(st.just("reload")),
    st.tuples(st.just("clock"), st.sampled_from([-600.0, 3600.0])),
)


class Run:
    """One run: what was decided, and what must hold in the end."""

    def __init__(self, folder: Path, rules: dict[str, Any]) -> None:
        self.channels = {name: Channel(name) for name in CHANNELS}
        self.office = Office(folder, self.channels.values(), rules)
        self.opened: dict[str, int] = {}
        self.over: set[str] = set()
        self.messages = 0
        self.crashes = 0
        self.gates: list[threading.Event] = []

    def do(self, event: tuple[Any, ...]) -> None:
        kind, *values = event
        getattr(self, f"do_{kind}")(*values)

    def do_tell(self, number: int, severity: str) -> None:
        self._tell(number, severity=severity)

    def do_hold(self, number: int, for_s: float) -> None:
        self._tell(number, held="quiet hours", until_s=self.office.time.now_s + for_s)

    def _tell(self, number: int, **fields: Any) -> None:
        key = f"n{number}"
        if key in self.over:
            return
        self.messages += 1
        # Ids of one incident: the first is the thread of those that follow.
        if key in self.opened:
            notice = {"thread": key, "notice": "repeat"}
            self.office.tell(f"{key}-{self.messages}", **notice, **fields)
        else:
            self.opened[key] = self.messages
            self.office.tell(key, **fields)

    def do_over(self, number: int) -> None:
        key = f"n{number}"
        if key in self.opened and key not in self.over:
            self.over.add(key)
            self.office.tell(f"{key}-over", thread=key, notice="resolved", severity="info")

    def do_fail(self, name: str, error: Any) -> None:
        self.channels[name].answer = error

    def do_fail_all(self, error: Any) -> None:
        for name in CHANNELS:
            self.do_fail(name, error)

    def do_work(self, name: str) -> None:
        self.channels[name].answer = None

    def do_hang(self, name: str) -> None:
        """Let what is sent from now on arrive no sooner than something else is set."""
        self.gates.append(threading.Event())
        self.channels[name].answer = self.gates[-1]

    def do_pass(self, seconds: float) -> None:
        if self.gates:
            self.office.step(seconds)
        else:
            self.office.turn(seconds)

    def free(self) -> None:
        """Let go of everything that hangs."""
        for gate in self.gates:
            gate.set()

    def do_crash(self, begun: bool) -> None:
        if begun:
            self.office.step()
        self.office.die()
        self.crashes += 1
        self.office.begin()

    def do_reload(self) -> None:
        self.office.reload()

    def do_clock(self, by_s: float) -> None:
        self.office.time.now_s += by_s

    def end(self) -> None:
        for name in CHANNELS:
            self.do_work(name)
        self.free()
        self.do_reload()
        for _ in range(16):
            self.office.turn(HOUR_S)

    def check(self) -> None:
        office = self.office
        assert office.waiting() == {}
        assert office.post.reach.undelivered() == ()
        arrived = Counter((c.name, m.id) for c in self.channels.values() for m in c.got)
        text = "\n".join(
            f"{m.id} {m.thread} {m.subject} {m.body}" for c in self.channels.values() for m in c.got
        )
        for key in self.opened.keys() - self.over:
            assert f"about {key}" in text, key
        # What was given up while it hung, and came to its end after all, is there twice.
        assert max(arrived.values(), default=0) <= 1 + self.crashes + len(self.gates)
        for channel in self.channels.values():
            for key in self.over if not (self.crashes or self.gates) else ():
                told = [m.id for m in channel.got if key in {m.id, m.thread}]
                assert f"{key}-over" not in told[:-1], told
        for key in self.opened:
            for row in office.rows(key):
                assert row.state == "sent" or row.error, row


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
@example([("fail_all", WRONG), ("tell", 0, "warning"), ("pass", 1.0)], ())
@example([("fail_all", DOWN), ("tell", 0, "warning"), ("crash", True), ("pass", 125.0)], ("email",))
@example([("fail_all", WRONG), ("tell", 0, "warning"), ("tell", 1, "warning")], ())
@given(st.lists(_EVENTS, max_size=14), st.sampled_from([(), ("email",), ("email", "chat")]))
def test_no_order_of_events_loses_an_alert(
    events: list[tuple[Any, ...]], fallback: tuple[str, ...]
) -> None:
    own = tuple(name for name in CHANNELS if name not in fallback)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), {"channels": own, "fallback": fallback})
        try:
            for event in events:
                run.do(event)
            run.end()
            run.check()
        finally:
            run.free()
            run.office.close()
