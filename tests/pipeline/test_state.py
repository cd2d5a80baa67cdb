"""What is shown is what is known now, though most of it is used again from the last tick."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core.model import Finding, ProcessUse
from gpuwatchd.pipeline import Pipeline
from gpuwatchd.store import live
from tests.making import CARD, GIB, KEY, LEAKER, MIB, alert, calm, finding, present, sample
from tests.pipeline.play import EAGER, QUIET, Script, run

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.core.model import Sample

FLAT = (
    ProcessUse(key=LEAKER.key, used_bytes=GIB, sm_pct=40.0, host_bytes=5 * MIB),
    ProcessUse(key=QUIET.key, used_bytes=MIB),
)


def play(tick: int) -> Sample:
    """The very same list for ten ticks, then another one."""
    one = sample(1000.0 + 5 * tick, [(LEAKER, GIB), (QUIET, MIB)])
    uses = FLAT if tick < 10 else (msgspec.structs.replace(FLAT[0], sm_pct=90.0), FLAT[1])
    reading = msgspec.structs.replace(one.readings[0], uses=uses)
    return msgspec.structs.replace(one, readings=(reading,), processes=one.processes)


def test_what_changes_is_shown_at_once(tmp_path: Path) -> None:
    pipeline = Pipeline(config=EAGER, sources=[Script(play)], runtime_dir=tmp_path)
    shown = [tick.state.devices[0].processes or () for tick in run(pipeline, 5)]
    assert any(one is other for one, other in pairwise(shown))
    assert shown[4][0].sm_pct == 40.0
    found: Finding = calm(reason="judged anew")
    pipeline.watcher.tracks[found.subject.id].finding = found
    (tick,) = run(pipeline, 1)
    processes = tick.state.devices[0].processes or ()
    assert [p.finding for p in processes if p.info.key == KEY] == [found]
    written = present(live.read(tmp_path))
    assert written.devices == tick.state.devices
    pipeline.intake.infos[KEY] = msgspec.structs.replace(LEAKER, user="bob")
    source = pipeline.workers["script"].source
    assert isinstance(source, Script)
    source.play = lambda i: msgspec.structs.replace(play(i), processes=())
    (tick,) = run(pipeline, 1)
    assert [p.info.user for p in tick.state.devices[0].processes or ()] == ["bob", "root"]
    tick = run(pipeline, 6)[-1]
    assert [p.sm_pct for p in tick.state.devices[0].processes or ()] == [90.0, None]
    written = present(live.read(tmp_path))
    assert written == tick.state


def test_the_same_bytes_whether_pieces_are_used_again_or_not() -> None:
    pipeline = Pipeline(config=EAGER, sources=[Script(play)])
    pieces = live.Pieces()
    for tick in run(pipeline, 15):
        content = live.encode(tick.state, pieces)
        assert content == live.encode(tick.state, live.Pieces())
        assert msgspec.json.decode(b"".join(content), type=live.LiveState) == tick.state
        assert len(pieces.lists) == len(pieces.each) == 1


def test_of_processes_only_what_is_not_as_by_default_is_written() -> None:
    tick = run(Pipeline(config=EAGER, sources=[Script(play)]), 15)[-1]
    lean, whole = b"".join(live.encode(tick.state, live.Pieces())), msgspec.json.encode(tick.state)
    assert len(lean) < len(whole)
    processes = msgspec.json.decode(lean)["devices"][0]["processes"]
    assert [one["info"]["name"] for one in processes] == [LEAKER.name, QUIET.name]
    assert all("foreign" not in one["info"] and "kind" not in one for one in processes)
    # As an earlier version wrote it.
    assert msgspec.json.decode(whole, type=live.LiveState) == tick.state


def test_an_alert_of_the_rank_that_leads_is_shown_of_those_it_stands_for() -> None:
    pipeline = Pipeline(config=EAGER, sources=[Script(play)])
    run(pipeline, 100)
    led, lead = (pipeline.watcher.tracks[f"{CARD.uid}/{who.key.pid}@{who.key.started_at_s}"]
                 for who in (LEAKER, QUIET))  # fmt: skip
    led.lead = lead
    (tick,) = run(pipeline, 1)
    assert [p.finding and p.finding.tier for p in tick.state.devices[0].processes or ()] == [
        "none",
        "none",
    ]
    lead.alert = alert(state="firing", finding=finding(subject=lead.subject))
    (tick,) = run(pipeline, 1)
    shown = [p.finding and p.finding.tier for p in tick.state.devices[0].processes or ()]
    assert shown == ["alert", "alert"]


def test_a_list_that_fails_for_a_moment_starves_no_series() -> None:
    def gap(tick: int) -> Sample:
        full = play(min(tick, 5))
        full = msgspec.structs.replace(full, taken_mono_s=1000.0 + 5 * tick)
        full = msgspec.structs.replace(full, taken_at_s=full.taken_mono_s)
        if tick != 20:
            return full
        reading = msgspec.structs.replace(full.readings[0], uses=None, uses_reason="no permission")
        return msgspec.structs.replace(full, readings=(reading,))

    pipeline = Pipeline(config=EAGER, sources=[Script(gap)])
    run(pipeline, 200)
    track = pipeline.watcher.tracks[calm().subject.id]
    t_s, held = track.window.window()
    assert t_s.tolist() == [1000.0 + 5 * tick for tick in range(200) if tick != 20]
    assert set(held.tolist()) == {float(GIB)}
