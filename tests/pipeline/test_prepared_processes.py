"""Mailboxes of prepared processes: into the judgement, and an inspection where it is allowed."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.collect import mailboxes
from gpuwatchd.collect.mailboxes import Census, Group, Holder
from gpuwatchd.core.codes import AllocatorVerdict, Ending, Reason
from gpuwatchd.core.config.schema import ProbeSection
from gpuwatchd.core.model import ProcessKey
from gpuwatchd.pipeline import allocator
from gpuwatchd.pipeline.track import end_reason
from tests.making import CARD, GIB, LEAKER, MIB, sample
from tests.pipeline.play import EAGER, Script
from tests.pipelines import make_pipeline
from tests.store.world import BOOT, Time, opened

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import Finding, Sample
    from gpuwatchd.pipeline.tick import Tick

OWN = msgspec.structs.replace(
    LEAKER, key=ProcessKey(pid=os.getpid(), started_at_s=900.0), uid=os.getuid()
)
GROWS = 200 * MIB
AGREED = msgspec.structs.replace(EAGER, probe=ProbeSection(inspect_on_alert=True))


class World:
    """A process of ours on a card, its mailbox, and a daemon that looks every 5 s."""

    def __init__(
        self,
        place: Path,
        *,
        used: int = GROWS,
        inside: int = GROWS,
        begin: int = 0,
        stored: Path | None = None,
        config: Config = EAGER,
        owner: int = os.getuid(),
        **more: Any,
    ) -> None:
        self.process = msgspec.structs.replace(OWN, uid=owner)
        self.place, self.used, self.inside, self.begin, self.tick = place, used, inside, begin, 0
        self.last: dict[str, Any] | None = None
        self.asked: list[tuple[str, bool]] = []
        now_s = 1000.0 + 5.0 * begin
        history = None if stored is None else opened(stored, Time(now_s))
        self.wall: Callable[[], float] = (lambda: now_s) if stored else time.time
        self.pipeline = make_pipeline(
            config=config,
            sources=[Script(self._play)],
            history=history,
            wall=self.wall,
        )
        self.pipeline.resume()

        self.row = {"uid": CARD.uid, "inactive_split": 0, **more}

    def _play(self, tick: int) -> Sample:
        self.tick = tick = tick + self.begin
        grown = max(0, tick - 60)
        self._write(2 * GIB + grown * self.inside, 19 * GIB + grown * self.used)
        for path in self.place.glob("*.req"):
            self._answer(json.loads(path.read_text()))
            path.unlink()
        one = sample(1000.0 + 5.0 * tick, [(self.process, 20 * GIB + grown * self.used)])
        return msgspec.structs.replace(one, boot_id=BOOT)

    def _write(self, allocated: int, reserved: int) -> None:
        figures = {"allocated": allocated, "reserved": reserved, "peak": allocated}
        content = {
            "v": 1,
            "pid": os.getpid(),
            "seq": self.tick,
            "at_s": self.wall(),
            "python": "3.12.1",
            "framework": {"name": "torch"},
            "last": self.last,
            "spans": [
                {"name": name, "call_count": 9, "total_memory_growth": grown}
                for name, grown in (("load", -5), ("step", 7), ("log\x1b", 9), ("none", None))
            ],
            "started_ticks": mailboxes._started_ticks(os.getpid()),
            "boot_id": mailboxes._boot_id(),
            "devices": [{**figures, **self.row}],
        }
        path = self.place / f"{os.getpid()}.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(content))

    def _answer(self, request: dict[str, Any]) -> None:
        self.asked.append((request["verb"], request["answer"]))
        points = [[float(at), at * GIB, at * GIB, at * GIB] for at in range(100)]
        step = {"name": "step", "call_count": 100, "points": points}
        path = self.place / f"{os.getpid()}.{request['id']}.json"
        if request["answer"]:
            path.touch(mode=0o600)
            path.write_text(json.dumps({"id": request["id"], "functions": [step]}))

    def run(self, ticks: int) -> Tick:
        return [self.pipeline.tick() for _ in range(ticks)][-1]

    def finding(self, ticks: int) -> Finding:
        return self.run(ticks).findings[f"{CARD.uid}/{os.getpid()}@900.0"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(mailboxes, "folder", lambda _uid: tmp_path)
    return tmp_path


@pytest.mark.requirement("M4")
def test_growth_inside_a_flat_pool_is_found(place: Path) -> None:
    found = World(place, used=0, inside=150 * MIB).finding(300)
    assert found.allocator
    assert (found.tier, found.allocator.verdict) == ("alert", AllocatorVerdict.TENSORS)
    grown = [(one.name, one.growth_bytes) for one in found.allocator.functions]
    assert grown == [("log", 9.0), ("step", 7.0)]


def test_what_an_allocator_said_comes_back_after_a_restart(place: Path) -> None:
    first = World(place, stored=place)
    first.run(150)
    first.pipeline.close()
    again = World(place, stored=place, begin=150)
    again.run(3)
    (track,) = again.pipeline.state.devices[CARD.uid].processes.values()
    assert track.allocator
    series = track.allocator.series()
    assert series
    assert series.t_s[-1] - series.t_s[0] > 5 * 140
    again.pipeline.close()


@pytest.mark.requirement("M19")
def test_growth_of_the_free_cache_is_not(place: Path) -> None:
    found = World(place, inside=0).finding(300)
    assert found.allocator
    assert (found.tier, found.code) == ("none", Reason.FREE_CACHE)


def test_figures_that_cannot_be_are_limited_and_others_left_alone(place: Path) -> None:
    world = World(place, uid="GPU-of-another-card")
    assert world.finding(90).allocator  # its only device: by whatever name
    world = World(place, uid="GPU-of-another-card", reserved=1 << 60)
    world.run(3)
    config = world.pipeline.state.settings.config
    short = msgspec.structs.replace(config.detection, analysis_window_hours=1 / 60)
    world.pipeline.reconfigure(msgspec.structs.replace(config, detection=short))
    (track,) = world.pipeline.state.devices[CARD.uid].processes.values()
    assert track.allocator
    assert track.allocator.newest
    assert track.allocator.allocated.span_s == 60.0
    assert track.allocator.newest.reserved_bytes == CARD.memory_total_bytes


@pytest.mark.parametrize("config", [EAGER, AGREED], ids=["not-agreed", "agreed"])
def test_the_heap_is_looked_into_where_its_owner_agreed(place: Path, config: Any) -> None:
    world = World(place, config=config)
    found = world.finding(300)
    agreed = config is AGREED
    assert set(world.asked) == ({("functions", True), ("census", False)} if agreed else set())
    assert found.allocator
    kinds = [remark.kind for remark in found.allocator.remarks]
    assert kinds == (["temporal_growth", "memory_leak"] if agreed else [])
    assert found.allocator.score == (87 if agreed else None)


def test_a_mailbox_of_somebody_else_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, owner=os.getuid() + 1)
    folders = {os.getuid(): tmp_path}
    monkeypatch.setattr(mailboxes, "folder", lambda uid: folders.get(uid, tmp_path / "none"))
    assert world.finding(3).allocator in {None, msgspec.UNSET}
    (track,) = world.pipeline.state.devices[CARD.uid].processes.values()
    assert track.allocator is None


@pytest.mark.parametrize(
    ("failure", "ending"),
    [
        ("torch.OutOfMemoryError", Ending.RAN_OUT),
        ("builtins.KeyError", Ending.PROCESS_ENDED),
        ("builtins.RuntimeError", Ending.ENDED_NEAR_LIMIT),
        ("torch.AcceleratorError", Ending.ENDED_NEAR_LIMIT),
        (None, Ending.ENDED_NEAR_LIMIT),
    ],
)
def test_what_a_job_wrote_down_says_why_it_ended(
    place: Path, failure: str | None, ending: Ending
) -> None:
    world = World(place)
    world.run(300)
    (track,) = world.pipeline.state.devices[CARD.uid].processes.values()
    track.headroom.full_at_s = 1e9
    path = place / f"{os.getpid()}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "failure": failure}))
    assert end_reason(track) is ending


def test_a_mailbox_of_the_future_is_ignored(place: Path) -> None:
    world = World(place)
    world.run(3)
    prepared = world.pipeline.intake.prepared
    prepared.feed("script", 1100.0, time.time() - 3600.0)
    assert not prepared.news
    prepared.feed("script", 1100.0, time.time())
    assert prepared.news


def _census(**group: Any) -> dict[str, Any]:
    holder = {"name": "seen in train()", "kind": "list", "len": 400, "file": "train.py", "line": 22}
    one = {
        "group": "a",
        "counts": [100, 200, 300, 400],
        "bytes": 400 * 40 * MIB,
        "holder": holder,
        "sure": "named",
        **group,
    }
    return {"id": "ab", "censuses": 4, "every_s": 10.0, "groups": [one]}


def test_the_variable_comes_with_the_alert_and_its_bound_ends_it(place: Path) -> None:
    world = World(place)
    world.run(300)
    world.last = _census()
    found = world.finding(5)
    assert found.holder
    assert (found.holder.name, found.holder.line, found.tier) == ("seen in train()", 22, "alert")
    world.last = {**_census(bounded_at_bytes=20 * GIB), "id": "cd"}
    found = world.finding(5)
    assert (found.tier, found.code) == ("none", Reason.BOUNDED)


def test_the_variable_that_keeps_most_is_named() -> None:
    def group(name: str, held: int, sure: str = "named") -> Group:
        holder = Holder(name=name, kind="list", len=4)
        return Group(group="g", counts=(1, 2, 3, 4), bytes=held, holder=holder, sure=sure)

    groups = (group("a", 100), group("b", 80, "graph"), group("b", 40), group("c", 900, "native"))
    holder = allocator.holder_of(Census(id="x", censuses=4, groups=groups), 5.0)
    assert holder
    assert (holder.name, holder.graph, holder.held_bytes) == ("b", True, 120.0)
    assert holder.rate_bytes_per_s == pytest.approx(120 * 0.75 / 30.0)
