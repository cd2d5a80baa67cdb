"""``cost``: at risk, lost, held, saved; what is unknown stays so; the parts are the whole."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec.structs import replace

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
from gpuwatchd.store import tables
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
        self,
        pid: int,
        hours: float,
        *,
        ended_s: float = 0.0,
        gib: float = 20.0,
        busy_h: float | None = None,
        **about: Any,
    ) -> ProcessInfo:
        """Have had a process on GPU 0, seen each minute, until ``ended_s`` ago.

        The GPU was at work for its first ``busy_h`` hours; None: nobody knows.
        """
        end_s = self.now_s - ended_s
        begun_s = end_s - hours * HOUR_S
        key = ProcessKey(pid=pid, started_at_s=begun_s)
        info = ProcessInfo(key=key, name="python", **{"user": "alice", "job": "slurm 42", **about})
        self._record(making.CARD, info, begun_s, hours, gib, busy_h)
        return info

    def beside(self, info: ProcessInfo, hours: float, *, gib: float) -> None:
        """Have had it on the second GPU too, until now."""
        self._record(world.SECOND, info, self.now_s - hours * HOUR_S, hours, gib)

    def _record(
        self,
        card: Device,
        info: ProcessInfo,
        begun_s: float,
        hours: float,
        gib: float,
        busy_h: float | None = None,
    ) -> None:
        for minute in range(round(hours * 60)):
            held = [(info, int(gib * GIB))]
            one = making.sample(begun_s + minute * 60.0, held, device=card)
            util = None if busy_h is None else 90.0 if minute < busy_h * 60 else 0.0
            readings = tuple(replace(reading, util_pct=util) for reading in one.readings)
            one = replace(one, readings=readings)
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

    def acted(
        self,
        verb: str,
        info: ProcessInfo,
        ago_s: float,
        came: str,
        kind: str = "idle",
        **more: Any,
    ) -> None:
        """Have had a step taken on a process, so long ago, and what came of it."""
        asked: dict[str, Any] = {"verb": verb, "process": info.key, "who": "alice", **more}
        for phase, code, after_s in (("asked", kind, 0.0), ("done", came, 1.0)):
            at_s = self.now_s - ago_s + after_s
            row = tables.Action(at_s=at_s, phase=phase, code=code, **asked)  # type: ignore[arg-type]
            self.history.shelf.write_now(tables.write_action, row)

    def saved(self, info: ProcessInfo, ago_s: float) -> None:
        """Have had a process save its work."""
        at_s = self.now_s - ago_s
        self.history.shelf.keep_checkpoint(
            tables.Checkpoint(process=info.key, saved_at_s=at_s, said_by="file")
        )

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


@pytest.mark.requirement("B17")
def test_what_a_crash_near_the_limit_probably_lost(past: Past, ctl: Ctl) -> None:
    past.crash(7, 3.0)
    live(past)
    (entry,) = ctl.data("cost")
    assert entry["what"] == "lost"
    assert entry["gpu_hours"] == pytest.approx(3.0, abs=0.03)
    assert "probably" in entry["reason"]
    assert "probably" in ctl("cost")


@pytest.mark.requirement("B17")
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
@pytest.mark.requirement("B18")
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


def acts(past: Past, ctl: Ctl, *words: str) -> Any:
    """Return what ``cost`` says of what was done."""
    live(past)
    return ctl.json("cost", *words)["acts"]


@pytest.mark.parametrize(
    ("ended_h", "hours"),
    [(2.0, 0.25), (0.5, 0.125)],
    ids=["as-long-as-it-was-idle", "until-the-end-of-the-period"],
)
def test_ending_idle_memory_frees_its_share_for_as_long_as_it_had_been_idle(
    past: Past, ctl: Ctl, ended_h: float, hours: float
) -> None:
    info = past.job(7, 4.0, ended_s=ended_h * HOUR_S, busy_h=3.0)
    past.history.flush(past.now_s)
    past.acted("reap", info, ended_h * HOUR_S, "ended")
    found = acts(past, ctl)
    (each,) = found["each"]
    assert (found["acts"], found["by_step"], found["begun_again"]) == (1, {"reap": 1}, 0)
    assert found["freed_bytes"] == 20 * GIB
    assert found["freed_gpu_hours"] == pytest.approx(hours, abs=0.01)
    assert found["freed_usd"] == pytest.approx(hours * 4.1, abs=0.04)
    assert found["lost_gpu_hours"] == pytest.approx(3.0, abs=0.03)
    assert found["lost_usd"] == pytest.approx(12.3, abs=0.1)
    assert (each["by"], each["kind"], each["process"]["pid"]) == ("alice", "idle", 7)
    assert (each["went_on"], each["user"]) == (None, "alice")
    assert "1 reap: 20.0 GiB" in ctl("cost")
    assert max(map(len, ctl("cost").splitlines())) <= 80
    reported = ctl.data("report --since 1d")["cost"]["acts"]
    assert reported["acts"] == 1
    assert reported["freed_gpu_hours"] == pytest.approx(found["freed_gpu_hours"], abs=0.01)
    assert reported["lost_usd"] == found["lost_usd"]


@pytest.mark.parametrize(
    ("saved_h", "lost"), [(3.0, 1.0), (2.5, 0.5), (1.5, 0.0)], ids=["early", "later", "idle"]
)
def test_what_an_act_lost_counts_from_the_last_checkpoint_until_it_was_idle(
    past: Past, ctl: Ctl, saved_h: float, lost: float
) -> None:
    info = past.job(7, 4.0, ended_s=HOUR_S, busy_h=3.0)
    past.history.flush(past.now_s)
    past.saved(info, saved_h * HOUR_S)
    past.acted("act-end", info, HOUR_S, "ended")
    found = acts(past, ctl)
    assert found["lost_gpu_hours"] == pytest.approx(lost, abs=0.02)


def test_since_when_it_was_idle_is_unknown_so_is_what_it_freed(past: Past, ctl: Ctl) -> None:
    info = past.job(7, 4.0, ended_s=HOUR_S)
    past.history.flush(past.now_s)
    past.acted("reap", info, HOUR_S, "ended")
    found = acts(past, ctl)
    assert (found["freed_bytes"], found["freed_gpu_hours"]) == (20 * GIB, None)
    assert (found["freed_usd"], found["known_freed_gpu_hours"]) == (None, 0.0)
    assert found["lost_gpu_hours"] == pytest.approx(4.0, abs=0.03)


def test_an_alert_on_idle_memory_knows_since_when(past: Past, ctl: Ctl) -> None:
    info = past.job(7, 4.0, ended_s=2 * HOUR_S)
    subject, onset_h = Subject(device_uid="GPU-1", process=info.key), 1.5
    onset_at_s = past.now_s - (2.0 + onset_h) * HOUR_S
    past.alert(
        info, key="held:GPU-1/7", kind="held", state="resolved", opened_at_s=onset_at_s + 900.0,
        resolved_at_s=past.now_s - 2 * HOUR_S,
        finding=making.finding(subject=subject, judged_at_s=past.now_s, onset_at_s=onset_at_s),
    )  # fmt: skip
    past.history.flush(past.now_s)
    past.acted("act-end", info, 2 * HOUR_S, "ended", who="gpuwatchd")
    found = acts(past, ctl)
    assert found["freed_gpu_hours"] == pytest.approx(onset_h * 20 / 80, abs=0.01)
    assert found["lost_gpu_hours"] == pytest.approx(4.0 - onset_h, abs=0.03)


def test_a_leak_was_at_work_until_the_act(past: Past, ctl: Ctl) -> None:
    info = past.job(7, 4.0, ended_s=HOUR_S, busy_h=0.0)
    past.history.flush(past.now_s)
    past.saved(info, 1.5 * HOUR_S)
    past.acted("act-requeue", info, HOUR_S, "requeued", kind="leak")
    found = acts(past, ctl)
    assert (found["freed_bytes"], found["freed_gpu_hours"]) == (20 * GIB, 0.0)
    assert found["lost_gpu_hours"] == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    ("verb", "result", "more"),
    [
        ("act-end", "unconfirmed", {}),
        ("act-restart", "failed", {}),
        ("act-requeue", "handed-over", {}),
        ("act-checkpoint", "asked", {}),
        ("act-end", "ended", {"dry_run": True}),
        ("reap", "still-running", {}),
        ("reap", "still-held", {}),
    ],
)
def test_what_was_not_done_frees_nothing(
    past: Past, ctl: Ctl, verb: str, result: str, more: dict[str, Any]
) -> None:
    info = past.job(7, 4.0, ended_s=HOUR_S, busy_h=3.0)
    past.history.flush(past.now_s)
    past.acted(verb, info, HOUR_S, result, **more)
    assert acts(past, ctl) is None
    assert "none in this period" in ctl("cost")


def test_acts_of_damaged_times_and_of_others_are_left_out(past: Past, ctl: Ctl) -> None:
    info = past.job(7, 4.0, ended_s=HOUR_S, busy_h=3.0)
    past.history.flush(past.now_s)
    past.acted("reap", info, -HOUR_S, "ended")
    past.acted("reap", info, 90 * 24 * HOUR_S, "ended")
    assert acts(past, ctl) is None
    past.acted("reap", info, HOUR_S, "ended")
    past.acted("reap", info, HOUR_S - 60.0, "ended")
    assert acts(past, ctl)["acts"] == 1
    assert acts(past, ctl, "--user", "bob") is None
    assert acts(past, ctl, "--gpu", "1") is None


def test_a_process_that_no_gpu_had_is_an_act_of_which_nothing_is_known(
    past: Past, ctl: Ctl
) -> None:
    past.acted(
        "reap", ProcessInfo(key=ProcessKey(pid=9, started_at_s=1.0), name="x"), 60.0, "ended"
    )
    found = acts(past, ctl)
    assert (found["acts"], found["freed_bytes"], found["lost_gpu_hours"]) == (1, None, None)


def test_a_manager_ends_every_rank_and_the_work_of_all_is_lost(past: Past, ctl: Ctl) -> None:
    info = past.job(7, 2.0, ended_s=HOUR_S, gib=20.0, busy_h=2.0)
    past.job(8, 2.0, ended_s=HOUR_S, gib=20.0, busy_h=2.0)
    past.job(9, 2.0, ended_s=HOUR_S, gib=20.0, busy_h=2.0, job="slurm 43")
    past.history.flush(past.now_s)
    past.acted("act-end", info, HOUR_S, "ended")
    found = acts(past, ctl)
    assert found["freed_bytes"] == 20 * GIB
    shares = 2 * 2.0 / 3
    assert found["lost_gpu_hours"] == pytest.approx(shares, abs=0.05)


@pytest.mark.parametrize(
    ("saved_h", "next_h", "lived_h", "about", "went_on", "undecided"),
    [
        (5.0, 3.9, 2.0, {}, 1, 0),
        (5.0, 3.9, 0.8, {}, 0, 0),
        (6.5, 3.9, 2.0, {}, 0, 0),
        (None, 3.9, 3.0, {}, 0, 0),
        (5.0, 1.9, 1.5, {}, 0, 0),
        (5.0, 3.9, 2.0, {"user": "bob"}, 0, 0),
        (5.0, 3.9, 2.0, {"job": "slurm 43"}, 0, 0),
        (4.5, 2.1, 2.1, {}, 1, 0),
        (6.5, 2.1, 2.1, {}, 0, 1),
    ],
    ids=[
        "past-the-point", "ended-before-the-point", "older-checkpoint", "no-checkpoint",
        "hours-later", "another-user", "another-job", "still-runs", "not-yet",
    ],
)  # fmt: skip
def test_a_requeue_went_on_where_the_next_run_got_past_the_point(
    past: Past,
    ctl: Ctl,
    saved_h: float | None,
    next_h: float,
    lived_h: float,
    about: dict[str, Any],
    went_on: int,
    undecided: int,
) -> None:
    info = past.job(7, 4.0, ended_s=4 * HOUR_S, busy_h=4.0)
    past.job(8, lived_h, ended_s=(next_h - lived_h) * HOUR_S, busy_h=9.0, **about)
    past.beside(past.job(9, 0.1, job="other"), 0.1, gib=1.0)
    past.history.flush(past.now_s)
    if saved_h is not None:
        past.saved(info, saved_h * HOUR_S)
    past.acted("act-requeue", info, 4 * HOUR_S, "requeued")
    found = acts(past, ctl)
    assert (found["begun_again"], found["went_on"]) == (1, went_on)
    assert found["undecided"] == undecided


def test_one_run_follows_one_requeue(past: Past, ctl: Ctl) -> None:
    first = past.job(7, 2.0, ended_s=4 * HOUR_S, busy_h=2.0)
    second = past.job(8, 0.2, ended_s=3.7 * HOUR_S, busy_h=2.0)
    past.job(9, 3.5, busy_h=9.0)
    past.history.flush(past.now_s)
    past.saved(first, 4.1 * HOUR_S)
    past.saved(second, 3.8 * HOUR_S)
    past.acted("act-requeue", first, 4 * HOUR_S, "requeued")
    past.acted("act-requeue", second, 3.7 * HOUR_S, "requeued")
    found = acts(past, ctl)
    assert [each["went_on"] for each in found["each"]] == [True, True]


def test_an_alert_shows_what_was_done_by_whom_and_what_came_of_it(past: Past, ctl: Ctl) -> None:
    info, other = past.job(7, 2.0, ended_s=600.0), past.job(8, 2.0)
    past.alert(info, state="resolved", resolved_at_s=past.now_s - 600.0)
    past.history.flush(past.now_s)
    past.acted("reap", other, 900.0, "ended")
    past.acted("act-end", info, 30 * HOUR_S, "ended")
    past.acted("act-end", info, 1000.0, "unconfirmed", dry_run=True, who="gpuwatchd")
    past.acted("act-end", info, 900.0, "unconfirmed", who="gpuwatchd", result="systemctl stop x")
    past.acted("reap", info, 700.0, "ended")
    live(past)
    shown = ctl.data("alerts show 7")["actions"]
    assert [
        (one["verb"], one["phase"], one["proposed"], one["code"], one["by"]) for one in shown
    ] == [
        ("act-end", "asked", True, "idle", "gpuwatchd"),
        ("act-end", "done", True, "unconfirmed", "gpuwatchd"),
        ("act-end", "asked", False, "idle", "gpuwatchd"),
        ("act-end", "done", False, "unconfirmed", "gpuwatchd"),
        ("reap", "asked", False, "idle", "alice"),
        ("reap", "done", False, "ended", "alice"),
    ]
    assert {one["process"]["pid"] for one in shown} == {7}
    text = ctl("alerts show 7")
    assert text.count("act-end") == 4
    assert "systemctl stop x" in text
    assert [one["actions"] for one in ctl.data("alerts --all")] == [None]
