"""A state directory of the tests' own, and the installed program run in it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gpuwatchd import __version__
from gpuwatchd.core import config
from gpuwatchd.core.config import Seconds, StoreSection
from gpuwatchd.core.model import (
    Alert,
    Delivery,
    Device,
    DeviceReading,
    Event,
    Finding,
    Holding,
    Ledger,
    Matcher,
    Message,
    ProcessInfo,
    ProcessKey,
    Sample,
    ServedModel,
    ServerReading,
    Silence,
    Subject,
)
from gpuwatchd.store import live
from gpuwatchd.store.live import LiveDevice, LiveProcess, LiveState
from gpuwatchd.store.writer import History
from tests import making

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gpuwatchd.core.model import Decision, DeviceState

GIB = making.GIB
PROGRAM = Path(sys.executable).parent / "gpuwatchctl"
SECOND = Device(
    uid="GPU-2", vendor="nvidia", index=1, name="NVIDIA A100", memory_total_bytes=80 * GIB
)
HOSTILE = "evil\x1b[2J\x1b]0;title\x07\u202e <b>[/red]=cmd()\nnext"


def leak(**changes: Any) -> Finding:
    """Return an opened leak of process 4711 on GPU 0."""
    return making.finding(**{"judged_at_s": time.time(), **changes})


def calm() -> Finding:
    """Return a stable judgement of GPU 1."""
    return making.calm(
        subject=Subject(device_uid=SECOND.uid), rate_bytes_per_s=0.0, reason="no growth in 6 h"
    )


def reading(uid: str, used_gib: float) -> DeviceReading:
    """Return one look at an 80 GiB card."""
    used = int(used_gib * GIB)
    return DeviceReading(
        device_uid=uid,
        used_bytes=used,
        free_bytes=80 * GIB - used,
        total_bytes=80 * GIB,
        reserved_bytes=GIB // 2,
        util_pct=87.0,
        temp_c=61.0,
        uses=(),
    )


def unread(uid: str, state: DeviceState) -> DeviceReading:
    """Return one look at a card that cannot be read."""
    return DeviceReading(
        device_uid=uid, used_bytes=None, free_bytes=None, total_bytes=None, state=state
    )


def process(
    pid: int = 4711, name: str = "python", used_gib: float = 50, finding: Finding | None = None
) -> LiveProcess:
    """Return one process on a GPU."""
    key = making.KEY if pid == 4711 else ProcessKey(pid=pid, started_at_s=5.0)
    info = ProcessInfo(key=key, name=name, user="alice", framework="pytorch", framework_sure=True)
    return LiveProcess(info=info, used_bytes=int(used_gib * GIB), finding=finding)


def firing(**changes: Any) -> Alert:
    """Return the open alert of the leak."""
    now_s = time.time()
    return making.alert(
        **{
            "key": "leak:GPU-1/4711@1000.0",
            "finding": leak(),
            "opened_at_s": now_s - 3000,
            "changed_at_s": now_s - 2500,
            "firing_at_s": now_s - 2500,
            "notices": 1,
            **changes,
        }
    )


def state(**changes: Any) -> LiveState:
    """Return the live state of a daemon that runs: one leak, one calm GPU, one alert."""
    found = leak()
    now_s = time.time()
    values: dict[str, Any] = {
        "pid": os.getpid(),
        "version": __version__,
        "started_at_s": now_s - 9000,
        "taken_at_s": now_s - 0.5,
        "interval_s": 5.0,
        "ticks": 1000,
        "devices": (
            LiveDevice(
                device=making.CARD,
                reading=reading(making.CARD.uid, 52),
                unattributed_bytes=GIB,
                finding=found,
                processes=(process(finding=found), process(99, HOSTILE, 1)),
                recent_bytes=tuple(int((40 + step * 0.4) * GIB) for step in range(32)),
                recent_step_s=60.0,
                samples=500,
            ),
            LiveDevice(
                device=SECOND,
                reading=reading(SECOND.uid, 10),
                finding=calm(),
                processes=None,
                recent_bytes=(10 * GIB,) * 32,
                samples=500,
            ),
        ),
        "alerts": (firing(),),
    }
    return LiveState(**{**values, **changes})


def write(content: LiveState | None = None, **changes: Any) -> LiveState:
    """Write a live state where the program looks for it."""
    content = content if content is not None else state(**changes)
    directory = config.runtime_dir()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    live.write(directory, content)
    return content


@contextmanager
def history() -> Iterator[History]:
    """Open the history where the program looks for it."""
    found = History.open(config.state_dir(), StoreSection(min_free_mib=0), boot_id="b")
    yield found
    found.close()


def watched(
    steps: int,
    step_s: float,
    look: Callable[[int], Sequence[DeviceReading]],
    people: Sequence[ProcessInfo],
    *,
    end_s: float,
    devices: Sequence[Device] = (making.CARD,),
    beside: Callable[[History, float], None] | None = None,
) -> float:
    """Have recorded so many looks, the last of them at ``end_s``; return that instant."""
    at_s = end_s
    history = History.open(
        config.state_dir(), StoreSection(min_free_mib=0, flush=Seconds(1e9)), boot_id="b",
        clock=lambda: at_s, monotonic=lambda: 1e6,
    )  # fmt: skip
    for step in range(steps):
        at_s = end_s - (steps - 1 - step) * step_s
        sample = Sample(
            taken_at_s=at_s, taken_mono_s=at_s - end_s + 1e6, boot_id="b",
            readings=tuple(look(step)),
        )  # fmt: skip
        history.record(sample, devices, {info.key: info for info in people})
        if beside is not None:
            beside(history, at_s)
    history.flush(end_s)
    history.close()
    return end_s


def remember(
    *alerts: Alert, deliveries: Sequence[Delivery] = (), decisions: Sequence[Decision] = ()
) -> None:
    """Leave alerts, and what was sent and decided of them, in the history."""
    with history() as found:
        found.decide(decisions)
        found.apply(list(alerts), list(deliveries))


def over(**changes: Any) -> Alert:
    """Return the alert of pid 5, which is over."""
    subject = Subject(device_uid="GPU-1", process=ProcessKey(pid=5, started_at_s=1.0))
    values: dict[str, Any] = {
        "key": "leak:GPU-1/5@1.0", "state": "resolved", "opened_at_s": 100.0,
        "resolved_at_s": 200.0, "title": "python[5]", "subject": subject,
    }  # fmt: skip
    return firing(**{**values, **changes})


def silence(**changes: Any) -> Silence:
    """Return a silence of the open alert that began a minute ago; any field can be changed."""
    now_s = time.time()
    values: dict[str, Any] = {
        "matcher": Matcher(key="leak:GPU-1/4711@1000.0"), "from_at_s": now_s - 60,
        "until_at_s": now_s + 600, "who": "alice",
    }  # fmt: skip
    return Silence(**{**values, **changes})


def message(notice: str = "firing", **changes: Any) -> Message:
    """Return what was told of the leak; any field can be changed."""
    values: dict[str, Any] = {
        "id": f"{notice}@x", "notice": notice, "severity": "warning", "subject": "s", "body": "b",
    }  # fmt: skip
    return Message(**{**values, **changes})


def delivery(key: str, channel: str, at_s: float, **changes: Any) -> Delivery:
    """Return one that has arrived; any field can be changed."""
    values: dict[str, Any] = {
        "message": message(), "state": "sent", "attempts": 1, "created_at_s": at_s,
        "sent_at_s": at_s + 1.0,
    }  # fmt: skip
    return Delivery(alert_key=key, channel=channel, **{**values, **changes})


def write_raw(content: bytes) -> None:
    """Write something else there."""
    directory = config.runtime_dir()
    directory.mkdir(parents=True, exist_ok=True)
    (directory / live.FILE_NAME).write_bytes(content)


def run(
    *arguments: str, env: Mapping[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the installed program in the test's own directories."""
    environment = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "NO_COLOR"}}
    return subprocess.run(
        [PROGRAM, *arguments],
        env={**environment, **(env or {})},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def odd(words: str = "") -> LiveState:
    """Return a machine where everything is odd; ``words`` stands in every foreign text."""
    now_s = time.time()
    said = words or "train"
    busy = process(finding=leak())
    info = msgspec.structs.replace(
        busy.info, argv=("python", f"{said}.py"), frameworks=("TensorFlow", said), uid=1000,
        container=f"docker {said}", pod=said, unit=said, job=f"slurm {said}", group=said, rank=3,
        model=said, parents=(said, "bash[1]"), user=said, name=said, framework=said,
    )  # fmt: skip
    host = leak(subject=Subject(device_uid=making.CARD.uid, process=making.KEY, host=True))
    full = msgspec.structs.replace(
        busy, info=info, sm_pct=41.0, host_bytes=12 * GIB, host_finding=host, kind="C+G"
    )
    gone = msgspec.structs.replace(process(77, said, 9).info, state="gone")
    foreign = ProcessInfo(key=ProcessKey(pid=5, started_at_s=None), name="?", foreign=True)
    look = msgspec.structs.replace(
        reading(making.CARD.uid, 62), memory_api="v2", throttle=(said,), ecc_errors=2,
        retired_pages=1, power_w=301.0, uses_reason=said,
    )  # fmt: skip
    card = msgspec.structs.replace(
        making.CARD, name=f"NVIDIA {said}", pci_bus="0000:65:00.0", source="nvml"
    )
    events = (
        Event(at_s=now_s - 7200, kind="throttle", text=said),
        Event(at_s=now_s - 600, kind="xid", text=f"XID 79: {said}", code=79, hardware=True),
    )
    first = LiveDevice(
        device=card, reading=look, unattributed_bytes=GIB, finding=leak(framework=said),
        processes=(
            full,
            LiveProcess(info=gone, used_bytes=9 * GIB),
            LiveProcess(info=foreign, used_bytes=None),
        ),
        processes_age_s=40.0,
        ledger=Ledger(
            state="partial", total_bytes=80 * GIB, free_bytes=18 * GIB, reserved_bytes=GIB // 2,
            owned_bytes=59 * GIB, unattributed_bytes=2 * GIB, baseline_bytes=GIB // 2,
        ),
        events=events, samples=500, faults=(said,),
    )  # fmt: skip
    lost = LiveDevice(
        device=msgspec.structs.replace(SECOND, memory_kind="unified"),
        reading=unread(SECOND.uid, "lost"),
        events=(Event(at_s=now_s - 60, kind="gpu-lost", device_uid=SECOND.uid, text=said),),
    )
    held = Holding(
        kind="gone", device_uid=card.uid, process=gone, held_bytes=9 * GIB, since_s=now_s - 3600,
        evidence=said, advice=(said,), gib_hours=9.0,
    )  # fmt: skip
    models = (ServedModel(name=said, vram_bytes=4 * GIB, expires_at_s=now_s + 300),)
    servers = (
        ServerReading(kind="Ollama", url=f"http://127.0.0.1/{said}", at_s=now_s, models=models),
        ServerReading(kind="vLLM", url="u", at_s=now_s, kv_share=0.4, running=3, pool_share=0.92),
        ServerReading(kind="SGLang", url="v", at_s=now_s, ok=False, why=said),
    )
    return state(devices=(first, lost), holdings=(held, held), servers=servers)
