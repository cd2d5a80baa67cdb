"""The machine of ``histories/v5-full.sql``: its GPUs, who is on them when, and alerts on them."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from gpuwatchd import alerts
from gpuwatchd.core.model import (
    Alert,
    Blame,
    Chart,
    Cost,
    Device,
    DeviceReading,
    EtaRange,
    Finding,
    ProcessInfo,
    ProcessKey,
    ProcessUse,
    Profile,
    Severity,
    Signal,
    Subject,
)
from gpuwatchd.pipeline import alert_transfer, end_reasons, host_memory, job_ranks, run_baselines
from gpuwatchd.pipeline.subject_facts import about
from gpuwatchd.pipeline.titles import device_title, host_title, process_title

GIB: Final = 1 << 30
MIB: Final = 1 << 20
T0: Final = 1_794_999_600.0
"""A full hour: 18 November 2026, 11:00 UTC."""
SPAN_S: Final = 4 * 3600.0
END_S: Final = T0 + SPAN_S
"""When the last sample is taken."""
BOOT: Final = "boot-v5"

CARD: Final = Device(
    uid="GPU-a",
    vendor="nvidia",
    index=0,
    name="NVIDIA A100-SXM4-80GB",
    memory_total_bytes=80 * GIB,
    source="nvml",
    pci_bus="0000:65:00.0",
)
WHOLE: Final = Device(
    uid="GPU-b",
    vendor="nvidia",
    index=1,
    name="NVIDIA H100 80GB HBM3",
    memory_total_bytes=80 * GIB,
    memory_kind="coherent",
    source="nvml",
    pci_bus="0000:ca:00.0",
)
PART: Final = Device(
    uid="MIG-b0",
    vendor="nvidia",
    index=0,
    name="NVIDIA H100 MIG 3g.40gb",
    memory_total_bytes=40 * GIB,
    source="nvml",
    parent_uid=WHOLE.uid,
    parent_index=1,
)
CARDS: Final = (CARD, WHOLE, PART)


def _info(pid: int, user: str, script: str, **more: Any) -> ProcessInfo:
    values: dict[str, Any] = {
        "key": ProcessKey(pid=pid, started_at_s=T0 - 5 * 3600.0 + pid / 16),
        "name": "python",
        "user": user,
        "argv": ("python", script, "--lr", "3e-4"),
        "parent_pid": 4700,
        "framework": "PyTorch",
        "framework_sure": True,
        "job": f"slurm {pid}",
        "container": f"docker c{pid}",
        "program": f"p{pid}",
        "unit": f"slurm-{pid}.scope",
        "model": f"model-{pid}",
    }
    return ProcessInfo(**{**values, **more})


LEAKER: Final = _info(4711, "alice", "train.py")
IDLE: Final = _info(4714, "dave", "notebook.py", framework="JAX")
ON_PART: Final = _info(4715, "erin", "serve.py", framework="vLLM")
UNDATED: Final = ProcessInfo(key=ProcessKey(pid=77, started_at_s=None), name="pid 77 (foreign)")


class Ending(NamedTuple):
    """One way in which an alert is over."""

    why: str
    kind: str = "leak"
    process: bool = True
    host: bool = False


ENDINGS: Final = (
    Ending(alerts.STOPPED),  # policy/life.py
    Ending(end_reasons.ENDED),  # pipeline/endings.py, offline.py
    Ending(end_reasons.CRASHED),
    Ending(end_reasons.FELL),
    Ending(alert_transfer.KNOWN, process=False),  # pipeline/handover.py
    Ending(alert_transfer.UNKNOWN),
    Ending(alert_transfer.KEPT, process=False),
    Ending(job_ranks.GOES_ON),  # pipeline/ranks.py
    Ending(f"{job_ranks.AS_ONE}4 ranks of torchrun 7f3a on GPU 0-3"),
    Ending("its process ended while nobody watched"),  # pipeline/estate.py
    Ending("its device has not been seen for a day", process=False),
    Ending("it could not be seen for a day"),  # pipeline/intake.py
    Ending("its MIG instances are judged", process=False),
    Ending("its device is gone"),
    Ending(run_baselines.said_to_be(None)),  # pipeline/knowledge.py
    Ending("alice said that this is normal: the cache fills up"),
    Ending("[policy] tell-held was emptied", "held"),  # pipeline/alarms.py
    Ending("nothing has been seen of it for a day", "gpu", process=False),  # pipeline/alarms.py
    Ending("[policy] tell-hardware was turned off", "gpu", process=False),
    Ending("the GPU answers again", "gpu", process=False),  # pipeline/ailing.py
    Ending("no memory is held by nobody any more", "held", process=False),  # pipeline/idling.py
    Ending("the process has ended or has let go of the GPU", "held"),
    Ending("it is not listed any more", "held"),
    Ending("it is at work again, or has given the memory back", "held"),
    Ending(host_memory.LEFT, host=True),  # pipeline/hosting.py
)
"""Every text of :attr:`Alert.ended`, from the place named beside it."""
BRIEF: Final = tuple(
    _info(5000 + number, f"user{number % 4}", f"job{number}.py") for number in range(len(ENDINGS))
)
"""A process for each of them, some minutes long; the first four are longer."""

GONE: Final = {
    number: msgspec.structs.replace(
        CARD,
        uid=f"GPU-{number}",
        index=number,
        name="NVIDIA A30",
        pci_bus=f"0000:{number:02x}:00.0",
    )
    for number, ending in enumerate(ENDINGS)
    if not ending.process
}
"""Cards that give no sample: of one as a whole no more than one alert has the same key."""


def people() -> tuple[ProcessInfo, ...]:
    return (LEAKER, IDLE, ON_PART, *BRIEF)


def seen_s(info: ProcessInfo) -> float:
    number = info.key.pid - 5000
    return T0 + 360.0 * number + 600.0 if number >= 4 else T0


def gone_s(info: ProcessInfo) -> float:
    """Return when a process is seen last."""
    number = info.key.pid - 5000
    if number >= 4:
        return seen_s(info) + 720.0
    return {0: T0 + 5400.0, 1: T0 + 7200.0, 2: T0 + 9000.0, 3: T0 + 10800.0}.get(number, END_S)


def held_bytes(info: ProcessInfo, at_s: float) -> int:
    """Return what a process holds: two leak on, the others stand."""
    grown = (at_s - T0) / SPAN_S
    if info is LEAKER:
        return int((20 + 24 * grown) * GIB) // 4096 * 4096
    if info is ON_PART:
        return int((8 + 4 * grown) * GIB) // 4096 * 4096
    if info is IDLE:
        return 6 * GIB
    return (2 + info.key.pid % 3) * GIB if info in BRIEF[:4] else GIB // 2


def uses_on(card: Device, at_s: float) -> tuple[ProcessUse, ...]:
    if card is WHOLE:
        return ()
    if card is PART:
        here: tuple[ProcessInfo, ...] = (ON_PART, UNDATED)
    else:
        brief = [one for one in BRIEF if seen_s(one) <= at_s <= gone_s(one)]
        here = (LEAKER, IDLE, *brief)
    return tuple(
        ProcessUse(
            key=info.key,
            used_bytes=held_bytes(info, at_s),
            kind="C+G",
            sm_pct=0.0 if info is IDLE else 40.0 + info.key.pid % 7,
            host_bytes=2 * GIB + int(at_s - T0) // 600 * 16 * MIB if info is LEAKER else None,
        )
        for info in here
    )


def rest_on(card: Device, at_s: float) -> int:
    return {CARD.uid: 512 * MIB, WHOLE.uid: -3 * MIB}.get(card.uid, int(at_s - T0) * 4096)


def reading_of(card: Device, at_s: float) -> DeviceReading:
    uses = uses_on(card, at_s)
    used = sum(use.used_bytes or 0 for use in uses) + max(0, rest_on(card, at_s))
    total = card.memory_total_bytes or 0
    wave = int(at_s / 180.0) % 5
    return DeviceReading(
        device_uid=card.uid,
        used_bytes=used,
        free_bytes=total - used,
        total_bytes=total,
        util_pct=60.0 + wave,
        memory_util_pct=30.0 + wave,
        temp_c=55.0 + wave,
        power_w=250.5 + wave,
        clock_mhz=1410.0,
        uses=uses if card is not WHOLE else None,
        uses_reason=None if card is not WHOLE else "memory is read per MIG instance",
    )


def finding_on(subject: Subject, judged_at_s: float, reason: str, **changes: Any) -> Finding:
    values: dict[str, Any] = {
        "id": f"{subject.id}@{judged_at_s:.0f}",
        "subject": subject,
        "judged_at_s": judged_at_s,
        "pattern": "gradual",
        "tier": "alert",
        "severity": "warning",
        "confidence": 0.91,
        "rate_bytes_per_s": 1_193_046.0,
        "r_squared": 0.982,
        "p_value": 0.0004,
        "eta": EtaRange(low_s=16_200.0, mid_s=18_000.0, high_s=25_200.0),
        "detector": "trend",
        "onset_at_s": judged_at_s - 4000.0,
        "reason": reason,
        "blame": (
            Blame(
                process=subject.process,
                name="python train.py",
                share=0.75,
                rate_bytes_per_s=900_000.0,
            ),
        ),
        "framework": "PyTorch",
        "growth_bytes": 4.5 * GIB,
        "limit_bytes": 79.0 * GIB,
        "levels_off_bytes": 76.0 * GIB,
        "samples": 181,
        "signals": (
            Signal(
                detector="trend",
                pattern="gradual",
                rate_bytes_per_s=1_193_046.0,
                confidence=0.93,
                since_s=judged_at_s - 4000.0,
                n=181,
                facts={"r_squared": 0.982},
            ),
        ),
        "advice": ("look for lists that grow: py-spy dump --pid 4711",),
    }
    return Finding(**{**values, **changes})


def leak_of(
    info: ProcessInfo | None,
    card: Device,
    *,
    opened_at_s: float,
    severity: Severity = "warning",
    host: bool = False,
    unattributed: bool = False,
) -> Alert:
    key = None if info is None else info.key
    subject = Subject(device_uid=card.uid, process=key, host=host, unattributed=unattributed)
    finding = finding_on(subject, opened_at_s + 300.0, "grew in 16 of 16 windows")
    title = device_title(card) if info is None else process_title(card, info)
    return Alert(
        key=f"leak:{subject.id}",
        kind="leak",
        subject=subject,
        state="firing",
        severity=severity,
        finding=msgspec.structs.replace(finding, severity=severity),
        opened_at_s=opened_at_s,
        changed_at_s=opened_at_s + 240.0,
        watch_at_s=opened_at_s,
        firing_at_s=opened_at_s + 240.0,
        confirmations=3,
        next_notice_at_s=opened_at_s + 270.0,
        title=host_title(info) if host and info is not None else title,
        about=about(card, info, finding),
    )


def held_by(info: ProcessInfo, *, opened_at_s: float) -> Alert:
    alert = leak_of(info, CARD, opened_at_s=opened_at_s)
    finding = finding_on(
        alert.subject,
        opened_at_s + 300.0,
        "6.0 GiB held by a process that does nothing",
        pattern="unknown",
        rate_bytes_per_s=None,
        eta=None,
    )
    return msgspec.structs.replace(
        alert, kind="held", key=f"held:{alert.subject.id}", finding=finding
    )


def lost_card(card: Device, *, opened_at_s: float) -> Alert:
    subject = Subject(device_uid=card.uid)
    finding = finding_on(
        subject,
        opened_at_s + 60.0,
        "the GPU does not answer any more; no answer in 20 s",
        pattern="unknown",
        rate_bytes_per_s=None,
        eta=None,
        confidence=1.0,
        severity="critical",
    )
    alert = leak_of(None, card, opened_at_s=opened_at_s, severity="critical")
    return msgspec.structs.replace(
        alert,
        kind="gpu",
        key=f"gpu:{subject.id}",
        subject=subject,
        finding=finding,
        group="gpu:nvml",
    )


def ending_alert(number: int, ending: Ending) -> Alert:
    """Return the alert that ends in this way, of the process that was made for it."""
    info = BRIEF[number]
    card = CARD if ending.process else GONE[number]
    opened_at_s = seen_s(info) + 60.0
    if ending.kind == "held":
        alert = held_by(info, opened_at_s=opened_at_s)
    elif ending.kind == "gpu":
        alert = lost_card(card, opened_at_s=opened_at_s)
    else:
        whom = info if ending.process else None
        alert = leak_of(whom, card, opened_at_s=opened_at_s, host=ending.host)
    if not ending.process and ending.kind == "held":
        subject = Subject(device_uid=card.uid, unattributed=True)
        alert = msgspec.structs.replace(alert, subject=subject, key=f"held:{subject.id}")
    return alert


def cost_of(*members: Subject) -> Cost:
    return Cost(
        usd_per_hour=1.25,
        whole_usd_per_hour=2.5,
        spent_usd=9.75,
        at_risk_usd=11.5,
        gpu_hours=3.9,
        at_risk_gpu_hours=4.6,
        since_at_s=T0 + 1800.0,
        since="checkpoint",
        basis="A100 80GB, on-demand, as of 2026-06",
        currency="EUR",
        per_usd=0.92,
        members=members,
    )


def chart_of(alert: Alert) -> Chart:
    finding = alert.finding
    return Chart(
        at_s=tuple(finding.judged_at_s - 600.0 * (4 - k) for k in range(5)),
        used_bytes=tuple((20.0 + k) * GIB for k in range(5)),
        limit_bytes=finding.limit_bytes,
        onset_at_s=finding.onset_at_s,
        judged_at_s=finding.judged_at_s,
        rate_bytes_per_s=finding.rate_bytes_per_s,
        level_bytes=24.5 * GIB,
        low_s=16_200.0,
        mid_s=18_000.0,
        high_s=25_200.0,
    )


def profile_of(number: int) -> Profile:
    return Profile(
        kind=("run", "sibling", "yesterday", "run")[number],
        ended_at_s=T0 - 3600.0 * (4 - number),
        run_s=7200.0 + number,
        base_bytes=(4.0 + number) * GIB,
        hold_s=60.0 + number,
        proven_bytes=(6.0 + number) * GIB,
        top_bytes=(7.0 + number) * GIB,
        grown_bytes=(1.0 * GIB, 1.5 * GIB),
        rose_bytes=(1.25 * GIB, 1.75 * GIB),
        late_bytes=(0.5 * GIB, 0.25 * GIB),
        near_limit=True,
        alerted=True,
        word=("leak", "normal", None, None)[number],
    )
