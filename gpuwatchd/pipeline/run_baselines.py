"""What is known beside the curve: earlier runs, siblings, yesterday, and the user's word.

The end of a tick does at most one piece of this work (eight look-ups in the history of some 50 µs,
or a profile of some 2.5 ms), after everybody has been told, and most ticks do none: a look-up per
process that starts, a profile per process that ends, and, only while something grows, one per
sibling each five minutes and one of yesterday each hour. Profiles are written with the samples.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal

import msgspec

from gpuwatchd.analysis import program_key
from gpuwatchd.core.codes import Ending, TitleRole
from gpuwatchd.core.model import LEAK_PATTERNS, Profile
from gpuwatchd.pipeline.track import DAYS_BACK_S, DAYS_EVERY_S, Suppression
from gpuwatchd.pipeline.track_evaluation import judge_days
from gpuwatchd.store import curves, legacy_text
from gpuwatchd.store.live import KnownRuns
from gpuwatchd.store.profiles import KEPT_LAUNCHES, LAUNCH_S, Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpuwatchd.core.codes import Facts
    from gpuwatchd.core.model import Alert, FloatArray, ProcessInfo, ProcessKey, Series
    from gpuwatchd.pipeline.state import State
    from gpuwatchd.pipeline.track import EndedProcess, Track
    from gpuwatchd.store.profiles import ProfileStore
    from gpuwatchd.store.tables import UserLabel

# Which earlier runs of a subject count.

MARGIN = 0.25
"""What was normal once may be so much more the next time: the spread of a benign program's runs."""
_SPOKEN_SLACK_S = 1.0


def of_job(word: UserLabel, info: ProcessInfo | None) -> bool:
    """Say whether what the user said was of several ranks: the title of the alert tells."""
    group = None if info is None else info.group
    return group is not None and legacy_text.stands_for(word.title, group)


def level_of(profile: Profile) -> float:
    """Return the level in bytes up to which a run is what another was."""
    top = max(profile.top_bytes, profile.proven_bytes)
    return profile.base_bytes + (1.0 + MARGIN) * max(0.0, top - profile.base_bytes)


def chosen(
    runs: Sequence[Run],
    words: Iterable[UserLabel],
    *,
    device_uid: str,
    process: ProcessKey | None,
) -> tuple[Profile, ...]:
    """Return the profiles that count for a subject, newest last, with the user's words on them.

    Of each launch one: a job of eight ranks is one run, not eight; the rank of the same device
    stands for it. The newest five launches count, and all of which the user spoke. Of the subject
    itself only what it had done when the user spoke.
    """
    labels = {(word.subject.device_uid, word.subject.process): word for word in words}
    spoken: dict[int | None, Profile] = {
        run.word: run.profile for run in runs if run.word is not None
    }
    judged: list[tuple[Run, Profile]] = []
    covered: set[int | None] = set()
    begun_s = None if process is None else process.started_at_s
    for run in runs:
        if run.word is not None or run.process == process:
            continue
        if begun_s is not None and abs(run.begun_at_s - begun_s) <= LAUNCH_S:
            # Another rank of the same launch is a sibling, though it may have been let go before.
            continue
        word = labels.get((run.device_uid, run.process))
        profile = run.profile
        if word is not None and _holds(word, profile, spoken.get(word.row)):
            profile = msgspec.structs.replace(profile, word=word.word)
            covered.add(word.row)
        judged.append((run, profile))
    counted = [profile for _, profile in _by_launch(judged, device_uid)]
    counted += [run.profile for run in runs if run.word is not None and run.word not in covered]
    return tuple(sorted(counted, key=lambda profile: profile.ended_at_s))


def _holds(word: UserLabel, profile: Profile, then: Profile | None) -> bool:
    """Say whether a word holds for a whole run, not only for what it had done by then."""
    if word.word == "leak" or word.given_at_s >= profile.ended_at_s - _SPOKEN_SLACK_S:
        return True
    return then is not None and profile.top_bytes <= level_of(then)


def _by_launch(judged: Sequence[tuple[Run, Profile]], device_uid: str) -> list[tuple[Run, Profile]]:
    launches: list[list[tuple[Run, Profile]]] = []
    for pair in sorted(judged, key=lambda pair: pair[0].begun_at_s):
        if launches and pair[0].begun_at_s - launches[-1][0][0].begun_at_s <= LAUNCH_S:
            launches[-1].append(pair)
        else:
            launches.append([pair])
    best = [
        max(
            launch,
            key=lambda pair: (
                pair[1].word is not None,
                pair[0].device_uid == device_uid,
                pair[1].top_bytes,
            ),
        )
        for launch in launches
    ]
    silent = [pair for pair in best if pair[1].word is None]
    return [pair for pair in best if pair[1].word is not None] + silent[-KEPT_LAUNCHES:]


# The whole run of a subject, and its profile: the window, and before that what is stored.

_EARLY_S = 120.0
"""What the window lacks of a run is read only when it is more than this."""
_ROLLED_S = 300.0
"""The last minutes are not rolled up yet: what was last known of the utilisation goes on."""


def profile_of(
    track: Track,
    shelf: ProfileStore,
    ended_at_s: float,
    *,
    kind: Literal["run", "sibling"] = "run",
    over: bool = False,
    until_s: float = float("inf"),
) -> Profile | None:
    """Return the profile of a run up to ``until_s``; None when it is too short. About 3 ms.

    ``over``: the process has gone, and what it held is free by now.
    """
    from gpuwatchd.analysis import forecast  # noqa: PLC0415 - numpy comes with it

    series = before(whole(track, shelf), until_s)
    if not series.t_s.size:
        return None
    if over:
        series = msgspec.structs.replace(series, limit_bytes=_room_then(track, series))
    finding = track.finding
    return forecast.profile(
        series,
        busy=_busy(series, shelf),
        alerted=finding is not None and finding.tier == "alert",
        ended_at_s=ended_at_s,
        kind=kind,
    )


def before(series: Series, until_s: float) -> Series:
    """Return the part of a series that lies before an instant; its age is the age then."""
    count = int(series.t_s.searchsorted(until_s, side="right"))
    if count == series.t_s.size:
        return series
    t_s = series.t_s[:count]
    age_s = series.age_s
    if age_s is not None and count:
        age_s -= float(series.t_s[-1] - t_s[-1])
    return msgspec.structs.replace(
        series, t_s=t_s, used_bytes=series.used_bytes[:count], age_s=age_s
    )


def whole(track: Track, shelf: ProfileStore, since_s: float | None = None) -> Series:
    """Return a track's run from its start (or from ``since_s``) on."""
    import numpy as np  # noqa: PLC0415

    series = track.series()
    process = track.subject.process
    if since_s is None and process is not None:
        since_s = process.started_at_s
    if since_s is None or not series.t_s.size or track.subject.unattributed:
        return series
    if track.subject.host:
        return series  # Its minutes are those of the device's memory.
    first_s = float(series.t_s[0])
    if first_s - since_s < _EARLY_S:
        return series
    early = shelf.minutes(track.subject.device_uid, process, since_s, first_s - 30.0)
    if not early:
        return series
    t_s, used = (np.array(column, dtype=np.float64) for column in zip(*early, strict=True))
    return msgspec.structs.replace(
        series,
        t_s=np.concatenate([t_s, series.t_s]),
        used_bytes=np.concatenate([used, series.used_bytes]),
    )


def _room_then(track: Track, series: Series) -> float | None:
    """Return where a process that has gone would have run out: all that is free now was its."""
    most = float(series.used_bytes.max())
    free, total = track.headroom.free_bytes, track.headroom.total_bytes
    own = None if track.limit is None else track.limit.ends_at(most)
    if own is not None and (free is None or own < max(free, most)):
        return own
    if free is None:
        return None if total is None else max(total, most)
    return max(free, most)


def _busy(series: Series, shelf: ProfileStore) -> FloatArray | None:
    """Return the device's utilisation in per cent at each sample, NaN where it is not known."""
    import numpy as np  # noqa: PLC0415

    span = (float(series.t_s[0]), float(series.t_s[-1]))
    pairs = shelf.load_pct(series.subject.device_uid, *span)
    if not pairs:
        return None
    ends, pct = (np.array(column, dtype=np.float64) for column in zip(*pairs, strict=True))
    at = np.minimum(np.searchsorted(ends, series.t_s), ends.size - 1)
    near = (series.t_s >= ends[at] - _EARLY_S) & (series.t_s <= ends[at] + _ROLLED_S)
    return np.where(near, pct[at], np.nan)


SIBLINGS_EVERY_S = 300.0
YESTERDAY_EVERY_S = 3600.0
MOST_SIBLINGS = 4
_DAY_S = 86_400.0
_BACK_S = 31 * 3600.0
"""How far back yesterday is read: its same hour and what came before it."""
_LOOK_UPS = 8
"""Look-ups of one tick: 64 processes that a daemon finds when it starts take 8 ticks."""
_SCAN_EVERY_S = 30.0
_SLACK_S = 10.0
"""What is seen a moment after a word was there when it was said."""
_LEAVE_AT_MOST = 64
"""Profiles that the end of the daemon takes time for."""

_PLACE = (TitleRole.DEVICE, TitleRole.MODEL)


class RunBaselines:
    """Gives tracks their history and makes history of them."""

    def __init__(self, state: State, shelf: ProfileStore) -> None:
        self._state = state
        self._shelf = shelf
        self._labels: dict[str, UserLabel] = {}
        self._applied: set[str] = set()
        self.unapplied = False
        """Whether labels may be on subjects that have not followed them."""
        self.served = -1
        """``Tracks.created`` when all tracks had been looked up."""
        self.outside = 0
        """``ProfileStore.outside`` when the labels were read."""
        self.requested: deque[Track] = deque(maxlen=256)
        """Tracks that grow and could do with more knowledge."""
        self.scan_mono_s = float("-inf")
        """When those that grow are looked for again, once nothing else waits."""

    def read_labels(self) -> None:
        """Read the user's labels anew; those that cannot be read are asked for again."""
        words = self._shelf.user_labels()
        if words is None:
            return
        self.outside = self._shelf.outside
        self._labels = {word.subject.id: word for word in words}
        self.unapplied = True
        # It may be on any run that anybody's judgement rests on.
        self.served = -1
        for track in self._state.tracks.values():
            track.run_baseline.asked = None

    def apply_labels(self, source: str, now_s: float) -> list[Alert]:
        """Apply the user's labels to the subjects of a source; return the alerts this ended."""
        if self.served != self._state.tracks.created:
            # A label from while the daemon was stopped waits for its process to be seen again.
            self.unapplied = True
            # An alert that goes on is not judged without what was known of its subject before.
            for track in self._state.tracks.values():
                if track.alert is not None and track.run_baseline.asked is None:
                    self._look_up(track)
        changed: list[Alert] = []
        devices = self._state.devices_of(source)
        mine = {track.subject.id: track for device in devices for track in device.tracks()}
        for track, word in self._new_labels(mine):
            ended = self._apply_label(track, word, now_s)
            if ended is not None:
                changed.append(ended)
        return changed

    def _apply_label(self, track: Track, word: UserLabel | None, now_s: float) -> Alert | None:
        """Apply a label (None: it was taken back); return the alert that it ended."""
        if track.run_baseline.asked != (track.program or ""):
            self._look_up(track)
        track.suppression = None
        if word is None:
            track.run_baseline.label_row = None
            self._applied.discard(track.subject.id)
            self._look_up(track)
            return None
        track.run_baseline.label_row = word.row
        self._applied.add(track.subject.id)
        then = self._what_it_had_done(track, word)
        level = level_of(then) if then is not None else _level_then(track, word)
        if word.word == "normal" and level is not None:
            job = of_job(word, track.info)
            track.suppression = Suppression(level_bytes=level, why=said_to_be(word), job=job)
        self._look_up(track)
        alert = track.alert
        if track.suppression is None or alert is None:
            return None
        newest = track.window.last
        meant = abs(alert.opened_at_s - word.opened_at_s) < 1.0
        if not meant and (newest is None or newest[1] > track.suppression.level_bytes):
            return None
        label: Facts = {"label": track.suppression.why}
        return self._state.end(track, Ending.LABELLED_NORMAL, now_s, quietly=True, facts=label)

    def _what_it_had_done(self, track: Track, word: UserLabel) -> Profile | None:
        """Return the profile of a run at the time of the word, made now if it is not yet kept."""
        key = self._key(track)
        for run in self._shelf.runs(key):
            if run.word == word.row:
                return run.profile
        at_s = word.given_at_s
        profile = profile_of(track, self._shelf, at_s, until_s=at_s + _SLACK_S)
        if profile is None:
            return None
        profile = msgspec.structs.replace(profile, word=word.word)
        self._shelf.keep(self._run(track, key, profile, word=word.row))
        return profile

    def step(self, mono_s: float) -> None:
        """Do at most one piece of work."""
        if self.unapplied and self.served == self._state.tracks.created:
            self.unapplied = bool(self._new_labels(self._state.tracks))
        if self.served != self._state.tracks.created or self._state.tracks.renamed:
            self._serve_next()
        elif self._state.tracks.ended:
            while self._state.tracks.ended and not self._learn(self._state.tracks.ended.popleft()):
                pass
        elif self.requested:
            self._grant(self.requested.popleft())
        elif mono_s >= self.scan_mono_s:
            self.scan_mono_s = mono_s + _SCAN_EVERY_S
            self._scan()

    def _new_labels(self, tracks: Mapping[str, Track]) -> list[tuple[Track, UserLabel | None]]:
        """Return those whose label, or that it was taken back, has not been followed yet."""
        subjects = (self._labels.keys() | self._applied) & tracks.keys()
        found = [(tracks[subject], self._labels.get(subject)) for subject in subjects]
        return [
            (track, word)
            for track, word in found
            if (None if word is None else word.row) != track.run_baseline.label_row
        ]

    def close(self) -> None:
        """Learn from the runs that go on: the next start may not see them again."""
        while self._state.tracks.ended:
            self._learn(self._state.tracks.ended.popleft())
        going = [t for t in self._state.tracks.values() if t.run_baseline.key is not None]
        for track in going[:_LEAVE_AT_MOST]:
            newest = track.window.last
            profile = newest and profile_of(track, self._shelf, newest[0])
            if profile and track.run_baseline.key is not None:
                self._shelf.keep(self._run(track, track.run_baseline.key, profile))

    def _serve_next(self) -> None:
        """Look up tracks that are new, or whose program has become known; who grows goes first."""
        created = self._state.tracks.created
        stale = [
            track
            for track in self._state.tracks.values()
            if track.run_baseline.asked is None or track.run_baseline.asked != (track.program or "")
        ]
        asked = 0
        for track in sorted(stale, key=lambda track: not _grows(track)):
            if asked == _LOOK_UPS:
                return
            self._look_up(track)
            asked += track.run_baseline.key is not None
        self.served, self._state.tracks.renamed = created, False

    def _look_up(self, track: Track) -> None:
        baseline, known_as = track.run_baseline, self._key(track)
        baseline.asked = track.program or ""
        baseline.key = program_key.key_on(track.program, track.device)
        if baseline.label_row is not None and known_as != self._key(track):
            # What it runs has become known better: what the user said of it moves along.
            for run in self._shelf.runs(known_as):
                if run.word == baseline.label_row:
                    self._shelf.keep(msgspec.structs.replace(run, key=self._key(track)))
        baseline.own = False
        if baseline.key is None and baseline.label_row is None:
            baseline.runs = ()
        else:
            runs = self._shelf.runs(self._key(track))
            baseline.own = any(it.word is not None and it.word == baseline.label_row for it in runs)
            baseline.runs = chosen(
                runs,
                self._labels.values(),
                device_uid=track.subject.device_uid,
                process=track.subject.process,
            )
        self._show(track)

    @staticmethod
    def _show(track: Track) -> None:
        baseline, profiles = track.run_baseline, track.run_baseline.history
        words = [run.word for run in baseline.runs if run.word is not None]
        baseline.shown = KnownRuns(
            runs=len(baseline.runs) - int(baseline.own),
            word=words[-1] if words else None,
            siblings=len(baseline.siblings),
            yesterday=bool(baseline.yesterday),
        )
        track.mark_changed()
        if profiles != track.history:
            track.history = profiles
            track.due_s = 0.0

    @staticmethod
    def _key(track: Track) -> str:
        return track.run_baseline.key or f"subject/{track.subject.id}"

    def _learn(self, leaver: EndedProcess) -> bool:
        """Keep the profile of a run that has ended; say whether that took any time."""
        program, label = leaver.program, leaver.label
        process = leaver.track.subject.process
        if leaver.unobserved and process is not None:
            program, label = self._shelf.program_of(process)
        key = program_key.key_on(program, leaver.track.device)
        newest = leaver.track.window.last
        if key is None or newest is None:
            return False
        if leaver.unobserved and any(
            run.process == process and run.device_uid == leaver.track.subject.device_uid
            for run in self._shelf.runs(key)
            if run.word is None
        ):
            # What ended before the last stop of the daemon, or was kept by it, is known better.
            return False
        profile = profile_of(leaver.track, self._shelf, newest[0], over=not leaver.unobserved)
        if profile is not None:
            self._shelf.keep(self._run(leaver.track, key, profile, label=label))
        return True

    @staticmethod
    def _run(
        track: Track,
        key: str,
        profile: Profile,
        *,
        word: int | None = None,
        label: str | None = None,
    ) -> Run:
        return Run(
            key=key,
            device_uid=track.subject.device_uid,
            process=track.subject.process,
            label=str(track.title.without(*_PLACE)) if label is None else label,
            begun_at_s=profile.ended_at_s - profile.run_s,
            profile=profile,
            word=word,
        )

    def _scan(self) -> None:
        """Note who grows and could do with more knowledge."""
        for track in self._state.tracks.values():
            last = track.window.last
            if last is None:
                continue
            baseline, now_s = track.run_baseline, last[0]
            grows = _grows(track)
            stale = (
                abs(now_s - baseline.siblings_s) >= SIBLINGS_EVERY_S and baseline.key is not None
            )
            past = grows and abs(now_s - baseline.yesterday_s) >= YESTERDAY_EVERY_S
            days = abs(now_s - baseline.days_s) >= DAYS_EVERY_S
            if (grows and stale) or (
                (past or days) and _is_old(track) and (past or track.wants_days(now_s))
            ):
                self.requested.append(track)

    def _grant(self, track: Track) -> None:
        """Do the next thing that a growing track wants to know."""
        last, baseline = track.window.last, track.run_baseline
        if last is None or self._state.tracks.get(track.subject.id) is not track:
            return
        now_s = last[0]
        if _is_old(track) and track.wants_days(now_s):
            judge_days(track, self._state.settings, self._hours(track, now_s), now_s)
            if _grows(track):
                self.requested.append(track)
            return
        if not _grows(track):
            return
        if _is_old(track) and abs(now_s - baseline.yesterday_s) >= YESTERDAY_EVERY_S:
            baseline.yesterday_s = now_s
            baseline.yesterday = self._yesterday(track, now_s)
            self._show(track)
            self.requested.append(track)
            return
        if baseline.key is None:
            return
        siblings = self._siblings(track)
        for other in siblings:
            moved = other.window.moves != other.run_baseline.live_moves
            if moved and abs(now_s - other.run_baseline.live_s) >= SIBLINGS_EVERY_S:
                other.run_baseline.live_s, other.run_baseline.live_moves = now_s, other.window.moves
                other.run_baseline.live = profile_of(other, self._shelf, now_s, kind="sibling")
                self.requested.append(track)
                return
        baseline.siblings_s = now_s
        baseline.siblings = tuple(
            o.run_baseline.live for o in siblings if o.run_baseline.live is not None
        )
        self._show(track)

    def _siblings(self, track: Track) -> list[Track]:
        """Return tracks of the same program, in the same job or from the same parent."""
        mine = self._info(track)
        tracks = [
            other
            for other in self._state.tracks.values()
            if other is not track
            and other.run_baseline.key == track.run_baseline.key
            and other.subject.process != track.subject.process
            and _together(mine, self._info(other))
        ]
        return sorted(tracks, key=lambda other: other.subject.id)[:MOST_SIBLINGS]

    def _info(self, track: Track) -> ProcessInfo | None:
        key: ProcessKey | None = track.subject.process
        return None if key is None else self._state.infos.get(key)

    def _yesterday(self, track: Track, now_s: float) -> tuple[Profile, ...]:
        from gpuwatchd.analysis import forecast  # noqa: PLC0415

        series = whole(track, self._shelf, now_s - _BACK_S)
        if not series.t_s.size or now_s - float(series.t_s[0]) < _DAY_S:
            return ()
        profile = forecast.profile_of_yesterday(series, now_s=now_s)
        return () if profile is None else (profile,)

    def _hours(self, track: Track, now_s: float) -> list[tuple[float, float, float]]:
        uid, key = track.subject.device_uid, track.subject.process
        span, most = (now_s - DAYS_BACK_S, now_s), round(DAYS_BACK_S / curves.HOUR_S) + 1
        if key is None:
            curve = self._shelf.read(curves.of_device, uid, span, most)
        else:
            curve = self._shelf.read(curves.of_process, uid, key, span, most)
        points = [] if curve is None else curve.points
        return [
            (one.last_s, one.low_bytes, one.high_bytes)
            for one in points
            if one.low_bytes is not None and one.high_bytes is not None
        ]


def said_to_be(word: UserLabel | None) -> str:
    """Return the reason of what is quiet because the user said so."""
    who = word.who if word is not None and word.who else "you"
    why = f": {word.why}" if word is not None and word.why else ""
    return f"{who} marked this as normal{why}"


def _level_then(track: Track, word: UserLabel) -> float | None:
    """Return up to where a run that is too short for a profile is what the user saw of it."""
    series = before(track.series(), word.given_at_s + _SLACK_S)
    if not series.t_s.size:
        return None
    low, high = float(series.used_bytes.min()), float(series.used_bytes.max())
    return low + (1.0 + MARGIN) * (high - low)


def _grows(track: Track) -> bool:
    finding = track.finding
    return track.alert is not None or (finding is not None and finding.pattern in LEAK_PATTERNS)


def _is_old(track: Track) -> bool:
    """Say whether a subject may have been there yesterday; what nobody owns is not stored."""
    process, last = track.subject.process, track.window.last
    if track.subject.unattributed or track.subject.host or last is None:
        return False
    begun_s = None if process is None else process.started_at_s
    return process is None or (begun_s is not None and last[0] - begun_s > _DAY_S)


def _together(process: ProcessInfo | None, other: ProcessInfo | None) -> bool:
    """Say whether two processes belong to one job, as far as that is known."""
    if process is None or other is None:
        return False
    if process.job is not None or other.job is not None:
        return process.job == other.job
    unknown = process.parent_pid is None or other.parent_pid is None
    return unknown or process.parent_pid == other.parent_pid
