"""What is known of a process beside its curve: who, where, for whom, and what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.analysis import hardware
from gpuwatchd.core import units
from gpuwatchd.core.model import LEAK_PATTERNS, is_leak
from gpuwatchd.view.text import device_facts, verdict_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.analysis.hardware import Diagnosis
    from gpuwatchd.core.model import DeviceReading, Event, ProcessInfo
    from gpuwatchd.store.live import LiveDevice, LiveProcess
    from gpuwatchd.view.text.explanation_curve import ExplanationInput

_SHORT_POD = 8
_ALONE = {"C", ""}


def leak_rate(process: LiveProcess) -> float:
    """Return how fast it grows in bytes per second; 0 where it does not, or nobody knows."""
    finding = process.finding
    if finding is None or finding.pattern not in LEAK_PATTERNS:
        return 0.0
    return finding.rate_bytes_per_s or 0.0


def place(item: LiveDevice, process: LiveProcess) -> tuple[float, float, int, str]:
    """Return what processes are sorted by: growth, then memory, then pid."""
    used = float(process.used_bytes or 0)
    return -leak_rate(process), -used, process.info.key.pid, item.device.uid


def matches(item: LiveDevice, process: LiveProcess, wish: str, *, badge: str) -> bool:
    """Say whether every word of a filter is found: in name, user, pid, framework, GPU, job.

    Words of digits alone are a pid, or its beginning; ``badge`` is the word for its verdict.
    """
    info, device = process.info, item.device
    own = (info.label, info.name, info.user, info.framework, info.model, info.job, info.group)
    fields = (*own, info.container, info.unit, badge, device.name)
    names = {device.label.lower().replace(" ", ""), device.uid.lower()}
    return all(
        str(info.key.pid).startswith(word)
        if word.isdecimal()
        else word in names or any(field and word in field.lower() for field in fields)
        for word in wish.lower().split()
    )


def runs(info: ProcessInfo) -> str:
    """Return the framework, the model that it serves and the rank: "Ollama llama3:8b", "rank 3".

    Examples
    --------
    >>> from gpuwatchd.core.model import ProcessInfo, ProcessKey
    >>> key = ProcessKey(pid=1, started_at_s=None)
    >>> runs(ProcessInfo(key=key, name="x", framework="PyTorch", framework_sure=True, rank=3,
    ...                  world=8))
    'PyTorch, rank 3 of 8'
    """
    what = "" if not info.framework else verdict_text.framework(None, info)
    if info.model:
        what = f"{what} {info.model}".strip()
    of = f" of {info.world}" if info.world is not None else ""
    rank = f"rank {info.rank}{of}" if info.rank is not None else ""
    return ", ".join(word for word in (what, rank) if word)


def where(info: ProcessInfo) -> list[str]:
    """Return job, pod, container and unit, the most telling first.

    Examples
    --------
    >>> from gpuwatchd.core.model import ProcessInfo, ProcessKey
    >>> key = ProcessKey(pid=1, started_at_s=None)
    >>> where(ProcessInfo(key=key, name="x", job="slurm 42.0", container="docker " + "ab" * 32))
    ['slurm 42.0', 'docker abababababab']
    """
    named = (
        ("job", info.job),
        ("group", info.group if info.group != info.job else None),
        ("pod", f"pod {info.pod[:_SHORT_POD]}" if info.pod else None),
        ("container", info.short_container),
        ("unit", f"unit {info.unit}" if info.unit else None),
    )
    return [value if " " in value else f"{label} {value}" for label, value in named if value]


def host_growth(process: LiveProcess) -> str:
    """Return what its memory on the host does where that is a leak, else ""."""
    finding = process.host_finding
    if finding is None or not is_leak(finding):
        return ""
    held = f" ({units.size(process.host_bytes)})" if process.host_bytes is not None else ""
    return f"host memory {verdict_text.growth(finding.rate_bytes_per_s)}{held}"


def wide(process: LiveProcess, *, now_s: float) -> list[tuple[str, str]]:
    """Return everything else that is known, for ``--wide``."""
    info = process.info
    parts = list(where(info))
    if len(info.frameworks) > 1:
        parts.append(f"loaded: {', '.join(info.frameworks)}")
    if process.sm_pct is not None:
        parts.append(f"sm {process.sm_pct:.0f} %")
    if process.host_bytes is not None:
        parts.append(f"host {units.size(process.host_bytes)}")
    if process.kind not in _ALONE:
        parts.append(f"lists {process.kind}")
    if info.key.started_at_s is not None:
        parts.append(f"since {units.clock(info.key.started_at_s, now_s=now_s)}")
    if info.uid is not None and not info.user:
        parts.append(f"uid {info.uid}")
    if info.parents:
        parts.append(f"from {' < '.join(info.parents)}")
    if len(info.argv) > 1 and not info.foreign:
        parts.append(f"command: {' '.join(info.argv)}")
    return [(part, "dim") for part in parts]


# What the hardware did meanwhile: clean, not readable, or to be looked at first.

_MOST = 6


def events(case: ExplanationInput) -> list[Event]:
    """Return what happened to the device, or to the card of a MIG instance, lately.

    Since shortly before the growth began; without a growth, of the last day.
    """
    parent = case.item.device.parent_uid
    mine = {case.item.device.uid, parent}
    found = [
        event
        for item in case.view.devices
        if item.device.uid in mine
        for event in item.events
        if event.at_s >= _since_s(case)
    ]
    return sorted(found, key=lambda event: event.at_s)


def _since_s(case: ExplanationInput) -> float:
    onset_s = case.finding.onset_at_s if case.finding is not None else None
    recent_s = case.now_s - hardware.RECENT_S
    return recent_s if onset_s is None else min(onset_s - hardware.BEFORE_S, case.now_s)


def diagnose(case: ExplanationInput) -> Diagnosis:
    """Return where to look first."""
    return hardware.diagnose(events(case), _reading(case), now_s=case.now_s, since_s=_since_s(case))


def _reading(case: ExplanationInput) -> DeviceReading | None:
    """Return what was read of the device; the history keeps nothing of its health."""
    return None if case.view.source == "database" else case.item.reading


def first(case: ExplanationInput) -> bool:
    """Say whether the hardware or its driver is to be looked at before the program."""
    return diagnose(case).word == "hardware"


def hardware_lines(case: ExplanationInput) -> Iterator[str]:
    """Yield what is known of the hardware."""
    diagnosis = diagnose(case)
    yield f"clean, {diagnosis.sentence}" if diagnosis.word == "clean" else diagnosis.sentence
    means = device_facts.memory_means(case.item.device)
    if means:
        yield means
    for event in events(case)[-_MOST:]:
        if event is not diagnosis.event:
            yield f"{units.clock(event.at_s, now_s=case.now_s)} {event.text}"
    reading = _reading(case)
    if reading is None:
        return
    if reading.throttle:
        yield f"clocks are held down: {', '.join(reading.throttle)}"
    counts = (
        ("memory errors since the driver was loaded", reading.ecc_errors),
        ("retired pages", reading.retired_pages),
        ("why clocks are held down", None if reading.throttle is None else 0),
    )
    names = [f"{name}: {value}" for name, value in counts[:2] if value is not None]
    if names:
        yield ", ".join(names)
    unknown = [name for name, value in counts if value is None]
    if unknown:
        yield f"not readable here: {', '.join(unknown)}"
