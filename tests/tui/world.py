"""States of machines for the live screen: a usual one, and a strange one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd import __version__
from gpuwatchd.core.model import (
    Alert,
    Device,
    DeviceReading,
    EtaRange,
    Finding,
    Holding,
    ProcessInfo,
    ProcessKey,
    Subject,
)
from gpuwatchd.store.live import LiveDevice, LiveProcess, LiveState
from tests.making import GIB, MIB, alert, calm, finding

if TYPE_CHECKING:
    from collections.abc import Sequence

NOW_S = 1_795_300_000.0
TOTAL = 80 * GIB
_USERS = ("alice", "bob", "carol", "svc-llm", "dave")
_PROGRAMS = (
    ("python", ("python", "train.py", "--epochs", "90"), "PyTorch"),
    ("VLLM::EngineCore", ("vllm", "serve", "llama"), "vLLM"),
    ("python", ("python", "-m", "finetune", "--lora"), "PyTorch"),
    ("ollama", ("ollama", "runner"), "Ollama"),
    ("jupyter", ("jupyter", "lab"), None),
)


def leak(uid: str, key: ProcessKey | None, rate_bytes_per_s: float, **changes: object) -> Finding:
    """Return an alert-worthy finding of a process, or of the device."""
    return finding(
        subject=Subject(device_uid=uid, process=key), rate_bytes_per_s=rate_bytes_per_s,
        judged_at_s=NOW_S, onset_at_s=NOW_S - 3600, **changes,
    )  # fmt: skip


def quiet(uid: str, key: ProcessKey | None, pattern: str = "stable") -> Finding:
    """Return a finding of nothing."""
    return calm(
        subject=Subject(device_uid=uid, process=key), pattern=pattern, judged_at_s=NOW_S,
        rate_bytes_per_s=0.0,
    )  # fmt: skip


def process(card: int, at: int, *, scale: int = 1, shift: int = 0) -> LiveProcess:
    """Return one of the usual processes; every seventh leaks a little."""
    uid = f"GPU-{card}"
    key = ProcessKey(pid=4000 + card * 1000 + at, started_at_s=NOW_S - 3600.0 * (at + 1))
    name, argv, framework = _PROGRAMS[(card + at) % len(_PROGRAMS)]
    info = ProcessInfo(
        key=key, name=name, user=_USERS[(card + at) % len(_USERS)], argv=argv,
        framework=framework, framework_sure=framework is not None,
    )  # fmt: skip
    leaks = card % 3 == 0 and at == 1
    found = (
        leak(uid, key, 206_667.0 * (card + 1), severity="critical" if card == 0 else "warning")
        if leaks
        else quiet(uid, key)
    )
    held = (6000 + 3700 * (at * 5 % 8)) * MIB // scale
    return LiveProcess(
        info=info, used_bytes=held + shift * MIB * leaks, finding=found,
        sm_pct=float((at * 7) % 100), host_bytes=(2 + at % 5) * GIB,
    )  # fmt: skip


def device(card: int, processes: int, *, shift: int = 0) -> LiveDevice:
    """Return one of the usual devices; the first leaks critically, every third a little."""
    uid = f"GPU-{card}"
    rows = tuple(
        process(card, at, scale=max(1, processes // 4), shift=shift) for at in range(processes)
    )
    leaking = next((row for row in rows if row.finding and row.finding.tier == "alert"), None)
    used = min(TOTAL - GIB, sum(row.used_bytes or 0 for row in rows) + GIB)
    card_finding = quiet(uid, None, "plateau" if card % 2 else "stable")
    if leaking is not None:
        assert leaking.finding is not None
        card_finding = leaking.finding
    return LiveDevice(
        device=Device(
            uid=uid, vendor="nvidia", index=card, name="NVIDIA H100 80GB HBM3",
            memory_total_bytes=TOTAL, source="nvml",
        ),
        reading=DeviceReading(
            device_uid=uid, used_bytes=used, free_bytes=TOTAL - used, total_bytes=TOTAL,
            util_pct=float((17 * card + shift) % 100), temp_c=45.0 + card, power_w=310.0 + card,
        ),
        finding=card_finding,
        processes=rows,
        recent_bytes=tuple(
            used - (32 - at) * (300 if leaking else (at % 2)) * MIB // 4 if at != 9 else None
            for at in range(32)
        ),
        recent_step_s=60.0,
        samples=500,
    )  # fmt: skip


def alerts(devices: Sequence[LiveDevice]) -> tuple[Alert, ...]:
    """Return the open alerts on what leaks."""
    return tuple(
        alert(
            key=f"leak:{row.finding.subject.id}", subject=row.finding.subject,
            severity=row.finding.severity, finding=row.finding,
            opened_at_s=NOW_S - 1800, changed_at_s=NOW_S - 600, firing_at_s=NOW_S - 1800,
            title=f"{item.device.label} (H100): {row.info.numbered} of {row.info.user}",
        )
        for item in devices
        for row in item.processes or ()
        if row.finding is not None and row.finding.tier == "alert"
    )  # fmt: skip


def state(
    cards: int = 8, processes: int = 4, *, at_s: float = NOW_S, pid: int = 1, shift: int = 0
) -> LiveState:
    """Return the state of a usual machine."""
    devices = tuple(device(card, processes, shift=shift) for card in range(cards))
    return LiveState(
        pid=pid, version=__version__, started_at_s=at_s - 11_000, taken_at_s=at_s, interval_s=1.0,
        ticks=11_000, devices=devices, alerts=alerts(devices),
        holdings=(
            Holding(kind="idle", device_uid="GPU-1", held_bytes=9 * GIB, since_s=at_s - 9000),
        ),
    )  # fmt: skip


HOSTILE = "\x1b[2Jbad[bold red]<script>\u202eevil" + "x" * 300
"""What somebody may call a process; it is cleaned before it comes into a state, but who knows."""


def strange(*, at_s: float = NOW_S, pid: int = 1) -> LiveState:
    """Return the state of a machine on which everything is as it should not be."""
    lost = device(0, 0)
    lost = LiveDevice(
        device=lost.device, processes=None, faults=("gone from the bus",),
        reading=DeviceReading(device_uid="GPU-0", used_bytes=None, free_bytes=None,
                              total_bytes=None, state="lost", uses_reason="it is lost"),
    )  # fmt: skip
    nobody = LiveDevice(
        device=Device(uid="GPU-1", vendor="nvidia", index=1, name=HOSTILE,
                      memory_total_bytes=None, memory_kind="unified"),
        reading=None, faults=("no permission",),
    )  # fmt: skip
    card = Device(
        uid="GPU-3", vendor="nvidia", index=3, name="NVIDIA A100", memory_total_bytes=TOTAL
    )
    mig = Device(
        uid="MIG-1", vendor="nvidia", index=0, name="1g.10gb", memory_total_bytes=10 * GIB,
        parent_uid="GPU-3", parent_index=3,
    )  # fmt: skip
    keys = [ProcessKey(pid=pid, started_at_s=None) for pid in (11, 12, 13, 14)]
    infos = (
        ProcessInfo(key=keys[0], name=HOSTILE, user="mallory\x1b[31m", argv=(HOSTILE, HOSTILE)),
        ProcessInfo(key=keys[1], name="?", foreign=True),
        ProcessInfo(key=keys[2], name="gone", state="gone", user="alice"),
        ProcessInfo(key=keys[3], name="日本語プロセス", user="ユーザー", argv=("日本語",)),
    )
    rows = tuple(
        LiveProcess(info=info, used_bytes=None if at == 1 else (4 - at) * GIB)
        for at, info in enumerate(infos)
    )
    open_end = leak("MIG-1", keys[0], 9e6, eta=EtaRange(low_s=30, mid_s=90, high_s=None))
    rows = (LiveProcess(info=infos[0], used_bytes=4 * GIB, finding=open_end), *rows[1:])
    return LiveState(
        pid=pid, version=__version__, started_at_s=at_s - 9, taken_at_s=at_s, interval_s=1.0,
        devices=(
            lost, nobody,
            LiveDevice(
                device=card, processes=(), samples=3,
                reading=DeviceReading(device_uid="GPU-3", used_bytes=9 * GIB, free_bytes=71 * GIB,
                                      total_bytes=TOTAL),
            ),
            LiveDevice(
                device=mig, finding=open_end, processes=rows, recent_bytes=(None, 5 * GIB, None),
                reading=DeviceReading(device_uid="MIG-1", used_bytes=9 * GIB, free_bytes=GIB,
                                      total_bytes=10 * GIB),
            ),
        ),
        problems=("the desktop cannot be reached",),
    )  # fmt: skip
