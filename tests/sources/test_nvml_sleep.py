"""The NVML source on a laptop: a sleeping card is not woken, an unused one is left to fall asleep.

The stand-in counts calls, so that "not touched" is a figure; what sysfs says is files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sources.nvml_case import UID

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sources.nvml_case import Nvml

FIRST, SECOND = "0000:01:00.0", "0000:02:00.0"

SCENE = """
def says(bus, **files):
    for name, text in files.items():
        (folder / "bus/pci/devices" / bus / "power" / name).write_text(text + "\\n")
def states(source):
    return [r.state for r in source.read().readings]
s = source(sys_root=str(folder), proc_root=str(folder))
def over(count):
    seen = []
    for _ in range(count):
        now[0] += 5
        seen += states(s)
    return seen
"""


@pytest.fixture
def fake(fake: Nvml) -> Nvml:
    """Let each script begin with a source before these folders."""
    fake.prelude += SCENE
    return fake


def card(folder: Path, bus: str, status: str, d3: str = "Enabled (fine-grained)") -> None:
    home = folder / "bus/pci/devices" / bus
    (home / "power").mkdir(parents=True)
    (home / "vendor").write_text("0x10de\n")
    (home / "class").write_text("0x030200\n")
    (home / "power/runtime_status").write_text(f"{status}\n")
    gpu = folder / "driver/nvidia/gpus" / bus
    gpu.mkdir(parents=True)
    (gpu / "power").write_text(f"Runtime D3 status:          {d3}\n")


def test_a_sleeping_card_is_not_woken_and_is_shown(fake: Nvml, tmp_path: Path) -> None:
    card(tmp_path, FIRST, "suspended")
    fake.write("gpu 0 total=8G")
    probe, states, devices, faults = fake.play("""
probe = s.probe()
for _ in range(50):
    sample = s.read()
    now[0] += 5
out(plain(probe), [r.state for r in sample.readings], plain(s.devices()), plain(sample.faults))
""")
    assert probe["ok"] is True
    assert "asleep" in probe["reason"]
    assert states == ["asleep"]
    assert [device["name"] for device in devices] == [f"NVIDIA GPU {FIRST}"]
    assert faults == []
    assert not fake.stats_file.exists(), "the library was not even loaded"


def test_an_unused_card_is_let_go_and_a_used_one_is_read(
    fake: Nvml, tmp_path: Path, child: int
) -> None:
    card(tmp_path, FIRST, "active")
    fake.write("gpu 0 total=8G")
    seen, names = fake.play(f"""
says({FIRST!r}, runtime_usage="0")
seen = [*states(s), *states(s)]
says({FIRST!r}, runtime_status="suspended")
now[0] += 100
seen += [*states(s), *states(s)]
says({FIRST!r}, runtime_status="active", runtime_usage="1")
put("gpu 0 total=8G util=70", "proc 0 pid={child} mem=1G")
now[0] += 100
seen += [*states(s), *states(s)]
out(seen, [d.name for d in s.devices()])
""")
    assert seen == ["ok", "asleep", "asleep", "asleep", "ok", "ok"]
    assert names == ["NVIDIA Test GPU"]
    calls = fake.stats()
    assert (calls["nvmlInitWithFlags"], calls["nvmlShutdown"]) == (2, 2)


def test_an_awake_card_that_nobody_uses_is_left_to_fall_asleep(fake: Nvml, tmp_path: Path) -> None:
    card(tmp_path, FIRST, "suspended")
    fake.write("gpu 0 total=8G")
    (seen,) = fake.play(f"""
states(s)
says({FIRST!r}, runtime_status="active", runtime_usage="0")
out(sorted(set(over(100))))
""")
    assert seen == ["asleep"]
    assert not fake.stats_file.exists()


def test_where_users_are_not_counted_a_card_that_stays_awake_is_used(
    fake: Nvml, tmp_path: Path, child: int
) -> None:
    card(tmp_path, FIRST, "suspended")
    fake.write("gpu 0 total=8G util=70", f"proc 0 pid={child} mem=1G")
    (seen,) = fake.play(f"""
states(s)
says({FIRST!r}, runtime_status="active")
out(over(8))
""")
    assert seen == ["asleep"] * 4 + ["ok"] * 4


def test_a_process_of_ours_that_has_the_card_open_counts_at_once(
    fake: Nvml, tmp_path: Path, child: int
) -> None:
    card(tmp_path, FIRST, "suspended")
    (tmp_path / "4242/fd").mkdir(parents=True)
    (tmp_path / "4242/fd/7").symlink_to("/dev/nvidia0")
    fake.write("gpu 0 total=8G util=70", f"proc 0 pid={child} mem=1G")
    (seen,) = fake.play(f"""
seen = states(s)
says({FIRST!r}, runtime_status="active")
out(seen + over(1))
""")
    assert seen == ["asleep", "ok"]


def test_a_card_in_use_that_computes_nothing_may_fall_asleep(
    fake: Nvml, tmp_path: Path, child: int
) -> None:
    card(tmp_path, FIRST, "active")
    fake.write("gpu 0 total=8G util=0", f"proc 0 pid={child} mem=4M type=G")
    awake, asleep = fake.play(f"""
says({FIRST!r}, runtime_usage="1")
runs = []
for _ in range(360):
    state = states(s)[0]
    if not runs or runs[-1][0] != state:
        runs.append([state, 0])
    runs[-1][1] += 5
    now[0] += 5
out([n for word, n in runs if word == "ok"], [n for word, n in runs if word == "asleep"])
""")
    # It is let go again and again, less and less often while something keeps it awake.
    assert awake[0] <= 40
    assert awake[:4] == sorted(awake[:4])
    assert awake[3] > 2 * awake[0]
    assert all(15 <= pause <= 30 for pause in asleep[:-1])


@pytest.mark.parametrize(
    ("d3", "control"), [("Not supported", "auto"), ("Enabled (fine-grained)", "on")]
)
def test_a_card_that_cannot_sleep_is_held_for_life(
    fake: Nvml, tmp_path: Path, d3: str, control: str
) -> None:
    card(tmp_path, FIRST, "active", d3)
    fake.write("gpu 0 total=24G")
    (seen,) = fake.play(f"""
says({FIRST!r}, control={control!r}, runtime_usage="0")
out(sorted({{*states(s), *over(30)}}))
""")
    assert seen == ["ok"]
    assert fake.stats()["nvmlInitWithFlags"] == 1


def test_beside_a_sleeping_card_the_other_is_read_by_its_address(
    fake: Nvml, tmp_path: Path
) -> None:
    card(tmp_path, FIRST, "suspended")
    card(tmp_path, SECOND, "active", "Not supported")
    fake.write("gpu 0 total=8G", "gpu 1 total=24G", "fail * 0 999")
    seen, uids = fake.play("""
seen = [states(s), states(s)]
now[0] += 61
out([*seen, states(s)], [d.uid for d in s.devices()])
""")
    assert uids == [UID(1), f"nvml-{FIRST}"]
    assert seen == [["ok", "asleep"]] * 3
    assert "nvmlDeviceGetHandleByIndex_v2" not in fake.stats()


def test_a_card_that_wakes_up_beside_another_is_read_under_its_own_identity(
    fake: Nvml, tmp_path: Path, child: int
) -> None:
    card(tmp_path, FIRST, "suspended")
    card(tmp_path, SECOND, "active", "Not supported")
    fake.write("gpu 0 total=8G util=50", "gpu 1 total=24G", f"proc 0 pid={child} mem=1G")
    before, after, again = fake.play(f"""
def found():
    sample = s.read()
    return {{r.device_uid: r.state for r in sample.readings}}
before = found()
now[0] += 5
found()
says({FIRST!r}, runtime_status="active", runtime_usage="1")
now[0] += 5
after = found()
says({FIRST!r}, runtime_status="suspended")
put("gpu 0 total=8G", "gpu 1 total=24G")
now[0] += 5
found()
now[0] += 5
out(before, after, found())
""")
    assert before == {f"nvml-{FIRST}": "asleep", UID(1): "ok"}
    assert after == {UID(0): "ok", UID(1): "ok"}
    assert again == {UID(0): "asleep", UID(1): "ok"}


def test_when_reading_one_card_wakes_the_other_both_are_left(fake: Nvml, tmp_path: Path) -> None:
    card(tmp_path, FIRST, "suspended")
    card(tmp_path, SECOND, "active", "Not supported")
    fake.write("gpu 0 total=8G", "gpu 1 total=24G")
    first, then = fake.play(f"""
first = states(s)
says({FIRST!r}, runtime_status="active", runtime_usage="0")  # our start has woken it
now[0] += 1
states(s)
says({FIRST!r}, runtime_status="suspended")
seen = []
for _ in range(20):
    now[0] += 5
    seen.append(states(s))
out(first, sorted(set(map(tuple, seen))))
""")
    assert first == ["ok", "asleep"]
    assert then == [["released", "asleep"]]
    assert fake.stats()["nvmlInitWithFlags"] == 1


def test_no_start_attaches_every_card_while_one_sleeps(fake: Nvml, tmp_path: Path) -> None:
    card(tmp_path, FIRST, "suspended")
    card(tmp_path, SECOND, "active", "Not supported")
    fake.write("gpu 0 total=8G", "gpu 1 total=24G", "event 1 type=8 data=31")
    (got,) = fake.play("""
s = source(sys_root=str(folder), proc_root=str(folder))
codes = [e.code for e in s.read().events]
s.close()
out(codes)
""")
    assert got == [31]
    calls = fake.stats()
    assert calls["nvmlInitWithFlags"] == 1
    assert "init_attaching" not in calls
