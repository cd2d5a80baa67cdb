"""The page that Prometheus scrapes: what the daemon saw last, as series with few, bounded labels.

Unknown is a series that is absent, never 0 or infinity. Format and names:
https://prometheus.io/docs/instrumenting/exposition_formats/ and docs/reference/metrics.md.
"""

from __future__ import annotations

import math
import socket
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gpuwatchd import __version__, alerts
from gpuwatchd.core import text
from gpuwatchd.core.codes import Hold
from gpuwatchd.core.model import outdated_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gpuwatchd.core.model import Alert, Finding, ProcessInfo
    from gpuwatchd.store.live import LiveDevice, LiveState
    from gpuwatchd.view.queries.current_view import View

    Labels = dict[str, str]

MOST_PROCESSES: Final = 256
"""Series of processes, and of alerts, under one name; what is beyond them is summed or left out."""
_LONGEST_LABEL: Final = 128
_MIB: Final = 2.0**20
_OTHER: Final = "other"
_QUANTILES: Final = "gpuwatchd_oom_eta_seconds"
_QUIET: Final = frozenset({Hold.MUTED, Hold.MAY_GROW, Hold.PART_OF_JOB})
"""Reasons for which nobody is told of an alert that fires, by a rule or because another says it."""
_SEVERITIES: Final = {"info": 0, "warning": 1, "critical": 2}


HELP: Final = {
    "gpuwatchd_alerts": "Open alerts.",
    "gpuwatchd_build_info": "Version of the daemon.",
    "gpuwatchd_gpu_info": "What the device is.",
    "gpuwatchd_last_sample_success": "Whether the device could be read in the last tick.",
    "gpuwatchd_last_sample_timestamp_seconds": "When the device was read last (since 1970).",
    "gpuwatchd_last_tick_timestamp_seconds": "When the daemon looked last (since 1970).",
    "gpuwatchd_leak_confidence_ratio": "How sure it is that memory leaks.",
    "gpuwatchd_leak_growth_bytes_per_second": "How fast the memory of a leak grows.",
    "gpuwatchd_oom_eta_seconds": "Time until memory is full: quantiles, a 90 % interval.",
    "gpuwatchd_orphan_memory_bytes": "Idle memory, by what kind it is.",
}
"""Our names beside those of :data:`DIALECTS`, and what they mean."""
MEANING: Final = {
    "used": "Memory in use, without the driver's reserve.",
    "used_pct": "Share of the memory in use.",
    "total": "All of the memory.",
    "free": "Memory that is free.",
    "reserved": "Memory that the driver keeps.",
    "util": "Share of time that the GPU was busy.",
    "temp": "Temperature of the GPU.",
    "power": "Power that the GPU draws.",
    "clock": "Clock of the compute units.",
    "process": "Memory that a process holds on a device.",
}
"""What a series of a device or process shows."""


class Dialect(NamedTuple):
    """The names of one exporter for what every device and process has."""

    labels: Callable[[LiveDevice, str], Labels]
    """Of a device, on a host."""
    gauges: dict[str, tuple[str, float]]
    """Name -> key of :data:`MEANING`, and the factor of its unit."""
    process: str = ""
    """Name of the memory of a process; "": it has none."""
    process_factor: float = 1.0
    process_labels: Callable[[ProcessInfo], Labels] = lambda _: {}


def _own(item: LiveDevice, host: str) -> Labels:
    return {"uuid": item.device.uid, "gpu": item.device.number, "host": host}


def _dcgm(item: LiveDevice, host: str) -> Labels:
    device = item.device
    card = device.index if device.parent_uid is None else device.parent_index
    number = "" if card is None else str(card)
    labels = {"gpu": number, "UUID": device.parent_uid or device.uid, "device": f"nvidia{number}"}
    labels |= {"pci_bus_id": device.pci_bus or "", "modelName": device.name}
    labels |= {"hostname": host, "Hostname": host}  # renamed in NVIDIA/dcgm-exporter#655
    return labels if device.parent_uid is None else {**labels, "GPU_I_ID": str(device.index)}


def _nvidia_smi(item: LiveDevice, _: str) -> Labels:
    return {"uuid": item.device.uid.removeprefix("GPU-").lower()}


def _nvitop(item: LiveDevice, host: str) -> Labels:
    device = item.device
    names = {"index": device.number, "devicename": device.name, "uuid": device.uid}
    return {"hostname": host, **names}


DIALECTS: Final[dict[str, Dialect]] = {
    "": Dialect(
        _own,
        {
            "gpuwatchd_gpu_memory_used_bytes": ("used", 1),
            "gpuwatchd_gpu_memory_total_bytes": ("total", 1),
            "gpuwatchd_gpu_memory_free_bytes": ("free", 1),
            "gpuwatchd_gpu_utilization_ratio": ("util", 0.01),
            "gpuwatchd_gpu_temperature_celsius": ("temp", 1),
            "gpuwatchd_gpu_power_watts": ("power", 1),
            "gpuwatchd_gpu_clock_hertz": ("clock", 1e6),
        },
        "gpuwatchd_process_gpu_memory_bytes",
        1.0,
        lambda info: {"user": info.user or "", "framework": info.framework or ""},
    ),
    "dcgm": Dialect(
        _dcgm,
        {
            "DCGM_FI_DEV_FB_USED": ("used", 1 / _MIB),
            "DCGM_FI_DEV_FB_FREE": ("free", 1 / _MIB),
            "DCGM_FI_DEV_FB_RESERVED": ("reserved", 1 / _MIB),
            "DCGM_FI_DEV_GPU_UTIL": ("util", 1),
            "DCGM_FI_DEV_GPU_TEMP": ("temp", 1),
            "DCGM_FI_DEV_POWER_USAGE": ("power", 1),
            "DCGM_FI_DEV_SM_CLOCK": ("clock", 1),
        },
    ),
    "nvidia-smi": Dialect(
        _nvidia_smi,
        {
            "nvidia_smi_memory_used_bytes": ("used", 1),
            "nvidia_smi_memory_total_bytes": ("total", 1),
            "nvidia_smi_memory_free_bytes": ("free", 1),
            "nvidia_smi_utilization_gpu_ratio": ("util", 0.01),
            "nvidia_smi_temperature_gpu": ("temp", 1),
            "nvidia_smi_power_draw_watts": ("power", 1),
            "nvidia_smi_clocks_current_sm_clock_hz": ("clock", 1e6),
        },
        "nvidia_smi_compute_app_used_memory_bytes",
        1.0,
        lambda info: {"process_name": info.name},
    ),
    "nvitop": Dialect(
        _nvitop,
        {
            "gpu_memory_used_MiB": ("used", 1 / _MIB),
            "gpu_memory_total_MiB": ("total", 1 / _MIB),
            "gpu_memory_free_MiB": ("free", 1 / _MIB),
            "gpu_memory_percent_Percentage": ("used_pct", 1),
            "gpu_utilization_Percentage": ("util", 1),
            "gpu_temperature_C": ("temp", 1),
            "gpu_power_usage_W": ("power", 1),
            "gpu_clock_sm_MHz": ("clock", 1),
        },
        "process_gpu_memory_MiB",
        1 / _MIB,
        lambda info: {"username": info.user or ""},
    ),
}
"""Value of ``[metrics] compat`` -> its names; "" are our own."""


def _values(item: LiveDevice) -> dict[str, float | None]:
    used, total, reading = item.used_bytes, item.total_bytes, item.reading
    values: dict[str, float | None] = {"used": used, "total": total}
    if used is not None and total:
        values["used_pct"] = 100.0 * used / total
    if reading is not None:
        values |= {"free": reading.free_bytes, "reserved": reading.reserved_bytes}
        values |= {"util": reading.util_pct, "temp": reading.temp_c}
        values |= {"power": reading.power_w, "clock": reading.clock_mhz}
    return values


def render(
    seen: LiveState | View,
    *,
    compat: Sequence[str] = (),
    host: str | None = None,
    version: str = __version__,
    sampled_at_s: Mapping[str, float] | None = None,
) -> bytes:
    """Return the page.

    Parameters
    ----------
    seen
        What was seen last.
    compat
        Whose names its devices and processes have beside ours, of :data:`DIALECTS`.
    host
        Name of this machine; None asks for it.
    version
        Of the daemon.
    sampled_at_s
        Uid -> when a device was read last; without it only those are known that were read now.
    """
    registry = CollectorRegistry(auto_describe=False)
    page = _Page(host or socket.gethostname())
    page.program(version, seen.taken_at_s)
    page.samples(seen, sampled_at_s or {})
    dialects = [DIALECTS[name] for name in dict.fromkeys(("", *compat))]
    page.devices(dialects, seen.devices)
    page.processes(dialects, seen.devices)
    page.alerts(seen)
    page.idle_memory(seen)
    registry.register(page)
    return generate_latest(registry)


class _Page(Collector):
    """Series by name and labels: no two are the same, whatever the labels were made of."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._series: dict[str, tuple[str, dict[tuple[tuple[str, str], ...], float]]] = {}
        self._labels: dict[str, Labels] = {}
        self._words: dict[str, str] = {}
        """As they are given -> as they may be shown: few are many times in a page."""

    def collect(self) -> Iterator[Metric]:
        """Yield the families; called by the registry."""
        for name, (meaning, values) in self._series.items():
            # Of a gauge promtool refuses the label "quantile".
            metric = Metric(name, meaning, "summary" if name == _QUANTILES else "gauge")
            for labels, value in values.items():
                metric.add_sample(name, dict(labels), value)
            yield metric

    def _put(self, name: str, labels: Labels, value: float | None, meaning: str = "") -> None:
        """Add to a series; a value that is unknown or no number makes none."""
        if value is None or not math.isfinite(value):
            return
        values = self._series.setdefault(name, (meaning or HELP[name], {}))[1]
        words = self._words
        key = tuple([(of, words.get(word) or self._clean(word)) for of, word in labels.items()])
        values[key] = values.get(key, 0.0) + value

    def _clean(self, word: str) -> str:
        shown = self._words[word] = text.clean(word, limit=_LONGEST_LABEL)
        return shown

    def program(self, version: str, at_s: float) -> None:
        """Put who wrote it, and when it looked."""
        self._put("gpuwatchd_build_info", {"version": version}, 1.0)
        self._put("gpuwatchd_last_tick_timestamp_seconds", {"host": self._host}, at_s)

    def samples(self, seen: LiveState | View, sampled_at_s: Mapping[str, float]) -> None:
        """Put which devices there are, and how new what is known of each is."""
        for item in seen.devices:
            read = item.used_bytes is not None
            labels = self._labels[item.device.uid] = _own(item, self._host)
            at_s = sampled_at_s.get(item.device.uid, seen.taken_at_s if read else None)
            self._put("gpuwatchd_last_sample_timestamp_seconds", labels, at_s)
            self._put("gpuwatchd_last_sample_success", labels, float(read))
            names = {"name": item.device.name, "vendor": item.device.vendor}
            self._put("gpuwatchd_gpu_info", {**labels, **names}, 1.0)

    def devices(self, dialects: Sequence[Dialect], items: Sequence[LiveDevice]) -> None:
        """Put what was read of each device."""
        for item in items:
            values = _values(item)
            for dialect in dialects:
                labels = dialect.labels(item, self._host)
                for name, (of, factor) in dialect.gauges.items():
                    value = values.get(of)
                    self._put(name, labels, None if value is None else value * factor, MEANING[of])

    def processes(self, dialects: Sequence[Dialect], items: Sequence[LiveDevice]) -> None:
        """Put the largest; of each device, what is beyond them goes as one."""
        held = [
            (process.used_bytes, item.device.uid, process.info)
            for item in items
            for process in item.processes or ()
            if process.used_bytes is not None
        ]
        held.sort(key=lambda each: -each[0])
        room = MOST_PROCESSES if len(held) <= MOST_PROCESSES else MOST_PROCESSES - len(items)
        rest: dict[str, int] = {}
        for size, uid, _ in held[room:]:
            rest[uid] = rest.get(uid, 0) + size
        for dialect in dialects:
            name, factor = dialect.process, dialect.process_factor
            if not name:
                continue
            of_device = {item.device.uid: dialect.labels(item, self._host) for item in items}
            if dialect is DIALECTS[""]:
                of_device = {uid: {"uuid": uid} for uid in of_device}
            for size, uid, info in held[:room]:
                labels = {"pid": str(info.key.pid), **dialect.process_labels(info)}
                self._put(name, of_device[uid] | labels, size * factor, MEANING["process"])
            for uid, size in rest.items():
                none = dict.fromkeys(dialect.process_labels(held[0][2]), "")
                labels = {**of_device[uid], "pid": _OTHER, **none}
                self._put(name, labels, size * factor, MEANING["process"])

    def alerts(self, seen: LiveState | View) -> None:
        """Put the open alerts, and how each leak grows."""
        ranked = sorted(seen.alerts, key=lambda alert: -_SEVERITIES[alert.severity])
        for place, alert in enumerate(ranked):
            uid = alert.subject.device_uid
            device = self._labels.get(uid) or {"uuid": uid, "gpu": "", "host": self._host}
            shared = {"state": _state(alert, seen), "severity": alert.severity}
            self._put("gpuwatchd_alerts", {**device, "kind": alert.kind, **shared}, 1.0)
            if alert.kind == "leak" and place < MOST_PROCESSES:
                self._leak({**device, **_subject(alert), **shared}, alert.finding, seen.taken_at_s)

    def _leak(self, labels: Labels, finding: Finding, now_s: float) -> None:
        self._put("gpuwatchd_leak_growth_bytes_per_second", labels, finding.shown_rate_bytes_per_s)
        self._put("gpuwatchd_leak_confidence_ratio", labels, finding.confidence)
        eta = finding.eta
        if eta is None:
            return
        passed_s = outdated_s(finding.judged_at_s, eta.mid_s, now_s)
        for quantile, left_s in (("0.05", eta.low_s), ("0.5", eta.mid_s), ("0.95", eta.high_s)):
            left_s = None if left_s is None else max(0.0, left_s - passed_s)  # noqa: PLW2901
            self._put(_QUANTILES, {**labels, "quantile": quantile}, left_s)

    def idle_memory(self, seen: LiveState | View) -> None:
        """Put the idle memory of each device."""
        for holding in seen.holdings:
            labels = self._labels.get(holding.device_uid)
            if labels is not None:
                kind = {**labels, "kind": holding.kind}
                self._put("gpuwatchd_orphan_memory_bytes", kind, holding.held_bytes)


def _state(alert: Alert, seen: LiveState | View) -> str:
    """Return watch, firing, or silenced: it fires, and nobody is to be told of it here either."""
    if alert.state != "firing":
        return alert.state
    quiet = alert.held_code in _QUIET or alert.inhibited_by
    return (
        "silenced" if quiet or alerts.silenced(alert, seen.silences, seen.taken_at_s) else "firing"
    )


def _subject(alert: Alert) -> Labels:
    """Return who leaks; no command line is ever in a label."""
    about, process = alert.about, alert.subject.process
    return {
        "pid": "" if process is None else str(process.pid),
        "user": about.user if about else "",
        "process": about.process if about else "",
        "framework": about.framework if about else "",
        # Not "job": Prometheus has that label itself.
        "workload": (about.job or about.container) if about else "",
        "memory": "host" if alert.subject.host else "device",
        "pattern": alert.finding.pattern,
    }
