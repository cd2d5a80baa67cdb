"""``explain``: the reasoning of one verdict, from the recorded series, the live state, or both."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from gpuwatchd import config
from gpuwatchd.config import Seconds, StoreSection
from gpuwatchd.ctl import main
from gpuwatchd.ctl.output import width_of
from gpuwatchd.host.room import Room
from gpuwatchd.model import (
    Blame,
    Delivery,
    DeviceReading,
    Event,
    Message,
    ProcessInfo,
    ProcessKey,
    ProcessUse,
    Profile,
    Sample,
    Subject,
)
from gpuwatchd.programs import key_on
from gpuwatchd.store.live import KnownRuns, LiveProcess
from gpuwatchd.store.profiles import Run
from gpuwatchd.store.writer import History
from tests import making
from tests.cli import world

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.model import FloatArray

GIB, MIB = making.GIB, making.MIB
STEP_S, POINTS = 15.0, 240
HOUR_S = 3600.0
OWNER = ProcessInfo(
    key=ProcessKey(pid=4711, started_at_s=1000.0), name="python", argv=("python", "train.py"),
    user="alice", framework="PyTorch", framework_sure=True, program="p",
)  # fmt: skip
SHAPES: dict[str, Callable[[FloatArray], FloatArray]] = {
    "gradual": lambda t: 4 * GIB + t * 4 * MIB,
    "step": lambda t: 4 * GIB + np.floor(t / 300) * 1.5 * GIB,
    "cyclic": lambda t: 4 * GIB + t * 3 * MIB + (t % 240) / 240 * 6 * GIB,
    "sawtooth": lambda t: 4 * GIB + (t % 240) / 240 * 6 * GIB,
    "plateau": lambda t: 4 * GIB + 20 * GIB * (1 - np.exp(-t / 300)),
    "stable": lambda t: 4 * GIB + 0 * t,
    "spike": lambda t: np.where(t > 3300, 13.0 * GIB, 4.0 * GIB),
    "preallocated": lambda t: np.where(t > 600, 67.0 * GIB, 1.0 * GIB),
}
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


def _record(shape: str, *, host: Callable[[FloatArray], FloatArray] | None = None) -> float:
    """Write an hour of one process of this shape; return when it ended."""
    end_s = time.time() - 2.0
    t = np.arange(POINTS, dtype=np.float64) * STEP_S
    used = np.round(SHAPES[shape](t)).astype(int) // 4096 * 4096
    settings = StoreSection(min_free_mib=0, flush=Seconds(1e9))
    history = History.open(
        config.state_dir(), settings, clock=lambda: end_s, monotonic=lambda: 1e6, boot_id="b"
    )
    on_host = None if host is None else np.round(host(t)).astype(int)
    for k in range(POINTS):
        at_s = end_s - (POINTS - 1 - k) * STEP_S
        use = ProcessUse(
            key=OWNER.key, used_bytes=int(used[k]),
            host_bytes=None if on_host is None else int(on_host[k]),
        )  # fmt: skip
        reading = DeviceReading(
            device_uid=making.CARD.uid, used_bytes=int(used[k]) + GIB, free_bytes=None,
            total_bytes=80 * GIB, util_pct=90.0, uses=(use,),
        )  # fmt: skip
        sample = Sample(
            taken_at_s=at_s, taken_mono_s=at_s - end_s + 1e6, boot_id="b", readings=(reading,)
        )
        history.record(sample, (making.CARD,), {OWNER.key: OWNER})
    history.flush(end_s)
    history.close()
    return end_s


def _told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["explain", *arguments]) == code
    return " ".join(capsys.readouterr().out.split())


def _asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["explain", *arguments, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


@pytest.mark.parametrize("shape", list(SHAPES))
def test_every_pattern_is_reasoned_from_the_recorded_series(
    shape: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _record(shape)
    answer = _asked(capsys, "4711")
    assert answer["source"] == "database"
    assert answer["data"]["verdict"]["pattern"] == shape
    told = _told(capsys, "4711")
    assert [words for words in SHAPES_SAY[shape] if words not in told] == []
    leaks = shape in {"gradual", "step", "cyclic"}
    assert ("it has grown since" in told) is leaks
    assert ("full in" in told) is leaks
    assert "240 recorded samples over 1" in told or "0h 60m" in told
    assert "1. " in told


def test_its_numbers_are_those_of_predict(capsys: pytest.CaptureFixture[str]) -> None:
    _record("gradual")
    main(["predict", "--pid", "4711", "--json"])
    predicted = json.loads(capsys.readouterr().out)["data"][0]["processes"][0]["verdict"]
    data = _asked(capsys)["data"]
    for name in ("pattern", "confidence", "rate_bytes_per_s", "eta", "onset_at", "reason"):
        assert data["verdict"][name] == predicted[name]
    assert data["looked_at"]["samples"] == POINTS
    assert data["looked_at"]["confidence"] == pytest.approx(predicted["confidence"])
    assert data["looked_at"]["growth_bytes"] == pytest.approx(4 * MIB * 3585, rel=0.05)
    assert [one["detector"] for one in data["signals"]] == ["trend"]
    assert data["signals"][0]["facts"]["r_squared"] > 0.99
    assert data["levels"]["alert_confidence"] == 0.75
    assert data["held_bytes"] == pytest.approx(4 * GIB + 4 * MIB * 3585, rel=0.01)
    assert data["sections"][0]["title"] == "What is judged"
    commands = [step["command"] for step in data["next_steps"]]
    assert "py-spy dump --pid 4711" in commands
    assert any("_record_memory_history" in (command or "") for command in commands)


def test_the_thresholds_in_force_are_weighed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _record("gradual")
    monkeypatch.setenv("GPUWATCHD_DETECTION_CONFIDENCE_THRESHOLD", "0.99")
    monkeypatch.setenv("GPUWATCHD_DETECTION_MINIMUM_SAMPLES", "1000")
    told = _told(capsys, "4711")
    assert "alerted from 99% (confidence-threshold)" in told
    assert "collecting, 240 of 1000 samples" in told or "an alert also needs 1000 samples" in told


def test_without_a_history_the_live_state_says_what_it_knows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    world.write()
    told = _told(capsys)
    assert "the recorded series cannot be read" in told
    assert "LEAK gradual, likely 91%" in told
    assert "full in 0h 47m (0h 39m - 1h 02m)" in told
    assert "1 notice so far, to desktop" in told
    answer = _asked(capsys)
    assert answer["source"] == "state-file"
    assert answer["data"]["looked_at"] is None
    assert "no-series" in [one["code"] for one in answer["warnings"]]


def test_what_is_calm_needs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    world.write()
    told = _told(capsys, "1")
    assert "GPU 1 NVIDIA A100 stable" in told
    assert "no watch and no alert is open" in told
    assert "nothing has to be done" in told
    assert "py-spy" not in told


@pytest.mark.parametrize(
    ("target", "meant"),
    [
        (None, "python[4711]"), ("0", "python[4711]"), ("GPU-1", "python[4711]"),
        ("4711", "python[4711]"), ("leak:GPU-1/4711@1000.0", "python[4711]"),
        ("latest", "python[4711]"), ("99", "[99]"), ("1", "GPU 1 as a whole"),
    ],
)  # fmt: skip
def test_a_verdict_is_named_by_gpu_pid_or_alert(
    target: str | None, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    world.write()
    assert meant in _told(capsys, *([] if target is None else [target]))


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("12345", "no GPU, no process on one and no alert '12345'"),
        ("", "no GPU, no process on one and no alert ''"),
        ("GPU-*", "'GPU-*' fits 2 GPUs"),
        ("\x1b[2Jx", "no GPU, no process on one and no alert"),
    ],
)
def test_what_means_nothing_is_one_line(
    target: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    world.write()
    assert main(["explain", target]) == 1
    first, hint = capsys.readouterr().err.splitlines()
    assert why in first
    assert hint.startswith("hint: ")
    assert first.isprintable()


def test_a_past_alert_is_explained_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    end_s = _record("gradual")
    settings = StoreSection(min_free_mib=0, flush=Seconds(1e9))
    history = History.open(config.state_dir(), settings, boot_id="b")
    over = world.firing(
        state="resolved", resolved_at_s=end_s - 60, ended="the process ended",
        finding=world.leak(judged_at_s=end_s - 1200),
    )  # fmt: skip
    history.apply([over], [])
    history.close()
    told = _told(capsys, "leak:GPU-1/4711")
    assert "ended: the process ended" in told
    assert "161 recorded samples" in told or "160 recorded samples" in told


def _one(process: LiveProcess, **changes: Any) -> None:
    first, second = world.state().devices
    values: dict[str, Any] = {"processes": (process,), "finding": process.finding, **changes}
    world.write(devices=(msgspec.structs.replace(first, **values), second))


def test_a_pid_of_elsewhere_is_not_to_be_traced(capsys: pytest.CaptureFixture[str]) -> None:
    info = ProcessInfo(key=making.KEY, name="?", foreign=True)
    _one(LiveProcess(info=info, used_bytes=GIB, finding=world.leak()))
    told = _told(capsys, "4711")
    assert "pid 4711 (outside this container)" in told
    assert "no name is true here, and no signal is sent" in told
    assert "look on the host of this container" in told
    assert "py-spy" not in told
    assert "gdb" not in told


def test_ranks_of_one_job_are_looked_at_together(capsys: pytest.CaptureFixture[str]) -> None:
    info = msgspec.structs.replace(OWNER, group="torchrun 7f3a", rank=0)
    key = ProcessKey(pid=4712, started_at_s=1.0)
    sibling = msgspec.structs.replace(info, key=key, rank=1)
    first, second = world.state().devices
    mine = LiveProcess(
        info=info, used_bytes=GIB, finding=world.leak(), history=KnownRuns(runs=3, siblings=1)
    )
    other = LiveProcess(
        info=sibling, used_bytes=GIB,
        finding=world.leak(subject=Subject(device_uid=world.SECOND.uid, process=key)),
    )  # fmt: skip
    world.write(
        devices=(
            msgspec.structs.replace(first, processes=(mine,)),
            msgspec.structs.replace(second, processes=(other,)),
        )
    )
    told = _told(capsys, "4711")
    assert "1 other rank of torchrun 7f3a seen on these GPUs, growing too: 1" in told
    assert "look at what all ranks do" in told
    assert "3 earlier runs, 1 sibling; they count in the verdict" in told
    assert "one rank or all of them?" in told


def test_what_nobody_owns_leads_to_its_holders(capsys: pytest.CaptureFixture[str]) -> None:
    _record("stable")
    subject = Subject(device_uid=making.CARD.uid, unattributed=True)
    found = world.leak(
        subject=subject,
        blame=(Blame(process=None, name="memory that no process owns", share=1.0,
                     rate_bytes_per_s=2e5),),
    )  # fmt: skip
    _one(world.process(), finding=found, unattributed_bytes=3 * GIB)
    told = _told(capsys, "0")
    assert "memory on GPU 0 that no process owns, 3.0 GiB now" in told
    assert "memory that no process owns 100% (+12.0 MB/min)" in told
    assert "gpuwatchctl zombies" in told
    assert "sudo fuser -v /dev/nvidia*" in told
    assert "it moved between 1.0 GiB and 1.0 GiB" in told  # what the record leaves unowned


def test_memory_on_the_host_has_its_own_reasoning(capsys: pytest.CaptureFixture[str]) -> None:
    _record("stable", host=lambda t: 2 * GIB + t * MIB)
    subject = Subject(device_uid=making.CARD.uid, process=making.KEY, host=True)
    found = world.leak(subject=subject, limit_bytes=64 * GIB)
    process = LiveProcess(
        info=OWNER, used_bytes=4 * GIB, finding=making.calm(), host_bytes=5 * GIB,
        host_finding=found,
    )  # fmt: skip
    _one(process, finding=making.calm())
    told = _told(capsys, "4711")
    assert "anonymous memory and swap of python train.py[4711] of alice on the host" in told
    assert "memray attach 4711" in told
    assert _asked(capsys, "4711")["data"]["on_host"] is True


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"state": "watch", "firing_at_s": None, "alert_confirmations": 1}, "sent to nobody; 1 of"),
        ({"notices": 0}, "the first waits 30s (flap-hold)"),
        ({"held_back": "20 messages went out"}, "held back: 20 messages went out"),
        ({"next_notice_at_s": 9e9}, "next reminder 2255-"),
    ],
)
def test_what_policy_made_of_it_is_told(
    changes: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    world.write(alerts=(world.firing(**changes),))
    assert said in _told(capsys, "4711")


def test_the_hardware_comes_first_when_it_speaks(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = time.time()
    event = Event(at_s=now_s - 60, kind="xid", text="XID 79: off the bus", code=79, hardware=True)
    first, second = world.state().devices
    world.write(devices=(msgspec.structs.replace(first, events=(event,)), second))
    told = _told(capsys)
    assert "look at the hardware first: XID 79: off the bus" in told
    assert "1. rule the hardware out first" in told
    assert _asked(capsys)["data"]["hardware"]["look_first"] is True
    assert first.reading is not None
    sound = msgspec.structs.replace(
        first.reading, ecc_errors=0, retired_pages=0, throttle=()
    )  # fmt: skip
    world.write(devices=(msgspec.structs.replace(first, reading=sound), second))
    assert _asked(capsys)["data"]["hardware"]["word"] == "clean"
    told = _told(capsys)
    assert "clean, not the hardware: no error was reported" in told
    assert "rule the hardware out" not in told
    assert "not readable here" not in told


def test_a_pool_is_explained_honestly(capsys: pytest.CaptureFixture[str]) -> None:
    info = msgspec.structs.replace(OWNER, framework="vLLM", model="llama")
    _one(LiveProcess(info=info, used_bytes=GIB, finding=making.calm(pattern="preallocated")))
    told = _told(capsys, "4711")
    assert "vLLM (known), serving llama" in told
    assert "a leak inside the pool is invisible here" in told
    assert "only the framework's figures tell" in told
    assert "localhost:8000/metrics" in told


def _names(row: str) -> set[str]:
    return {name for name in ("torch.cuda", "history.db") if name in row}


@pytest.mark.parametrize("flags", ["", "--ascii"])
@pytest.mark.parametrize("source", ["live", "record"])
def test_it_fits_80_columns(
    flags: str, source: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    if source == "record":
        _record("cyclic")
    else:
        world.write(world.odd())
    assert main(["explain", *flags.split()]) == 0
    shown = capsys.readouterr().out
    # Neither a path nor what is there to be copied is broken.
    rows = [row for row in shown.splitlines() if not _names(row)]
    widest = max(rows, key=width_of)
    assert width_of(widest) <= 80, widest
    assert not flags or shown.isascii()


@pytest.mark.parametrize("target", ["0", "1", "4711", "77", "5"])
def test_no_foreign_text_harms(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    world.write(world.odd(world.HOSTILE))
    assert main(["explain", target]) == 0
    for row in capsys.readouterr().out.splitlines():
        assert row.isprintable(), row
    assert main(["explain", target, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    for part in answer["data"]["sections"]:
        assert all(line.isprintable() for line in part["lines"])


def test_earlier_runs_are_told_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    _record("gradual")
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
    told = _told(capsys, "4711")
    assert "1 earlier run" in told
    assert "1h 07m long, from 2.0 GiB up to 9.0 GiB, ended near the limit" in told


def test_where_the_notices_went_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    end_s = _record("gradual")
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
    told = _told(capsys, "4711")
    assert "firing to email: failed: 550 no such user" in told
    assert "firing to desktop" not in told
    (one,) = _asked(capsys, "4711")["data"]["alert"]["deliveries"]
    assert (one["channel"], one["state"]) == ("email", "failed")


def test_an_instance_shares_what_breaks_with_its_card(capsys: pytest.CaptureFixture[str]) -> None:
    event = Event(at_s=time.time() - 60, kind="xid", text="XID 48: memory", hardware=True)
    first, _ = world.state().devices
    piece = msgspec.structs.replace(first.device, uid="MIG-1", parent_uid=first.device.uid)
    subject = Subject(device_uid="MIG-1", process=making.KEY)
    found = world.leak(subject=subject)
    slice_ = msgspec.structs.replace(
        first, device=piece, finding=found, processes=(world.process(finding=found),)
    )
    card = msgspec.structs.replace(first, finding=None, processes=(), events=(event,))
    world.write(devices=(card, slice_), alerts=())
    assert "look at the hardware first: XID 48: memory" in _told(capsys, "MIG-1")
    assert "its MIG instances are judged, not the card" in _told(capsys, "GPU-1")


def test_of_coherent_memory_the_processes_are_judged(capsys: pytest.CaptureFixture[str]) -> None:
    first, _ = world.state().devices
    device = msgspec.structs.replace(first.device, memory_kind="coherent")
    world.write(devices=(msgspec.structs.replace(first, device=device, finding=None),), alerts=())
    assert "its processes are judged, not the card" in _told(capsys, "GPU-1")
    assert main(["status"]) == 0
    shown = capsys.readouterr().out
    assert "coherent memory" in shown
    assert "its processes are judged, not the card" in shown


def test_a_leak_on_the_host_is_found_in_the_history_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    room = Room(64 * GIB, 40 * GIB)
    monkeypatch.setattr("gpuwatchd.host.room.room", lambda: room)
    _record("stable", host=lambda t: 2 * GIB + t * MIB)
    answer = _asked(capsys)
    assert answer["source"] == "database"
    data = answer["data"]
    assert (data["on_host"], data["verdict"]["pattern"]) == (True, "gradual")
    assert data["verdict"]["rate_bytes_per_s"] == pytest.approx(MIB, rel=0.05)
    assert data["verdict"]["reason"].startswith("host memory grows")
    assert data["looked_at"]["samples"] == POINTS
    assert data["process"]["verdict"]["pattern"] == "stable"
    told = _told(capsys)
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
def test_the_history_tells_what_broke(
    kind: str, said: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _record("stable")
    settings = StoreSection(min_free_mib=0, flush=Seconds(1e9))
    history = History.open(config.state_dir(), settings, boot_id="b")
    history.event(kind, said, making.CARD.uid)
    history.close()
    found = _asked(capsys, "4711")["data"]["hardware"]
    assert found["word"] == word
    assert (said in found["sentence"]) is (word != "unreadable")
    assert "clean" not in _told(capsys, "4711")
