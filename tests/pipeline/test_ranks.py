"""Ranks of one job that leak alike are one alert; a rank that leaks alone stays its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.core.codes import Ending
from gpuwatchd.core.model import ProcessInfo, ProcessKey, Sample
from gpuwatchd.pipeline.run_baselines import of_job
from gpuwatchd.pipeline.track import Suppression
from tests.making import CARD, GIB, MIB, sample
from tests.pipeline.play import EAGER, Postbox, Script, run
from tests.pipelines import make_pipeline
from tests.store import runs

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.core.model import Device
    from gpuwatchd.pipeline.tick import Tick

pytestmark = pytest.mark.slow

JOB = "torchrun 7f3a"


def rank(number: int, *, group: str | None = JOB) -> ProcessInfo:
    return ProcessInfo(
        key=ProcessKey(pid=4700 + number, started_at_s=500.0), name="python", user="alice",
        argv=("python", "train.py"), group=group, rank=number,
    )  # fmt: skip


CARDS = tuple(
    msgspec.structs.replace(CARD, uid=f"GPU-{i}", index=i, name="NVIDIA A100") for i in range(4)
)


def spread(
    tick: int,
    held: Callable[[int, int], int | None],
    *,
    cards: tuple[Device, ...] = CARDS,
    group: str | None = JOB,
) -> Sample:
    """Return one tick of four ranks, one on each card (or all on one); None: it has ended."""
    who = {i: rank(i, group=group) for i in range(4)}
    per_card: dict[str, list[tuple[ProcessInfo, int | None]]] = {card.uid: [] for card in cards}
    for i, info in who.items():
        amount = held(i, tick)
        if amount is not None:
            per_card[cards[i % len(cards)].uid].append((info, amount))
    parts = [sample(1000.0 + 5 * tick, per_card[card.uid], device=card) for card in cards]
    return msgspec.structs.replace(
        parts[0],
        readings=tuple(part.readings[0] for part in parts),
        processes=tuple(who.values()),
    )


def growing(number: int, tick: int, mib: int = 150) -> int:
    return 10 * GIB + max(0, tick - 60) * (mib + number) * MIB


def played(
    play: Callable[[int, int], int | None], ticks: int, cards: tuple[Device, ...] = CARDS
) -> tuple[list[Tick], Postbox]:
    post = Postbox()
    source = Script(lambda i: spread(i, play, cards=cards), devices=cards)
    return run(make_pipeline(config=EAGER, sources=[source], message_dispatcher=post), ticks), post


def test_ranks_that_leak_alike_are_one_alert() -> None:
    ticks, post = played(growing, 260)
    (alert,) = ticks[-1].alerts
    assert alert.title == "4 ranks of torchrun 7f3a (python train.py) of alice on GPU 0-3"
    assert post.told == [f"firing: {alert.title}"]
    assert alert.finding.reason.startswith("all 4 ranks of torchrun 7f3a leak alike, together ")
    assert sorted(one.name for one in alert.finding.blame) == [
        f"rank {i} on GPU {i}" for i in range(4)
    ]
    assert sum(one.share for one in alert.finding.blame) == pytest.approx(1.0)
    shown = [p.finding for d in ticks[-1].state.devices for p in d.processes or ()]
    assert [f.tier for f in shown if f is not None] == ["alert"] * 4
    held = [f.reason for f in shown if f is not None and "one alert for its job" in f.reason]
    assert len(held) == 3


def test_a_rank_on_an_instance_is_named_by_the_instance() -> None:
    """Instances count from 0 on each card: the index alone would name GPU 0."""
    parts = tuple(
        msgspec.structs.replace(card, parent_uid="GPU-cut", parent_index=3) for card in CARDS
    )
    ticks, _ = played(growing, 260, parts)
    (alert,) = ticks[-1].alerts
    assert sorted(one.name for one in alert.finding.blame) == [
        f"rank {i} on MIG 3:{i}" for i in range(4)
    ]


def test_the_time_left_is_that_of_the_first_to_be_full() -> None:
    def play(number: int, tick: int) -> int:
        # Rank 3 grows no faster, but began with more.
        return growing(number, tick) + (20 * GIB if number == 3 else 0)

    ticks, _ = played(play, 260)
    (alert,) = ticks[-1].alerts
    assert alert.finding.eta is not None
    left_bytes = 80 * GIB - play(3, 259)
    assert alert.finding.eta.mid_s == pytest.approx(left_bytes / (153 * MIB / 5), rel=0.15)


def test_a_leak_in_one_rank_is_its_own_and_its_siblings_are_said_to_be_calm() -> None:
    def play(number: int, tick: int) -> int:
        return growing(number, tick, 200) if number == 2 else 10 * GIB

    ticks, _ = played(play, 200)
    (alert,) = ticks[-1].alerts
    assert alert.subject.process == rank(2).key
    assert alert.title == "GPU 2 (A100): python train.py[4702] of alice"
    assert alert.finding.reason.endswith(
        "rank 2 of 4 ranks of torchrun 7f3a, its 3 siblings are calm"
    )


def test_a_rank_that_leaks_at_another_pace_is_no_part_of_it() -> None:
    def play(number: int, tick: int) -> int:
        return growing(number, tick, 380 if number == 0 else 150)

    ticks, _ = played(play, 200)
    titles = sorted(a.title for a in ticks[-1].alerts if a.state == "firing")
    assert titles == [
        "3 ranks of torchrun 7f3a (python train.py) of alice on GPU 1-3",
        "GPU 0 (A100): python train.py[4700] of alice",
    ]


def test_a_rank_is_not_hidden_behind_one_that_is_told_of_with_others() -> None:
    """Rank 1 leaks as 0 does, and 2 as 1 does, but not as 0: the alert of 0 is not about it."""

    def play(number: int, tick: int) -> int:
        if number == 3:
            return 10 * GIB
        # Rank 0 is told of first, and rank 1 is full before rank 2.
        since, full = (0 if number == 0 else 80), (40 * GIB if number == 1 else 0)
        return growing(number, tick - since, (60, 110, 200)[number]) + full

    ticks, _ = played(play, 330)
    titles = [a.title for a in ticks[-1].alerts if a.state == "firing"]
    assert any("GPU 2" in title or "GPU 1-2" in title for title in titles), titles


def test_jobs_of_two_users_that_are_called_the_same_are_two() -> None:
    def play(tick: int) -> Sample:
        taken = spread(tick, growing)
        mine = [
            msgspec.structs.replace(info, user="bob" if i % 2 else "alice")
            for i, info in enumerate(taken.processes)
        ]
        return msgspec.structs.replace(taken, processes=tuple(mine))

    ticks = run(make_pipeline(config=EAGER, sources=[Script(play, devices=CARDS)]), 260)
    assert sorted(a.title for a in ticks[-1].alerts) == [
        "2 ranks of torchrun 7f3a (python train.py) of alice on GPU 0, 2",
        "2 ranks of torchrun 7f3a (python train.py) of bob on GPU 1, 3",
    ]


@pytest.mark.parametrize("apart", [20, 0])
def test_a_job_whose_ranks_end_together_or_not_is_over_once(apart: int) -> None:
    def play(number: int, tick: int) -> int | None:
        return None if tick >= 260 + apart * (3 - number) else growing(number, tick)

    ticks, post = played(play, 350)
    assert ticks[-1].alerts == ()
    assert [told.split(":")[0] for told in post.told] == ["firing", "resolved"]
    ended = [a.ended_code for t in ticks for a in t.changes if a.state == "resolved"]
    assert not apart or ended == [*[Ending.OTHER_RANK] * 3, Ending.PROCESS_ENDED]


def test_a_job_that_becomes_known_late_takes_over_what_was_told_one_by_one() -> None:
    post = Postbox()
    source = Script(lambda i: spread(i, growing, group=None if i < 240 else JOB), devices=CARDS)
    pipeline = make_pipeline(config=EAGER, sources=[source], message_dispatcher=post)
    ticks = run(pipeline, 240)
    assert len(ticks[-1].alerts) == 4
    told = len(post.told)
    ticks = run(pipeline, 120)
    assert [a.title for a in ticks[-1].alerts] == [
        "4 ranks of torchrun 7f3a (python train.py) of alice on GPU 0-3"
    ]
    assert len(post.told) == told


def test_the_alert_of_a_job_goes_on_after_a_restart() -> None:
    first = make_pipeline(
        config=EAGER, sources=[Script(lambda i: spread(i, growing), devices=CARDS)]
    )
    (before,) = run(first, 260)[-1].alerts
    post = Postbox()
    again = make_pipeline(
        config=EAGER,
        sources=[Script(lambda i: spread(i + 260, growing), devices=CARDS)],
        message_dispatcher=post,
    )
    again.state.restored.refill(
        [
            (track.subject, list(zip(*(column.tolist() for column in track.window.window()),
                                     strict=True)))
            for track in first.state.tracks.values()
        ],
        8 * 3600.0,
    )  # fmt: skip
    again.state.restored.adopt(msgspec.structs.replace(before, notices=1))
    ticks = run(again, 100)
    assert [(a.key, a.title) for a in ticks[-1].alerts] == [(before.key, before.title)]
    assert post.told == []
    assert [a for t in ticks for a in t.changes] == []


def test_what_the_user_calls_normal_is_so_for_the_whole_job() -> None:
    post = Postbox()
    source = Script(lambda i: spread(i, growing), devices=CARDS)
    pipeline = make_pipeline(config=EAGER, sources=[source], message_dispatcher=post)
    (alert,) = run(pipeline, 250)[-1].alerts
    lead = pipeline.state.tracks[alert.subject.id]
    lead.suppression = Suppression(
        level_bytes=200 * GIB, why="alice said that this is normal", job=True
    )
    pipeline.state.end(lead, Ending.STOPPED_GROWING, 2245.0, quietly=True)
    ticks = run(pipeline, 80)
    assert ticks[-1].alerts == ()
    assert len(post.told) == 1
    shown = [p.finding for d in ticks[-1].state.devices for p in d.processes or ()]
    assert all(f is not None and f.reason.startswith("alice said") for f in shown)


def test_what_the_user_calls_normal_of_one_rank_is_so_for_that_rank() -> None:
    def play(number: int, tick: int) -> int:
        since = {1: 400, 2: 0}.get(number)
        return 10 * GIB if since is None else growing(number, tick - since, 200)

    source = Script(lambda i: spread(i, play), devices=CARDS)
    pipeline = make_pipeline(config=EAGER, sources=[source])
    (alert,) = run(pipeline, 200)[-1].alerts
    alone = pipeline.state.tracks[alert.subject.id]
    alone.suppression = Suppression(level_bytes=200 * GIB, why="alice said that this is normal")
    pipeline.state.end(alone, Ending.STOPPED_GROWING, 1995.0, quietly=True)
    ticks = run(pipeline, 400)
    assert [a.subject.process for a in ticks[-1].alerts] == [rank(1).key]


@pytest.mark.parametrize(
    ("title", "job"),
    [
        ("4 ranks of torchrun 7f3a (python train.py) of alice on GPU 0-3", True),
        ("GPU 2 (A100): python train.py[4702] of alice", False),
    ],
)
def test_the_title_tells_of_how_many_ranks_a_word_was(title: str, job: bool) -> None:
    said = runs.word(runs.run(), title=title)
    assert of_job(said, rank(2)) is job
    assert not of_job(said, rank(2, group=None))


def test_a_rank_whose_lead_stops_is_told_of_by_itself() -> None:
    def play(number: int, tick: int) -> int:
        # All but rank 0 and 1 stop, the last lead among them.
        return growing(number, tick if number < 2 else min(tick, 240))

    ticks, post = played(play, 460)
    firing = [a for a in ticks[-1].alerts if a.state == "firing"]
    assert [a.title for a in firing] == [
        "2 ranks of torchrun 7f3a (python train.py) of alice on GPU 0-1"
    ]
    assert firing[0].held_back == ""
    assert [told.split(":")[0] for told in post.told] == ["firing"]
    ended = [a.ended_code for t in ticks for a in t.changes if a.state == "resolved"]
    assert ended == [Ending.OTHER_RANK]
