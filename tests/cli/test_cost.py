"""``cost``: at risk, lost, held, saved; what is unknown stays so; the parts are the whole."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.alerts import wording
from gpuwatchd.core import config
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.config import StoreSection
from gpuwatchd.core.model import (
    AlertSubject,
    Cost,
    EtaRange,
    Holding,
    ProcessInfo,
    ProcessKey,
    Subject,
)
from gpuwatchd.store.writer import History
from tests import making
from tests.cli import world
from tests.making import CARD, GIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.core.model import Alert, Device
    from tests.cli.calls import Ctl


HOUR_S = 3600.0


class Past:
    """A history that a test fills."""

    def __init__(self) -> None:
        self.now_s = float(int(time.time()) // 60 * 60)
        self.history = History.open(config.state_dir(), StoreSection(min_free_mib=0), boot_id="b")

    def job(
        self, pid: int, hours: float, *, ended_s: float = 0.0, gib: float = 20.0
    ) -> ProcessInfo:
        """Have had a process on GPU 0, seen each minute, until ``ended_s`` ago."""
        end_s = self.now_s - ended_s
        begun_s = end_s - hours * HOUR_S
        key = ProcessKey(pid=pid, started_at_s=begun_s)
        info = ProcessInfo(key=key, name="python", user="alice", job="slurm 42")
        self._record(making.CARD, info, begun_s, hours, gib)
        return info

    def beside(self, info: ProcessInfo, hours: float, *, gib: float) -> None:
        """Have had it on the second GPU too, until now."""
        self._record(world.SECOND, info, self.now_s - hours * HOUR_S, hours, gib)

    def _record(
        self, card: Device, info: ProcessInfo, begun_s: float, hours: float, gib: float
    ) -> None:
        for minute in range(round(hours * 60)):
            held = [(info, int(gib * GIB))]
            one = making.sample(begun_s + minute * 60.0, held, device=card)
            self.history.record(one, (card,), {info.key: info})

    def crash(self, pid: int, hours: float, *, ended_s: float = HOUR_S) -> ProcessInfo:
        """Have had a process that died near the limit, of which there was an alert."""
        info = self.job(pid, hours, ended_s=ended_s)
        over = wording.ending(Ending.ENDED_NEAR_LIMIT)
        self.alert(info, state="resolved", resolved_at_s=self.now_s - ended_s, **over)
        return info

    def alert(self, info: ProcessInfo, **changes: Any) -> Alert:
        """Have had an alert on a process."""
        subject = Subject(device_uid="GPU-1", process=info.key)
        finding = making.finding(subject=subject, judged_at_s=self.now_s)
        values: dict[str, Any] = {
            "key": f"leak:{subject.id}", "subject": subject, "finding": finding,
            "opened_at_s": self.now_s - 1800.0, "changed_at_s": self.now_s - 1700.0,
            "about": AlertSubject(user=info.user or "", job=info.job or ""),
        }  # fmt: skip
        found = making.alert(**{**values, **changes})
        self.history.apply([found], [])
        return found

    def told(self, alert: Alert, ago_s: float, **changes: Any) -> None:
        """Have delivered a message of an alert."""
        sent = world.delivery(alert.key, "desktop", self.now_s - ago_s, **changes)
        self.history.apply([], [sent])


@pytest.fixture
def past(monkeypatch: pytest.MonkeyPatch) -> Iterator[Past]:
    """Return an empty history; the price is $4.10."""
    monkeypatch.setenv("GPUWATCHD_COST_USD_PER_GPU_HOUR", "4.1")
    found = Past()
    yield found
    found.history.close()


def live(past: Past, **changes: Any) -> None:
    past.history.flush(past.now_s)
    plain: dict[str, Any] = {"alerts": (), "taken_at_s": past.now_s}
    world.write(**{**plain, **changes})


def test_what_is_at_risk_since_the_start_and_until_it_is_full(past: Past, ctl: Ctl) -> None:
    alert = past.alert(past.job(4711, 6.0))
    live(past, alerts=(alert,))
    found = ctl.json("cost")
    (entry,) = found["data"]
    assert (entry["what"], entry["since"], entry["user"]) == ("at-risk", "start", "alice")
    assert entry["gpu_hours"] == pytest.approx(6.0, abs=0.05)
    assert entry["cost_usd"] == pytest.approx(24.6, abs=0.2)
    assert entry["ahead_usd"] == pytest.approx(2820 / 3600 * 4.1, abs=0.1)
    assert found["prices"][0]["basis"] == "yours"
    assert "$4.10/h (yours)" in ctl("cost")


def test_an_open_alert_shows_the_same_cost_until_now(past: Past, ctl: Ctl) -> None:
    """Not that of its last message, which was an hour ago."""
    mailed = Cost(spent_usd=8.2, gpu_hours=2.0, basis="yours")
    alert = past.alert(past.job(4711, 3.0), cost=mailed)
    live(past, alerts=(alert,))
    (entry,) = ctl.data("cost")
    shown, explained = ctl.data("alerts show latest")["cost"], ctl("explain latest")
    assert shown["spent_usd"] == pytest.approx(entry["cost_usd"], abs=0.01)
    assert shown["gpu_hours"] == pytest.approx(entry["gpu_hours"], abs=0.01) != mailed.gpu_hours
    assert shown["line"] in " ".join(explained.split())


def test_what_a_crash_near_the_limit_probably_lost(past: Past, ctl: Ctl) -> None:
    past.crash(7, 3.0)
    live(past)
    (entry,) = ctl.data("cost")
    assert entry["what"] == "lost"
    assert entry["gpu_hours"] == pytest.approx(3.0, abs=0.03)
    assert "probably" in entry["reason"]
    assert "probably" in ctl("cost")


def test_an_hour_of_the_person_is_a_line_of_its_own(
    past: Past, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    past.crash(7, 3.0)
    live(past)
    assert ctl.json("cost")["engineer"] is None
    before = ctl.json("cost")["sums"]["lost"]["cost_usd"]
    monkeypatch.setenv("GPUWATCHD_COST_ENGINEER_PER_HOUR", "80")
    found = ctl.json("cost")
    assert (found["engineer_hours"], found["engineer"]) == (1, 80.0)
    assert found["sums"]["lost"]["cost_usd"] == before
    assert "$80.00" in ctl("cost")


def stopped(past: Past, *, low_s: float, ended_s: float = HOUR_S) -> Alert:
    """Return the alert of a job that ended, with a crash foreseen ``low_s`` after the end."""
    end_s = past.now_s - ended_s
    info = past.job(7, 2.0, ended_s=ended_s)
    subject = Subject(device_uid="GPU-1", process=info.key)
    eta = EtaRange(low_s=low_s + 60.0, mid_s=low_s + 5000.0, high_s=None)
    finding = making.finding(subject=subject, judged_at_s=end_s - 60.0, eta=eta)
    return past.alert(
        info, finding=finding, state="resolved", resolved_at_s=end_s,
        **wording.ending(Ending.PROCESS_ENDED),
        opened_at_s=end_s - 1800.0,
    )  # fmt: skip


@pytest.mark.parametrize("why", ["nobody", "failed", "dry", "late", "close"])
def test_nothing_is_saved_where_that_is_doubtful(past: Past, ctl: Ctl, why: str) -> None:
    alert = stopped(past, low_s=500.0 if why == "close" else 2 * HOUR_S)
    if why == "failed":
        past.told(alert, HOUR_S + 900.0, state="failed", sent_at_s=None)
    elif why == "dry":
        past.told(alert, HOUR_S + 900.0, dry_run=True)
    elif why == "late":
        past.told(alert, HOUR_S - 900.0)
    elif why == "close":
        past.told(alert, HOUR_S + 900.0)
    live(past)
    assert ctl.data("cost") == []
    assert "none in this period" in ctl("cost")


def test_memory_held_without_work_counts_as_its_share_of_the_device(past: Past, ctl: Ctl) -> None:
    live(past, holdings=(idle(past, None, 4.0),))
    (entry,) = ctl.data("cost")
    assert entry["gpu_hours"] == pytest.approx(1.0, abs=0.01)
    (entry,) = ctl.data("cost --since 2h")
    assert entry["gpu_hours"] == pytest.approx(0.5, abs=0.01)


def test_held_alerts_of_the_past_count_too(past: Past, ctl: Ctl) -> None:
    held_alert(past, past.job(9, 4.0, ended_s=HOUR_S), from_h=3.0, to_h=1.0)
    live(past)
    (entry,) = ctl.data("cost")
    assert entry["what"] == "held"
    assert entry["gpu_hours"] == pytest.approx(0.5, abs=0.02)


def test_without_a_price_hours_are_counted_and_money_is_unknown(
    past: Past, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUWATCHD_COST_USD_PER_GPU_HOUR")
    live(past, alerts=(past.alert(past.job(4711, 6.0)),))
    found = ctl.json("cost")
    assert found["data"][0]["cost_usd"] is None
    assert found["data"][0]["gpu_hours"] == pytest.approx(6.0, abs=0.05)
    assert found["sums"]["at_risk"]["cost_usd"] is None
    said = ctl("cost")
    assert "$0" not in said.partition("lost")[0]


@pytest.mark.parametrize("by", ["gpu", "user", "job", "incident"])
def test_the_parts_are_the_whole(past: Past, ctl: Ctl, by: str) -> None:
    past.crash(7, 3.0, ended_s=8 * HOUR_S)
    held = idle(past, None, 4.0, device_uid="GPU-2")
    live(past, alerts=(past.alert(past.job(4711, 6.0)),), holdings=(held,))
    found = ctl.json("cost", "--by", by)
    for what, whole in found["sums"].items():
        for name in ("gpu_hours", "cost_usd", "ahead_usd"):
            parts = [group["sums"][what][name] or 0.0 for group in found["groups"]]
            assert sum(parts) == pytest.approx(whole[name] or 0.0), (what, name)
    assert found["sums"]["at_risk"]["incidents"] == 1
    assert max(map(len, ctl("cost", "--by", by).splitlines())) <= 80


def test_a_process_and_its_device_are_not_counted_twice(past: Past, ctl: Ctl) -> None:
    alert = past.alert(past.job(4711, 6.0))
    device = Subject(device_uid="GPU-1")
    whole = past.alert(
        past.job(4711, 0.0), key="leak:GPU-1", subject=device,
        finding=making.finding(subject=device, judged_at_s=past.now_s),
    )  # fmt: skip
    live(past, alerts=(whole, alert))
    assert ctl.json("cost")["sums"]["at_risk"]["gpu_hours"] == pytest.approx(6.0, abs=0.05)


def test_without_a_daemon_the_history_tells(past: Past, ctl: Ctl) -> None:
    past.alert(past.job(4711, 6.0))
    past.history.flush(past.now_s)
    found = ctl.json("cost")
    assert [one["code"] for one in found["warnings"]] == ["daemon-absent"]
    assert found["data"][0]["gpu_hours"] == pytest.approx(6.0, abs=0.05)


def test_without_a_history_the_daemon_tells_what_it_knows(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWATCHD_COST_USD_PER_GPU_HOUR", "4.1")
    now_s = time.time()
    held = Holding(kind="idle", device_uid="GPU-1", held_bytes=80 * GIB, since_s=now_s - HOUR_S)
    world.write(alerts=(), holdings=(held,))
    found = ctl.json("cost")
    assert "no-history" in [one["code"] for one in found["warnings"]]
    assert found["data"][0]["cost_usd"] == pytest.approx(4.1, abs=0.01)


def test_an_open_alert_of_which_nothing_is_written_is_unknown_not_nothing(ctl: Ctl) -> None:
    world.write()
    (entry,) = ctl.data("cost")
    assert (entry["what"], entry["gpu_hours"], entry["cost_usd"]) == ("at-risk", None, None)
    (line,) = [one for one in ctl("cost").splitlines() if one.startswith("at risk now")]
    assert line.split() == ["at", "risk", "now", "1", "?", "?"]


def idle(past: Past, info: ProcessInfo | None, hours: float, device_uid: str = "GPU-1") -> Holding:
    """Return memory that a process holds without work now."""
    return Holding(
        kind="idle", device_uid=device_uid, held_bytes=20 * GIB, process=info,
        since_s=past.now_s - hours * HOUR_S,
    )  # fmt: skip


def held_alert(past: Past, info: ProcessInfo, *, from_h: float, to_h: float) -> Alert:
    """Have had an alert on memory without work, between so many hours ago."""
    return past.alert(
        info, key=f"held:GPU-1/{info.key.pid}", kind="held", state="resolved",
        opened_at_s=past.now_s - from_h * HOUR_S, resolved_at_s=past.now_s - to_h * HOUR_S,
        ended="[policy] tell-held was emptied",
    )  # fmt: skip


def test_what_is_at_risk_is_not_held_as_well(past: Past, ctl: Ctl) -> None:
    info = past.job(4711, 6.0)
    live(past, alerts=(past.alert(info),), holdings=(idle(past, info, 4.0),))
    sums = ctl.json("cost")["sums"]
    assert sums["at_risk"]["gpu_hours"] == pytest.approx(6.0, abs=0.05)
    assert (sums["held"]["incidents"], sums["held"]["gpu_hours"]) == (0, 0.0)


def test_what_was_lost_was_not_held_as_well(past: Past, ctl: Ctl) -> None:
    info = past.crash(7, 4.0)
    held_alert(past, info, from_h=3.0, to_h=1.0)
    live(past)
    sums = ctl.json("cost")["sums"]
    assert sums["lost"]["gpu_hours"] == pytest.approx(4.0, abs=0.05)
    assert sums["held"]["gpu_hours"] == 0.0


def test_what_is_held_counts_on_from_an_alert_that_is_over(past: Past, ctl: Ctl) -> None:
    info = past.job(9, 6.0)
    held_alert(past, info, from_h=4.0, to_h=2.0)
    live(past, holdings=(idle(past, info, 4.0),))
    held = ctl.json("cost")["sums"]["held"]
    assert held["gpu_hours"] == pytest.approx(4.0 * 20 / 80, abs=0.02)


def test_every_loss_that_nobody_owns_counts(past: Past, ctl: Ctl) -> None:
    past.job(4711, 40.0)
    device = Subject(device_uid="GPU-1")
    for ago_h in (30.0, 20.0):
        begun_s, end_s = past.now_s - ago_h * HOUR_S, past.now_s - (ago_h - 2.0) * HOUR_S
        past.alert(
            past.job(4711, 0.0), key="leak:GPU-1", subject=device, state="resolved",
            finding=making.finding(subject=device, onset_at_s=begun_s, judged_at_s=end_s),
            opened_at_s=begun_s, resolved_at_s=end_s, **wording.ending(Ending.ENDED_NEAR_LIMIT),
        )  # fmt: skip
    recent = past.job(12, 1.0)
    live(past, alerts=(past.alert(recent),))
    lost = ctl.json("cost")["sums"]["lost"]
    assert lost["gpu_hours"] == pytest.approx(4.0, abs=0.1)


def test_ranks_on_other_devices_are_not_shown_for_one_device(past: Past, ctl: Ctl) -> None:
    info = past.job(4711, 6.0)
    members = (
        Subject(device_uid="GPU-1", process=info.key),
        Subject(device_uid=world.SECOND.uid, process=info.key),
    )
    alert = past.alert(info)
    past.beside(info, 1.0, gib=20.0)
    alert = msgspec.structs.replace(alert, cost=Cost(members=members))
    live(past, alerts=(alert,))
    assert {one["device_uid"] for one in ctl.data("cost")} == {"GPU-1", "GPU-2"}
    for index, uid in (("0", "GPU-1"), ("1", "GPU-2")):
        found = ctl.json("cost", "--gpu", index)
        assert {one["device_uid"] for one in found["data"]} == {uid}
        assert {one["device_uid"] for one in found["prices"]} == {uid}


def test_what_was_held_on_two_devices_counts_on_both(past: Past, ctl: Ctl) -> None:
    info = past.job(9, 4.0)
    past.beside(info, 4.0, gib=40.0)
    alert = held_alert(past, info, from_h=3.0, to_h=1.0)
    members = tuple(Subject(device_uid=uid, process=info.key) for uid in ("GPU-1", "GPU-2"))
    past.history.apply([msgspec.structs.replace(alert, cost=Cost(members=members))], [])
    live(past)
    held = ctl.json("cost")["sums"]["held"]
    assert held["gpu_hours"] == pytest.approx(2.0 * 20 / 80 + 2.0 * 40 / 80, abs=0.03)


def test_zombies_show_the_price_of_what_they_hold(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWATCHD_COST_PRICES", '{ "NVIDIA A100" = 1.8 }')
    monkeypatch.setenv("GPUWATCHD_COST_CURRENCY", "EUR")
    monkeypatch.setenv("GPUWATCHD_COST_PER_USD", "0.9")
    held = Holding(
        kind="idle", device_uid=CARD.uid, held_bytes=20 * GIB, since_s=time.time() - 7200.0,
        gib_hours=40.0, cost_usd=1.0,
    )  # fmt: skip
    world.write(holdings=(held,), alerts=())
    said = ctl("zombies")
    assert "€0.90" in said
    assert 'cost: its share of €1.80/h (yours, for "NVIDIA A100")' in said
