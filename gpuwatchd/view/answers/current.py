"""``status``, ``watch`` and ``predict``: what is seen of the devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from gpuwatchd.core import units
from gpuwatchd.core.model import DeviceState, HoldingKind, Severity
from gpuwatchd.view.answers.base import (
    Answer,
    BlameShape,
    Bytes,
    Count,
    DevicePlace,
    HappenedShape,
    Info,
    Instant,
    KnownShape,
    LedgerShape,
    Pid,
    ProcessId,
    Seconds,
    Sentence,
    Shape,
    Share,
    Verdict,
    answer_of,
    fill,
    of_verb,
    sources,
)
from gpuwatchd.view.queries import current_state
from gpuwatchd.view.text import delivery_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.core import model
    from gpuwatchd.view.queries.current_view import View
    from gpuwatchd.view.queries.direct_holdings import UnlistedOpeners


class Limit(Shape):
    """What a process may hold, below its device."""

    kind: str
    """"driver" or "dmem" (of its control group), "mps" or "framework"."""
    name: str
    """Directory of the control group, or the variable that sets it."""
    hard_bytes: Bytes | None
    soft_bytes: Bytes | None
    used_bytes: Bytes | None
    """Of the whole control group."""
    process_bytes: Bytes | None
    """Where the process runs out by it: without what others of its group hold."""


class Process(Info):
    """A process on a device."""

    kind: str
    """C, G, M, joined with +."""
    used_bytes: Bytes | None
    sm_pct: float | None
    host_bytes: Bytes | None
    """Anonymous memory and swap on the host."""
    history: KnownShape | None
    """Null where the program cannot be recognised."""
    verdict: Verdict | None
    host_verdict: Verdict | None
    """On the host's memory."""
    limit: Limit | None
    """The limit below the device by which it runs out first; null: none is known."""
    FROM = {name: f"info.{Info.FROM.get(name, name)}" for name in Info.__struct_fields__} | sources(
        framework_sure=lambda live: live.info.framework_sure if live.info.framework else None,
        verdict="finding",
        host_verdict="host_finding",
    )


class HoldingShape(Shape):
    """Idle memory."""

    id: str
    kind: HoldingKind
    device_uid: str
    process: Info | None
    """Null when no process is known to hold it."""
    held_bytes: Bytes | None
    since_at: Instant | None
    evidence: Sentence
    advice: tuple[Sentence, ...]
    gib_hours: float | None
    cost_usd: float | None
    """Null without a price."""


class Checked(Shape):
    """How much was looked at."""

    devices: Count
    devices_known: Count
    """Whose process list is known."""
    processes: Count
    since_at: Instant | None


class Holder(Info):
    """A process that the driver does not list, with device files open."""

    nodes: tuple[str, ...]
    computes: bool
    """False: it has only opened the cards, as a monitor does."""


class OpenFiles(Shape):
    """Who has device files open."""

    possible: bool
    """False without /proc."""
    whole: bool
    looked: Count
    unreadable: Count
    """Processes that only root may look into."""
    holders: tuple[Holder, ...]
    FROM = sources(
        **{name: f"seen.{name}" for name in ("possible", "whole", "looked", "unreadable")},
        holders=lambda loose: [
            fill(Holder, who, nodes=opener.nodes, computes=opener.computes)
            for who, opener in loose.found
        ],
    )


class IdleJobShape(Shape):
    """A job of Slurm that holds GPUs of this node without a process on them."""

    job: str
    """Its number; that of an array's task is its own."""
    user: str
    running_s: Seconds
    gpu_count: Count
    """GPUs that it was given on this node."""
    device_uids: tuple[str, ...] | None
    """Those without a process; null: all of them, but which they are is not known."""
    FROM = sources(job="number")


class ZombiesData(Shape):
    """Idle memory."""

    holdings: tuple[HoldingShape, ...]
    """The surest first."""
    checked: Checked
    open_files: OpenFiles
    jobs: tuple[IdleJobShape, ...] | None
    """Null without --slurm."""


def idle_memory(view: View, loose: UnlistedOpeners) -> ZombiesData:
    """Return idle memory, how much was looked at, and who has device files open."""
    items = [item for item in view.devices if current_state.list_is_known(item)]
    return fill(
        ZombiesData,
        view,
        checked=Checked(
            devices=len(view.devices),
            devices_known=len(items),
            processes=sum(len(item.processes or ()) for item in items),
            since_at=units.instant(view.since_s),
        ),
        open_files=loose,
    )


IdleMemory = of_verb("zombies", "IdleMemory", ZombiesData, "``zombies``.")


class Reaping(Shape):
    """A process that is ended, or would be."""

    process: ProcessId
    holdings: tuple[HoldingShape, ...]
    """What it holds, since when, how that is known and what it costs."""
    signals: tuple[str, ...]
    """In order, each only where those before have not ended it."""
    sent: tuple[str, ...]
    """Those that were sent, with SIGCONT where it was stopped."""
    result: Literal["ended", "still-running", "waits-in-kernel", "interrupted", "under-way"] | None
    """Null: nothing was sent, only shown; under-way: of the API alone, it is still waited for."""
    still_held_bytes: Bytes | None
    """What has not come back a minute after its end; null where that is not known."""
    text: Sentence


Reap = of_verb("reap", "Reap", Reaping, "``reap``.")


class OthersShape(Shape):
    """Processes of users that --user has left out."""

    processes: Count
    held_bytes: Bytes | None
    """Null where a part of it is unknown."""
    FROM = sources(
        processes="count",
        held_bytes=lambda others: others.held_bytes if others.whole else None,
    )


class DeviceNow(Shape):
    """One device and who is on it."""

    device: DevicePlace
    state: DeviceState | None
    """Null when it could not be read at all."""
    used_bytes: Bytes | None
    free_bytes: Bytes | None
    reserved_bytes: Bytes | None
    resident_bytes: Bytes | None
    """What of the used memory is resident now: Apple."""
    util_pct: float | None
    temp_c: float | None
    power_w: float | None
    memory_api: str | None
    """Which call gave the memory."""
    throttle: tuple[str, ...] | None
    """Why clocks are held down; null: not readable."""
    ecc_errors: Count | None
    retired_pages: Count | None
    processes_reason: str | None
    """Why the list of processes is unknown."""
    unattributed_bytes: Bytes | None
    ledger: LedgerShape | None
    events: tuple[HappenedShape, ...]
    """The newest, oldest first."""
    faults: tuple[str, ...]
    """What could not be read."""
    verdict: Verdict | None
    blame: tuple[BlameShape, ...]
    processes: tuple[Process, ...] | None
    """Null when the list is unknown and none is remembered."""
    processes_age_s: Seconds | None
    """Age of a list that could not be read anew; null where it is of now."""
    others: OthersShape | None
    """What other users hold, with --user; null without it, and where the list is unknown."""
    FROM = sources(
        **{
            name: f"reading.{name}"
            for name in (
                *("state", "used_bytes", "free_bytes", "reserved_bytes", "resident_bytes"),
                *("util_pct", "temp_c", "power_w", "memory_api", "throttle", "ecc_errors"),
                "retired_pages",
            )
        },
        processes_reason="reading.uses_reason",
        verdict="finding",
        blame="finding.blame",
    )


class Served(Shape):
    """A model that a serving engine has loaded."""

    name: str
    size_bytes: Bytes | None
    vram_bytes: Bytes | None
    expires_at: Instant | None


class Server(Shape):
    """What a serving engine reports."""

    kind: str
    url: str
    at: Instant
    pid: Pid | None
    started_at: Instant | None
    """Of that process, where it is on a device here."""
    ok: bool
    why: str | None
    """Why it did not answer."""
    models: tuple[Served, ...] | None
    kv_share: Share | None
    running: Count | None
    waiting: Count | None
    pool_share: Share | None


class Channel(Shape):
    """State of a channel."""

    name: str
    ok: bool | None
    """Null: not used since the start."""
    why: str | None
    failing_since_at: Instant | None
    delivered_at: Instant | None
    waiting: Count
    """Messages that wait for it."""


class LostShape(Shape):
    """An alert of the last day that ended badly before any message could be sent."""

    key: str
    code: str = msgspec.field(name="id")
    title: str
    severity: Severity
    ended: str
    """How it ended."""
    ended_at: Instant | None


class DeathShape(Shape):
    """A job that ran out of memory within the last day, and that nobody has given feedback on."""

    key: str
    code: str = msgspec.field(name="id")
    title: str
    ended: str
    """Why that is believed."""
    ended_at: Instant
    ran_s: Seconds
    """For how long it had run, or grown where its start is unknown."""
    lost_usd: float | None
    lost_gpu_hours: float | None
    since: Literal["start", "checkpoint", "first-seen"] | None
    """From when on that is counted."""
    FROM = sources(
        ended_at="resolved_at",
        ran_s=delivery_text.ran_s,
        lost_usd="cost.spent_usd",
        lost_gpu_hours="cost.gpu_hours",
        since="cost.since",
    )


class Silent(Shape):
    """A silence."""

    about: str
    from_at: Instant
    until_at: Instant | None
    until_resolved: bool
    who: str | None
    why: str | None


def silent(silence: model.Silence, alerts: Iterable[model.Alert]) -> Silent:
    """Return a silence, which may be about one of these alerts."""
    return fill(Silent, silence, about=delivery_text.conditions(silence.matcher, alerts))


class ObservedDevices(Answer):
    """State of the devices."""

    data: tuple[DeviceNow, ...]
    holdings: tuple[HoldingShape, ...]
    servers: tuple[Server, ...]
    channels: tuple[Channel, ...]
    untold: tuple[str, ...]
    """Keys of open alerts that have reached nobody."""
    lost: tuple[LostShape, ...]
    deaths: tuple[DeathShape, ...]
    """Of jobs that ran out of memory within the last day, newest first."""
    silences: tuple[Silent, ...]
    """In force."""


class Status(ObservedDevices):
    """``status``."""

    VERB = "status"
    verb: Literal["status"]


class Watch(ObservedDevices):
    """``watch``: one such object per interval, one per line."""

    VERB = "watch"
    verb: Literal["watch"]


class Predict(ObservedDevices):
    """``predict``."""

    VERB = "predict"
    verb: Literal["predict"]


Observed = TypeVar("Observed", bound=ObservedDevices)


def observed(kind: type[Observed], view: View) -> Observed:
    """Return the devices, and what belongs to them."""
    started = {
        live.info.key.pid: live.info.key.started_at_s
        for item in view.devices
        for live in item.processes or ()
    }
    return answer_of(
        kind,
        tuple(
            fill(DeviceNow, item, others=view.others.get(item.device.uid)) for item in view.devices
        ),
        view=view,
        holdings=view.holdings,
        servers=[
            fill(Server, reading, started_at=started.get(reading.pid or 0))
            for reading in view.servers
        ],
        channels=view.channels,
        untold=view.untold,
        lost=view.lost,
        deaths=view.deaths,
        silences=[silent(silence, view.alerts) for silence in view.silences],
    )
