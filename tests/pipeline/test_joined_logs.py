"""A log of processes beside that of their device: it explains, it never silences."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from gpuwatchd.analysis import numerics
from gpuwatchd.collect.logs import joining
from gpuwatchd.collect.logs.log_types import LogFile, LogOptions, LogSeries
from gpuwatchd.collect.replay import read_log
from gpuwatchd.core.codes import Ending, FactName, Reason
from gpuwatchd.core.model import ProcessInfo, ProcessKey, Subject
from gpuwatchd.pipeline import act_replay, recorded_ledger, replay
from tests.making import CARD, GIB, MIB
from tests.making import series as plain_series
from tests.pipeline.play import EAGER

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpuwatchd.core.model import FloatArray
    from gpuwatchd.pipeline.replay import SubjectResult

BEGIN_S = 1_700_000_000.0


def times(minutes: float, *, after: float = 0.0, step_s: float = 10.0) -> FloatArray:
    """Return instants of so many minutes, which begin so many minutes after the log does."""
    return np.asarray(BEGIN_S + 60.0 * after + np.arange(0.0, 60.0 * minutes, step_s))


def ramp(t_s: FloatArray, gib: float, mib_per_min: float, *, from_min: float = 0.0) -> FloatArray:
    grown = np.maximum(0.0, (t_s - BEGIN_S) / 60.0 - from_min) * mib_per_min * MIB
    return np.asarray(gib * GIB + grown)


def whole(t_s: FloatArray, used: FloatArray) -> LogSeries:
    return LogSeries(
        subject=Subject(device_uid=CARD.uid), device=CARD, process=None, t_s=t_s, used_bytes=used,
        limit_bytes=80.0 * GIB, total_bytes=80.0 * GIB,
    )  # fmt: skip


def part(pid: int, t_s: FloatArray, used: FloatArray, name: str = "python") -> LogSeries:
    info = ProcessInfo(key=ProcessKey(pid=pid, started_at_s=None), name=name)
    return LogSeries(
        subject=Subject(device_uid=CARD.uid, process=info.key), device=CARD, process=info,
        t_s=t_s, used_bytes=used, limit_bytes=80.0 * GIB, total_bytes=80.0 * GIB,
    )  # fmt: skip


def log_of(*parts: LogSeries, path: str = "x") -> LogFile:
    return LogFile(path=path, devices=[CARD], series=list(parts))


def judged(*parts: LogSeries) -> dict[Subject, SubjectResult]:
    return {found.subject: found for found in replay.analyze(log_of(*parts), EAGER)}


DEVICE, REST = Subject(device_uid=CARD.uid), Subject(device_uid=CARD.uid, unattributed=True)


def of(pid: int) -> Subject:
    return Subject(device_uid=CARD.uid, process=ProcessKey(pid=pid, started_at_s=None))


def count(found: dict[Subject, SubjectResult]) -> int:
    return sum(one.alert_count for one in found.values())


def test_memory_that_no_listed_process_owns_is_judged() -> None:
    t = times(25)
    found = judged(
        whole(t, ramp(t, 46.0, 900.0)), part(1, t, np.full(t.size, 45.0 * GIB), "server")
    )
    assert found[REST].alerts[0].state == "firing"
    assert (found[DEVICE].alerts, count(found)) == ((), 1)


def test_memory_that_stays_after_its_owners_have_ended_is_told() -> None:
    t = times(80)
    used, parts = np.full(t.size, 1.0 * GIB), []
    for number in range(8):
        own = times(7, after=10 * number)
        parts.append(part(10 + number, own, np.full(own.size, 20.0 * GIB), "job"))
        used[(t >= own[0]) & (t <= own[-1])] += 20.0 * GIB
        used[t > own[-1]] += 3.0 * GIB
    found = judged(whole(t, used), part(1, t, np.full(t.size, 0.5 * GIB), "agent"), *parts)
    assert found[REST].alerts
    assert count(found) == 1


def test_a_list_that_covers_only_the_end_does_not_silence_the_device() -> None:
    t = times(25)
    used = ramp(t, 20.0, 1200.0)
    late = t[-18:]
    found = judged(whole(t, used), part(1, late, used[-18:] - 0.5 * GIB))
    alone = judged(whole(t, used))
    assert found[DEVICE].alerts[0].at_s == alone[DEVICE].alerts[0].at_s
    assert count(found) == 1


def test_workers_that_nobody_ends_are_told() -> None:
    t = times(60)
    used, parts = np.full(t.size, 10.0 * GIB), []
    for number in range(20):
        own = t[t >= BEGIN_S + 150.0 * number]
        parts.append(part(10 + number, own, np.full(own.size, 2.0 * GIB), "worker"))
        used[t >= own[0]] += 2.0 * GIB
    found = judged(whole(t, used), *parts)
    assert found[REST].alerts
    assert [fact.name for fact in found[REST].alerts[0].alert.finding.facts or ()] == [
        FactName.JOINED_OR_LEFT
    ]


def test_the_alert_of_a_device_goes_on_with_its_process_and_counts_once() -> None:
    t = times(60)
    used = ramp(t, 10.0, 700.0, from_min=5.0)
    listed = t >= BEGIN_S + 35 * 60
    found = judged(whole(t, used), part(1, t[listed], used[listed] - 0.5 * GIB))
    assert found[DEVICE].alerts[0].state == "firing"
    assert found[DEVICE].alerts[-1].code is Ending.HOLDER_KNOWN
    assert found[of(1)].alerts[0].code is Ending.HOLDER_KNOWN
    assert (count(found), found[DEVICE].alert_count) == (1, 1)


def test_a_judgement_counts_for_steps_though_another_alert_takes_over_at_that_instant() -> None:
    t = times(60)
    used = ramp(t, 10.0, 700.0, from_min=5.0)
    listed = t >= BEGIN_S + 38 * 60
    log = log_of(whole(t, used), part(1, t[listed], used[listed] - 0.5 * GIB))
    watcher = act_replay._Watcher(EAGER, log, labels=(), busy=None)
    found = {one.subject: one for one in replay.analyze(log, EAGER, watcher=watcher)}
    over = found[DEVICE].alerts[-1]
    assert over.code is Ending.HOLDER_KNOWN
    assert watcher.judgements[DEVICE.id][-1].at_s == over.at_s


def joining_jobs() -> tuple[FloatArray, FloatArray, list[LogSeries]]:
    """Return a device with an unlisted half; four jobs come to it, and then the list ends."""
    t = times(70)
    used, parts = np.full(t.size, 40.0 * GIB), []
    for number, name in enumerate(("train", "serve", "embed", "tune")):
        own = t[(t >= BEGIN_S + 600.0 * (number + 0.5)) & (t < BEGIN_S + 2400.0)]
        parts.append(part(10 + number, own, np.full(own.size, 8.0 * GIB), name))
        used[t >= own[0]] += 8.0 * GIB
    return t, used, parts


def test_processes_that_come_are_no_growth_of_their_device() -> None:
    t, used, parts = joining_jobs()
    assert judged(whole(t, used))[DEVICE].watches
    found = judged(whole(t, used), *parts)
    assert count(found) == 0
    assert found[DEVICE].watches == ()


def test_growth_beside_processes_that_come_says_that_they_are_left_out() -> None:
    t, used, parts = joining_jobs()
    leak = np.maximum(0.0, t - (BEGIN_S + 2700.0)) / 60.0 * 300.0 * MIB
    found = judged(whole(t, used + leak), *parts)
    assert found[DEVICE].alerts
    finding = found[DEVICE].alerts[0].alert.finding
    assert [fact.name for fact in finding.facts or ()] == [FactName.JOINED_OR_LEFT]


def test_a_ledger_never_knows_what_comes_later() -> None:
    t, used, parts = joining_jobs()
    long = recorded_ledger.ledgers([whole(t, used), *parts])[0]
    n = 150
    before = [
        part(10 + k, one.t_s[one.t_s < t[n]], one.used_bytes[: (one.t_s < t[n]).sum()], f"{k}")
        for k, one in enumerate(parts)
        if one.t_s[0] < t[n]
    ]
    short = recorded_ledger.ledgers([whole(t[:n], used[:n]), *before])[0]
    np.testing.assert_array_equal(long.alone.used_bytes[:n], short.alone.used_bytes)
    assert long.rest is not None
    assert short.rest is not None
    np.testing.assert_array_equal(
        long.rest.used_bytes[: short.rest.t_s.size], short.rest.used_bytes
    )


def test_ramps_alike_in_many_processes_are_one_alert() -> None:
    t = times(50)
    parts = [part(pid, t, ramp(t, 2.0, 300.0, from_min=5.0)) for pid in (1, 2, 3, 4)]
    used = np.asarray(np.sum([one.used_bytes for one in parts], axis=0) + GIB)
    found = judged(whole(t, used), *parts)
    assert count(found) == 1
    codes = [found[of(pid)].code for pid in (1, 2, 3, 4)]
    assert sorted(code or "" for code in codes) == ["", "rank", "rank", "rank"]
    (lead,) = [found[of(pid)] for pid in (1, 2, 3, 4) if found[of(pid)].alerts]
    assert lead.code is None
    assert lead.finding is not None
    assert lead.finding.code is Reason.JOB


def test_another_program_has_its_own_alert() -> None:
    t = times(50)
    grown = ramp(t, 2.0, 600.0, from_min=5.0)
    parts = [part(1, t, grown), part(2, t, grown, "serve")]
    used = np.asarray(np.sum([one.used_bytes for one in parts], axis=0) + GIB)
    assert count(judged(whole(t, used), *parts)) == 2


def gap(t_s: FloatArray, from_min: float, to_min: float) -> FloatArray:
    minutes = (t_s - BEGIN_S) / 60.0
    return t_s[(minutes < from_min) | (minutes >= to_min)]


@pytest.mark.parametrize(
    ("minutes", "step_gib", "kept"),
    [(20.0, 0.0, True), (29.0, 0.0, True), (31.0, 0.0, False), (20.0, -6.0, False),
     (20.0, 40.0, False)],
)  # fmt: skip
def test_a_pause_is_bridged_where_the_level_went_on(
    minutes: float, step_gib: float, kept: bool
) -> None:
    t = gap(times(60), 20.0, 20.0 + minutes)
    used = ramp(t, 20.0, 100.0) + step_gib * GIB * (t > BEGIN_S + 1200.0)
    view = numerics.prepare(plain_series(t, used, limit_bytes=80.0 * GIB))
    assert (view.samples == t.size) is kept
    assert view.interval_s == pytest.approx(10.0)


def test_a_pause_of_both_logs_does_not_begin_the_evidence_anew() -> None:
    t = gap(times(45), 8.0, 25.0)
    used = ramp(t, 20.0, 500.0)
    broken = int(np.argmax(np.diff(t))) + 1
    listed, device = part(1, t, used), whole(t, used + GIB)
    for one in (listed, device):
        object.__setattr__(one, "breaks", (broken,))
    found = judged(device, listed)
    assert found[of(1)].watches[0].at_s < BEGIN_S + 25 * 60 + 60.0


def rows(t_s: FloatArray, pid: int, used: FloatArray, name: str) -> list[str]:
    return [
        f"{dt.datetime.fromtimestamp(at, dt.UTC):%Y/%m/%d %H:%M:%S}.000, GPU-1, {pid}, {name},"
        f" {held / MIB:.0f} MiB\n"
        for at, held in zip(t_s.tolist(), used.tolist(), strict=True)
    ]


def listed(path: Path, *lines: list[str]) -> LogFile:
    head = "timestamp, gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n"
    path.write_text(head + "".join(sorted(line for some in lines for line in some)))
    return read_log(str(path), LogOptions())


def test_a_pid_is_the_same_process_after_a_pause_of_the_whole_list(tmp_path: Path) -> None:
    t = gap(times(60), 10.0, 25.0)
    log = listed(tmp_path / "apps.csv", rows(t, 7, ramp(t, 4.0, 50.0), "python"))
    assert [s.t_s.size for s in log.series if s.process is not None] == [t.size]
    # Others were listed meanwhile: it had gone.
    every = times(60)
    other = rows(every, 8, np.full(every.size, GIB), "serve")
    log = listed(tmp_path / "apps.csv", rows(t, 7, ramp(t, 4.0, 50.0), "python"), other)
    assert sum(s.process is not None and s.process.key.pid == 7 for s in log.series) == 2


def test_a_display_server_in_a_log_is_only_watched(tmp_path: Path) -> None:
    t = times(40)
    for name, alerts in (("/usr/lib/xorg/Xorg", 0), ("/opt/render/bin/worker", 1)):
        log = listed(tmp_path / "apps.csv", rows(t, 7, ramp(t, 4.0, 900.0), name))
        log.series = [*log.series, whole(t, ramp(t, 5.0, 900.0))]
        results = replay.analyze(log, EAGER)
        assert sum(one.alert_count for one in results) == alerts, name
        assert any(one.watches for one in results)


def halves(t_s: FloatArray, *, overlap: int = 0) -> tuple[slice, slice]:
    return slice(0, t_s.size // 2 + overlap), slice(t_s.size // 2, t_s.size)


def test_files_of_several_days_are_joined_in_order_of_time_and_overlaps_count_once() -> None:
    t = times(60)
    used = ramp(t, 20.0, 200.0)
    first, second = halves(t, overlap=12)
    logs = [
        log_of(whole(t[second], used[second]), path="gpu-2.csv"),
        log_of(part(1, t[first], used[first] - GIB), path="apps-1.csv"),
        log_of(whole(t[first], used[first]), path="gpu-1.csv"),
        log_of(part(1, t[second], used[second] - GIB), path="apps-2.csv"),
    ]
    (log,) = joining.joined(logs)
    assert [series.subject for series in log.series] == [DEVICE, of(1)]
    for series in log.series:
        np.testing.assert_array_equal(series.t_s, t)
    assert log.warnings == []


def test_what_cannot_be_joined_says_so() -> None:
    t = times(30)
    used = ramp(t, 20.0, 200.0)
    logs = [
        log_of(whole(t, used), path="a.csv"),
        log_of(whole(t, used + 3 * GIB), path="b.csv"),
        log_of(part(1, t + 1e6, used), path="apps.csv"),
    ]
    found = joining.joined(logs)
    assert [log.path for log in found] == ["a.csv", "b.csv", "apps.csv"]
    assert [len(log.warnings) for log in found] == [0, 1, 1]


def test_a_list_of_processes_that_is_read_alone_beside_another_log_says_so() -> None:
    """pmon names no card: whether its GPU 0 is that of the file beside it, nobody knows."""
    t = times(30)
    used = ramp(t, 20.0, 200.0)
    paths = ["a/gpu.csv", "a/pmon-1.log", "a/pmon-2.log", "b/pmon-1.log"]
    logs = [log_of(whole(t, used) if "gpu" in p else part(1, t, used), path=p) for p in paths]
    for log in logs:
        log.devices = [msgspec.structs.replace(log.series[0].device, uid="log:-/0")]
        log.processes = [series.process for series in log.series if series.process is not None]
    joining.warn_apart(logs)
    assert [len(log.warnings) for log in logs] == [0, 1, 1, 0]


def test_any_number_of_files_is_joined_and_machines_stay_apart(tmp_path: Path) -> None:
    names = [str(tmp_path / f"{kind}-{n}.csv") for n in range(50) for kind in ("gpu", "apps", "b")]
    for name in names:
        (tmp_path / name).touch()

    def glance(file: str) -> LogFile:
        t = times(1)
        if "b-" in file:
            other = LogSeries(
                subject=Subject(device_uid="GPU-2"), device=CARD.__class__(
                    uid="GPU-2", vendor="nvidia", index=0, name="A", memory_total_bytes=None
                ), process=None, t_s=t, used_bytes=t, limit_bytes=None,
            )  # fmt: skip
            return log_of(other)
        return log_of(whole(t, t) if "gpu" in file else part(1, t, t))

    found = joining.groups(names, glance)
    assert sorted(map(len, found)) == [50, 100]


def test_a_process_of_another_day_with_the_same_pid_is_another_one() -> None:
    t = times(30)
    logs: Sequence[LogFile] = [
        log_of(part(1, t + day * 86_400.0, np.full(t.size, (4.0 + day) * GIB)), path=f"{day}")
        for day in (0, 1)
    ]
    (log,) = joining.joined(logs)
    keys = [series.subject.process for series in log.series if series.process is not None]
    assert keys == [
        ProcessKey(pid=1, started_at_s=None),
        ProcessKey(pid=1, started_at_s=BEGIN_S + 86_400.0),
    ]


def test_the_alert_of_a_job_goes_on_when_its_lead_ends_and_counts_once() -> None:
    t = times(70)
    grown = ramp(t, 2.0, 300.0, from_min=5.0)
    first = t < BEGIN_S + 50 * 60
    parts = [part(1, t[first], grown[first] * 1.02), part(2, t, grown), part(3, t, grown)]
    used = np.full(t.size, 1.0 * GIB)
    for one in parts:
        used[: one.t_s.size] += one.used_bytes
    found = judged(whole(t, used), *parts)
    assert [event.state for event in found[of(1)].alerts] == ["firing", "resolved"]
    assert found[of(1)].alerts[-1].code is Ending.OTHER_RANK
    (heir,) = [one for one in (found[of(2)], found[of(3)]) if one.alerts]
    assert (heir.alerts[0].state, heir.alerts[0].code) == ("firing", Ending.OTHER_RANK)
    assert count(found) == 1


def test_runs_whose_time_jumps_back_are_borne() -> None:
    t = times(25)
    used = ramp(t, 20.0, 100.0)
    late = whole(t - 900.0, used)
    found = replay.analyze(log_of(whole(t, used), late, part(1, t, used - GIB)), EAGER)
    assert [one.subject for one in found[:3]] == [DEVICE, DEVICE, of(1)]
