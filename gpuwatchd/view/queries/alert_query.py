"""Alerts as ``alerts`` and ``feedback`` find them: open and past, with what was said of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd import alerts as policy
from gpuwatchd.core import units
from gpuwatchd.core.errors import GpuwatchdError, StoreError
from gpuwatchd.view.queries import current_state, names, state_location, user_filter
from gpuwatchd.view.text import delivery_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuwatchd.core.model import Alert, ChannelHealth, Device, ProcessInfo, ProcessKey, Silence
    from gpuwatchd.store.live import LiveState
    from gpuwatchd.store.reader import Reader
    from gpuwatchd.store.tables import Action, UserLabel
    from gpuwatchd.view.queries.user_filter import People
    from gpuwatchd.view.query import Query

OPEN = {"pending", "watch", "firing"}
_ROUNDING_S = 1.0
"""The history keeps milliseconds."""
NEAR_S = 3600.0
"""What was done so long before or after an alert may belong to it."""
_STAGES = {"pending": 1, "watch": 2, "firing": 3}


class Incidents(msgspec.Struct, eq=False):
    """Alerts, open ones first and the worst of them first, with what is missing."""

    alerts: list[Alert] = []
    devices: dict[str, Device] = {}
    words: list[UserLabel] = []
    """What the user said of alerts and did not take back, oldest first."""
    known: set[ProcessKey] = set()
    """Processes whose program would be known again."""
    source: str = "state-file"
    warnings: list[tuple[str, str]] = []
    trouble: StoreError | None = None
    """Why there is no history."""
    silences: tuple[Silence, ...] = ()
    """Those in force."""
    untold: frozenset[str] = frozenset()
    """Keys of open alerts that were to be told and have reached nobody."""
    channels: tuple[ChannelHealth, ...] = ()
    """How the channels of a running daemon do."""
    infos: dict[ProcessKey, ProcessInfo] = {}
    """Who processes are."""
    now_s: float = msgspec.field(default_factory=state_location.now_s)
    """When it was looked."""
    holders: list[tuple[str, ProcessInfo]] = []
    """(UUID of a GPU, who holds memory there) as the live state has it."""

    def wanted(self, query: Query, alert: Alert) -> bool:
        """Return whether ``--gpu`` lets an alert through."""
        device = self.devices.get(alert.subject.device_uid)
        return not query.gpu or (device is not None and query.wants(device))

    def user(self, alert: Alert) -> str:
        """Return whose process an alert is about; "" where that is not known."""
        if alert.about is not None and alert.about.user:
            return alert.about.user
        process = alert.subject.process
        info = None if process is None else self.infos.get(process)
        return "" if info is None else info.user or ""

    def keep_of(self, people: People) -> None:
        """Leave alerts about these users' processes, the GPUs they are on, and their silences."""
        here = {uid for uid, info in self.holders if people.own(info)}
        self.alerts = [
            alert for alert in self.alerts if user_filter.concerns(alert, people, self.infos, here)
        ]
        keys = {alert.key for alert in self.alerts}
        self.silences = tuple(
            silence
            for silence in self.silences
            if silence.matcher.key in keys or people.has(silence.matcher.user or None)
        )

    def opening(self, alert: Alert) -> Callable[[float], bool]:
        """Return what says of an instant whether it belongs to this opening of its key."""
        others = [one.opened_at_s for one in self.alerts if one.key == alert.key]
        begin_s = alert.opened_at_s - _ROUNDING_S
        if min(others, default=begin_s) >= begin_s:
            # Nothing came before. Messages are dated by people's clock, alerts by their source's,
            # which differ where a recording or a simulation is watched.
            begin_s = float("-inf")
        end_s = min((at for at in others if at > alert.opened_at_s), default=float("inf"))
        return lambda at_s: begin_s <= at_s < end_s

    def silence(self, alert: Alert, now_s: float) -> Silence | None:
        """Return the silence that keeps an alert quiet now."""
        if not self.silences or alert.state not in OPEN:
            return None
        return policy.silenced(alert, self.silences, now_s)

    def user_label(self, alert: Alert) -> UserLabel | None:
        """Return what the user said of an alert."""
        return next((word for word in reversed(self.words) if word.is_about(alert)), None)


def gather(since_s: float, *, only_open: bool) -> Incidents:
    """Return the alerts that were open at or after an instant.

    The history has all of them; the live state has the open ones with their newest numbers.

    Raises
    ------
    GpuwatchdError
        When there is neither.
    """
    from gpuwatchd.view.queries import history_query  # noqa: PLC0415 - 74 ms: SQLite comes with it

    incidents = Incidents()
    state, incidents.warnings = current_state.read_state()
    merged: dict[tuple[str, float], Alert] = {}
    try:
        with history_query.reader() as history:
            for alert in history.alerts(since_s, open_only=only_open):
                merged[alert.key, alert.opened_at_s] = alert
            incidents.devices = {device.uid: device for device in history.devices()}
            incidents.words = history.user_labels()
            people = history.processes()
            incidents.known = {info.key for info in people if info.program is not None}
            incidents.infos = {info.key: info for info in people}
            incidents.silences = tuple(history.silences())
        incidents.source = "database"
    except StoreError as error:
        incidents.trouble = error
        current_state.require_state(state, error, "no alerts are recorded")
        words = f"only the open alerts are known: {error.message}"
        incidents.warnings.append(("no-history", words))
    incidents.warnings += _source(state, incidents.now_s)
    if state is not None:
        incidents.devices |= {item.device.uid: item.device for item in state.devices}
        incidents.holders = [
            (item.device.uid, process.info)
            for item in state.devices
            for process in item.processes or ()
        ]
        incidents.infos |= {info.key: info for _, info in incidents.holders}
        merged |= {(alert.key, alert.opened_at_s): alert for alert in state.alerts}
        if current_state.alive(state):
            incidents.untold, incidents.channels = frozenset(state.untold), state.channels
            if incidents.trouble is not None:
                incidents.silences = state.silences
    incidents.silences = delivery_text.in_force(incidents.silences, incidents.now_s)
    alerts = [a for a in merged.values() if not only_open or a.state in OPEN]
    incidents.alerts = current_state.ordered(alerts)
    return incidents


def actions_near(history: Reader, alert: Alert, now_s: float) -> list[Action]:
    """Return what was done to the processes of an alert during or near it, or proposed."""
    members = alert.cost.members if alert.cost is not None else ()
    keys = [one.process for one in (alert.subject, *members) if one.process is not None]
    chief = max(alert.finding.blame, key=lambda blame: blame.share, default=None)
    if not keys and chief is not None and chief.process is not None:
        keys = [chief.process]
    over_s = now_s if alert.resolved_at_s is None else alert.resolved_at_s
    return history.actions(alert.opened_at_s - NEAR_S, over_s + NEAR_S, keys)


def kept(done: str) -> Incidents:
    """Return all alerts, which must be in the history: one is to be ``done`` ("said", "snoozed").

    Raises
    ------
    StoreError
        When there is no usable history.
    """
    incidents = gather(0.0, only_open=False)
    if incidents.trouble is not None:
        raise StoreError(
            f"nothing can be {done} without the history: {incidents.trouble.message}",
            hint=incidents.trouble.hint,
            page=incidents.trouble.page,
        ) from incidents.trouble
    return incidents


def _source(state: LiveState | None, now_s: float) -> list[tuple[str, str]]:
    """Return a sentence on where the knowledge comes from when no daemon keeps it fresh."""
    if state is None:
        return [("daemon-absent", "the daemon is not running; alerts are as the history has them")]
    if current_state.alive(state):
        return []
    at = units.clock(state.taken_at_s, now_s=now_s)
    return [("daemon-dead", f"the daemon is not running; alerts are as it left them at {at}")]


def pick(alerts: Sequence[Alert], key: str) -> Alert:
    """Return the newest alert that is meant: by code, key, part of it, pid, PID/host, or "latest".

    Else by whatever is shown of its process or its GPU; then open ones come before those that are
    over. A pid means what the process holds on the GPU, unless more is known of what it holds on
    the host.

    Raises
    ------
    GpuwatchdError
        When none fits.
    Ambiguous
        When several different ones do.
    """
    if not key:
        # Every key contains the empty one: an unset variable must not speak for the only alert.
        raise GpuwatchdError(
            "which alert?", hint="gpuwatchctl alerts --all lists them", page="errors#no-such-alert"
        )
    newest = sorted(alerts, key=lambda a: -a.opened_at_s)
    if key == "latest" and newest:
        return next((a for a in newest if a.state in OPEN), newest[0])
    exact = [a for a in newest if key in {a.key, a.code}]
    # A number is a pid: within the UUID of a GPU or a longer pid it would mean another process.
    parts = [a for a in newest if key in a.key and not units.is_number(key.lstrip("-"))]
    named = [a for a in newest if names.names_alert(key, a)]
    named = [a for a in named if a.state in OPEN] or named
    for fitting in (exact, _of_process(newest, key), parts, named):
        keys = {a.key for a in fitting}
        if len(keys) == 1:
            return fitting[0]
        if len(keys) > 1:
            newest_of = {a.key: a for a in fitting[::-1]}.values()
            each = {a.code: a.title or a.key for a in reversed(newest_of)}
            raise names.ambiguous(key, "alerts", each)
    raise GpuwatchdError(
        f"no alert {key[: names.LONGEST]!r}",
        hint="gpuwatchctl alerts --all lists them",
        page="errors#no-such-alert",
    )


def _of_process(alerts: Sequence[Alert], key: str) -> list[Alert]:
    pid, host = names.pid_in(key.removesuffix("/host")), key.endswith("/host")
    found = [
        a
        for a in alerts
        if a.subject.process and a.subject.process.pid == pid and (a.subject.host or not host)
    ]
    found = [a for a in found if a.state in OPEN] or found
    if len({a.subject.host for a in found}) > 1:
        furthest = max(_STAGES.get(a.state, 0) for a in found)
        found = [a for a in found if _STAGES.get(a.state, 0) == furthest]
        found = [a for a in found if not a.subject.host] or found
    return found
