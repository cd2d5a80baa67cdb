"""The stand-in itself: what the tests of the source cannot notice is wrong with it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.children import Child
from tests.conftest import need
from tests.fakenvml import FakeNvml
from tests.fakenvml.build import LIBRARY

GIB = 1024**3

PRELUDE = """
import json, sys, threading, time
import pynvml as nv
nv.nvmlInit()
card = nv.nvmlDeviceGetHandleByIndex(0)
def memory():
    return nv.nvmlDeviceGetMemoryInfo(card, nv.nvmlMemory_v2)
def held():
    return [p.usedGpuMemory for p in nv.nvmlDeviceGetComputeRunningProcesses(card)]
def out(*values):
    print(json.dumps(values))
"""


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    if not sys.platform.startswith("linux"):
        pytest.skip("the stand-in library is for Linux")
    need(FakeNvml.available(), "a C compiler builds the stand-in library")
    return FakeNvml(tmp_path)


def test_it_is_built_from_the_command_line(fake: FakeNvml, tmp_path: Path) -> None:
    script = Path(__file__).parent / "build.py"
    folder = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, str(script), str(folder)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(folder / LIBRARY)
    assert (folder / LIBRARY).stat().st_size > 10_000


def test_memory_adds_up(fake: FakeNvml) -> None:
    fake.write("gpu 0 total=24G reserved=1G base=2G", "proc 0 pid=9 mem=3G type=CG")
    got = fake.run(PRELUDE + "m = memory()\nout(m.total, m.free, m.used, m.reserved)")
    assert got == [24 * GIB, 18 * GIB, 5 * GIB, GIB]
    got = fake.run(PRELUDE + "m = nv.nvmlDeviceGetMemoryInfo(card)\nout(m.total, m.free, m.used)")
    assert got == [24 * GIB, 18 * GIB, 6 * GIB]


def test_memory_grows_from_the_moment_the_line_was_seen(fake: FakeNvml) -> None:
    fake.write("gpu 0 total=24G base=0", "proc 0 pid=9 mem=1G rate=100M max=1200M")
    early, middle, used, late = fake.run(
        PRELUDE
        + """
early = held()[0]
time.sleep(0.5)
middle, used = held()[0], memory().used
time.sleep(1.7)
out(early, middle, used, held()[0])
"""
    )
    mib = 1024**2
    assert GIB <= early < GIB + 20 * mib
    assert 40 * mib < middle - early < 90 * mib
    assert abs(used - middle) < 10 * mib
    assert late == 1200 * mib


def test_growth_from_an_epoch_is_the_same_for_everybody(fake: FakeNvml) -> None:
    fake.write("gpu 0 total=24G", f"proc 0 pid=9 mem=1G rate=10M since={time.time() - 100:.0f}")
    (held,) = fake.run(PRELUDE + "out(held()[0])")
    assert GIB + 990 * 1024**2 < held < GIB + 1100 * 1024**2


def test_a_process_counts_only_while_it_lives(fake: FakeNvml) -> None:
    with Child(["sleep", "600"]) as child:
        fake.write("gpu 0 total=24G", f"proc 0 pid={child.pid} mem=1G alive=1")
        script = PRELUDE + "out(held(), memory().used)"
        assert fake.run(script) == [[GIB], GIB]
        child.kill()
        deadline = time.monotonic() + 60
        while fake.run(script) != [[], 0] and time.monotonic() < deadline:
            time.sleep(0.05)
        assert child.returncode is None  # still a zombie, not yet reaped
        assert fake.run(script) == [[], 0]


def test_a_changed_file_is_seen_by_the_next_call(fake: FakeNvml) -> None:
    fake.write("gpu 0 total=24G base=1G")
    script = """
import os
before = memory().used
with open(sys.argv[1] + ".new", "w") as f:
    f.write("gpu 0 total=24G base=2G\\n")
os.replace(sys.argv[1] + ".new", sys.argv[1])
out(before, memory().used)
"""
    assert fake.run(PRELUDE + script, str(fake.conf)) == [GIB, 2 * GIB]


def test_a_slow_card_does_not_hold_another(fake: FakeNvml) -> None:
    fake.write("gpu 0 total=24G", "gpu 1 total=24G", "delay nvmlDeviceGetMemoryInfo* 1 600000")
    fast_s, slow_s = fake.run(
        PRELUDE
        + """
other = nv.nvmlDeviceGetHandleByIndex(1)
began = time.monotonic()
thread = threading.Thread(target=nv.nvmlDeviceGetMemoryInfo, args=(other,))
thread.start()
time.sleep(0.05)
for _ in range(20):
    memory()
fast = time.monotonic() - began
thread.join()
out(fast, time.monotonic() - began)
"""
    )
    assert fast_s < 0.5
    assert 0.6 <= slow_s < 5


def test_threads_may_call_at_once(fake: FakeNvml) -> None:
    fake.write("gpu 0 total=24G", *(f"proc 0 pid={n} mem=1M" for n in range(1, 40)))
    (lengths,) = fake.run(
        PRELUDE
        + """
lengths = []
def work():
    for _ in range(200):
        lengths.append(len(held()))
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
out(sorted(set(lengths)))
"""
    )
    assert lengths == [39]
    assert fake.stats()["nvmlDeviceGetComputeRunningProcesses_v3"] == 2 * 4 * 200


@pytest.mark.parametrize(
    ("rule", "error"),
    [
        ("fail nvmlDeviceGetMemoryInfo_v2 0 15", "GPU is lost"),
        ("fail nvmlDeviceGetMemoryInfo* * 4", "Insufficient Permissions"),
        ("fail * 0 999", "Unknown Error"),
        ("fail nvmlDeviceGetMemoryInfo_v2 1 15", None),
        ("fail nvmlDeviceGetName 0 15", None),
    ],
)
def test_faults_hit_what_they_name(fake: FakeNvml, rule: str, error: str | None) -> None:
    fake.write("gpu 0 total=24G", "gpu 1 total=24G")
    script = """
with open(sys.argv[1], "a") as f:
    f.write(sys.argv[2] + "\\n")
try:
    memory()
    out(None)
except nv.NVMLError as error:
    out(str(error))
"""
    assert fake.run(PRELUDE + script, str(fake.conf), rule) == [error]


def test_an_event_is_handed_out_once(fake: FakeNvml) -> None:
    fake.write("gpu 0 total=24G", "event 0 type=8 data=79")
    got = fake.run(
        PRELUDE
        + """
events = nv.nvmlEventSetCreate()
nv.nvmlDeviceRegisterEvents(card, nv.nvmlEventTypeXidCriticalError, events)
data = nv.nvmlEventSetWait_v2(events, 1000)
try:
    nv.nvmlEventSetWait_v2(events, 30)
    again = "another"
except nv.NVMLError as error:
    again = str(error)
out(data.eventType, data.eventData, again)
"""
    )
    assert got == [8, 79, "Timeout"]


def test_an_event_that_is_added_later_comes_then_and_the_first_not_again(fake: FakeNvml) -> None:
    fake.write("gpu 0 total=24G", "event 0 type=8 data=31")
    got = fake.run(
        PRELUDE
        + """
import os
events = nv.nvmlEventSetCreate()
nv.nvmlDeviceRegisterEvents(card, nv.nvmlEventTypeXidCriticalError, events)
def wait():
    try:
        return nv.nvmlEventSetWait_v2(events, 30).eventData
    except nv.NVMLError as error:
        return str(error)
def put(*lines):
    with open(sys.argv[1] + ".new", "w") as f:
        f.write("\\n".join(lines) + "\\n")
    os.replace(sys.argv[1] + ".new", sys.argv[1])
found = [wait(), wait()]
put("gpu 0 total=24G", "event 0 type=8 data=31", "event 0 type=8 data=79 gi=1")
found += [wait(), wait()]
put("gpu 0 total=24G", "event 0 type=8 data=31", "event 0 type=8 data=31")
out(*found, wait(), wait())
""",
        str(fake.conf),
    )
    assert got == [31, "Timeout", 79, "Timeout", 31, "Timeout"]


def test_who_did_not_register_gets_no_event(fake: FakeNvml) -> None:
    fake.write("gpu 0 total=24G", "gpu 1 total=24G", "event 1 type=8 data=79")
    got = fake.run(
        PRELUDE
        + """
events = nv.nvmlEventSetCreate()
nv.nvmlDeviceRegisterEvents(card, nv.nvmlEventTypeXidCriticalError, events)
def wait():
    try:
        return nv.nvmlEventSetWait_v2(events, 30).eventData
    except nv.NVMLError as error:
        return str(error)
first = wait()
nv.nvmlDeviceRegisterEvents(nv.nvmlDeviceGetHandleByIndex(1), 8, events)
out(first, wait())
"""
    )
    assert got == ["Timeout", 79]


def test_a_shutdown_under_somebody_who_waits_is_noted(fake: FakeNvml) -> None:
    fake.write("gpu 0 total=24G")
    fake.run(
        PRELUDE
        + """
events = nv.nvmlEventSetCreate()
def wait():
    try:
        nv.nvmlEventSetWait_v2(events, 400)
    except nv.NVMLError:
        pass
thread = threading.Thread(target=wait)
thread.start()
time.sleep(0.1)
nv.nvmlShutdown()
thread.join()
out()
"""
    )
    assert fake.stats()["shutdown_in_wait"] == 1


def test_error_counters_and_accounting(fake: FakeNvml) -> None:
    fake.write(
        "gpu 0 total=24G ecc=1 ecc_errors=3 retired=2 remapped=4 remap_pending=1 accounting=1",
        "gpu 1 total=24G numa=1 addressing=2",
        "proc 0 pid=5 type=- mem=0 peak=9G",
    )
    got = fake.run(
        PRELUDE
        + """
other = nv.nvmlDeviceGetHandleByIndex(1)
def refused(call, *arguments):
    try:
        return call(other, *arguments)
    except nv.NVMLError as error:
        return str(error)
out(
    nv.nvmlDeviceGetTotalEccErrors(card, 1, 0), len(nv.nvmlDeviceGetRetiredPages(card, 1)),
    nv.nvmlDeviceGetRemappedRows(card), nv.nvmlDeviceGetAccountingPids(card),
    nv.nvmlDeviceGetAccountingStats(card, 5).maxMemoryUsage, len(held()), memory().used,
    refused(nv.nvmlDeviceGetTotalEccErrors, 1, 0), refused(nv.nvmlDeviceGetRemappedRows),
    nv.nvmlDeviceGetNumaNodeId(other), nv.nvmlDeviceGetAddressingMode(other),
)
"""
    )
    assert got == [3, 2, [0, 4, 1, 0], [5], 9 * GIB, 0, 0, "Not Supported", "Not Supported", 1, 2]


@pytest.mark.parametrize(
    ("lines", "error"),
    [([], "Not Found"), (["procutil_success"], "Success")],
)
def test_no_utilisation_samples_are_told_in_two_ways(
    fake: FakeNvml, lines: list[str], error: str
) -> None:
    fake.write("gpu 0 total=24G", "proc 0 pid=9 mem=1G sm=na", *lines)
    script = """
try:
    out(len(nv.nvmlDeviceGetProcessUtilization(card, 0)))
except nv.NVMLError as error:
    out(str(error))
"""
    assert fake.run(PRELUDE + script) == [error]
    fake.write("gpu 0 total=24G", "proc 0 pid=9 mem=1G sm=35", *lines)
    assert fake.run(PRELUDE + script) == [1]


def test_widened_entries_scramble_what_an_unaware_client_reads(fake: FakeNvml) -> None:
    fake.write("gpu 0 total=24G", *(f"proc 0 pid={n} mem=1G" for n in (7, 8)), "procs_widened")
    (got,) = fake.run(
        PRELUDE + "out([p.pid for p in nv.nvmlDeviceGetComputeRunningProcesses(card)])"
    )
    assert got[0] == 7
    assert got[1] != 8
