"""Devices, processes, holdings and servers as ``--json`` has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuwatchd.core import text, units
from gpuwatchd.view.answers import envelope
from gpuwatchd.view.answers.base import finite
from gpuwatchd.view.answers.envelope import maybe
from gpuwatchd.view.queries import direct_holdings
from gpuwatchd.view.queries.direct_holdings import UnlistedOpeners
from gpuwatchd.view.text import delivery_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuwatchd.core.model import (
        Alert,
        Blame,
        ChannelHealth,
        Device,
        DeviceReading,
        Event,
        Finding,
        Holding,
        Ledger,
        ProcessInfo,
        ServerReading,
        Silence,
    )
    from gpuwatchd.store.live import LiveDevice, LiveProcess, UndeliveredAlert
    from gpuwatchd.view.queries.current_state import View


def live_device_json(item: LiveDevice) -> dict[str, Any]:
    """Return one device of ``status`` and ``predict``."""
    reading = item.reading
    processes = item.processes
    return {
        "device": device_json(item.device),
        **reading_json(reading),
        "unattributed_bytes": item.unattributed_bytes,
        "ledger": ledger_json(item.ledger),
        "events": [event_json(event) for event in item.events],
        "faults": [text.clean(fault) for fault in item.faults],
        "verdict": verdict_json(item.finding),
        "blame": blame_json(() if item.finding is None else item.finding.blame),
        "processes": None if processes is None else [process_json(p) for p in processes],
        "processes_age_s": finite(item.processes_age_s),
    }


def device_json(device: Device) -> dict[str, Any]:
    """Return the identity of a device, and where it is."""
    return {
        **envelope.device_json(device),
        "vendor": text.clean(device.vendor),
        "source": text.clean(device.source) or None,
        **envelope.fields(device, "memory_kind parent_uid pci_bus"),
    }


def reading_json(reading: DeviceReading | None) -> dict[str, Any]:
    """Return what was read of a device; every value is null where nothing was."""
    if reading is None:
        return dict.fromkeys([*_READING.split(), "processes_reason", "state"])
    return {
        "state": reading.state,
        **envelope.fields(reading, _READING),
        "processes_reason": maybe(reading.uses_reason),
    }


_READING = (
    "used_bytes free_bytes reserved_bytes resident_bytes util_pct temp_c power_w memory_api "
    "throttle ecc_errors retired_pages"
)


def ledger_json(ledger: Ledger | None) -> dict[str, Any] | None:
    """Return who has the memory of a device; None where there is no account."""
    if ledger is None:
        return None
    return envelope.fields(
        ledger,
        "state total_bytes free_bytes reserved_bytes owned_bytes unattributed_bytes baseline_bytes",
    )


def event_json(event: Event) -> dict[str, Any]:
    """Return one thing that happened."""
    return envelope.fields(event, "at kind text code hardware")


def blame_json(blame: Iterable[Blame]) -> list[dict[str, Any]]:
    """Return whose growth it is; ``pid`` null is memory that no process owns."""
    return [
        {
            "pid": None if one.process is None else one.process.pid,
            "started_at": None if one.process is None else units.instant(one.process.started_at_s),
            **envelope.fields(one, "name share rate_bytes_per_s"),
        }
        for one in blame
    ]


def verdict_json(finding: Finding | None) -> dict[str, Any] | None:
    """Return a judgement; None where there is none."""
    return None if finding is None else envelope.verdict_json(finding)


def info_json(info: ProcessInfo) -> dict[str, Any]:
    """Return who a process is."""
    return {
        **envelope.fields(info.key, "pid started_at"),
        **envelope.fields(info, "name argv user uid state foreign parents framework"),
        "framework_sure": info.framework_sure if info.framework else None,
        **envelope.fields(info, "frameworks model container pod job unit group rank world"),
    }


def process_json(process: LiveProcess) -> dict[str, Any]:
    """Return one process on a device."""
    return {
        **info_json(process.info),
        **envelope.fields(process, "kind used_bytes sm_pct host_bytes"),
        "history": envelope.known_json(process.history),
        "verdict": verdict_json(process.finding),
        "host_verdict": verdict_json(process.host_finding),
    }


def holding_json(holding: Holding) -> dict[str, Any]:
    """Return idle memory."""
    return {
        **envelope.fields(holding, "id kind device_uid"),
        "process": None if holding.process is None else info_json(holding.process),
        "held_bytes": holding.held_bytes,
        "since_at": units.instant(holding.since_s),
        "evidence": text.clean(holding.evidence, limit=1024),
        "advice": [text.clean(line, limit=1024) for line in holding.advice],
        **envelope.fields(holding, "gib_hours cost_usd"),
    }


def server_json(server: ServerReading, started: Mapping[int, str | None]) -> dict[str, Any]:
    """Return what a serving engine says of itself; ``started`` is pid -> start of processes."""
    models = server.models
    return {
        **envelope.fields(server, "kind url at pid"),
        "started_at": None if server.pid is None else started.get(server.pid),
        "ok": server.ok,
        "why": text.clean(server.why) or None,
        "models": None
        if models is None
        else [envelope.fields(model, "name size_bytes vram_bytes expires_at") for model in models],
        **envelope.fields(server, "kv_share running waiting pool_share"),
    }


def beside(view: View) -> dict[str, Any]:
    """Return what ``status`` answers beside its devices."""
    started = {
        process.info.key.pid: units.instant(process.info.key.started_at_s)
        for item in view.devices
        for process in item.processes or ()
    }
    return {
        "holdings": [holding_json(holding) for holding in view.holdings],
        "servers": [server_json(server, started) for server in view.servers],
        "channels": [channel_json(channel) for channel in view.channels],
        "untold": [text.clean(key) for key in view.untold],
        "lost": [lost_json(alert) for alert in view.lost],
        "silences": [silence_json(silence, view.alerts) for silence in view.silences],
    }


def lost_json(alert: UndeliveredAlert) -> dict[str, Any]:
    """Return an alert that was over before anybody could be told."""
    return {
        "key": text.clean(alert.key),
        "id": alert.code,
        **envelope.fields(alert, "title severity ended ended_at"),
    }


def channel_json(channel: ChannelHealth) -> dict[str, Any]:
    """Return how one channel does."""
    return {
        **envelope.fields(channel, "name ok"),
        "why": text.clean(channel.why) or None,
        "failing_since_at": units.instant(channel.failing_since_s),
        "delivered_at": units.instant(channel.delivered_at_s),
        "waiting": channel.waiting,
    }


def silence_json(silence: Silence, alerts: Iterable[Alert]) -> dict[str, Any]:
    """Return a silence, which may be about one of these alerts."""
    return {
        "about": delivery_text.conditions(silence.matcher, alerts),
        **envelope.fields(silence, "from_at until_at until_resolved"),
        "who": text.clean(silence.who) or None,
        "why": text.clean(silence.why) or None,
    }


def idle_json(view: View, loose: UnlistedOpeners) -> dict[str, Any]:
    """Return idle memory, how much was looked at, and who has device files open."""
    items = [item for item in view.devices if direct_holdings.is_known(item)]
    return {
        "holdings": [holding_json(holding) for holding in view.holdings],
        "checked": {
            "devices": len(view.devices),
            "devices_known": len(items),
            "processes": sum(len(item.processes or ()) for item in items),
            "since_at": units.instant(direct_holdings.since_s(view)),
        },
        "open_files": {
            **envelope.fields(loose, "possible whole looked unreadable"),
            "holders": [
                {
                    **info_json(info),
                    "nodes": [text.clean(node) for node in holder.nodes],
                    "computes": holder.computes,
                }
                for info, holder in loose.found
            ],
        },
    }
