"""The stand-in itself: what the tests of the source cannot notice is wrong with it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.children import Child
from tests.conftest import need, not_here, ran
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
        not_here("the stand-in library is for Linux")
    need(FakeNvml.available(), "a C compiler builds the stand-in library")
    return FakeNvml(tmp_path)


@pytest.mark.slow
def test_it_is_built_from_the_command_line(fake: FakeNvml, tmp_path: Path) -> None:
    script = Path(__file__).parent / "build.py"
    folder = tmp_path / "out"
    done = ran([sys.executable, str(script), str(folder)], check=True)
    assert done.stdout.strip() == str(folder / LIBRARY)
    assert (folder / LIBRARY).stat().st_size > 10_000


@pytest.mark.slow
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


def test_gauges_wobble_the_same_way_at_the_same_time(fake: FakeNvml) -> None:
    fake.write("wobble 3", "gpu 0 base=0 util=80 temp=60 power=200", "proc 0 pid=9 mem=1G sm=40")
    script = """
at = nv.nvmlLib.fakenvml_set_time
at.argtypes = (nv.c_double,)
def gauges(second):
    at(1e9 + second)
    busy = [s.smUtil for s in nv.nvmlDeviceGetProcessUtilization(card, 0)]
    return [nv.nvmlDeviceGetUtilizationRates(card).gpu, nv.nvmlDeviceGetTemperature(card, 0),
            nv.nvmlDeviceGetPowerUsage(card), *busy, *held()]
out([gauges(second) for second in range(400)])
"""
    (rows,) = fake.run(PRELUDE + script)
    assert (rows,) == tuple(fake.run(PRELUDE + script))
    utils, temps, watts, shares, held = map(set, zip(*rows, strict=True))
    assert (min(utils), max(utils)) == (73, 87)
    assert temps <= set(range(56, 65))
    assert len(temps) > 3
    assert 188_000 <= min(watts) < max(watts) <= 212_000
    assert (min(shares), max(shares)) == (30, 50)
    assert held == {GIB}


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
