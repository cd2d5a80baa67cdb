"""What the stages of a tick share: settings, devices, tracks, alerts, silences, prices.

Also what an earlier run has left of them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatchd import alerts as policy
from gpuwatchd.alerts import wording
from gpuwatchd.alerts.ladder import Countdown
from gpuwatchd.analysis import attribution, cost
from gpuwatchd.analysis.frameworks.engine_addresses import only_model
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.config import prices, validation
from gpuwatchd.core.config.schema import THRESHOLDS
from gpuwatchd.core.model import Matcher, ProcessKey, ServerReading, Subject
from gpuwatchd.core.model.alerts import Title
from gpuwatchd.pipeline.active_silences import ActiveSilences
from gpuwatchd.pipeline.clock import moved_alert
from gpuwatchd.pipeline.event_log import EventLog
from gpuwatchd.pipeline.track import calm_reason
from gpuwatchd.pipeline.tracks import ProcessInfos, Tracks
from gpuwatchd.store import tables
from gpuwatchd.store.occupancy import WIDTH_S
from gpuwatchd.store.ring import Ring
from gpuwatchd.store.tables import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping

    from gpuwatchd.analysis.cost import Price, Prices
    from gpuwatchd.analysis.frameworks.engine_addresses import Address
    from gpuwatchd.core.codes import ActHold, Facts
    from gpuwatchd.core.config import Config, DetectionSection
    from gpuwatchd.core.model import Alert, AlertSubject, Holding, ProcessInfo
    from gpuwatchd.pipeline.device_rings import RecentActivity
    from gpuwatchd.pipeline.track import Track, TrackedDevice
    from gpuwatchd.store.writer import History

_MOST_DEAD = 4
_CONDITIONS = (
    *("gpu", "user", "process", "framework", "command", "job", "container"),
    *("kind", "pattern"),
)


def rules_of(config: Config) -> policy.Rules:
    """Return policy's rules from the configuration, their spans as JSON can write them."""
    section = config.policy
    return policy.Rules(
        channels=section.channels,
        confirm=section.confirm,
        alert_confidence=config.detection.confidence_threshold,
        cooldown_s=float(section.cooldown),
        flap_hold_s=float(section.flap_hold),
        clear_after=section.clear_after,
        repeat_s=tuple(float(step) for step in section.repeat),
        recovered=section.recovered,
        max_per_hour=section.max_per_hour,
        group_interval_s=float(section.group_interval),
        flaps=section.flaps,
        severity=dict(section.severity),
        quiet={
            name: tuple(validation.parse(text) for text in ranges)
            for name, ranges in section.quiet_hours.items()
        },
        overrides=tuple(
            policy.Override(
                matcher=Matcher(**{name: getattr(one, name) for name in _CONDITIONS}),
                name=f"override {number}",
                mute=one.mute,
                grows=one.grows,
                grows_to_bytes=one.grows_to,
                severity=one.severity,
                channels=one.channels,
                repeat_s=None if one.repeat is None else tuple(map(float, one.repeat)),
                act=one.act,
                detection={
                    name: float(value)
                    for name in THRESHOLDS
                    if (value := getattr(one, name)) is not None
                },
                why=one.why,
            )
            for number, one in enumerate(config.override, start=1)
        ),
    )


class Settings:
    """The settings in force, and what is made of them."""

    def __init__(self, config: Config, rules: policy.Rules | None = None) -> None:
        self.config, self.rules = config, rules or rules_of(config)
        self.overrides = [
            override
            for override in self.rules.overrides
            if override.detection and policy.fits(override.matcher.kind, "leak")
        ]
        """Those that have thresholds of their own."""
        self._detection: dict[tuple[tuple[str, float], ...], DetectionSection] = {}

    def detection_of(self, about: AlertSubject, device_uid: str) -> DetectionSection:
        """Return the thresholds for a subject: of overrides that fit, the last to set one wins."""
        changes: dict[str, float] = {}
        for override in self.overrides:
            if policy.is_about(override.matcher, about, device_uid):
                changes |= override.detection
        key = tuple(sorted(changes.items()))
        if key not in self._detection:
            self._detection[key] = msgspec.structs.replace(self.config.detection, **changes)
        return self._detection[key]

    @property
    def span_s(self) -> float:
        """For how long points are kept, in seconds."""
        return self.config.detection.analysis_window_hours * 3600.0


class ConditionAlert(msgspec.Struct, eq=False):
    """One subject of a condition alert: one that no series is judged for."""

    alert: Alert | None
    last_known_s: float
    """When its condition could last be read."""
    well_since_s: float | None = None
    """Since when it has been well again."""


KEPT: Final = 240
"""Answers of each server that are remembered: an hour at the usual pace."""


class Server(msgspec.Struct, kw_only=True, eq=False):
    """One server that is asked."""

    kind: str
    url: str
    configured: bool = False
    address: Address | None = None
    members: dict[ProcessKey, float] = {}
    """Processes on a GPU that belong to it -> when each was last seen (monotonic)."""
    runs: dict[ProcessKey, str] = {}
    """What each of them was started for, as far as its command line says."""
    past: deque[ServerReading] = msgspec.field(default_factory=lambda: deque(maxlen=KEPT))
    seen_s: float = 0.0
    """When a process of it was last seen (monotonic), in a container too."""
    due_s: float = 0.0
    pending: bool = False
    failures: int = 0

    def model_of(self, key: ProcessKey) -> str | None:
        """Return which model a process of it serves; None where that is not certain.

        Ollama has a process for each model, and one that it has forgotten may be among them.
        """
        if self.kind == "Ollama" and len(self.members) > 1:
            return self.runs.get(key)
        return only_model(self.past[-1]) or self.runs.get(key)


class Engines:
    """The servers by address, and what others use of their answers."""

    def __init__(self) -> None:
        self.servers: dict[str, Server] = {}
        self.readings: tuple[ServerReading, ...] = ()
        """The newest answer of each server that has been asked."""
        self.named: dict[ProcessKey, str] = {}
        """Processes whose model is known beyond doubt -> its name."""
        self._with_models: dict[ProcessKey, tuple[ProcessInfo, ProcessInfo]] = {}

    def publish(self, servers: Iterable[Server]) -> None:
        """Bring what others use up to date; ``servers`` are those that have answered."""
        servers = tuple(servers)
        self.readings = tuple(server.past[-1] for server in servers)
        self.named = {
            key: model
            for server in servers
            for key in server.members
            if (model := server.model_of(key)) is not None
        }
        self._with_models = {
            key: pair for key, pair in self._with_models.items() if key in self.named
        }

    def recent(self, url: str) -> tuple[ServerReading, ...]:
        """Return the remembered answers of a server, oldest first, failures among them."""
        server = self.servers.get(url)
        return tuple(server.past) if server is not None else ()

    def members(self, url: str) -> tuple[ProcessKey, ...]:
        """Return the processes on a GPU that belong to a server."""
        server = self.servers.get(url)
        return tuple(server.members) if server is not None else ()

    def with_models(
        self, infos: Mapping[ProcessKey, ProcessInfo]
    ) -> Mapping[ProcessKey, ProcessInfo]:
        """Return who processes are, with the models that they serve."""
        with_models = dict(infos)
        for key, model in self.named.items():
            info = infos.get(key)
            if info is None or info.model is not None:
                continue
            pair = self._with_models.get(key)
            if pair is None or pair[0] is not info or pair[1].model != model:
                pair = self._with_models[key] = (info, msgspec.structs.replace(info, model=model))
            with_models[key] = pair[1]
        return with_models


class IdleLevels(dict[str, attribution.Baseline]):
    """What nobody owns on idle devices, by UUID, as far as it was learned before."""

    def __init__(self) -> None:
        super().__init__()
        self.changed: dict[str, attribution.Baseline] = {}
        """Those that have changed since they were last written."""


class Checkpoints(list[Checkpoint]):
    """When jobs have saved their work, as far as that is known."""

    def newest(self, process: ProcessKey) -> Checkpoint | None:
        """Return the newest one of a process; None where none is known."""
        of_it = [one for one in self if tables.same_process(one.process, process)]
        return max(of_it, key=lambda checkpoint: checkpoint.saved_at_s, default=None)


class Countdowns(dict["ProcessKey", Countdown]):
    """The countdowns that run before steps of ``[act]``, by process."""

    def __init__(self) -> None:
        super().__init__()
        self.resting: dict[ProcessKey, tuple[float, ActHold]] = {}
        """Until when no countdown begins, and what has ended the last one."""


class DevicePrices:
    """What the devices cost, with the electricity that they were seen to take."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._table: Prices | None = None
        self._power: dict[str, tuple[float, float]] = {}
        """UUID -> watts times seconds, and seconds, since the daemon runs."""
        self._measured_s: float | None = None

    @property
    def table(self) -> Prices:
        """The prices of the configuration in force."""
        section = self._state.settings.config.cost
        if self._table is None or self._table.section is not section:
            self._table = cost.Prices(section, prices.builtin())
        return self._table

    def of(self, uid: str, now_s: float) -> Price | None:
        """Return what a device costs; None where that is unknown."""
        devices = {key: tracked.device for key, tracked in self._state.devices.items()}
        device = devices.get(uid)
        if device is None:
            return None
        energy, watched_s = self._power.get(device.parent_uid or uid, (0.0, 0.0))
        power_w = energy / watched_s if watched_s > 0.0 else None
        return self.table.of(device, devices, now_s=now_s, power_w=power_w)

    def measure(self, now_s: float) -> None:
        """Add up what devices take, where electricity is paid for."""
        section = self._state.settings.config.cost
        if section.mode != "owned" or section.electricity_per_kwh is None:
            return
        before_s, self._measured_s = self._measured_s, now_s
        step_s = 0.0 if before_s is None else now_s - before_s
        if not 0.0 < step_s < WIDTH_S:
            return
        for uid, device in self._state.devices.items():
            power_w = None if device.reading is None else device.reading.power_w
            if power_w is not None:
                energy, watched_s = self._power.get(uid, (0.0, 0.0))
                self._power[uid] = (energy + power_w * step_s, watched_s + step_s)


# What an earlier run of the daemon left: points of series, and alerts that are still open.

Past = tuple[Subject, Sequence[tuple[float, float]]]
PREVIOUS_RUN = "an earlier run"
"""``source`` for the notifier, of alerts whose subject has not appeared since the start."""
UNCLAIMED_S = 600.0
"""For so long they wait for it in silence: until then they may no longer be true."""


class UnclaimedAlert:
    """The alert of a subject that has not appeared: an ``AlertHolder`` over ``alerts[key]``."""

    def __init__(self, alerts: dict[str, Alert], key: str) -> None:
        self._alerts = alerts
        self._key = key

    @property
    def alert(self) -> Alert | None:
        """The alert as it stands."""
        return self._alerts.get(self._key)

    @alert.setter
    def alert(self, alert: Alert | None) -> None:
        if alert is not None:
            self._alerts[self._key] = alert


class RestoredState:
    """Handed out part by part, as the subjects appear that it belongs to."""

    def __init__(self) -> None:
        self.alerts: dict[str, Alert] = {}
        """Open alerts whose subject has not appeared yet, by subject id."""
        self.pending: dict[str, Alert] = {}
        """The same of alerts that were not open yet; they wait for the first minute only."""
        self._rings: dict[str, dict[Subject, Ring]] = {}
        self.attributed_at_s: dict[str, float] = {}
        """When it was last known who holds all of a device's memory, by UUID."""
        self.activity: dict[str, RecentActivity] = {}
        """What devices did lately, by UUID."""
        self.missing: dict[str, set[ProcessKey]] = {}
        """Whom the last list of a device did not name, until the next one."""

    def adopt(self, alert: Alert) -> None:
        """Remember an open alert of an earlier run, for the track that will appear."""
        self.alerts[alert.subject.id] = alert

    def refill(self, past: Iterable[Past], span_s: float) -> None:
        """Remember points, for the tracks that will appear."""
        for subject, points in past:
            # Packed at once: as tuples the points of a busy machine would take 30 MiB.
            ring = self._rings.setdefault(subject.device_uid, {})[subject] = Ring(span_s)
            for t_s, value in points:
                ring.add(t_s, value)

    def extend(self, t_s: float, newest: Iterable[tuple[Subject, int | None]]) -> None:
        """Add what the live state knew later than the history did, to series of the latter."""
        for subject, held in newest:
            ring = self._rings.get(subject.device_uid, {}).get(subject)
            if ring is not None and held is not None:
                ring.add(t_s, held)

    def move(self, by_s: float) -> list[Alert]:
        """Move all of it in time: the wall clock was stepped; return the open alerts."""
        self.pending = {key: moved_alert(alert, by_s) for key, alert in self.pending.items()}
        for rings in self._rings.values():
            for ring in rings.values():
                ring.shift(by_s)
        for activity in self.activity.values():
            activity.move(by_s)
        self.alerts = {key: moved_alert(alert, by_s) for key, alert in self.alerts.items()}
        return list(self.alerts.values())

    def ring(self, subject: Subject) -> Ring | None:
        """Hand out the points of a subject."""
        return self._rings.get(subject.device_uid, {}).pop(subject, None)

    def parts(self, uid: str) -> dict[ProcessKey, Ring]:
        """Return the points of a device's processes that have not been handed out."""
        rings = self._rings.get(uid, {})
        return {one.process: ring for one, ring in rings.items() if one.process and not one.host}

    def alert(self, subject: Subject) -> Alert | None:
        """Hand out the alert of a subject."""
        pending = self.pending.pop(subject.id, None) if self.pending else None
        return self.alerts.pop(subject.id, pending) if self.alerts else pending

    def unclaimed(self, now_s: float) -> list[UnclaimedAlert]:
        """Return the alerts whose subject has not appeared for ten minutes."""
        return [
            UnclaimedAlert(self.alerts, key)
            for key, alert in self.alerts.items()
            if now_s - alert.finding.judged_at_s >= UNCLAIMED_S
        ]

    def left(self, uid: str, present: Container[ProcessKey]) -> set[ProcessKey]:
        """Return the processes of a device that two lists in a row did not name.

        They ended while nobody watched; one list without them may be a slip of the driver.
        """
        subjects = [*self._rings.get(uid, ()), *(alert.subject for alert in self.alerts.values())]
        missing = {
            one.process
            for one in subjects
            if one.device_uid == uid and one.process is not None and one.process not in present
        }
        left = missing & self.missing.get(uid, set())
        self.missing[uid] = missing - left
        return left

    def gone(self, uid: str, left: Container[ProcessKey]) -> Iterator[tuple[Subject, Ring]]:
        """Hand out the points of a device's processes that have left."""
        rings = self._rings.get(uid, {})
        for subject in [one for one in rings if one.process in left]:
            ring = rings.pop(subject)
            if not subject.host:
                yield subject, ring

    def orphaned(
        self, uid: str, left: Container[ProcessKey], rules: policy.Rules, now_s: float
    ) -> list[Alert]:
        """End the alerts of a device's processes that have left."""
        gone = [
            alert
            for alert in self.alerts.values()
            if alert.subject.device_uid == uid and alert.subject.process in left
        ]
        return self._disown(gone, Ending.ENDED_UNOBSERVED, rules, now_s)

    def expired(self, devices: Container[str], rules: policy.Rules, now_s: float) -> list[Alert]:
        """End the alerts of devices that do not come back."""
        lost = [a for a in self.alerts.values() if a.subject.device_uid not in devices]
        return self._disown(lost, Ending.NOT_SEEN, rules, now_s)

    def _disown(
        self, orphans: Iterable[Alert], why: Ending, rules: policy.Rules, now_s: float
    ) -> list[Alert]:
        changed: list[Alert] = []
        for alert in orphans:
            del self.alerts[alert.subject.id]
            outcome = policy.ended(alert, why, rules, now_s=now_s)
            if outcome.alert is not None:
                changed.append(outcome.alert)
        return changed


class State:
    """What the stages of a tick share. Each stage reads it, and changes its own part.

    ``history`` is where events and silences are kept, ``mono`` the clock that ends the latter.
    """

    def __init__(
        self,
        config: Config,
        history: History | None = None,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = Settings(config)
        """Those in force: a reload replaces them."""
        self.devices: dict[str, TrackedDevice] = {}
        self.infos = ProcessInfos()
        self.tracks = Tracks()
        self.restored = RestoredState()
        self.idle_levels = IdleLevels()
        self.conditions: dict[str, ConditionAlert] = {}
        """By alert key."""
        self.holdings: tuple[Holding, ...] = ()
        """Idle memory now."""
        self.engines = Engines()
        self.events = EventLog(history, mono)
        self.silences = ActiveSilences(None if history is None else history.shelf, mono)
        self.checkpoints = Checkpoints()
        self.prices = DevicePrices(self)
        self.countdowns = Countdowns()

    def devices_of(self, source: str) -> list[TrackedDevice]:
        """Return the devices of a source."""
        return [device for device in self.devices.values() if device.source == source]

    def alerted(self, source: str) -> list[Track]:
        """Return the tracks of a source's devices that have an alert."""
        return [
            track
            for device in self.devices_of(source)
            for tracks in (
                device.processes.values(),
                device.own_tracks,
                device.host_tracks.values(),
            )
            for track in tracks
            if track.alert is not None
        ]

    def open_alerts(self) -> list[Alert]:
        """Return the alerts that are open, of subjects that are there."""
        alerts = [track.alert for track in self.tracks.values()]
        alerts += [condition.alert for condition in self.conditions.values()]
        return [alert for alert in alerts if alert and alert.state in {"watch", "firing"}]

    def pending_alerts(self) -> Iterator[Alert]:
        """Yield the alerts that are not open yet; those of a rank that another stands for never."""
        for track in self.tracks.values():
            alert = track.alert
            if alert is not None and alert.state == "pending" and track.lead is None:
                yield alert

    def forget(self, track: Track) -> None:
        """Judge a track no more: its subject has gone."""
        tracks = self.tracks
        tracks.pop(track.subject.id, None)
        tracks.evaluations += 1
        tracks.unjudged.pop(track.subject.id, None)
        tracks.limited.pop(track.subject.id, None)
        if track.job is not None:
            tracks.ranks.leave(track)

    def retire(
        self, gone: Iterable[Track], why: Ending, now_s: float, *, quietly: bool = False
    ) -> list[Alert]:
        """Judge these tracks no more; return the alerts that this ended."""
        ended = []
        for track in gone:
            alert = self.end(track, why, now_s, quietly=quietly)
            self.forget(track)
            if alert is not None:
                ended.append(alert)
        return ended

    def end(
        self,
        track: Track,
        why: Ending,
        now_s: float,
        *,
        quietly: bool = False,
        facts: Facts | None = None,
    ) -> Alert | None:
        """Resolve a track's alert because its subject has gone; return it if it was open.

        ``quietly``: no notice is sent, another alert goes on in its place. ``facts`` of the code.
        """
        track.headroom.growing.pop(track.subject.id, None)
        if track.alert is None:
            return None
        tracks = self.tracks
        heir = None if quietly or track.job is None else tracks.ranks.heir(track)
        track.mark_changed()
        if heir is not None:
            tracks.passed_on.append(tracks.ranks.pass_on(track, heir, why))
            why, quietly = Ending.OTHER_RANK, True
        elif track.lead_ending is not None:
            why = track.lead_ending
        outcome = policy.ended(
            track.alert, why, self.settings.rules, now_s=now_s, quietly=quietly, facts=facts
        )
        return self.settle(track, outcome)

    def settle(self, track: Track, outcome: policy.Outcome) -> Alert | None:
        """Give a track its alert as policy left it; return it where that is a change."""
        alert = outcome.alert
        track.alert = alert
        if alert is not None and alert.state == "resolved":
            track.alert, track.leads = None, Title()
            if alert.ended_code is Ending.STOPPED_GROWING:
                why = calm_reason(track, alert)
                alert = msgspec.structs.replace(alert, **wording.ending(why))
            if alert.ran_out:
                died = [*self.tracks.died.items(), (alert.key, track)]
                self.tracks.died = dict(died[-_MOST_DEAD:])
        return alert if outcome.changed else None
