"""What is known of a device or a process beside its curve, in few words and with what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.analysis import hardware
from gpuwatchd.core import text, units
from gpuwatchd.core.codes import LimitKind
from gpuwatchd.core.model import LEAK_PATTERNS, is_leak, limit_of
from gpuwatchd.view.text import verdict_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatchd.analysis.hardware import Diagnosis
    from gpuwatchd.core.model import (
        Device,
        DeviceReading,
        DeviceState,
        Event,
        EventKind,
        Ledger,
        MemoryKind,
        MemoryLimit,
        ProcessInfo,
    )
    from gpuwatchd.store.live import LiveDevice, LiveProcess
    from gpuwatchd.store.reader import Segment
    from gpuwatchd.view.blocks import Part
    from gpuwatchd.view.queries.current_view import View
    from gpuwatchd.view.queries.remeasure import ExplanationInput


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
    parts += [] if process.limit is None else _limits(process.limit)
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
    mine = {case.item.device.uid, case.item.device.parent_uid}
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
    means = memory_means(case.item.device)
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


_LEAST_OTHERS = 0.01
"""Less than this share of a card is not worth a word."""
_WAKES = "it is read again when a program wakes it"
_REBOOT, _STAYS = "sudo dmesg | grep -i xid; then reboot", "see dmesg; reboot if it persists"
_RESET = "end its processes, then sudo nvidia-smi --gpu-reset"
_DOCTOR = "gpuwatchctl doctor"
_STATES: dict[DeviceState, tuple[EventKind | None, str, str, str, str]] = {
    "asleep": (None, "asleep", ", ", "and left so", _WAKES),
    "lost": ("gpu-lost", "lost", "", "", _REBOOT),
    "hung": ("gpu-hung", "hung", ": ", "the driver does not answer", _STAYS),
    "reset-required": ("reset-required", "needs a reset", "", "", _RESET),
    "released": (None, "released", ", ", "not read", "gpuwatchctl release --end"),
    "no-permission": (None, "no permission to read it", "", "", _DOCTOR),
    "unsupported": (None, "its memory cannot be read", "", "", _DOCTOR),
}
"""State -> the event that began it, what it is called, a joint, what that means, what to do."""
_MEMORY_MEANS: dict[MemoryKind, str] = {
    "dedicated": "",
    "unified": "memory is shared with the host: what is free is what the host has left",
    "coherent": "the kernel keeps pages after a process has ended: processes are monitored, "
    "and the GPU as a whole where they are unknown",
}
_ABSENT = {"gpu-lost": "it was lost", "gpu-hung": "the driver did not answer"}
_SELF_EVIDENT = {
    *("xid", "released", "gpu-lost", "gpu-back", "gpu-hung", "driver-changed"),
    *("watch", "alert", "critical", "died", "resolved"),
}
"""Events whose words need no name before them: "XID 79: ...", "the driver is used again"."""
_TIME_SAYS = {
    "start": "the daemon started to record",
    "boot": "the machine was started",
    "clock-step": "the clock was set",
    "gap": "no data before",
}
UNOWNED = "that no process owns"
_DAY_S = 86400.0
_MATTERS_BYTES, _MATTERS_SHARE = 512 * 1024**2, 0.01
"""Memory that without an owner is spoken of from this amount and share of the device on."""
DRIVER_BYTES, DRIVER_SHARE = 1024**3, 0.02
"""The driver takes no more than this, or than that share: as `zombies` has it."""


def state(item: LiveDevice, *, now_s: float, released_until_s: float | None = None) -> list[Part]:
    """Return what keeps a device from being read, since when, and what to do; [] when nothing."""
    reading = item.reading
    if reading is None:
        why = f": {item.faults[0]}" if item.faults else ""
        return [(f"not readable{why}", "yellow")]
    if reading.state == "ok":
        if reading.used_bytes is None and not reading.per_instance and item.faults:
            return [(f"memory unknown: {item.faults[0]}", "yellow")]
        return []
    kind, _, _, _, todo = _STATES[reading.state]
    event = newest(item.events, kind) if kind is not None else None
    words = state_words(item, reading.state, now_s=now_s, released_until_s=released_until_s)
    style = "dim" if reading.state in {"asleep", "released"} else "yellow"
    why = event.text if event is not None else item.faults[0] if item.faults else ""
    return [("".join(words), style), why, (f"-> {todo}", "cyan")]


def remedy(reading: DeviceReading | None) -> str:
    """Return the command, or step, that helps with a device that cannot be read."""
    return _DOCTOR if reading is None or reading.state == "ok" else _STATES[reading.state][-1]


def state_words(
    item: LiveDevice, state: DeviceState, *, now_s: float, released_until_s: float | None = None
) -> tuple[str, str, str, str]:
    """Return what a state is called, since or until when it is so, a joint, and what it means."""
    kind, called, joint, means, _ = _STATES[state]
    event = newest(item.events, kind) if kind is not None else None
    since = f" since {units.clock(event.at_s, now_s=now_s)}" if event is not None else ""
    if state == "released" and released_until_s is not None:
        since = f" until {units.clock(released_until_s, now_s=now_s)}"
    return called, since, joint, means


def newest(events: Sequence[Event], kind: EventKind) -> Event | None:
    """Return the last event of a kind."""
    return next((event for event in reversed(events) if event.kind == kind), None)


def memory_note(device: Device) -> str:
    """Return "unified memory" and the like; "" for a card with memory of its own.

    Examples
    --------
    >>> from gpuwatchd.core.model import Device
    >>> memory_note(Device(uid="u", vendor="nvidia", index=0, name="GB10",
    ...                    memory_total_bytes=None, memory_kind="unified"))
    'unified memory'
    """
    return "" if device.memory_kind == "dedicated" else f"{device.memory_kind} memory"


def memory_means(device: Device) -> str:
    """Return what that means for a verdict; "" where there is nothing to say."""
    return _MEMORY_MEANS[device.memory_kind]


def processes(item: LiveDevice) -> str:
    """Return why the process list is unknown, and how old the last one is; "" when it is known."""
    reading = item.reading
    if item.processes is not None and item.processes_age_s is None:
        some = reading.uses_reason if reading is not None else None
        return f"some processes unknown: {some}" if some else ""
    if reading is None or reading.state in {"asleep", "released"}:
        return ""
    if reading.per_instance:
        return ""  # nothing is missing: the instances have lists of their own
    if reading.uses_reason is None and reading.state != "ok":
        return ""
    why = reading.uses_reason or "no reason is known"
    last = ""
    if item.processes is not None and item.processes_age_s is not None:
        last = f"; last known {units.duration(item.processes_age_s)} ago"
    return f"processes unknown: {why}{last}"


def others(view: View, item: LiveDevice) -> str:
    """Return what other users hold on a device, where only some users' processes are shown."""
    rest = view.others.get(item.device.uid)
    if rest is None:
        return ""
    own = "" if item.processes else f"no process of {rest.named}"
    if not rest.count:
        return own
    least = "" if rest.whole else "at least "
    processes = units.count(rest.count, "process")
    held = f"others hold {least}{units.size(rest.held_bytes)} in {processes}"
    return f"{own}; {held}" if own else held


def unowned(item: LiveDevice) -> str:
    """Return "1.2 GiB that no process owns" where that is worth a line; else "".

    What without an owner while the device is idle (contexts of the driver) does not count.
    """
    ledger = item.ledger
    amount = item.unattributed_bytes if ledger is None else ledger.unattributed_bytes
    if amount is None or (ledger is not None and ledger.state in {"overlap", "none"}):
        return ""
    usual = (ledger.baseline_bytes if ledger is not None else None) or 0
    total = item.device.memory_total_bytes or 0
    # What was there from the beginning may be somebody's too: the driver takes no more than this.
    usual = min(usual, round(max(DRIVER_BYTES, DRIVER_SHARE * total)))
    if amount - usual < max(_MATTERS_BYTES, _MATTERS_SHARE * total):
        return ""
    bound = "<= " if ledger is not None and ledger.state == "partial" else ""
    text = f" ({units.size(usual)} is usual)" if usual else ""
    return f"{bound}{units.size(amount)} {UNOWNED}{text}"


_LIMITS: Final = {
    LimitKind.MPS: "limit of an MPS client",
    LimitKind.FRAMEWORK: "limit of its allocator",
}


def limit_words(limit: MemoryLimit) -> str:
    """Return what a limit below the device is of: "limit of its cgroup"."""
    return _LIMITS.get(limit.kind, "limit of its cgroup")


def _limits(limit: MemoryLimit) -> Iterator[str]:
    if limit.hard_bytes is not None:
        yield f"{limit_words(limit)} {units.size(limit.hard_bytes)} ({limit.name})"
    if limit.soft_bytes and (limit.used_bytes or 0) > limit.soft_bytes:
        size = units.size(limit.soft_bytes)
        yield f"its cgroup is above its soft limit {size}: memory may be evicted"


def binding(item: LiveDevice, process: LiveProcess | None) -> MemoryLimit | None:
    """Return the limit by which a process runs out before its device is full."""
    limit = None if process is None else process.limit
    if process is None or limit is None:
        return None
    free_bytes = None if item.reading is None else item.reading.free_bytes
    card, end = limit_of(process.used_bytes, free_bytes), limit.ends_at(process.used_bytes)
    return limit if end is not None and (card is None or end < card) else None


def why_sooner(item: LiveDevice, limit_bytes: float | None, process: LiveProcess | None) -> str:
    """Return why a process runs out before its card does: "others hold 35.0 GiB"; "" if not."""
    limit = binding(item, process)
    if limit is not None:
        others = (limit.hard_bytes or 0) - (limit.process_bytes or 0.0)
        beside = f"; others of it hold {units.size(others)}" if others > 0.0 else ""
        return f"{limit_words(limit)}, not of the card{beside}"
    reading = item.reading
    whole = None if reading is None else limit_of(reading.used_bytes, reading.free_bytes)
    if whole is None or limit_bytes is None or whole - limit_bytes < _LEAST_OTHERS * whole:
        return ""
    return f"others hold {units.size(whole - limit_bytes)}"


def balance(ledger: Ledger) -> str:
    """Return the whole account of a device in one sentence.

    Examples
    --------
    >>> from gpuwatchd.core.model import Ledger
    >>> G = 1024**3
    >>> balance(Ledger(state="whole", total_bytes=80 * G, free_bytes=27 * G, reserved_bytes=G,
    ...                owned_bytes=50 * G, unattributed_bytes=2 * G))
    '80.0 GiB = 27.0 GiB free + 1.0 GiB reserved + 50.0 GiB in processes + 2.0 GiB without an owner'
    """
    if ledger.state == "none":
        return "no account: the process list is unknown"
    parts = [
        f"{bound}{units.size(amount)} {name}"
        for amount, name, bound in (
            (ledger.free_bytes, "free", ""),
            (ledger.reserved_bytes, "reserved", ""),
            (ledger.owned_bytes, "in processes", ">= " if ledger.state == "partial" else ""),
            (
                None if ledger.state == "overlap" else ledger.unattributed_bytes,
                "without an owner", "<= " if ledger.state == "partial" else "",
            ),
        )
        if amount is not None
    ]  # fmt: skip
    if ledger.free_bytes is None and ledger.unattributed_bytes is None:
        # Shared with the host, or kept by the kernel: what is free is not the device's to count.
        text = f"{', '.join(parts) or '?'}, of {units.size(ledger.total_bytes)}"
    else:
        text = f"{units.size(ledger.total_bytes)} = {' + '.join(parts)}"
    if ledger.state == "overlap" and ledger.unattributed_bytes is not None:
        more = units.size(-ledger.unattributed_bytes)
        text += f"; processes hold {more} more than is used: memory that they share counts in each"
    if ledger.state == "partial":
        text += "; the memory of some process is unknown"
    return text


def sort_of(kind: str, text: str) -> str:
    """Return what goes before the words on an event: "" where they say it themselves.

    Examples
    --------
    >>> sort_of("xid", "XID 31"), sort_of("throttle", "clocks held down"), sort_of("start", "")
    ('', 'throttle:', 'start')
    """
    if text and kind in _SELF_EVIDENT:
        return ""
    return f"{kind}:" if text else kind


def happened(event: Event, *, now_s: float) -> list[Part]:
    """Return one event: when, what, and where to look."""
    style = "yellow" if event.hardware else ""
    look = ""
    if event.hardware is not None:
        look = "check the hardware first" if event.hardware else "caused by the application"
    text = f"{sort_of(event.kind, event.text)} {event.text}".strip()
    return [units.clock(event.at_s, now_s=now_s), (text, style), (look, "dim")]


def segment_words(segment: Segment) -> str:
    """Return why time went on differently, and by how much."""
    value = _TIME_SAYS.get(segment.reason, text.clean(segment.reason))
    if segment.wall_step_s is not None:
        value += f" by {segment.wall_step_s:+.0f} s"
    if segment.gap_s is not None:
        value += f", {units.duration(segment.gap_s)} are missing"
    return value


def broken(item: LiveDevice, *, now_s: float) -> list[Part]:
    """Return the last thing of the hardware that broke within a day; [] when nothing did."""
    events = [e for e in item.events if e.hardware and now_s - e.at_s < _DAY_S]
    if not events:
        return []
    last = events[-1]
    at, text = units.clock(last.at_s, now_s=now_s), last.text
    back = newest(item.events, "gpu-back")
    if last.kind in _ABSENT and back is not None and back.at_s >= last.at_s:
        # Its text is of that moment: "does not answer any more".
        text = f"{_ABSENT[last.kind]}, back since {units.clock(back.at_s, now_s=now_s)}"
    return [(f"{at} {text}", "yellow"), ("check the hardware first", "dim")]


def judged_instead(item: LiveDevice, others: Sequence[LiveDevice]) -> str:
    """Return what is judged where a device itself is not; "" where it is."""
    if any(other.device.parent_uid == item.device.uid for other in others):
        return "its MIG instances are monitored, not the card"
    known = item.processes is not None and item.processes_age_s is None
    if item.device.memory_kind == "coherent" and known:
        return "its processes are monitored, not the card"
    return ""


def in_order(devices: Sequence[Device]) -> list[Device]:
    """Return devices by index, the instances of a card after it."""
    cards = {device.uid: device.index or 0 for device in devices if device.parent_uid is None}

    def place(device: Device) -> tuple[int, bool, int]:
        own = device.index or 0
        return cards.get(device.parent_uid or "", own), device.parent_uid is not None, own

    return sorted(devices, key=place)
