"""What is known about one subject beside its own curve, and which earlier runs count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core.model import Profile, Value
from gpuwatchd.store import legacy_text
from gpuwatchd.store.live import KnownRuns
from gpuwatchd.store.profiles import KEPT_LAUNCHES, LAUNCH_S, Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.core.model import ProcessInfo, ProcessKey
    from gpuwatchd.store.tables import UserLabel

MARGIN = 0.25
"""What was normal once may be so much more the next time: the spread of a benign program's runs."""
_SLACK_S = 1.0


class Suppression(Value, frozen=True, kw_only=True):
    """Up to which level a subject stays quiet because the user said that it is normal."""

    level_bytes: float
    why: str
    job: bool = False
    """Whether that was said of an alert that stood for several ranks of its job."""


def of_job(word: UserLabel, info: ProcessInfo | None) -> bool:
    """Say whether what the user said was of several ranks: the title of the alert tells."""
    group = None if info is None else info.group
    return group is not None and legacy_text.stands_for(word.title, group)


class TrackBaseline(msgspec.Struct, kw_only=True, eq=False):
    """The memory of one track."""

    asked: str | None = None
    """Program that the runs were looked up for."""
    key: str | None = None
    """That program on this model of card."""
    heard: int | None = None
    """Row of the word that was followed."""
    runs: tuple[Profile, ...] = ()
    own: bool = False
    """Whether one of them is what the subject itself had done when the user spoke."""
    siblings: tuple[Profile, ...] = ()
    yesterday: tuple[Profile, ...] = ()
    live: Profile | None = None
    """What the subject itself has done so far, for its siblings."""
    live_s: float = float("-inf")
    live_moves: int = -1
    """The window's count of moves then: what has not moved has done nothing new."""
    shown: KnownRuns = KnownRuns()
    """The same for people."""
    siblings_s: float = float("-inf")
    yesterday_s: float = float("-inf")

    @property
    def history(self) -> tuple[Profile, ...]:
        """Everything, as a series carries it."""
        return (*self.runs, *self.siblings, *self.yesterday)


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
    if word.word == "leak" or word.given_at_s >= profile.ended_at_s - _SLACK_S:
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
