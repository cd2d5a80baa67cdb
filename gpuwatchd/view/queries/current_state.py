"""The state to show: live state file, else history, else one direct look at the GPUs."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatchd.core.codes import ProblemCode
from gpuwatchd.core.errors import (
    FAILED,
    FINDINGS,
    OK,
    GpuwatchdError,
    SourceUnavailable,
    StoreError,
)
from gpuwatchd.core.model import Fault, ProcessInfo, is_leak
from gpuwatchd.core.model.alerts import SAID_FOR_S
from gpuwatchd.store import live
from gpuwatchd.store.live import LiveDevice, LiveProcess
from gpuwatchd.view.queries import state_location
from gpuwatchd.view.queries.current_view import Daemon, View

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import (
        Alert,
        Device,
        ProcessKey,
        Sample,
    )
    from gpuwatchd.store.live import LiveState
    from gpuwatchd.view.query import Query


SHOWN: Final = frozenset({"firing", "watch"})
"""States of what is open and has been told of or is watched."""
_STATES: Final = {"firing": 0, "watch": 1, "pending": 2}
_NAMES: Final = (
    ("firing", "alert", "alerts"),
    ("watch", "watch", "watches"),
    ("pending", "pending", "pending"),
)
_SEVERITIES: Final = {"critical": 0, "warning": 1, "info": 2}


def shown(alerts: Iterable[Alert]) -> list[Alert]:
    """Return what is open, without what nobody is to hear of yet, in order."""
    return ordered(alert for alert in alerts if alert.state in SHOWN)


def ordered(alerts: Iterable[Alert]) -> list[Alert]:
    """Return open ones first: the worst, then the soonest to be full; the past newest first."""
    return sorted(alerts, key=_place)


def _place(alert: Alert) -> tuple[int, int, float, float]:
    if alert.state not in _STATES:
        return len(_STATES), 0, 0.0, -alert.opened_at_s
    eta = alert.finding.eta
    left_s = float("inf") if eta is None or alert.clear_since_s is not None else eta.mid_s
    return _STATES[alert.state], _SEVERITIES[alert.severity], left_s, alert.opened_at_s


def counted(alerts: Iterable[Alert]) -> str:
    """Return how many alerts and watches are open: "1 alert, 2 watches"; "" where none is."""
    states: list[str] = [alert.state for alert in alerts]
    return ", ".join(
        f"{count} {one if count == 1 else many}"
        for state, one, many in _NAMES
        if (count := states.count(state))
    )


FRESH_INTERVALS = 3
"""A state older than this many sampling intervals is not live any more."""
BOOT = "boot.json"
"""The daemon's file of when this boot began, as in ``gpuwatchd.daemon.main``."""
TAKE_BACK = "gpuwatchctl release --end"
LAST_WORDS_S = 3600.0
"""A dead daemon's state up to this age is shown; after it a direct look says more."""


def list_is_known(item: LiveDevice) -> bool:
    """Return whether a process list is of now, and not only remembered."""
    if item.reading is not None and item.reading.per_instance:
        return True
    return item.processes is not None and item.processes_age_s is None


alive = state_location.alive


def running() -> bool:
    """Return whether a daemon runs."""
    return _daemon(read_state()[0]).running


def _daemon(state: LiveState | None) -> Daemon:
    if state is None:
        return Daemon()
    running = alive(state)
    return Daemon(
        running=running,
        pid=state.pid if running else None,
        version=state.version,
        started_at_s=state.started_at_s,
        last_sample_at_s=state.taken_at_s,
        problems=state.problems,
        problem_codes=state.problem_codes,
    )


def problems_of(state: LiveState | Daemon, code: ProblemCode) -> list[str]:
    """Return what a daemon says is wrong with one thing."""
    pairs = zip(state.problems, state.problem_codes, strict=False)  # none has a code in old files
    return [problem for problem, own in pairs if own is code]


def read_state(
    known: dict[bytes, LiveProcess] | None = None,
) -> tuple[LiveState | None, list[tuple[str, str]]]:
    """Return the live state file and what is wrong with it; ``known`` as in :func:`live.read`."""
    place = state_location.chosen()
    directory = place.runtime_dir
    state = live.read(directory, known)
    file = directory / live.FILE_NAME
    pairs = [state_location.NOTE] if place.scope == "system" else []
    if place.scope == "user" and (refused := state_location.access_error()) is not None:
        pairs.append(refused)
    if state is not None and state.format > live.FORMAT:
        return None, [
            *pairs, ("state-newer", f"{file} was written by a later version; upgrade gpuwatchctl"),
        ]  # fmt: skip
    if state is None and os.path.lexists(file):
        broken = f"{file} cannot be understood; the daemon will replace it"
        return None, [*pairs, ("state-broken", broken)]
    return state, pairs


def require_state(state: LiveState | None, missing: StoreError, what: str) -> None:
    """Refuse to go on where there is neither a live state nor a history, which is ``missing``.

    ``what`` is what cannot be told then: "no cost is known".
    """
    if state is not None:
        return
    if not isinstance(missing.__cause__, FileNotFoundError):
        raise missing
    raise GpuwatchdError(
        f"{what}: there is no history and no live state",
        hint="gpuwatchctl service install",
        page="errors#no-history",
    ) from missing


def released_until_s() -> float | None:
    """Return until when (epoch seconds) the GPUs are to be let go; None when they are not."""
    with contextlib.suppress(GpuwatchdError):  # the daemon says what is wrong with it
        request = live.read_release(state_location.runtime_dir(), time.time())
        return None if request is None else request.until_at_s
    return None


def _from_state(state: LiveState, daemon: Daemon) -> View:
    same = {
        name: getattr(state, name)
        for name in View.__struct_fields__
        if name in state.__struct_fields__
    }
    same["deaths"] = _deaths(state)
    view = View(source="state-file", daemon=daemon, **same)
    if any(d.reading is not None and d.reading.state == "released" for d in state.devices):
        view.released_until_s = released_until_s()
    if not daemon.running:
        how = "was stopped" if state.stopped else "is not running"
        view.warnings.append(("daemon-dead", f"the daemon {how}; this is what it saw last"))
    elif view.stale_s > max(FRESH_INTERVALS * state.interval_s, 10.0):
        view.warnings.append(("daemon-late", "the daemon runs but its last sample is old"))
    return view


def _deaths(state: LiveState | None) -> tuple[Alert, ...]:
    """Return the deaths that a daemon, which may be gone since, saw within the last day."""
    if state is None:
        return ()
    now_s = max(state.taken_at_s, time.time())
    return tuple(alert for alert in state.deaths if now_s - alert.ended_at_s < SAID_FOR_S)


def load_view(
    query: Query,
    *,
    want_trend: bool = False,
    everybody: bool = False,
    known: dict[bytes, LiveProcess] | None = None,
) -> View:
    """Return the best state there is, filtered by ``--gpu`` and ``--user``.

    Parameters
    ----------
    want_trend
        True when a look without history is of no use (``predict``); it is then not taken as long
        as an old state exists.
    everybody
        True leaves ``--user`` to the caller.
    known
        Processes of the last call, as in :func:`live.read`.

    Raises
    ------
    SourceUnavailable
        When no GPU was found anywhere.
    ConfigError
        When the configuration is needed and wrong.
    """
    if query.config is not None:
        query.load_config()  # a file that was named must be right, needed or not
    state, warnings = read_state(known)
    daemon = _daemon(state)
    view = _best(query, state, daemon, want_trend=want_trend)
    view.warnings[:0] = warnings
    if not view.devices:
        text = "; ".join(daemon.problems) or "no source has one"
        why = text if daemon.problem_codes[:1] == (ProblemCode.NO_GPU,) else f"no GPU found: {text}"
        raise SourceUnavailable(why, hint="gpuwatchctl doctor")
    view.warnings.extend(require_gpus(query, [item.device for item in view.devices]))
    items = tuple(d for d in view.devices if query.wants(d.device))
    if query.gpu:
        uids = {d.device.uid for d in items}
        view.keep_alerts(lambda alert: alert.subject.device_uid in uids)
        view.holdings = tuple(h for h in view.holdings if h.device_uid in uids)
    view.devices = items
    if not everybody:
        of_users(view, query)
    return view


def typed(device: Device) -> str:
    """Return what is typed for a device: its index, else its UUID."""
    return device.uid if device.index is None else device.number


def require_gpus(query: Query, devices: Sequence[Device]) -> list[tuple[str, str]]:
    """Return code and sentence on what ``--gpu`` names and is not among some devices.

    Raises
    ------
    GpuwatchdError
        When none of them is; of no devices nothing is said.
    """
    nobody = query.unmatched(devices)
    if not nobody or not devices:
        return []
    why = f"no GPU matches {', '.join(nobody)}"
    if len(nobody) < len(query.gpu):
        return [("no-such-gpu", why)]
    raise GpuwatchdError(why, hint=gpus_here(devices), page="errors#no-such-gpu")


def gpus_here(devices: Sequence[Device]) -> str:
    """Return which GPUs there are, as a hint; many are a span."""
    words = [device.uid if device.index is None else device.label for device in devices]
    if len(words) > 2 and words == [f"GPU {number}" for number in range(len(words))]:
        words = [f"{words[0]} to {words[-1]}"]
    return f"GPUs here: {', '.join(words)}"


def of_users(view: View, query: Query) -> None:
    """Leave in a view what is of the users that ``--user`` names, if it does."""
    if query.user:
        from gpuwatchd.view.queries import user_filter  # noqa: PLC0415 - 3 ms: only on shared machines

        user_filter.only(view, query.user)


def narrow(view: View, pids: Sequence[int]) -> None:
    """Keep only the GPUs and processes that ``--pid`` names.

    Raises
    ------
    GpuwatchdError
        When none of them is on a GPU here.
    """
    if not pids:
        return
    items = [
        msgspec.structs.replace(item, processes=processes)
        for item in view.devices
        if (processes := tuple(p for p in item.processes or () if p.info.key.pid in pids))
    ]
    if not items:
        named = ", ".join(map(str, pids))
        unknown = all(item.processes is None for item in view.devices)
        why = "the processes are unknown here" if unknown else f"pid {named} is on no GPU here"
        raise GpuwatchdError(why, hint="gpuwatchctl status -v", page="errors#no-such-process")
    view.devices = tuple(items)
    view.keep_alerts(lambda a: a.subject.process is not None and a.subject.process.pid in pids)


def exit_code(view: View, query: Query, pids: Sequence[int]) -> int:
    """Return 1 where no GPU could be read, 3 where anything that is asked about leaks, else 0."""
    if all(item.reading is None for item in view.devices):
        return FAILED
    return FINDINGS if leaks(view, query, pids) else OK


def leaks(view: View, query: Query, pids: Sequence[int]) -> bool:
    """Return whether anything that is asked about leaks; of some processes, any of those."""
    whole = not pids and not query.user
    return any(
        is_leak(finding)
        for item in view.devices
        for finding in (
            item.finding if whole else None,
            *(process.finding for process in item.processes or ()),
            *(process.host_finding for process in item.processes or ()),
        )
    )


def _best(query: Query, state: LiveState | None, daemon: Daemon, *, want_trend: bool) -> View:
    if state is not None and state.devices:
        young = time.time() - state.taken_at_s <= LAST_WORDS_S
        if daemon.running or young or want_trend:
            return _from_state(state, daemon)
    if state is not None and daemon.running:  # it looks for GPUs right now and sees none
        return _from_state(state, daemon)
    strange: list[tuple[str, str]] = []
    view = None
    if state_location.recorded(state_location.state_dir()):
        from gpuwatchd.view.queries import history_query  # noqa: PLC0415 - 105 ms: SQLite and numpy come with it

        view = history_query.judged(query, strange, max_age_s=LAST_WORDS_S)
    if view is None:
        try:
            view = read_sources(query)
            view.deaths = _deaths(state)
        except SourceUnavailable as missing:
            if state is None or not state.devices:
                state_location.require_read_access()
                if strange:  # a history that cannot be read is why there is nothing to show
                    raise SourceUnavailable(
                        f"{strange[0][1]}; {missing.message}", hint=missing.hint, page=missing.page
                    ) from missing
                raise
            view = _from_state(state, daemon)
    view.daemon = daemon
    view.warnings += strange
    if not daemon.running and view.source != "state-file":
        view.warnings.append(("daemon-absent", "the daemon is not running"))
    return view


def read_sources(query: Query) -> View:
    """Read every enabled source once: numbers and names, no trend.

    While the GPUs are let go on request, the NVIDIA driver is not opened.

    Raises
    ------
    SourceUnavailable
        When none of them has a GPU, or may be asked for one.
    """
    from gpuwatchd.collect import selection  # noqa: PLC0415 - 5 ms: only where there is no live state

    settings = query.load_config().config
    items: list[LiveDevice] = []
    reasons: list[str] = []
    quiet: list[Fault] = []
    hint = "gpuwatchctl doctor"
    for name, optional in selection.choices(settings.sources):
        if name.partition(":")[0] == "replay":
            continue  # a recording says nothing about now
        if name == "nvml" and (until_s := released_until_s()) is not None:
            # Opening the driver would hold the GPUs, which somebody wants free.
            reasons.append(_let_go(until_s))
            hint = TAKE_BACK
            continue
        faults: list[Fault] = []
        try:
            items += (seen := _look_once(name, settings, faults))
        except GpuwatchdError as error:
            faults.append(Fault(where=name, why=error.message, brief=getattr(error, "brief", "")))
            seen = []
        if seen or not optional:
            reasons += [fault.why for fault in faults]
        else:
            quiet += faults
    if not items:
        # What was merely tried is told in short; what somebody must mend, as it is.
        text = "; ".join(reasons) or ("" if quiet else "no source is enabled")
        why = f"{selection.NONE}: {text}" if text else selection.none_found(quiet)
        raise SourceUnavailable(why, hint=hint)
    view = View("direct", time.time(), tuple(items))
    view.trend = False
    view.warnings.append(("no-trend", "one direct reading: no trend and no verdict"))
    view.warnings += [("source", reason) for reason in reasons]
    return view


def _let_go(until_s: float) -> str:
    from gpuwatchd.core import units  # noqa: PLC0415 - 1 ms: of a refusal alone

    until = units.clock(until_s, now_s=time.time())
    return f"the GPUs are released on request until {until} ({TAKE_BACK})"


def _look_once(name: str, settings: Config, faults: list[Fault]) -> list[LiveDevice]:
    from gpuwatchd.collect import selection  # noqa: PLC0415 - 6 ms: only where there is no live state

    source = selection.make(name, settings.sources)
    try:
        usable = source.probe()
        if not usable.ok:
            faults.append(Fault(where=name, why=usable.reason, brief=usable.brief))
            return []
        sample: Sample = source.read()
        devices: Sequence[Device] = tuple(source.devices())
    finally:
        with contextlib.suppress(GpuwatchdError):
            source.close()
    faults += [fault for fault in sample.faults if fault.device_uid is None]
    infos = _identify(sample)
    return [_live_device(device, sample, infos) for device in devices]


def _identify(sample: Sample) -> dict[ProcessKey, ProcessInfo]:
    """Return who the processes of a sample are; a host that cannot say costs the names only."""
    processes = {info.key: info for info in sample.processes}
    uses = [use for reading in sample.readings for use in reading.uses or ()]
    missing = [use.key for use in uses if use.key not in processes]
    seen: dict[int, ProcessInfo] = {}
    if missing and "gpuwatchd.collect.host" not in sys.modules:
        with contextlib.suppress(ImportError):
            import gpuwatchd.collect.host  # noqa: F401, PLC0415 - 38 ms
    module = sys.modules.get("gpuwatchd.collect.host")
    if missing and module is not None:
        boot = module.BootAnchor(state_location.state_dir() / BOOT, writes=False)
        with contextlib.closing(module.Host(anchor=boot)) as host:
            seen = host.processes([key.pid for key in missing])
    # Whom the host does not see has ended: those of elsewhere, and hidden ones, it does tell.
    state = "gone" if module is not None else None
    for key in missing:
        processes[key] = seen.get(key.pid) or ProcessInfo(key=key, name="?", state=state)
    return processes


def _live_device(
    device: Device, sample: Sample, infos: dict[ProcessKey, ProcessInfo]
) -> LiveDevice:
    from gpuwatchd.analysis import attribution  # noqa: PLC0415 - 6 ms: only where there is no live state

    reading = next((one for one in sample.readings if one.device_uid == device.uid), None)
    uses = None if reading is None else reading.uses
    processes: tuple[LiveProcess, ...] | None = None
    if uses is not None:
        processes = tuple(
            LiveProcess(
                info=infos[u.key],
                used_bytes=u.used_bytes,
                kind=u.kind,
                sm_pct=u.sm_pct,
                host_bytes=u.host_bytes,
            )
            for u in uses
        )
    ledger = None if reading is None else attribution.build_ledger(reading, device.memory_kind)
    rest = ledger.unattributed_bytes if ledger is not None and ledger.state != "partial" else None
    return LiveDevice(
        device=device,
        reading=reading,
        unattributed_bytes=rest,
        processes=processes,
        ledger=ledger,
        events=tuple(e for e in sample.events if e.device_uid == device.uid),
        samples=1,
        faults=tuple(f.why for f in sample.faults if f.device_uid == device.uid),
    )
