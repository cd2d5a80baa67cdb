"""From tracks to the live state file: what ``status`` shows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gpuwatchd import __version__, alerts
from gpuwatchd.core.model.alerts import SAID_FOR_S
from gpuwatchd.pipeline.clock import moved_resolved
from gpuwatchd.pipeline.track import Track
from gpuwatchd.store import live
from gpuwatchd.store.live import LiveDevice, LiveProcess, LiveState, UndeliveredAlert
from gpuwatchd.store.ring import CELL_S, Ring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from gpuwatchd.collect.host import Host
    from gpuwatchd.core.model import (
        Alert,
        Event,
        Fault,
        Finding,
        ProcessInfo,
        ProcessKey,
        ProcessUse,
    )
    from gpuwatchd.core.ports import Source
    from gpuwatchd.notify.outbox.outbox import Dispatcher, Outbox, Reach
    from gpuwatchd.pipeline.clock import Clocks
    from gpuwatchd.pipeline.state import State
    from gpuwatchd.pipeline.tick import Problem
    from gpuwatchd.pipeline.track import TrackedDevice
    from gpuwatchd.store.tables import UserLabel
    from gpuwatchd.store.writer import History

SPARK_POINTS = 32
_EVERY_TICKS = 6
_TIERS = {"none": 0, "watch": 1, "alert": 2}


class Spark(msgspec.Struct, frozen=True):
    """The recent past of one device, for a sparkline."""

    values: tuple[int | None, ...] = ()
    step_s: float = 0.0
    samples: int = 0


def worst(findings: Iterable[Finding | None]) -> Finding | None:
    """Return the finding that a device is shown with: highest tier, then confidence."""
    known = [f for f in findings if f is not None]
    return max(
        known,
        key=lambda f: (_TIERS[f.tier], f.confidence, f.pattern != "unknown"),
        default=None,
    )


class _Shown(msgspec.Struct):
    """What is shown of one device, and what it was made of."""

    now: list[object]
    """Compared first, cheaply: where it is equal, nothing has changed."""
    # Compared next: each value that it was made of.
    parts: list[object]
    processes: tuple[LiveProcess, ...]
    finding: Finding | None


class LiveDevices:
    """The devices of the live state; what has not changed since the last tick is used again."""

    def __init__(self) -> None:
        self._kept: dict[str, _Shown] = {}
        self._sparks: dict[str, tuple[Spark, float]] = {}
        """The sparkline of each, drawn anew now and then, and when that was."""

    def spark(self, uid: str, position: int, tick: int, tracks: Mapping[str, Track]) -> Spark:
        """Return the sparkline of the device at a position of the list."""
        pair = self._sparks.get(uid)
        if pair is None or tick < _EVERY_TICKS or tick % _EVERY_TICKS == position % _EVERY_TICKS:
            track = tracks.get(uid)
            ring = track.window if track is not None else None
            if isinstance(ring, Ring) and ring.last is not None:
                now_s = ring.last[0]
                # A column of the sparkline is minutes wide: a look back per tick would be waste.
                if pair is None or abs(now_s - pair[1]) >= 0.25 * pair[0].step_s:
                    step_s = max((now_s - ring.first_s) / SPARK_POINTS, CELL_S)
                    spark = Spark(ring.recent(SPARK_POINTS, step_s), step_s, ring.count)
                    pair = self._sparks[uid] = spark, now_s
        return Spark() if pair is None else pair[0]

    def device(
        self,
        tracked_device: TrackedDevice,
        *,
        spark: Spark,
        infos: Mapping[ProcessKey, ProcessInfo],
        known: tuple[object, ...],
        events: tuple[Event, ...] = (),
    ) -> LiveDevice:
        """Return one device; ``known`` is equal as long as nobody among ``infos`` has changed."""
        reading, uses = tracked_device.reading, tracked_device.uses
        processes: tuple[LiveProcess, ...] | None = None
        age_s: float | None = None
        shown = self._shown(tracked_device, uses or (), infos, known)
        if reading is not None and uses is not None:
            if reading.uses is None:
                age_s = max(0.0, tracked_device.taken_s - tracked_device.uses_s)
            processes = shown.processes
        if reading is not None and reading.uses:
            reading = msgspec.structs.replace(reading, uses=())
        ledger = tracked_device.ledger
        whole = ledger is not None and ledger.state in {"whole", "overlap"}
        return LiveDevice(
            device=tracked_device.device,
            reading=reading,
            unattributed_bytes=ledger.unattributed_bytes if ledger is not None and whole else None,
            finding=shown.finding,
            processes=processes,
            processes_age_s=age_s,
            ledger=ledger,
            recent_bytes=spark.values,
            recent_step_s=spark.step_s,
            samples=spark.samples,
            faults=tuple([fault.text for fault in tracked_device.faults]),
            events=events,
        )

    def _shown(
        self,
        device: TrackedDevice,
        uses: tuple[ProcessUse, ...],
        infos: Mapping[ProcessKey, ProcessInfo],
        known: tuple[object, ...],
    ) -> _Shown:
        uid, processes = device.device.uid, device.processes.values()
        kept = self._kept.get(uid)
        # What is the very same object is not looked into: values are never changed in place.
        now: list[object] = [uses, known, Track.changes, len(processes), len(device.host_tracks)]
        now.append(device.own_tracks[:])
        if kept is not None and kept.now == now:
            return kept
        tracks = [*processes, *device.own_tracks, *device.host_tracks.values()]
        parts: list[object] = [uses, known]
        parts += [track.finding for track in tracks]
        parts += [track.alert if track.lead is None else track.lead.alert for track in tracks]
        parts += [track.run_baseline.shown for track in processes]
        parts += [track.limit for track in processes]
        if kept is not None and kept.parts == parts:
            kept.now = now
            return kept
        findings = {key: track.shown() for key, track in device.processes.items()}
        items = [
            _process(use, info, device, findings.get(use.key))
            for use in uses
            if (info := infos.get(use.key)) is not None
        ]
        # The very same object where nothing has changed: it need not be written anew.
        before = {} if kept is None else {process.info.key: process for process in kept.processes}
        for position, item in enumerate(items):
            same = before.get(item.info.key)
            if same is not None and same == item:
                items[position] = same
        made = self._kept[uid] = _Shown(
            now=now,
            parts=parts,
            processes=tuple(items),
            finding=worst([*findings.values(), *[track.shown() for track in _others(device)]]),
        )
        return made


def _others(device: TrackedDevice) -> list[Track]:
    """Return what is shown beside processes: of the whole only what it is told of beside them."""
    alert = device.own_tracks[0].alert if device.own_tracks else None
    told = alert is not None and alert.state in {"watch", "firing"}
    return device.own_tracks[1:] if device.judged_by_process and not told else device.own_tracks


def _process(
    use: ProcessUse, info: ProcessInfo, device: TrackedDevice, finding: Finding | None
) -> LiveProcess:
    track, host = device.processes.get(use.key), device.host_tracks.get(use.key)
    return LiveProcess(
        info=info,
        used_bytes=use.used_bytes,
        kind=use.kind,
        finding=finding,
        history=track.run_baseline.shown if track is not None and track.run_baseline.key else None,
        sm_pct=use.sm_pct,
        host_bytes=use.host_bytes,
        host_finding=None if host is None else host.shown(),
        limit=None if track is None else track.limit,
    )


# Jobs that ran out of memory within the last day, kept up to date tick by tick.


class RecentDeaths:
    """Remembers them by key and opening, and leaves out those that the user has spoken of."""

    def __init__(self, history: History | None) -> None:
        self._history = history
        self._alerts: dict[tuple[str, float], Alert] = {}
        self._labels: Iterable[UserLabel] = ()
        self._labels_of = -1
        """How often others had written when the labels were read last."""

    def note(self, alerts: Iterable[Alert]) -> None:
        """Take in alerts as they stand now."""
        self._alerts.update({(a.key, a.opened_at_s): a for a in alerts if a.died})

    def move(self, by_s: float) -> None:
        """Follow a step of the wall clock."""
        self.note([moved_resolved(alert, by_s) for alert in self._alerts.values()])

    def to_show(self, now_s: float) -> tuple[Alert, ...]:
        """Return those that are to be named now, newest first."""
        if not self._alerts:
            return ()
        shelf = None if self._history is None else self._history.shelf
        if shelf is not None and shelf.outside != self._labels_of:
            labels = shelf.user_labels()
            if labels is not None:
                self._labels_of, self._labels = shelf.outside, labels
        unmarked = [
            alert
            for alert in self._alerts.values()
            if not any(label.is_about(alert) for label in self._labels)
        ]
        deaths = alerts.recent_deaths(unmarked, now_s)
        self._alerts = {(alert.key, alert.opened_at_s): alert for alert in deaths}
        return deaths


class UndeliveredAlerts:
    """What nobody was told of in time: where memory probably ran out, or it was critical.

    What came back by itself is no longer of interest. The history knows it over restarts; it is
    asked only when something has changed.
    """

    def __init__(self, history: History | None, reach: Reach) -> None:
        self._history = history
        self._reach = reach
        self._found: tuple[UndeliveredAlert, ...] = ()
        self._asked_at: tuple[int, int] | None = None

    def lost(self, now_s: float) -> tuple[UndeliveredAlert, ...]:
        """Return those of the last day, oldest first; the same object until something changes."""
        # What arrives only takes some out: where there is none nothing can have changed.
        arrivals = self._reach.arrivals if self._found else 0
        changes = self._reach.failures, arrivals
        if self._asked_at != changes and self._history is not None:
            found = self._history.undelivered_since(now_s - SAID_FOR_S)
            if found is not None:
                self._asked_at = changes
                self._found = tuple(
                    UndeliveredAlert(
                        key=alert.key, code=alert.code, title=alert.title, severity=alert.severity,
                        ended=alert.ended, ended_at_s=alert.resolved_at_s,
                    )
                    for alert in found
                    if alert.resolved_at_s is not None
                    and (alert.ran_out or alert.severity == "critical")
                )  # fmt: skip
        if any(now_s - alert.ended_at_s >= SAID_FOR_S for alert in self._found):
            self._found = tuple(
                alert for alert in self._found if now_s - alert.ended_at_s < SAID_FOR_S
            )
        return self._found


_RSS_EVERY_TICKS = 12


class Inputs(NamedTuple):
    """What a pipeline reads."""

    sources: Sequence[Source]
    """Read every tick, each in its own thread."""
    host: Host | None = None
    """Looks processes up by pid; None where the samples name them (logs, simulation)."""
    fresh: Callable[[int], Source] | None = None
    """Makes the source at a position anew: for one whose thread is stuck in a driver."""
    absences: Callable[[list[Fault | None]], list[Problem]] | None = None
    """Makes sentences of why each source gives nothing (None: it does not); None tells them all."""


class Outputs(NamedTuple):
    """Where a pipeline writes to."""

    history: History | None = None
    """Keeps samples and alerts; None keeps nothing."""
    runtime_dir: Path | None = None
    """Where the live state is written each tick; None writes none."""
    message_dispatcher: Dispatcher | None = None
    """Carries messages; None: nobody is notified."""


class LiveWriter:
    """Makes the live state, and writes it where there is a directory for it."""

    def __init__(
        self, state: State, outputs: Outputs, *, outbox: Outbox, host: Host | None, clocks: Clocks
    ) -> None:
        self._state = state
        self._directory = outputs.runtime_dir
        self._outbox = outbox
        self._host = host
        self._clocks = clocks
        self.boot_id = "" if outputs.history is None else outputs.history.boot_id
        self._undelivered = UndeliveredAlerts(outputs.history, outbox.reach)
        self._ticks = 0
        self._rss_bytes: int | None = None
        self._devices = LiveDevices()
        self._pieces = live.Pieces()
        self._pause_s = 0.0
        self._alerts: tuple[tuple[int, bool], list[Alert], list[Alert]] = ((-1, False), [], [])
        """The alerts that are open, and those that are not yet, and of what they are made."""
        now_s, interval_s = clocks.wall(), float(state.settings.config.daemon.interval)
        self.last = LiveState(
            pid=os.getpid(),
            version=__version__,
            coded=True,
            started_at_s=now_s,
            taken_at_s=now_s,
            interval_s=interval_s,
        )
        """What was made last: shown again where no newer one can be made."""

    def read_previous(self) -> LiveState | None:
        """Read what an earlier run has left."""
        return None if self._directory is None else live.read(self._directory)

    def note_pause(self, pause_s: float) -> None:
        """Note after how many seconds the next state comes: readers hold its age against that."""
        self._pause_s = pause_s

    def write(self, state: LiveState) -> None:
        """Write a live state; only what has changed of it is made anew."""
        if self._directory is not None:
            live.write(self._directory, state, self._pieces)

    def snapshot(
        self,
        now_s: float,
        problems: Sequence[Problem],
        deaths: tuple[Alert, ...],
        *,
        stopped: bool = False,
    ) -> LiveState:
        """Return how all stands after a tick; ``stopped``: there is no further one.

        ``deaths`` are those of jobs that people have not seen yet.
        """
        state = self._state
        self._ticks += not stopped
        if self._host is not None and self._ticks % _RSS_EVERY_TICKS == 1:
            self._rss_bytes = self._host.own_rss_bytes()
        infos = state.engines.with_models(state.infos) if state.engines.named else state.infos
        # Nobody is asked while no track has changed, but for conditions, which do not count.
        now = (Track.changes, bool(state.conditions))
        if state.conditions or self._alerts[0] != now:
            self._alerts = now, state.open_alerts(), list(state.pending_alerts())
        _, alerts, pending = self._alerts
        known = (state.infos.changes, state.engines.named)
        devices = [
            self._devices.device(
                device,
                spark=self._devices.spark(uid, position, self._ticks, state.tracks),
                infos=infos,
                known=known,
                events=state.events.shown.get(uid, ()),
            )
            for position, (uid, device) in enumerate(state.devices.items())
        ]
        self.last = msgspec.structs.replace(
            self.last,
            taken_at_s=now_s,
            interval_s=max(float(state.settings.config.daemon.interval), self._pause_s),
            ticks=self._ticks,
            devices=tuple(devices),
            boot_id=self.boot_id,
            clock_ahead_s=self._clocks.wall() - self._clocks.mono(),
            alerts=(*alerts, *state.restored.alerts.values()),
            pending=tuple(pending),
            problems=tuple([text for text, _ in problems]),
            problem_codes=tuple([code for _, code in problems]),
            rss_bytes=self._rss_bytes,
            holdings=state.holdings,
            silences=state.silences.active,
            channels=self._outbox.channel_health(),
            untold=self._outbox.reach.undelivered(),
            lost=self._undelivered.lost(now_s),
            deaths=deaths,
            stopped=stopped,
            servers=state.engines.readings,
        )
        return self.last
