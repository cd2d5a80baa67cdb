"""What a GPU process holds on the host is judged by itself, and never called GPU memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gpuwatchd.collect.host.procfs import Headroom, headroom
from gpuwatchd.core.codes import Ending
from gpuwatchd.pipeline import tracker
from tests.making import CARD, GIB, KEY, LEAKER, MIB, present, sample
from tests.pipeline.play import EAGER, QUIET, Postbox, Script, run
from tests.pipelines import make_pipeline
from tests.store.world import BOOT, Time, opened

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuwatchd.core.model import Device, Sample
    from gpuwatchd.pipeline.live_pipeline import LivePipeline

TOTAL = 64 * GIB


def on_host(tick: int, held: int | None, *, there: bool = True) -> Sample:
    """Return a tick at which memory of the GPU stands still."""
    one = sample(1000.0 + 5 * tick, [(LEAKER, 20 * GIB), (QUIET, GIB)][0 if there else 1 :])
    uses = tuple(
        msgspec.structs.replace(use, host_bytes=held) if use.key == KEY else use
        for use in one.readings[0].uses or ()
    )
    return msgspec.structs.replace(
        one, readings=(msgspec.structs.replace(one.readings[0], uses=uses),)
    )


def watched(
    play: Callable[[int], Sample],
    free: Callable[[], int] = lambda: 40 * GIB,
    *,
    devices: tuple[Device, ...] = (CARD,),
    **more: Any,
) -> tuple[LivePipeline, Postbox]:
    post = Postbox()
    source = Script(play, devices=devices)
    pipeline = make_pipeline(config=EAGER, sources=[source], message_dispatcher=post, **more)
    pipeline.intake.host_memory = tracker.HostMemory(
        pipeline.state, lambda: Headroom(total_bytes=TOTAL, free_bytes=free())
    )
    return pipeline, post


def growing(tick: int) -> int:
    return 4 * GIB + max(0, tick - 60) * 30 * MIB


def test_a_leak_on_the_host_is_found_and_told_as_one_of_the_host() -> None:
    tick = [0]

    def play(i: int) -> Sample:
        tick[0] = i
        return on_host(i, growing(i))

    pipeline, _ = watched(play, lambda: TOTAL - 10 * GIB - growing(tick[0]))
    ticks = run(pipeline, 500)
    (alert,) = ticks[-1].alerts
    assert alert.subject.host
    assert alert.subject.process == KEY
    assert alert.title == "host memory of python train.py[4711] of alice"
    assert alert.finding.eta is not None
    left = TOTAL - 10 * GIB - growing(499)
    assert abs(alert.finding.eta.mid_s / (left / (6 * MIB)) - 1) < 0.25
    shown = present(ticks[-1].state.devices[0].processes)
    assert shown[0].host_bytes == growing(499)
    assert present(shown[0].host_finding).tier == "alert"
    assert present(shown[0].finding).pattern == "stable"


def test_a_process_that_the_host_ran_out_for() -> None:
    end = 500

    def free() -> int:
        return max(GIB, TOTAL - 10 * GIB - growing(10**6))

    pipeline, _ = watched(lambda i: on_host(i, growing(i), there=i < end), free)
    ticks = run(pipeline, end + 20)
    assert ticks[-1].alerts == ()
    assert [a.ended_code for t in ticks for a in t.changes if a.state == "resolved"] == [
        Ending.ENDED_NEAR_LIMIT
    ]


def test_what_is_unknown_is_no_subject() -> None:
    pipeline, _ = watched(lambda i: on_host(i, None))
    run(pipeline, 20)
    assert not any(track.subject.host for track in pipeline.state.tracks.values())


def test_it_stays_one_while_one_of_its_devices_cannot_be_read() -> None:
    other = msgspec.structs.replace(CARD, uid="GPU-2", index=1)

    def play(i: int) -> Sample:
        one = on_host(i, growing(i))
        first = one.readings[0]
        second = msgspec.structs.replace(first, device_uid="GPU-2")
        if 100 <= i < 600:
            first = msgspec.structs.replace(
                first, uses=None, used_bytes=None, free_bytes=None, state="hung"
            )
        return msgspec.structs.replace(one, readings=(first, second))

    pipeline, post = watched(play, lambda: 20 * GIB, devices=(CARD, other))
    ticks = run(pipeline, 700)
    found = [t.subject for t in pipeline.state.tracks.values() if t.subject.host]
    assert [(s.device_uid, s.process) for s in found] == [("GPU-1", KEY)]
    # Of the GPU that hangs people are told as well: that is another alert.
    assert [told for told in post.told if "host memory" in told] == [
        "firing: host memory of python train.py[4711] of alice"
    ]
    changes = [a.state for t in ticks for a in t.changes if a.subject.host]
    assert changes == ["watch", "firing"]


def test_the_room_of_the_host(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(
        "MemTotal:       1000 kB\nMemFree:  10 kB\nMemAvailable:    600 kB\nSwapFree:  24 kB\n"
    )
    assert headroom(tmp_path) == Headroom(total_bytes=1000 * 1024, free_bytes=624 * 1024)
    assert headroom(tmp_path / "nowhere") is None


def test_an_alert_on_host_memory_goes_on_after_a_restart(tmp_path: Path) -> None:
    def begin(start: int) -> tuple[LivePipeline, Postbox]:
        def play(i: int) -> Sample:
            here = on_host(start + i, growing(start + i))
            return msgspec.structs.replace(here, boot_id=BOOT)

        begun_s = 1000.0 + 5 * start
        history = opened(tmp_path, Time(begun_s))
        pipeline, post = watched(play, history=history, wall=lambda: begun_s, mono=lambda: begun_s)
        pipeline.resume()
        return pipeline, post

    first, _ = begin(0)
    (before,) = run(first, 500)[-1].alerts
    first.close()
    again, post = begin(500)
    ticks = run(again, 60)
    (after,) = ticks[-1].alerts
    assert (after.key, after.opened_at_s) == (before.key, before.opened_at_s)
    assert post.told == []
    track = again.state.tracks[before.subject.id]
    assert track.window.count > 60
    again.close()


def test_an_alert_on_the_host_leaves_that_of_the_device_alone() -> None:
    """They are two growths, of two memories."""

    def play(tick: int) -> Sample:
        used = 10 * GIB + max(0, tick - 60) * 100 * MIB
        one = on_host(tick, 4 * GIB + max(0, tick - 200) * 90 * MIB)
        uses = tuple(
            msgspec.structs.replace(use, used_bytes=None) for use in one.readings[0].uses or ()
        )
        reading = msgspec.structs.replace(
            one.readings[0], uses=uses, used_bytes=used, free_bytes=80 * GIB - used
        )
        return msgspec.structs.replace(one, readings=(reading,))

    pipeline, post = watched(play, lambda: 20 * GIB)
    assert [a.subject.host for a in run(pipeline, 220)[-1].alerts] == [False]
    ticks = run(pipeline, 420)
    firing = [a for a in ticks[-1].alerts if a.state == "firing"]
    assert sorted(a.subject.host for a in firing) == [False, True]
    assert [a.title for t in ticks for a in t.changes if a.state == "resolved"] == []
    assert post.told == [
        "firing: GPU 0 (A100)",
        "firing: host memory of python train.py[4711] of alice",
    ]
