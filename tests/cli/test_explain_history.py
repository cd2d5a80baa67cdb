"""``explain`` from the recorded series: every pattern, its numbers, what is known of the past."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.analysis.program_key import key_on
from gpuwatchd.collect.host.memory import Headroom
from gpuwatchd.core.model import Blame, Delivery, Message, ProcessKey, Profile, Subject
from gpuwatchd.store.profiles import Run
from tests import making
from tests.cli import world
from tests.cli.recorded import POINTS, SHAPES, asked, explained, record, write_one

if TYPE_CHECKING:
    from tests.cli.calls import Ctl


GIB, MIB = making.GIB, making.MIB


@pytest.mark.parametrize("shape", list(SHAPES))
def test_every_pattern_is_reasoned_from_the_recorded_series(shape: str, ctl: Ctl) -> None:
    record(shape)
    answer = asked(ctl, "4711")
    assert answer["source"] == "database"
    assert answer["data"]["verdict"]["pattern"] == shape
    told = explained(ctl, "4711")
    assert ("full in" in told) is (shape in {"gradual", "step", "cyclic"})
    assert f"Why {shape}" in told


def test_its_numbers_are_those_of_predict(ctl: Ctl) -> None:
    record("gradual")
    predicted = ctl.data("predict --pid 4711", code=None)[0]["processes"][0]["verdict"]
    data = asked(ctl)["data"]
    for name in ("pattern", "confidence", "rate_bytes_per_s", "eta", "onset_at", "reason"):
        assert data["verdict"][name] == predicted[name]
    assert data["measured"]["samples"] == POINTS
    assert data["measured"]["confidence"] == pytest.approx(predicted["confidence"])
    assert data["measured"]["growth_bytes"] == pytest.approx(4 * MIB * 3585, rel=0.05)
    assert [one["detector"] for one in data["signals"]] == ["trend"]
    assert data["signals"][0]["facts"]["r_squared"] > 0.99
    assert data["levels"]["alert_confidence"] == 0.75
    assert data["held_bytes"] == pytest.approx(4 * GIB + 4 * MIB * 3585, rel=0.01)
    assert data["sections"][0]["title"] == "What is judged"
    commands = [step["command"] for step in data["next_steps"]]
    assert "py-spy dump --pid 4711" in commands
    assert any("_record_memory_history" in (command or "") for command in commands)


def test_a_past_alert_is_explained_as_it_was(ctl: Ctl) -> None:
    end_s = record("gradual")
    was = world.leak(judged_at_s=end_s - 1200)
    world.remember(world.firing(state="resolved", resolved_at_s=end_s - 60, finding=was))
    assert asked(ctl, "leak:GPU-1/4711")["data"]["measured"]["samples"] in {160, 161}


def test_what_nobody_owns_leads_to_its_holders(ctl: Ctl) -> None:
    record("stable")
    subject = Subject(device_uid=making.CARD.uid, unattributed=True)
    found = world.leak(
        subject=subject,
        blame=(Blame(process=None, name="memory that no process owns", share=1.0,
                     rate_bytes_per_s=2e5),),
    )  # fmt: skip
    write_one(world.process(), finding=found, unattributed_bytes=3 * GIB)
    told = explained(ctl, "0")
    assert "memory on GPU 0 that no process owns, 3.0 GiB now" in told
    assert "it moved between 1.0 GiB and 1.0 GiB" in told  # what the record leaves unowned


def test_earlier_runs_are_told_one_by_one(ctl: Ctl) -> None:
    record("gradual")
    profile = Profile(
        ended_at_s=time.time() - 9000, run_s=4000.0, base_bytes=2.0 * GIB, hold_s=0.0,
        proven_bytes=5.0 * GIB, top_bytes=9.0 * GIB, near_limit=True, word="normal",
    )  # fmt: skip
    run = Run(
        key=key_on("p", making.CARD) or "", device_uid=making.CARD.uid, label="python",
        process=ProcessKey(pid=3, started_at_s=8e8), begun_at_s=8e8, profile=profile,
    )  # fmt: skip
    with world.history() as history:
        history.shelf.keep(run)
    assert "1h 07m long, from 2.0 GiB up to 9.0 GiB, ended near the limit" in explained(ctl, "4711")


def test_where_the_notices_went_is_told(ctl: Ctl) -> None:
    end_s = record("gradual")
    alert = world.firing(opened_at_s=end_s - 900)
    message = Message(id="m@x", notice="firing", severity="warning", subject="s", body="b")
    sent = Delivery(
        alert_key=alert.key, channel="email", message=message, state="failed", attempts=4,
        created_at_s=end_s - 500, error="550 no such\x1b[2J user",
    )  # fmt: skip
    old = msgspec.structs.replace(sent, channel="desktop", created_at_s=end_s - 5000)
    world.remember(alert, deliveries=[old, sent])
    world.write(alerts=(alert,))
    told = explained(ctl, "4711")
    assert "1 notice reached nobody: 550 no such user" in told
    assert "notice so far" not in told
    (one,) = asked(ctl, "4711")["data"]["alert"]["deliveries"]
    assert (one["channel"], one["state"]) == ("email", "failed")
    waits = msgspec.structs.replace(sent, state="pending", created_at_s=end_s - 400)
    world.remember(alert, deliveries=[waits])
    assert "notice so far" not in explained(ctl, "4711")
    done = msgspec.structs.replace(waits, state="sent", sent_at_s=end_s - 300)
    world.remember(alert, deliveries=[done])
    assert "1 notice so far, to email" in explained(ctl, "4711")


def test_a_leak_on_the_host_is_found_in_the_history_too(
    monkeypatch: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    room = Headroom(64 * GIB, 40 * GIB)
    monkeypatch.setattr("gpuwatchd.collect.host.memory.headroom", lambda: room)
    record("stable", host=lambda t: 2 * GIB + t * MIB)
    answer = asked(ctl)
    assert answer["source"] == "database"
    data = answer["data"]
    assert (data["on_host"], data["verdict"]["pattern"]) == (True, "gradual")
    assert data["verdict"]["rate_bytes_per_s"] == pytest.approx(MIB, rel=0.05)
    assert data["verdict"]["reason"].startswith("host memory grows")
    assert data["measured"]["samples"] == POINTS
    assert data["process"]["verdict"]["pattern"] == "stable"
    told = explained(ctl)
    assert "anonymous memory and swap of python train.py[4711] of alice on the host" in told
    assert "memray attach 4711" in told


@pytest.mark.parametrize(
    ("kind", "said", "word"),
    [
        ("xid", "XID 79: the GPU has fallen off the bus", "hardware"),
        ("xid", "XID 31: a program used memory that is not its own", "application"),
        ("gpu-lost", "does not answer", "hardware"),
        ("throttle", "too hot", "unreadable"),
        ("of another version", "who knows", "unreadable"),
    ],
)
def test_the_history_tells_what_broke(kind: str, said: str, word: str, ctl: Ctl) -> None:
    record("stable")
    with world.history() as history:
        history.event(kind, said, making.CARD.uid)
    found = asked(ctl, "4711")["data"]["hardware"]
    assert found["word"] == word
    assert (said in found["sentence"]) is (word != "unreadable")
    assert "clean" not in explained(ctl, "4711")
