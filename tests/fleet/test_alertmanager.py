"""Every member learns what fires and what is over, whatever the others and their network do."""

from __future__ import annotations

import contextlib
import logging
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.core.config import Seconds
from gpuwatchd.fleet import alertmanager
from gpuwatchd.fleet.alertmanager import Alertmanagers, FleetAlert, _posted, lifetime_s, seconds
from tests.fleet.fake import Reply, fleet, serve
from tests.fleet.member import Member, member
from tests.real.stage import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.fleet.config import Fleet


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alertmanager, "pause_s", lambda *_: 0.02)


def sends_to(*urls: str, step_s: float = 60.0, timeout_s: float = 10.0) -> Fleet:
    plain = fleet(timeout=Seconds(timeout_s))
    section = msgspec.structs.replace(plain.section, alertmanagers=urls, step=Seconds(step_s))
    headers = {"Authorization": "Bearer s3cret"}
    return msgspec.structs.replace(plain, section=section, alertmanager_headers=headers)


def alert(number: int = 0, **labels: str) -> FleetAlert:
    return FleetAlert(
        labels={"alertname": "A", "uuid": f"GPU-{number}", **labels},
        annotations={"summary": "x" * 500},
        starts_at_s=time.time() - 60,
    )


@contextlib.contextmanager
def sending(*urls: str, **settings: float) -> Iterator[Alertmanagers]:
    members = Alertmanagers(sends_to(*urls, **settings))
    try:
        yield members
    finally:
        members.close()


def ends_s(posted: dict[str, Any]) -> float:
    return datetime.fromisoformat(posted["endsAt"]).timestamp()


def test_what_fires_outlives_us_and_what_is_over_ends_by_the_clock_of_the_member() -> None:
    with member() as one:
        one.ahead_s = 7200.0
        with sending(one.url) as members:
            members.offer([alert(0), alert(1)], [])
            one.until(lambda: one.posts)
            assert all(abs(ends_s(a) - one.now_s() - 900) < 60 for a in one.posts[0])
            assert one.headers[0]["Authorization"] == "Bearer s3cret"
            members.offer([alert(0)], [alert(1)])
            one.until(lambda: len(one.active()) == 1)
            # Again at the next two, so that all behind one address learn it; then no more.
            while len(one.posts) < 5:
                before = len(one.posts)
                members.offer([alert(0)], [])
                one.until(lambda: len(one.posts) > before)  # noqa: B023 - called at once
        one.until(lambda: len(one.posts) >= 6)
        assert [len(post) for post in one.posts[:5]] == [2, 2, 2, 2, 1]
        assert lifetime_s(600.0) == 1800.0


def test_it_sends_again_by_itself_and_once_more_at_the_end() -> None:
    with member() as one, sending(one.url, step_s=0.02) as members:
        members.offer([alert()], [])
        one.until(lambda: len(one.posts) >= 3)
        members.close()
        assert len(one.active()) == 1


@pytest.mark.parametrize("trap", ["down", "503", "hang", "redirect", "cut", "401"])
def test_a_member_that_fails_costs_the_other_nothing_and_learns_it_later(
    trap: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gpuwatchd.fleet")
    with member() as good, member() as bad, member() as other:
        bad.status = {"503": 503, "401": 401, "redirect": 307}.get(trap, 200)
        bad.location = other.url if trap == "redirect" else ""
        bad.hang, bad.cut = trap == "hang", trap == "cut"
        url = "http://127.0.0.1:9/prefix" if trap == "down" else bad.url
        with sending(good.url, url, timeout_s=1.0) as members:
            members.offer([alert()], [])
            good.until(good.active)
            assert until(lambda: members.failures)
            ((key, count),) = members.failures.items()
            assert key.endswith({"503": "503", "401": "401", "redirect": "307"}.get(trap, "answer"))
            assert count >= 1
            if trap != "down":
                bad.status, bad.location, bad.hang, bad.cut = 200, "", False, False
                bad.stop.set()
                bad.until(bad.active)
        assert not other.posts
        assert "s3cret" not in caplog.text


def test_no_part_of_a_long_secret_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    secret = "Bearer " + "k3y-" * 400
    with serve(Reply(f"you sent {secret}".encode(), 500)) as server:
        settings = sends_to(f"http://127.0.0.1:{server.port}")
        headers = {"Authorization": secret}
        members = Alertmanagers(msgspec.structs.replace(settings, alertmanager_headers=headers))
        members.offer([alert()], [])
        assert until(lambda: members.failures)
        members.close()
    assert "500" in caplog.text
    assert "k3y-" not in caplog.text


def test_a_member_whose_clock_is_at_the_end_of_time_is_sent_alerts_all_the_same() -> None:
    with member() as one, sending(one.url) as members:
        one.ahead_s = datetime.max.replace(tzinfo=UTC).timestamp() - 60 - time.time()
        members.offer([alert()], [])
        one.until(lambda: one.posts)
    east = timezone(timedelta(hours=23))
    bare = [datetime.min, datetime.max]  # noqa: DTZ901 - as a member may answer
    for odd in (*bare, datetime.min.replace(tzinfo=east)):
        fires = msgspec.structs.replace(alert(), starts_at_s=seconds(odd))
        assert _posted(fires, time.time()).starts_at.year in {1970, datetime.now(UTC).year}


def test_one_that_is_refused_is_found_and_the_others_stay() -> None:
    with member() as one, sending(one.url) as members:
        bad = [alert(7, **{"a b": "x"}), alert(600, **{"-": "x"})]
        members.offer([*map(alert, range(1000)), *bad], [])
        one.until(lambda: len(one.active()) == 1000 and [len(p) for p in one.posts].count(1) >= 2)
        assert until(lambda: len(members.members[0]._refused) == 2)
        count = len(one.posts)
        assert count < 70
        members.offer([*map(alert, range(1000)), *bad], [])
        one.until(lambda: len(one.posts) >= count + 2)
        assert [len(post) for post in one.posts[count:]] == [500, 500]


def test_many_that_are_refused_hold_no_other_up() -> None:
    with member() as one, sending(one.url) as members:
        bad = [alert(number, **{"a b": "x"}) for number in range(40)]
        members.offer([*map(alert, range(1500)), *bad], [])
        one.until(lambda: len(one.active()) == 1500)
        assert until(lambda: len(members.members[0]._refused) == 40)


def test_where_nothing_is_taken_it_is_not_the_alerts() -> None:
    with member() as one, sending(one.url) as members:
        one.status = 400
        members.offer(map(alert, range(400)), [])
        one.until(lambda: one.posts)
        one.status = 200
        one.until(lambda: len(one.active()) == 400)


def test_the_only_one_that_is_refused_is_counted_and_tried_again() -> None:
    with member() as one, sending(one.url) as members:
        members.offer([alert(0, **{"a b": "x"})], [])
        one.until(lambda: len(one.posts) >= 2)
        assert [key.rpartition(" ")[2] for key in members.failures] == ["400"]


def test_what_is_open_is_what_any_member_has() -> None:
    with member() as one, member() as two, sending(one.url, two.url) as members:
        members.offer([alert()], [])
        one.until(one.active)
        two.until(two.active)
    with member() as empty, member() as failing:
        failing.status = 503
        read = Alertmanagers(sends_to(empty.url, failing.url)).active('a="b"')
        assert read == []
        assert Alertmanagers(sends_to(failing.url)).active() is None
        # Who lets nobody read is sent to all the same.
        failing.status = 403
        assert Alertmanagers(sends_to(failing.url)).active() == []
    with serve(Reply(b'[{"labels": {"alertname"')) as cut:
        assert Alertmanagers(sends_to(f"http://127.0.0.1:{cut.port}")).active() is None


def test_a_member_that_takes_nothing_is_known_with_nothing_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "gpuwatchd.fleet")
    with member() as one:
        one.status = 401
        with sending(one.url, step_s=0.02) as members:
            assert members.active('a="b"') == []
            (failing,) = members.failing()
            members.offer([], [])
            one.until(lambda: len(one.posts) >= 3)
            assert "401" in failing.error
            assert members.failing()[0].since_s == failing.since_s
            one.status = 200
            assert until(lambda: not members.failing())
            assert not one.alerts
    # Each change once.
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def _kept(one: Member) -> list[str]:
    return sorted(labels["uuid"] for labels in one.labels())


def test_a_resolve_is_kept_for_a_member_that_is_away() -> None:
    with member() as one, sending(one.url) as members:
        members.offer([alert(0), alert(1)], [])
        one.until(lambda: len(one.active()) == 2)
        one.status = 503
        members.offer([alert(0)], [alert(1)])
        before = len(one.posts)
        for _ in range(5):
            members.offer([alert(0)], [])
        one.until(lambda: len(one.posts) >= before + 5)
        one.status = 200
        one.until(lambda: _kept(one) == ["GPU-0"])


def test_what_another_worker_still_fires_is_its_to_end() -> None:
    with member() as one, sending(one.url) as ours, sending(one.url) as others:

        def sent(members: Alertmanagers, fires: list[int], over: list[int]) -> list[str]:
            before = len(one.posts)
            members.offer(map(alert, fires), map(alert, over))
            one.until(lambda: len(one.posts) > before)
            # Its next round.
            one.ahead_s += 30.0
            return [posted["labels"]["uuid"] for posted in one.posts[-1]]

        for members in (ours, others):
            sent(members, [0, 1], [])
        for _ in range(4):
            assert sent(ours, [1], [0]) == ["GPU-1"]
            # Its turn comes twice before the other's.
            assert sent(ours, [1], []) == ["GPU-1"]
            assert sent(others, [0, 1], []) == ["GPU-0", "GPU-1"]
        # It has died: two steps later it is ours to end.
        for _ in range(4):
            assert sent(ours, [1], []) == ["GPU-1"]
        assert sent(ours, [1], []) == ["GPU-0", "GPU-1"]
        assert _kept(one) == ["GPU-1"]
