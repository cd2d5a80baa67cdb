"""A history of which every text is somebody's secret, and the file that is made of it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gpuwatchd.core.codes import Ending, FactName
from gpuwatchd.core.config import Seconds, StoreSection
from gpuwatchd.core.model import (
    Blame,
    Device,
    DeviceReading,
    Event,
    GrowthFact,
    Holder,
    ProcessInfo,
    ProcessKey,
    ProcessUse,
    Sample,
    Subject,
)
from gpuwatchd.core.model.alerts import AlertSubject
from gpuwatchd.pipeline import corpus
from gpuwatchd.store import tables
from gpuwatchd.store.checked_connection import transaction
from gpuwatchd.store.reader import Reader
from gpuwatchd.store.writer import History
from tests import making

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gpuwatchd.collect.logs.formats.corpus import Licence
    from gpuwatchd.core.model import Finding, FloatArray

GIB, MIB = making.GIB, making.MIB
STEP_S: Final = 10.0
MARK: Final = "Zq7mark9Xv"
PID: Final = 3_141_592
UID: Final = 271_828


def card(mark: str = MARK) -> Device:
    """Return a card whose texts all hold a mark."""
    return Device(
        uid=f"GPU-{mark}", vendor=mark, index=0, name=f"NVIDIA {mark} H100 {mark}-80GB",
        memory_total_bytes=80 * GIB, source=mark, pci_bus=mark,
    )  # fmt: skip


def person(begun_s: float, mark: str = MARK, pid: int = PID) -> ProcessInfo:
    """Return a process whose texts all hold a mark."""
    home = f"/home/{mark}/{mark}.py"
    return ProcessInfo(
        key=ProcessKey(pid=pid, started_at_s=begun_s), name=mark, user=mark,
        argv=("python", home, f"--token={mark}"), state=mark, container=f"docker {mark}", job=mark,
        framework=f"{mark}Torch", frameworks=(mark,), role=mark, uid=UID, unit=f"{mark}.service",
        pod=mark, group=mark, model=f"{mark}/{mark}-7B", parents=(f"{mark}[1]",), program=mark,
        was=mark,
    )  # fmt: skip


def growth(minutes: float = 60.0) -> FloatArray:
    """Return a leak of a GiB a minute, from 4 GiB on, every ten seconds."""
    return 4 * GIB + np.arange(int(minutes * 60 / STEP_S)) * GIB / 6


def write(
    directory: Path,
    end_s: float,
    used: FloatArray | None = None,
    *,
    mark: str = MARK,
    infos: tuple[ProcessInfo, ...] = (),
    word: bool = True,
) -> float:
    """Write an hour of one process that leaks, with its alert and its label; return the start."""
    used = growth() if used is None else used
    begin_s = end_s - STEP_S * (used.size - 1)
    device, infos = card(mark), infos or (person(begin_s, mark),)
    at_s = begin_s
    directory.mkdir(exist_ok=True, mode=0o700)
    history = History.open(
        directory, StoreSection(min_free_mib=0, flush=Seconds(1e9)), boot_id=mark,
        clock=lambda: at_s, monotonic=lambda: 1e6,
    )  # fmt: skip
    for k, held in enumerate(used.astype(int).tolist()):
        at_s = begin_s + k * STEP_S
        uses = tuple(ProcessUse(key=info.key, used_bytes=held) for info in infos)
        reading = DeviceReading(
            device_uid=device.uid, used_bytes=held * len(infos) + GIB, free_bytes=None,
            total_bytes=80 * GIB, util_pct=float(k % 100), uses=uses,
        )  # fmt: skip
        sample = Sample(
            taken_at_s=at_s, taken_mono_s=1e6 + k, boot_id=mark, readings=(reading,),
            events=(Event(at_s=at_s, kind="xid", text=mark),) if k == 5 else (),
        )  # fmt: skip
        known = {info.key: info for info in infos}
        history.record(sample, (device,), known, {device.uid: GIB})
    subject = Subject(device_uid=device.uid, process=infos[0].key)
    history.apply([alert(subject, begin_s, mark)], [])
    history.flush(end_s)
    history.close()
    if word:
        label = tables.UserLabel(
            alert_key=f"leak:{subject.id}", opened_at_s=begin_s + 600, subject=subject, title=mark,
            word="leak", given_at_s=end_s, why=mark, who=mark,
        )  # fmt: skip
        transaction(directory, tables.write_label, label)
    return begin_s


def alert(subject: Subject, begin_s: float, mark: str) -> Any:
    """Return what the daemon raised of it, ten minutes after it began."""
    fact = GrowthFact(
        name=FactName.DECLARED_SHARE, source=mark, weight=0.75, level_bytes=72.0 * GIB, text=mark
    )
    process = subject.process
    finding = making.finding(
        id=mark, subject=subject, judged_at_s=begin_s + 1200, onset_at_s=begin_s, detector=mark,
        growth_bytes=8.0 * GIB, reason=mark, framework=mark, advice=(mark,), commands=(mark,),
        facts=(fact,), blame=(Blame(process=process, name=mark, share=1.0, rate_bytes_per_s=1.0),),
        holder=Holder(name=mark, kind=mark, at_s=begin_s, file=f"/srv/{mark}.py", line=3),
    )  # fmt: skip
    return making.alert(
        key=f"leak:{subject.id}", subject=subject, finding=finding, state="resolved",
        opened_at_s=begin_s + 600, watch_at_s=begin_s + 600, firing_at_s=begin_s + 900,
        changed_at_s=begin_s + 3000, resolved_at_s=begin_s + 3000, title=mark, ended=mark,
        ended_code=Ending.PROCESS_ENDED, about=AlertSubject(user=mark, command=mark, job=mark),
    )  # fmt: skip


def exported(
    directory: Path,
    begin_s: float,
    licence: Licence | None = None,
    judged: Mapping[str, Finding] | None = None,
) -> corpus.Corpus:
    """Return what is exported of a day of it."""
    with closing(Reader.open(directory)) as history:
        span = (begin_s - 3600.0, begin_s + 86_400.0)
        return corpus.collect(history, history.devices(), span, licence, judged)
