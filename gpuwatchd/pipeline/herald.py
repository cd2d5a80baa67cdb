"""Who is told what and when: notices that are due become messages, and both are written down."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd import policy
from gpuwatchd.model import Alert, Decision, Delivery
from gpuwatchd.pipeline import messages
from gpuwatchd.pipeline.clock import moved_alert

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuwatchd.pipeline.post import Post
    from gpuwatchd.pipeline.tracks import Track, Watcher
    from gpuwatchd.store.writer import History

log = logging.getLogger("gpuwatchd")

STALE_S = 600.0
"""Nobody is reminded of an alert whose subject has not been seen for this long."""
STALE = "nothing has been heard of it for 10 minutes"
_HOUR_S = 3600.0


def _aged(track: Track, now_s: float) -> Alert | None:
    """Mark a track's alert as stale, or take that back; return it when that is news."""
    alert, newest = track.alert, track.window.last
    fresh = newest is not None and now_s - newest[0] <= STALE_S
    if alert is None or fresh == (alert.held_back != STALE):
        return None
    track.alert = msgspec.structs.replace(alert, held_back="" if fresh else STALE)
    return track.alert


class Herald:
    """Announces alerts.

    Parameters
    ----------
    watcher
        Its rules decide.
    post
        Takes the messages.
    history
        Where alerts and deliveries are written, in one transaction; None writes nothing.
    wall, mono
        Clocks of the people who are told: the clock of a source may be a recorded one.
    """

    def __init__(
        self,
        watcher: Watcher,
        post: Post,
        history: History | None,
        *,
        wall: Callable[[], float],
        mono: Callable[[], float],
    ) -> None:
        self._watcher = watcher
        self._post = post
        self._history = history
        self._wall = wall
        self._mono = mono
        self._sent_mono_s: deque[float] = deque(maxlen=1000)
        self._owing: dict[tuple[str, str], Alert] = {}
        self.failing: dict[str, str] = {}
        """Alert key -> why no message could be made of it."""

    def move(self, source: str, alerts: list[Alert], by_s: float) -> None:
        """Take over alerts whose times were moved by a step of the wall clock."""
        for owing in [key for key in self._owing if key[0] == source]:
            self._owing[owing] = moved_alert(self._owing[owing], by_s)
        if self._history is not None and alerts:
            self._history.apply(alerts, [])

    def announce(
        self, source: str, tracks: Iterable[Track], changes: list[Alert], now_s: float
    ) -> list[Decision]:
        """Book the notices that are due for one source's alerts, and send them.

        Parameters
        ----------
        tracks
            Those of the source that have an alert; others among them change nothing.
        changes
            Alerts whose state has just changed.
        now_s
            The time on the source's clock.
        """
        for alert in changes:
            log.info("alert %s key=%s title=%r", alert.state, alert.key, alert.title)
            if alert.state == "resolved":
                self._owing[source, alert.key] = alert
        told = {
            track.alert.key: track
            for track in tracks
            if track.alert is not None and track.alert.state != "pending"
        }
        aged = [marked for track in told.values() if (marked := _aged(track, now_s)) is not None]
        candidates = [
            track.alert
            for track in told.values()
            if track.alert is not None
            and (track.alert.held_back != STALE or track.alert.notices == 0)
        ]
        # One that is open again is not over.
        candidates += [
            alert
            for (name, key), alert in self._owing.items()
            if name == source and key not in told
        ]
        booked, decisions = policy.announce(
            candidates, self._watcher.rules, now_s=now_s, sent_at_s=self._sent_at_s(now_s)
        )
        deliveries, unmade = self._messages(booked, decisions, now_s)
        booked = [alert for alert in booked if alert.key not in unmade]
        self._book(source, booked, told)
        newest_of = {(a.key, a.opened_at_s): a for a in (*aged, *changes, *booked)}
        if self._history is not None and (newest_of or deliveries):
            deliveries = self._history.apply(list(newest_of.values()), deliveries)
        self._post.send(deliveries)
        return [decision for decision in decisions if decision.alert_key not in unmade]

    def _sent_at_s(self, now_s: float) -> list[float]:
        """Return when messages went out, on the clock of ``now_s``: an hour is one of people's."""
        mono_s = self._mono()
        while self._sent_mono_s and mono_s - self._sent_mono_s[0] >= _HOUR_S:
            self._sent_mono_s.popleft()
        return [now_s - (mono_s - at_s) for at_s in self._sent_mono_s]

    def _book(self, source: str, booked: Iterable[Alert], told: dict[str, Track]) -> None:
        for alert in booked:
            if alert.state == "resolved":
                self._owing[source, alert.key] = alert
            else:
                told[alert.key].alert = alert
        self._owing = {k: a for k, a in self._owing.items() if a.next_notice_at_s is not None}

    def _messages(
        self, booked: Iterable[Alert], decisions: Iterable[Decision], now_s: float
    ) -> tuple[list[Delivery], set[str]]:
        """Return the messages, and the alerts of which none could be made: they stay due."""
        by_key = {alert.key: alert for alert in booked}
        out: list[Delivery] = []
        unmade: set[str] = set()
        counted: set[str] = set()
        for decision in decisions:
            key = decision.alert_key
            if decision.kind != "notify":
                log.info("held back key=%s reason=%r", key, decision.reason)
                continue
            try:
                message = messages.compose(by_key[key], decision.notice, now_s=now_s)
            except Exception as error:
                if key not in self.failing:
                    log.exception("failed part=message key=%s", key)
                self.failing[key] = f"no message could be made of {key}: {error!r}"
                unmade.add(key)
                continue
            self.failing.pop(key, None)
            if key not in counted:
                counted.add(key)
                self._sent_mono_s.append(self._mono())
            at_s = self._wall()
            out.append(
                Delivery(
                    alert_key=key,
                    channel=decision.target,
                    message=message,
                    state="pending",
                    attempts=0,
                    created_at_s=at_s,
                    next_try_at_s=at_s,
                )
            )
        return out, unmade
