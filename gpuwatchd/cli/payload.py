"""Devices, processes, holdings and servers as ``--json`` has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuwatchd.cli import delivery_text, envelope
from gpuwatchd.cli.envelope import finite, maybe
from gpuwatchd.core import text, units

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuwatchd.cli.current_state import View
    from gpuwatchd.core.model import (
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
        "memory_kind": device.memory_kind,
        "parent_uid": maybe(device.parent_uid),
        "pci_bus": maybe(device.pci_bus),
    }


def reading_json(reading: DeviceReading | None) -> dict[str, Any]:
    """Return what was read of a device; every value is null where nothing was."""
    if reading is None:
        return dict.fromkeys(_READING) | {"state": None}
    throttle = reading.throttle
    return {
        "state": reading.state,
        "used_bytes": reading.used_bytes,
        "free_bytes": reading.free_bytes,
        "reserved_bytes": reading.reserved_bytes,
        "resident_bytes": reading.resident_bytes,
        "util_pct": finite(reading.util_pct),
        "temp_c": finite(reading.temp_c),
        "power_w": finite(reading.power_w),
        "memory_api": maybe(reading.memory_api),
        "throttle": None if throttle is None else [text.clean(why) for why in throttle],
        "ecc_errors": reading.ecc_errors,
        "retired_pages": reading.retired_pages,
        "processes_reason": maybe(reading.uses_reason),
    }


_READING = (
    "used_bytes", "free_bytes", "reserved_bytes", "resident_bytes", "util_pct", "temp_c", "power_w",
    "memory_api", "throttle", "ecc_errors", "retired_pages", "processes_reason",
)  # fmt: skip


def ledger_json(ledger: Ledger | None) -> dict[str, Any] | None:
    """Return who has the memory of a device; None where there is no account."""
    if ledger is None:
        return None
    return {
        "state": ledger.state,
        "total_bytes": ledger.total_bytes,
        "free_bytes": ledger.free_bytes,
        "reserved_bytes": ledger.reserved_bytes,
        "owned_bytes": ledger.owned_bytes,
        "unattributed_bytes": ledger.unattributed_bytes,
        "baseline_bytes": ledger.baseline_bytes,
    }


def event_json(event: Event) -> dict[str, Any]:
    """Return one thing that happened."""
    return {
        "at": units.instant(event.at_s),
        "kind": event.kind,
        "text": text.clean(event.text),
        "code": event.code,
        "hardware": event.hardware,
    }


def blame_json(blame: Iterable[Blame]) -> list[dict[str, Any]]:
    """Return whose growth it is; ``pid`` null is memory that no process owns."""
    return [
        {
            "pid": None if one.process is None else one.process.pid,
            "started_at": None if one.process is None else units.instant(one.process.started_at_s),
            "name": text.clean(one.name),
            "share": finite(one.share),
            "rate_bytes_per_s": finite(one.rate_bytes_per_s),
        }
        for one in blame
    ]


def verdict_json(finding: Finding | None) -> dict[str, Any] | None:
    """Return a judgement; None where there is none."""
    return None if finding is None else envelope.verdict_json(finding)


def info_json(info: ProcessInfo) -> dict[str, Any]:
    """Return who a process is."""
    return {
        "pid": info.key.pid,
        "started_at": units.instant(info.key.started_at_s),
        "name": text.clean(info.name),
        "argv": [text.clean(word) for word in info.argv],
        "user": maybe(info.user),
        "uid": info.uid,
        "state": maybe(info.state),
        "foreign": info.foreign,
        "parents": [text.clean(parent) for parent in info.parents],
        "framework": maybe(info.framework),
        "framework_sure": info.framework_sure if info.framework else None,
        "frameworks": [text.clean(name) for name in info.frameworks],
        "model": maybe(info.model),
        "container": maybe(info.container),
        "pod": maybe(info.pod),
        "job": maybe(info.job),
        "unit": maybe(info.unit),
        "group": maybe(info.group),
        "rank": info.rank,
        "world": info.world,
    }


def process_json(process: LiveProcess) -> dict[str, Any]:
    """Return one process on a device."""
    return {
        **info_json(process.info),
        "kind": text.clean(process.kind),
        "used_bytes": process.used_bytes,
        "sm_pct": finite(process.sm_pct),
        "host_bytes": process.host_bytes,
        "history": envelope.known_json(process.history),
        "verdict": verdict_json(process.finding),
        "host_verdict": verdict_json(process.host_finding),
    }


def holding_json(holding: Holding) -> dict[str, Any]:
    """Return memory that is held without work."""
    return {
        "id": text.clean(holding.id),
        "kind": holding.kind,
        "device_uid": text.clean(holding.device_uid),
        "process": None if holding.process is None else info_json(holding.process),
        "held_bytes": holding.held_bytes,
        "since_at": units.instant(holding.since_s),
        "evidence": text.clean(holding.evidence, limit=1024),
        "advice": [text.clean(line, limit=1024) for line in holding.advice],
        "gib_hours": finite(holding.gib_hours),
        "cost_usd": finite(holding.cost_usd),
    }


def server_json(server: ServerReading, started: Mapping[int, str | None]) -> dict[str, Any]:
    """Return what a serving engine says of itself; ``started`` is pid -> start of processes."""
    models = server.models
    return {
        "kind": text.clean(server.kind),
        "url": text.clean(server.url),
        "at": units.instant(server.at_s),
        "pid": server.pid,
        "started_at": None if server.pid is None else started.get(server.pid),
        "ok": server.ok,
        "why": text.clean(server.why) or None,
        "models": None
        if models is None
        else [
            {
                "name": text.clean(model.name),
                "size_bytes": model.size_bytes,
                "vram_bytes": model.vram_bytes,
                "expires_at": units.instant(model.expires_at_s),
            }
            for model in models
        ],
        "kv_share": finite(server.kv_share),
        "running": server.running,
        "waiting": server.waiting,
        "pool_share": finite(server.pool_share),
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
        "silences": [silence_json(silence) for silence in view.silences],
    }


def lost_json(alert: UndeliveredAlert) -> dict[str, Any]:
    """Return an alert that was over before anybody could be told."""
    return {
        "key": text.clean(alert.key),
        "id": alert.code,
        "title": text.clean(alert.title),
        "severity": alert.severity,
        "ended": text.clean(alert.ended),
        "ended_at": units.instant(alert.ended_at_s),
    }


def channel_json(channel: ChannelHealth) -> dict[str, Any]:
    """Return how one channel does."""
    return {
        "name": text.clean(channel.name),
        "ok": channel.ok,
        "why": text.clean(channel.why) or None,
        "failing_since_at": units.instant(channel.failing_since_s),
        "delivered_at": units.instant(channel.delivered_at_s),
        "waiting": channel.waiting,
    }


def silence_json(silence: Silence) -> dict[str, Any]:
    """Return a silence."""
    return {
        "about": delivery_text.conditions(silence.matcher),
        "from_at": units.instant(silence.from_at_s),
        "until_at": units.instant(silence.until_at_s),
        "until_resolved": silence.until_resolved,
        "who": text.clean(silence.who) or None,
        "why": text.clean(silence.why) or None,
    }
