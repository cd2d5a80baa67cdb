"""What an alert costs at this moment: prices, who has how much, and when it last saved its work."""

from __future__ import annotations

import logging
import queue
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatchd.analysis import cost
from gpuwatchd.collect.host import checkpoint_files
from gpuwatchd.core.model import Subject
from gpuwatchd.store import occupancy, tables
from gpuwatchd.store.occupancy import WIDTH_S
from gpuwatchd.store.tables import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuwatchd.analysis.cost import MemoryBucket
    from gpuwatchd.collect.host.checkpoint_files import Saved
    from gpuwatchd.core.model import Alert, Cost, ProcessInfo, ProcessKey
    from gpuwatchd.pipeline.state import State
    from gpuwatchd.pipeline.track import Track, TrackedDevice
    from gpuwatchd.store.profiles import ProfileStore
    from gpuwatchd.store.writer import History

# Looking for checkpoints of jobs that have an alert: in a thread of its own, with a deadline.

log = logging.getLogger("gpuwatchd")

DEADLINE_S: Final = 30.0
"""A look that takes longer is stuck, as a rule in a file server that does not answer."""


class Saves:
    """One thread that looks, when there is something to look for."""

    def __init__(
        self,
        look: Callable[..., Saved | None] = checkpoint_files.newest,
        *,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._mono = mono
        self._wishes: queue.SimpleQueue[
            tuple[tuple[str, ...], tuple[ProcessInfo, ...], float] | None
        ] = queue.SimpleQueue()
        self._found: queue.SimpleQueue[list[Checkpoint]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._asked_s: float | None = None

    @property
    def problem(self) -> str:
        """What is wrong, in one sentence; "" when nothing is."""
        if self._asked_s is not None and self._mono() - self._asked_s > DEADLINE_S:
            return (
                "[checkpoints] paths: looking for files has not come back for "
                f"{self._mono() - self._asked_s:.0f} s; checkpoints are unknown until it does"
            )
        return ""

    @property
    def busy(self) -> bool:
        """Whether a look is under way."""
        return self._asked_s is not None

    def ask(self, patterns: tuple[str, ...], infos: tuple[ProcessInfo, ...], now_s: float) -> None:
        """Have these processes looked for; nothing happens while a look is under way."""
        if self._asked_s is not None or not patterns or not infos:
            return
        if self._thread is None:
            # A daemon thread: one that hangs in a file server must not keep the program from
            # ending.
            self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
            self._thread.start()
        self._asked_s = self._mono()
        self._wishes.put((patterns, infos, now_s))

    def collect(self) -> list[Checkpoint]:
        """Return what the last look found, once it is back."""
        try:
            checkpoints = self._found.get_nowait()
        except queue.Empty:
            return []
        self._asked_s = None
        return checkpoints

    def close(self) -> None:
        """Let the thread end when it comes back."""
        if self._thread is not None:
            self._wishes.put(None)

    def _run(self) -> None:
        while (wish := self._wishes.get()) is not None:
            patterns, infos, now_s = wish
            checkpoints = []
            for info in infos:
                try:
                    saved = self._look(patterns, info, now_s=now_s)
                except Exception:
                    # A file system may fail in any way; the other jobs are looked for all the same.
                    log.debug("failed part=checkpoints pid=%d", info.key.pid, exc_info=True)
                    continue
                if saved is not None:
                    checkpoints.append(
                        Checkpoint(
                            process=info.key,
                            saved_at_s=saved.at_s,
                            said_by="file",
                            detail=saved.path,
                        )
                    )
            self._found.put(checkpoints)


_OPEN: Final = frozenset({"watch", "firing"})
_KEPT: Final = 1000
"""Checkpoints remembered where there is no history."""


class CheckpointSearch:
    """Keeps ``State.checkpoints``: what jobs reported, and what is found in files."""

    def __init__(
        self, state: State, shelf: ProfileStore | None, saves: Saves | None = None
    ) -> None:
        self._state = state
        self._shelf = shelf
        self._saves = Saves() if saves is None else saves
        self.outside = -1
        """``ProfileStore.outside`` when those that were reported were read."""
        self.busy = False
        """Whether files are being looked for."""
        self._looked_s: float | None = None

    @property
    def problem(self) -> str:
        """What is wrong now, in one sentence; "" when nothing is."""
        return self._saves.problem

    def step(self, now_s: float) -> None:
        """Take in what was reported, and look for files where that is due."""
        shelf = self._shelf
        if shelf is not None and shelf.outside != self.outside:
            checkpoints = shelf.checkpoints()
            if checkpoints is not None:
                self._state.checkpoints[:], self.outside = checkpoints, shelf.outside
        for checkpoint in self._saves.collect():
            self._note(checkpoint)
        section, last_s = self._state.settings.config.checkpoints, self._looked_s
        recent = last_s is not None and 0.0 <= now_s - last_s < float(section.every)
        if section.paths and not self._saves.busy and not recent:
            self._looked_s = now_s
            self._saves.ask(section.paths, tuple(self._wanted()), now_s)
        self.busy = self._saves.busy

    def _note(self, checkpoint: Checkpoint) -> None:
        known = self._state.checkpoints.newest(checkpoint.process)
        if known is not None and known.saved_at_s >= checkpoint.saved_at_s:
            return
        self._state.checkpoints.append(checkpoint)
        del self._state.checkpoints[:-_KEPT]
        if self._shelf is not None:
            self._shelf.keep_checkpoint(checkpoint)

    def _wanted(self) -> Iterator[ProcessInfo]:
        """Yield the processes of this machine that an open alert is about, ranks included."""
        keys: set[ProcessKey] = set()
        for track in list(self._state.tracks.values()):
            alert = track.alert
            if alert is None or alert.state not in _OPEN or track.device.recorded:
                continue
            for _, key in _members(self._state, alert):
                info = None if key is None else self._state.infos.get(key)
                if info is not None and info.key not in keys:
                    keys.add(info.key)
                    yield info


class AlertCosts:
    """Knows what alerts cost: by prices, checkpoints, and who held how much."""

    def __init__(self, state: State, history: History | None) -> None:
        self._state = state
        self._history = history
        self._shelf = None if history is None else history.shelf

    def of(self, alert: Alert, now_s: float, *, died: bool = False) -> Cost | None:
        """Return what an alert costs so far and until memory is full; None where that is off.

        Looks into the history: for when an alert changes, not for every tick. ``died``: its
        process has just run out of memory.
        """
        if alert.kind == "gpu":
            return None  # What a broken device costs depends on what would have run there.
        if alert.kind == "held":
            return self._of_held(alert, now_s)
        members = _members(self._state, alert)
        keys = [key for _, key in members if key is not None]
        started = [key.started_at_s for key in keys]
        known = [at_s for at_s in started if at_s is not None]
        finding = alert.finding
        left_s = None
        if finding.eta is not None and alert.state != "resolved":
            left_s = max(0.0, finding.judged_at_s + finding.eta.mid_s - now_s)
        begun_s = min(known) if keys and len(known) == len(keys) else None
        if not keys:
            begun_s = alert.opened_at_s if finding.onset_at_s is None else finding.onset_at_s
        rows = self._rows if keys else self._watched
        end_s = float("inf") if alert.resolved_at_s is None else alert.resolved_at_s
        saves = self._state.checkpoints
        last_s = tables.last_saved_s(saves, keys, end_s) if saves else None
        if died and keys and self._history is not None:
            # As ``cost`` counts it later: from all that was seen, which is to be written for that.
            self._history.flush(now_s)
            rows = self._written
        since_s = (begun_s, last_s)
        return self._charged(alert, members, rows, now_s, since_s, left_s=left_s, lasts=not died)

    def _charged(
        self,
        alert: Alert,
        members: list[tuple[str, ProcessKey | None]],
        rows: Callable[[str, float, float], list[MemoryBucket]],
        now_s: float,
        since_s: tuple[float | None, float | None],
        *,
        left_s: float | None = None,
        lasts: bool = True,
    ) -> Cost | None:
        """Return what falls to an alert; ``since_s``: when it started, and was saved last."""
        prices = self._state.prices.table
        ask = cost.UsageProvider(rows, lambda uid, *_: self._state.prices.of(uid, now_s))
        had = cost.charged_usage(
            members,
            ask,
            started_at_s=since_s[0],
            saved_at_s=since_s[1],
            until_s=now_s if alert.resolved_at_s is None else alert.resolved_at_s,
            lasts=lasts,
        )
        found = cost.charge(
            [part for _, part in had.parts],
            prices,
            since_at_s=had.since_at_s,
            # What nobody owns, and what is held, has no start.
            since=had.since if alert.subject.process and alert.kind == "leak" else "first-seen",
            left_s=left_s,
        )
        if found is None:
            # Of who has gone without having been written down, what was known before counts.
            return None if prices.off else alert.cost
        subjects = [Subject(device_uid=uid, process=key) for uid, key in members]
        return msgspec.structs.replace(found, members=tuple(subjects))

    def _of_held(self, alert: Alert, now_s: float) -> Cost | None:
        """Return what idle memory has cost: its share of the device's."""
        if alert.subject.process is None:
            return None

        def rows(uid: str, since_s: float, until_s: float) -> list[MemoryBucket]:
            device = self._state.devices.get(uid)
            total = None if device is None else device.headroom.total_bytes
            return cost.with_rest(self._rows(uid, since_s, until_s), total)

        return self._charged(alert, self._holders(alert), rows, now_s, (alert.opened_at_s, None))

    def _holders(self, alert: Alert) -> list[tuple[str, ProcessKey | None]]:
        """Return each device on which an alert's process holds memory without work, or has."""
        subject, kinds = alert.subject, self._state.settings.config.policy.tell_held
        subjects = () if alert.cost is None else alert.cost.members
        pairs = [(one.device_uid, one.process) for one in (subject, *subjects)]
        if alert.resolved_at_s is None:
            pairs += [
                (holding.device_uid, holding.process.key)
                for holding in self._state.holdings
                if holding.kind in kinds
                and holding.process
                and holding.process.key == subject.process
            ]
        return list(dict.fromkeys(pairs))

    def _rows(self, uid: str, since_s: float, until_s: float) -> list[MemoryBucket]:
        """Return who held what on a device: as written down, and since then as remembered."""
        helds = None if self._shelf is None else self._shelf.occupancy(uid, since_s, until_s)
        rows = list(helds or ())
        end_s = max([row.at_s + row.width_s for row in rows], default=float("-inf"))
        device = self._state.devices.get(uid)
        rest = () if device is None else _remembered(device, since_s, until_s)
        return rows + [row for row in rest if row.at_s >= end_s]

    def _written(self, uid: str, since_s: float, until_s: float) -> list[MemoryBucket]:
        """Return who held what on a device as it is written down, whole hours as one."""
        shelf = self._shelf
        question = partial(occupancy.by_hour, uid=uid, since_s=since_s, until_s=until_s)
        return [] if shelf is None else shelf.read(question) or []

    def _watched(self, uid: str, since_s: float, until_s: float) -> list[MemoryBucket]:
        """Return the minutes in which a device was watched, as those of one that is alone."""
        shelf = self._shelf
        pairs = [] if shelf is None else shelf.minutes(uid, None, since_s, until_s)
        minutes = {end_s - WIDTH_S for end_s, _ in pairs}
        device = self._state.devices.get(uid)
        if device is not None and device.own_tracks:
            minutes |= _minutes(device.own_tracks[0], since_s, until_s).keys()
        return [cost.MemoryBucket(at_s, None, None) for at_s in minutes]


def _members(state: State, alert: Alert) -> list[tuple[str, ProcessKey | None]]:
    """Return every device that an alert's subject is on; of a job, those of all its ranks."""
    subject = alert.subject
    if subject.process is None:
        return [(subject.device_uid, None)]
    infos = state.infos
    info = infos.get(subject.process)
    pairs: list[tuple[str, ProcessKey | None]] = [(subject.device_uid, subject.process)]
    if alert.resolved_at_s is not None and alert.cost is not None:
        # They have gone: who they were is what was known last.
        pairs += [(member.device_uid, member.process) for member in alert.cost.members]
        return list(dict.fromkeys(pairs))
    team = None if info is None else info.team
    if team is not None:
        track = state.tracks.get(subject.id)
        team = team if track is not None and track.leads else None
    for uid, device in state.devices.items():
        for key in device.processes:
            other = infos.get(key)
            mine = key == subject.process or (
                team is not None and other is not None and other.team == team
            )
            if mine and (uid, key) not in pairs:
                pairs.append((uid, key))
    return pairs


def _remembered(device: TrackedDevice, since_s: float, until_s: float) -> Iterator[MemoryBucket]:
    """Yield what the windows of a device's processes say, minute by minute."""
    for key, track in device.processes.items():
        for at_s, held_bytes in _minutes(track, since_s, until_s).items():
            yield cost.MemoryBucket(at_s, key, held_bytes)


def _minutes(track: Track, since_s: float, until_s: float) -> dict[float, float]:
    """Return the most that a track held in each minute of a span, by the minute's start."""
    found: dict[float, float] = {}
    t_s, values = track.window.window()
    for at_s, held_bytes in zip(t_s.tolist(), values.tolist(), strict=True):
        if since_s - WIDTH_S < at_s < until_s + 1.0:
            minute = at_s // WIDTH_S * WIDTH_S
            found[minute] = max(held_bytes, found.get(minute, 0.0))
    return found
