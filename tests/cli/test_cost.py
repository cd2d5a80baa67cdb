"""``cost``: at risk, lost, held, saved; what is unknown stays so; the parts are the whole."""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.alerts import wording
from gpuwatchd.cli.cost_text import Book
from gpuwatchd.core import config
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.config import Config, CostSection, StoreSection
from gpuwatchd.core.model import (
    About,
    Cost,
    Delivery,
    EtaRange,
    Holding,
    Message,
    ProcessInfo,
    ProcessKey,
    Subject,
)
from gpuwatchd.store.checkpoints import Checkpoint
from gpuwatchd.store.writer import History
from tests import making
from tests.cli import world
from tests.making import CARD, GIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.core.model import Alert
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
        for minute in range(round(hours * 60)):
            one = making.sample(begun_s + minute * 60.0, [(info, int(gib * GIB))])
            self.history.record(one, (making.CARD,), {key: info})
        return info

    def alert(self, info: ProcessInfo, **changes: Any) -> Alert:
        """Have had an alert on a process."""
        subject = Subject(device_uid="GPU-1", process=info.key)
        finding = making.finding(subject=subject, judged_at_s=self.now_s)
        values: dict[str, Any] = {
            "key": f"leak:{subject.id}", "subject": subject, "finding": finding,
            "opened_at_s": self.now_s - 1800.0, "changed_at_s": self.now_s - 1700.0,
            "about": About(user=info.user or "", job=info.job or ""),
        }  # fmt: skip
        found = making.alert(**{**values, **changes})
        self.history.apply([found], [])
        return found

    def told(self, alert: Alert, ago_s: float, **changes: Any) -> None:
        """Have delivered a message of an alert."""
        message = Message(
            id=f"m{ago_s}", notice="firing", severity="warning", subject="s", body="b"
        )
        at_s = self.now_s - ago_s
        values: dict[str, Any] = {
            "alert_key": alert.key, "channel": "desktop", "message": message, "state": "sent",
            "attempts": 1, "created_at_s": at_s, "sent_at_s": at_s,
        }  # fmt: skip
        self.history.apply([], [Delivery(**{**values, **changes})])


@pytest.fixture
def past(monkeypatch: pytest.MonkeyPatch) -> Iterator[Past]:
    """Return an empty history; the price is $4.10."""
    monkeypatch.setenv("GPUWATCHD_COST_USD_PER_GPU_HOUR", "4.1")
    found = Past()
    yield found
    found.history.close()


def asked(ctl: Ctl, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = ctl.json("cost", *arguments)
    return found


def shown(ctl: Ctl, *arguments: str) -> str:
    return ctl("cost", *arguments)


def live(past: Past, **changes: Any) -> None:
    past.history.flush(past.now_s)
    plain: dict[str, Any] = {"alerts": (), "taken_at_s": past.now_s}
    world.write(**{**plain, **changes})


def test_what_is_at_risk_since_the_start_and_until_it_is_full(past: Past, ctl: Ctl) -> None:
    alert = past.alert(past.job(4711, 6.0))
    live(past, alerts=(alert,))
    found = asked(ctl)
    (entry,) = found["data"]
    assert (entry["what"], entry["since"], entry["user"]) == ("at-risk", "start", "alice")
    assert entry["gpu_hours"] == pytest.approx(6.0, abs=0.05)
    assert entry["cost_usd"] == pytest.approx(24.6, abs=0.2)
    assert entry["ahead_usd"] == pytest.approx(2820 / 3600 * 4.1, abs=0.1)
    assert found["prices"][0]["basis"] == "yours"
    assert "$4.10/h (yours)" in shown(ctl)


def test_from_the_last_checkpoint_where_one_is_known(past: Past, ctl: Ctl) -> None:
    info = past.job(4711, 6.0)
    saved = Checkpoint(process=info.key, saved_at_s=past.now_s - 2 * HOUR_S, said_by="alice")
    past.history.shelf.keep_checkpoint(saved)
    live(past, alerts=(past.alert(info),))
    (entry,) = asked(ctl)["data"]
    assert entry["since"] == "checkpoint"
    assert entry["gpu_hours"] == pytest.approx(2.0, abs=0.05)
    assert "since its last checkpoint" in shown(ctl, "--by", "incident")


def test_hours_that_nobody_watched_are_not_counted(past: Past, ctl: Ctl) -> None:
    key = ProcessKey(pid=4711, started_at_s=past.now_s - 50 * HOUR_S)
    info = ProcessInfo(key=key, name="python", user="alice")
    for minute in range(60):
        one = making.sample(past.now_s - HOUR_S + minute * 60.0, [(info, GIB)])
        past.history.record(one, (making.CARD,), {key: info})
    live(past, alerts=(past.alert(info),))
    (entry,) = asked(ctl)["data"]
    assert entry["since"] == "first-seen"
    assert entry["gpu_hours"] == pytest.approx(1.0, abs=0.05)


def test_what_a_crash_near_the_limit_probably_lost(past: Past, ctl: Ctl) -> None:
    info = past.job(7, 3.0, ended_s=HOUR_S)
    end_s = past.now_s - HOUR_S
    past.alert(
        info, state="resolved", resolved_at_s=end_s, **wording.ending(Ending.ENDED_NEAR_LIMIT)
    )
    live(past)
    (entry,) = asked(ctl)["data"]
    assert entry["what"] == "lost"
    assert entry["gpu_hours"] == pytest.approx(3.0, abs=0.03)
    assert "probably" in entry["reason"]
    assert "probably" in shown(ctl)


def test_an_hour_of_the_person_is_a_line_of_its_own(
    past: Past, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = past.job(7, 3.0, ended_s=HOUR_S)
    past.alert(
        info,
        state="resolved",
        resolved_at_s=past.now_s - HOUR_S,
        **wording.ending(Ending.ENDED_NEAR_LIMIT),
    )
    live(past)
    assert asked(ctl)["engineer"] is None
    before = asked(ctl)["sums"]["lost"]["cost_usd"]
    monkeypatch.setenv("GPUWATCHD_COST_ENGINEER_PER_HOUR", "80")
    found = asked(ctl)
    assert (found["engineer_hours"], found["engineer"]) == (1, 80.0)
    assert found["sums"]["lost"]["cost_usd"] == before
    assert "$80.00" in shown(ctl)


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


def test_saved_is_only_the_time_from_the_end_to_the_earliest_crash(past: Past, ctl: Ctl) -> None:
    past.told(stopped(past, low_s=2 * HOUR_S), HOUR_S + 900.0)
    live(past)
    (entry,) = asked(ctl)["data"]
    assert entry["what"] == "saved"
    assert entry["gpu_hours"] == pytest.approx(2.0)
    assert entry["cost_usd"] == pytest.approx(8.2)


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
    assert asked(ctl)["data"] == []
    assert "nothing of the kind" in shown(ctl)


def test_memory_held_without_work_counts_as_its_share_of_the_device(past: Past, ctl: Ctl) -> None:
    held = Holding(
        kind="idle", device_uid="GPU-1", held_bytes=20 * GIB, since_s=past.now_s - 4 * HOUR_S
    )
    live(past, holdings=(held,))
    (entry,) = asked(ctl)["data"]
    assert entry["gpu_hours"] == pytest.approx(1.0, abs=0.01)
    (entry,) = asked(ctl, "--since", "2h")["data"]
    assert entry["gpu_hours"] == pytest.approx(0.5, abs=0.01)


def test_held_alerts_of_the_past_count_too(past: Past, ctl: Ctl) -> None:
    info = past.job(9, 4.0, ended_s=HOUR_S)
    end_s = past.now_s - HOUR_S
    past.alert(
        info, key="held:x", kind="held", state="resolved", resolved_at_s=end_s,
        opened_at_s=end_s - 2 * HOUR_S, ended="it is gone",
    )  # fmt: skip
    live(past)
    (entry,) = asked(ctl)["data"]
    assert entry["what"] == "held"
    assert entry["gpu_hours"] == pytest.approx(0.5, abs=0.02)


def test_without_a_price_hours_are_counted_and_money_is_unknown(
    past: Past, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUWATCHD_COST_USD_PER_GPU_HOUR")
    live(past, alerts=(past.alert(past.job(4711, 6.0)),))
    found = asked(ctl)
    assert found["data"][0]["cost_usd"] is None
    assert found["data"][0]["gpu_hours"] == pytest.approx(6.0, abs=0.05)
    assert found["sums"]["at_risk"]["cost_usd"] is None
    said = shown(ctl)
    assert "$0" not in said.partition("lost")[0]


def test_your_currency_is_shown_and_dollars_are_kept_beside(
    past: Past, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWATCHD_COST_CURRENCY", "EUR")
    monkeypatch.setenv("GPUWATCHD_COST_PER_USD", "0.5")
    live(past, alerts=(past.alert(past.job(4711, 6.0)),))
    found = asked(ctl)
    assert found["currency"] == "EUR"
    (entry,) = found["data"]
    assert entry["cost"] == pytest.approx(entry["cost_usd"] / 2)
    assert "€12.3" in shown(ctl)
    assert "EUR 12.3" in shown(ctl, "--ascii")


def test_another_currency_without_its_rate_says_so(
    past: Past, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWATCHD_COST_CURRENCY", "EUR")
    live(past, alerts=(past.alert(past.job(4711, 6.0)),))
    assert asked(ctl)["data"][0]["cost_usd"] is None
    assert "per-usd is needed" in shown(ctl)


@pytest.mark.parametrize("by", ["gpu", "user", "job", "incident"])
def test_the_parts_are_the_whole(past: Past, ctl: Ctl, by: str) -> None:
    past.alert(
        past.job(7, 3.0, ended_s=8 * HOUR_S), state="resolved",
  **wording.ending(Ending.ENDED_NEAR_LIMIT),
        resolved_at_s=past.now_s - 8 * HOUR_S,
    )  # fmt: skip
    held = Holding(
        kind="idle", device_uid="GPU-2", held_bytes=20 * GIB, since_s=past.now_s - 4 * HOUR_S
    )
    live(past, alerts=(past.alert(past.job(4711, 6.0)),), holdings=(held,))
    found = asked(ctl, "--by", by)
    for what, whole in found["sums"].items():
        for name in ("gpu_hours", "cost_usd", "ahead_usd"):
            parts = [group["sums"][what][name] or 0.0 for group in found["groups"]]
            assert sum(parts) == pytest.approx(whole[name] or 0.0), (what, name)
    assert found["sums"]["at_risk"]["incidents"] == 1
    assert max(map(len, shown(ctl, "--by", by).splitlines())) <= 80


def test_a_process_and_its_device_are_not_counted_twice(past: Past, ctl: Ctl) -> None:
    alert = past.alert(past.job(4711, 6.0))
    device = Subject(device_uid="GPU-1")
    whole = past.alert(
        past.job(4711, 0.0), key="leak:GPU-1", subject=device,
        finding=making.finding(subject=device, judged_at_s=past.now_s),
    )  # fmt: skip
    live(past, alerts=(whole, alert))
    assert asked(ctl)["sums"]["at_risk"]["gpu_hours"] == pytest.approx(6.0, abs=0.05)


def test_of_a_shared_device_its_share_is_counted_and_the_whole_is_beside_it(
    past: Past, ctl: Ctl
) -> None:
    begun_s = past.now_s - 2 * HOUR_S
    infos = [
        ProcessInfo(key=ProcessKey(pid=pid, started_at_s=begun_s), name="p", user="alice")
        for pid in (1, 2)
    ]
    for minute in range(120):
        uses = [(infos[0], 30 * GIB), (infos[1], 10 * GIB)]
        one = making.sample(begun_s + minute * 60.0, uses)
        past.history.record(one, (making.CARD,), {info.key: info for info in infos})
    live(past, alerts=(past.alert(infos[0]),))
    (entry,) = asked(ctl)["data"]
    assert entry["gpu_hours"] == pytest.approx(1.5, abs=0.05)
    assert entry["whole_gpu_hours"] == pytest.approx(2.0, abs=0.05)
    assert entry["whole_usd"] == pytest.approx(2 * 4.1, abs=0.2)
    assert "its share of 2.0" in shown(ctl, "--by", "incident")


def test_without_a_daemon_the_history_tells(past: Past, ctl: Ctl) -> None:
    past.alert(past.job(4711, 6.0))
    past.history.flush(past.now_s)
    found = asked(ctl)
    assert [one["code"] for one in found["warnings"]] == ["daemon-absent"]
    assert found["data"][0]["gpu_hours"] == pytest.approx(6.0, abs=0.05)


def test_without_a_history_the_daemon_tells_what_it_knows(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWATCHD_COST_USD_PER_GPU_HOUR", "4.1")
    now_s = time.time()
    held = Holding(kind="idle", device_uid="GPU-1", held_bytes=80 * GIB, since_s=now_s - HOUR_S)
    world.write(alerts=(), holdings=(held,))
    found = asked(ctl)
    assert "no-history" in [one["code"] for one in found["warnings"]]
    assert found["data"][0]["cost_usd"] == pytest.approx(4.1, abs=0.01)


def test_an_open_alert_of_which_nothing_is_written_is_unknown_not_nothing(ctl: Ctl) -> None:
    world.write()
    (entry,) = asked(ctl)["data"]
    assert (entry["what"], entry["gpu_hours"], entry["cost_usd"]) == ("at-risk", None, None)
    (line,) = [one for one in shown(ctl).splitlines() if one.startswith("at risk now")]
    assert line.split() == ["at", "risk", "now", "1", "?", "?"]


def test_without_both_it_says_what_is_missing(ctl: Ctl) -> None:
    said = ctl.err("cost")
    assert "no history and no live state" in said
    assert "hint: " in said


def test_money_can_be_switched_off(past: Past, ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUWATCHD_COST_MODE", "off")
    live(past, alerts=(past.alert(past.job(4711, 6.0)),))
    found = asked(ctl)
    assert found["data"][0]["cost_usd"] is None
    assert "off" in [one["code"] for one in found["warnings"]]


def idle(past: Past, info: ProcessInfo, hours: float) -> Holding:
    """Return memory that a process holds without work now."""
    return Holding(
        kind="idle", device_uid="GPU-1", held_bytes=20 * GIB, process=info,
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
    sums = asked(ctl)["sums"]
    assert sums["at_risk"]["gpu_hours"] == pytest.approx(6.0, abs=0.05)
    assert (sums["held"]["incidents"], sums["held"]["gpu_hours"]) == (0, 0.0)


def test_what_was_lost_was_not_held_as_well(past: Past, ctl: Ctl) -> None:
    info = past.job(7, 4.0, ended_s=HOUR_S)
    past.alert(
        info,
        state="resolved",
        **wording.ending(Ending.ENDED_NEAR_LIMIT),
        resolved_at_s=past.now_s - HOUR_S,
    )
    held_alert(past, info, from_h=3.0, to_h=1.0)
    live(past)
    sums = asked(ctl)["sums"]
    assert sums["lost"]["gpu_hours"] == pytest.approx(4.0, abs=0.05)
    assert sums["held"]["gpu_hours"] == 0.0


def test_what_is_held_counts_on_from_an_alert_that_is_over(past: Past, ctl: Ctl) -> None:
    info = past.job(9, 6.0)
    held_alert(past, info, from_h=4.0, to_h=2.0)
    live(past, holdings=(idle(past, info, 4.0),))
    held = asked(ctl)["sums"]["held"]
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
    lost = asked(ctl)["sums"]["lost"]
    assert lost["gpu_hours"] == pytest.approx(4.0, abs=0.1)


def test_ranks_on_other_devices_are_not_shown_for_one_device(past: Past, ctl: Ctl) -> None:
    info = past.job(4711, 6.0)
    members = (
        Subject(device_uid="GPU-1", process=info.key),
        Subject(device_uid=world.SECOND.uid, process=info.key),
    )
    alert = past.alert(info)
    for minute in range(60):
        at_s = past.now_s - HOUR_S + 60.0 * minute
        one = making.sample(at_s, [(info, 20 * GIB)], device=world.SECOND)
        past.history.record(one, (world.SECOND,), {info.key: info})
    alert = msgspec.structs.replace(alert, cost=Cost(members=members))
    live(past, alerts=(alert,))
    assert {one["device_uid"] for one in asked(ctl)["data"]} == {"GPU-1", "GPU-2"}
    for index, uid in (("0", "GPU-1"), ("1", "GPU-2")):
        found = asked(ctl, "--gpu", index)
        assert {one["device_uid"] for one in found["data"]} == {uid}
        assert {one["device_uid"] for one in found["prices"]} == {uid}


def test_what_was_held_on_two_devices_counts_on_both(past: Past, ctl: Ctl) -> None:
    info = past.job(9, 4.0)
    for minute in range(240):
        at_s = past.now_s - 4 * HOUR_S + 60.0 * minute
        one = making.sample(at_s, [(info, 40 * GIB)], device=world.SECOND)
        past.history.record(one, (world.SECOND,), {info.key: info})
    alert = held_alert(past, info, from_h=3.0, to_h=1.0)
    members = tuple(Subject(device_uid=uid, process=info.key) for uid in ("GPU-1", "GPU-2"))
    past.history.apply([msgspec.structs.replace(alert, cost=Cost(members=members))], [])
    live(past)
    held = asked(ctl)["sums"]["held"]
    assert held["gpu_hours"] == pytest.approx(2.0 * 20 / 80 + 2.0 * 40 / 80, abs=0.03)


NOW_S = dt.datetime(2026, 11, 21, tzinfo=dt.UTC).timestamp()
A100 = msgspec.structs.replace(CARD, name="NVIDIA A100-SXM4-40GB")


@pytest.mark.parametrize(
    ("late_s", "section", "well", "words"),
    [
        (0.0, {}, True, "A100-SXM4-40GB: $2.74/h (A100 40GB, on-demand, as of 2026-11)"),
        (200 * 86_400.0, {}, False, "212 days old"),
        (0.0, {"offer": "reserved"}, True, "no price is known"),
        (0.0, {"currency": "CHF"}, False, "per-usd"),
        (0.0, {"mode": "off"}, True, "money is not counted"),
    ],
)
def test_doctor_names_the_price_and_what_is_wrong_with_it(
    late_s: float, section: dict[str, Any], well: bool, words: str
) -> None:
    config = Config(cost=CostSection(**section))
    ((good, said, hint),) = Book(config, [A100], now_s=NOW_S + late_s).checks()
    assert good is well
    assert hint or well
    assert words in said


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
