"""Messages on their way: none is lost, and none is sent twice because a courier is exchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.core.config import StoreSection
from gpuwatchd.core.model import Delivery
from gpuwatchd.pipeline import messages
from gpuwatchd.pipeline.outbox import Outbox
from gpuwatchd.store.writer import History
from tests.making import alert

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW_S = 10_000.0


def delivery(number: int = 1) -> Delivery:
    told = alert(notices=1, key=f"leak:{number}", opened_at_s=9_000.0 + number)
    return Delivery(
        alert_key=told.key,
        channel="desktop",
        message=messages.compose(told, "firing", now_s=NOW_S),
        state="pending",
        attempts=0,
        created_at_s=NOW_S,
        next_try_at_s=NOW_S,
    )


class Hands:
    """A courier whose deliveries end when the test says so."""

    def __init__(self) -> None:
        self.taken: list[Delivery] = []
        self.ended: list[Delivery] = []
        self.closed = False

    def submit(self, delivery: Delivery) -> bool:
        if self.closed:
            return False
        self.taken.append(delivery)
        return True

    def end(self, state: str, error: str | None = None) -> None:
        one = self.taken.pop(0)
        self.ended.append(
            msgspec.structs.replace(
                one, state=state, attempts=1, error=error,
                next_try_at_s=NOW_S if state == "pending" else None,
            )
        )  # fmt: skip

    def results(self) -> list[Delivery]:
        ended, self.ended = self.ended, []
        return ended

    def close(self, timeout_s: float = 2.0) -> list[Delivery]:
        self.closed = True
        unfinished, self.taken = self.taken, []
        return unfinished


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    kept = History.open(tmp_path, StoreSection(min_free_mib=0), boot_id="boot")
    yield kept
    kept.close()


def test_an_old_complaint_about_a_channel_does_not_outlive_its_settings() -> None:
    old = Hands()
    post = Outbox(old, None)
    post.send([delivery()])
    old.end("failed", "no such host")
    post.collect(NOW_S)
    assert post.problems() == ["channel desktop does not deliver: no such host"]
    post.replace(Hands())
    assert post.problems() == []


def test_what_is_sent_during_the_last_seconds_is_written_down(history: History) -> None:
    courier = Hands()
    post = Outbox(courier, history)
    post.send(history.apply([], [delivery()]))
    courier.end("sent")
    post.close(timeout_s=0.1)
    assert history.pending_deliveries() == []
