"""How a track's alert ends, and what goes on with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd import alerts
from gpuwatchd.alerts import wording
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.model.alerts import Title
from gpuwatchd.pipeline.track import calm_reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.core.codes import Facts
    from gpuwatchd.core.model import Alert
    from gpuwatchd.pipeline.state import State
    from gpuwatchd.pipeline.track import Track

_MOST_DEAD = 4


def forget(state: State, track: Track) -> None:
    """Judge a track no more: its subject has gone."""
    tracks = state.tracks
    tracks.pop(track.subject.id, None)
    tracks.looks += 1
    tracks.unjudged.pop(track.subject.id, None)
    tracks.ranks.leave(track)


def retire(
    state: State, gone: Iterable[Track], why: Ending, now_s: float, *, quietly: bool = False
) -> list[Alert]:
    """Judge these tracks no more; return the alerts that this ended."""
    ended = []
    for track in gone:
        alert = end(state, track, why, now_s, quietly=quietly)
        forget(state, track)
        if alert is not None:
            ended.append(alert)
    return ended


def end(
    state: State,
    track: Track,
    why: Ending,
    now_s: float,
    *,
    quietly: bool = False,
    facts: Facts | None = None,
) -> Alert | None:
    """Resolve a track's alert because its subject has gone; return it if it was open.

    ``quietly`` tells nobody: another alert goes on in its place.
    """
    track.room.growing.pop(track.subject.id, None)
    if track.alert is None:
        return None
    tracks = state.tracks
    heir = None if quietly else tracks.ranks.heir(track)
    if heir is not None:
        tracks.passed_on.append(tracks.ranks.pass_on(track, heir, why))
        why, quietly = Ending.OTHER_RANK, True
    elif track.fate is not None:
        why = track.fate
    outcome = alerts.ended(
        track.alert, why, state.settings.rules, now_s=now_s, quietly=quietly, facts=facts
    )
    return settle(state, track, outcome)


def settle(state: State, track: Track, outcome: alerts.Outcome) -> Alert | None:
    """Give a track its alert as policy left it; return it where that is a change."""
    alert = outcome.alert
    track.alert = alert
    if alert is not None and alert.state == "resolved":
        track.alert, track.leads = None, Title()
        if alert.ended_code is Ending.STOPPED_GROWING:
            why = calm_reason(track, alert)
            alert = msgspec.structs.replace(alert, **wording.ending(why))
        if alert.ran_out:
            died = [*state.tracks.died.items(), (alert.key, track)]
            state.tracks.died = dict(died[-_MOST_DEAD:])
    return alert if outcome.changed else None
