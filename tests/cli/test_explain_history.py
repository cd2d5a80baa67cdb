"""``explain`` from the recorded series: every pattern, its numbers, what is known of the past."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.analysis.program_key import key_on
from gpuwatchd.collect.host.memory import Headroom
from gpuwatchd.core import config
from gpuwatchd.core.config import Seconds, StoreSection
from gpuwatchd.core.model import Blame, Delivery, Message, ProcessKey, Profile, Subject
from gpuwatchd.store.live import LiveProcess
from gpuwatchd.store.profiles import Run
from gpuwatchd.store.writer import History
from tests import making
from tests.cli import world
from tests.cli.recorded import OWNER, POINTS, SHAPES, asked, explained, record, write_one

if TYPE_CHECKING:
    from tests.cli.calls import Ctl


GIB, MIB = making.GIB, making.MIB
SHAPES_SAY = {
    "gradual": ("a straight rise of", "not a warm-up that ends", "not a sawtooth", "not one jump"),
    "step": ("stairs of 1.5 GiB", "rises in steps"),
    "cyclic": ("swings of", "creeps up", "never all"),
    "sawtooth": ("swings of", "does not rise", "Why sawtooth", "the present swing"),
    "plateau": ("then stood at", "Why plateau"),
    "stable": ("flat at 4.0 GiB", "no look-back from 30 s", "nothing grows that would fill it"),
    "spike": ("one jump by 9.0 GiB", "Why spike"),
    "preallocated": ("a leak inside it is invisible", "says nothing about what happens inside"),
}


@pytest.mark.parametrize("shape", list(SHAPES))
def test_every_pattern_is_reasoned_from_the_recorded_series(shape: str, ctl: Ctl) -> None:
    record(shape)
    answer = asked(ctl, "4711")
    assert answer["source"] == "database"
    assert answer["data"]["verdict"]["pattern"] == shape
    told = explained(ctl, "4711")
    assert [words for words in SHAPES_SAY[shape] if words not in told] == []
    leaks = shape in {"gradual", "step", "cyclic"}
    assert ("it has grown since" in told) is leaks
    assert ("full in" in told) is leaks
    assert "240 recorded samples over 1" in told or "0h 60m" in told
    assert "1. " in told


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


def test_the_thresholds_in_force_are_weighed(monkeypatch: pytest.MonkeyPatch, ctl: Ctl) -> None:
    record("gradual")
    monkeypatch.setenv("GPUWATCHD_DETECTION_CONFIDENCE_THRESHOLD", "0.99")
    monkeypatch.setenv("GPUWATCHD_DETECTION_MINIMUM_SAMPLES", "1000")
    told = explained(ctl, "4711")
    assert "alerted from 99% (confidence-threshold)" in told
    assert "collecting, 240 of 1000 samples" in told or "an alert also needs 1000 samples" in told


def test_a_past_alert_is_explained_as_it_was(ctl: Ctl) -> None:
    end_s = record("gradual")
    settings = StoreSection(min_free_mib=0, flush=Seconds(1e9))
    history = History.open(config.state_dir(), settings, boot_id="b")
    over = world.firing(
        state="resolved", resolved_at_s=end_s - 60, ended="the process ended",
        finding=world.leak(judged_at_s=end_s - 1200),
    )  # fmt: skip
    history.apply([over], [])
    history.close()
    told = explained(ctl, "leak:GPU-1/4711")
    assert "over: the process ended" in told
    assert "161 recorded samples" in told or "160 recorded samples" in told


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
    assert "memory that no process owns 100% (+12.0 MB/min)" in told
    assert "gpuwatchctl zombies" in told
    assert "sudo fuser -v /dev/nvidia*" in told
    assert "it moved between 1.0 GiB and 1.0 GiB" in told  # what the record leaves unowned


def test_memory_on_the_host_has_its_own_reasoning(ctl: Ctl) -> None:
    record("stable", host=lambda t: 2 * GIB + t * MIB)
    subject = Subject(device_uid=making.CARD.uid, process=making.KEY, host=True)
    found = world.leak(subject=subject, limit_bytes=64 * GIB)
    process = LiveProcess(
        info=OWNER, used_bytes=4 * GIB, finding=making.calm(), host_bytes=5 * GIB,
        host_finding=found,
    )  # fmt: skip
    write_one(process, finding=making.calm())
    told = explained(ctl, "4711")
    assert "anonymous memory and swap of python train.py[4711] of alice on the host" in told
    assert "memray attach 4711" in told
    assert "gpuwatchctl feedback 4711/host normal" in told
    assert asked(ctl, "4711")["data"]["on_host"] is True


def test_earlier_runs_are_told_one_by_one(ctl: Ctl) -> None:
    record("gradual")
    settings = StoreSection(min_free_mib=0, flush=Seconds(1e9))
    history = History.open(config.state_dir(), settings, boot_id="b")
    profile = Profile(
        ended_at_s=time.time() - 9000, run_s=4000.0, base_bytes=2.0 * GIB, hold_s=0.0,
        proven_bytes=5.0 * GIB, top_bytes=9.0 * GIB, near_limit=True, word="normal",
    )  # fmt: skip
    history.shelf.keep(
        Run(
            key=key_on("p", making.CARD) or "",
            device_uid=making.CARD.uid,
            label="python",
            process=ProcessKey(pid=3, started_at_s=8e8),
            begun_at_s=8e8,
            profile=profile,
        )
    )
    history.close()
    told = explained(ctl, "4711")
    assert "1 earlier run" in told
    assert "1h 07m long, from 2.0 GiB up to 9.0 GiB, ended near the limit" in told


def test_where_the_notices_went_is_told(ctl: Ctl) -> None:
    end_s = record("gradual")
    settings = StoreSection(min_free_mib=0, flush=Seconds(1e9))
    history = History.open(config.state_dir(), settings, boot_id="b")
    alert = world.firing(opened_at_s=end_s - 900)
    message = Message(id="m@x", notice="firing", severity="warning", subject="s", body="b")
    sent = Delivery(
        alert_key=alert.key, channel="email", message=message, state="failed", attempts=4,
        created_at_s=end_s - 500, error="550 no such\x1b[2J user",
    )  # fmt: skip
    old = msgspec.structs.replace(sent, channel="desktop", created_at_s=end_s - 5000)
    history.apply([alert], [old, sent])
    history.close()
    world.write(alerts=(alert,))
    told = explained(ctl, "4711")
    assert "1 notice reached nobody: 550 no such user" in told
    assert "notice so far" not in told
    assert "firing: email: given up after 4 tries: 550 no such user" in told
    assert "firing: desktop" not in told
    (one,) = asked(ctl, "4711")["data"]["alert"]["deliveries"]
    assert (one["channel"], one["state"]) == ("email", "failed")


def test_a_notice_that_waits_has_told_nobody_yet(ctl: Ctl) -> None:
    end_s = record("gradual")
    alert = world.firing(opened_at_s=end_s - 900)
    message = Message(id="m@x", notice="firing", severity="warning", subject="s", body="b")
    waits = Delivery(
        alert_key=alert.key, channel="desktop", message=message, state="pending", attempts=3,
        created_at_s=end_s - 500, error="no session bus",
    )  # fmt: skip
    settings = StoreSection(min_free_mib=0, flush=Seconds(1e9))
    history = History.open(config.state_dir(), settings, boot_id="b")
    history.apply([alert], [waits])
    world.write(alerts=(alert,))
    told = explained(ctl, "4711")
    assert "1 notice waits: no session bus" in told
    assert "notice so far" not in told
    history.apply([], [msgspec.structs.replace(waits, state="sent", sent_at_s=end_s - 400)])
    history.close()
    assert "1 notice so far, to desktop" in explained(ctl, "4711")


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
    settings = StoreSection(min_free_mib=0, flush=Seconds(1e9))
    history = History.open(config.state_dir(), settings, boot_id="b")
    history.event(kind, said, making.CARD.uid)
    history.close()
    found = asked(ctl, "4711")["data"]["hardware"]
    assert found["word"] == word
    assert (said in found["sentence"]) is (word != "unreadable")
    assert "clean" not in explained(ctl, "4711")


def test_a_process_that_has_ended_is_named_as_it_was(ctl: Ctl) -> None:
    end_s = record("gradual")
    over = world.firing(
        key="leak:GPU-1/4711@1000.0", state="resolved", opened_at_s=end_s - 2000,
        resolved_at_s=end_s - 60, ended="the process ended",
        subject=Subject(device_uid="GPU-1", process=OWNER.key),
    )  # fmt: skip
    history = History.open(config.state_dir(), StoreSection(min_free_mib=0), boot_id="b")
    history.apply([over], [])
    history.close()
    first = msgspec.structs.replace(world.state().devices[0], processes=(), finding=None)
    world.write(devices=(first,))
    told = explained(ctl, over.code)
    assert "the memory of python train.py[4711] of alice on GPU 0" in told
