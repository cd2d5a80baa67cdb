"""Figures and lists that cannot be true: a fault while they last, and forgotten afterwards."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from gpuwatchd.collect.nvml.memory import LOOKS
from tests.sources.nvml_case import GIB, MIB, one_read

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sources.nvml_case import Nvml

pytestmark = pytest.mark.slow

H100 = "gpu 0 name=NVIDIA_H100_80GB_HBM3 cc=90 total=80G reserved=500M"
UNKNOWN_CHIP = "gpu 0 name=NVIDIA_X total=80G reserved=500M"
MEMORY, PROCESSES = "nvml/0/memory", "nvml/0/processes"


class Look(NamedTuple):
    """One look at the only card."""

    reading: dict[str, Any]
    faults: list[str]
    """Where."""
    device: dict[str, Any]
    logged: list[list[str]]
    """[level, where] of what was logged."""

    @property
    def pids(self) -> list[int] | None:
        uses = self.reading["uses"]
        return None if uses is None else [use["key"]["pid"] for use in uses]


def looks(fake: Nvml, *worlds: list[str], step_s: float = 5.0, **settings: str) -> list[Look]:
    """Return what each look at one of these worlds after the other gave."""
    fake.write(*worlds[0])
    script = fake.folder / "worlds.json"
    script.write_text(json.dumps(worlds))
    found = fake.play(
        f"""
logged = []
listen(logged)
s = source(**{settings!r})
found = []
for world in json.loads(Path(sys.argv[1]).read_text()):
    put(*world)
    sample = s.read()
    found.append([
        plain(sample.readings)[0], [f.where for f in sample.faults], plain(s.devices())[0],
        [[level, text.partition("where=")[2].split()[0]] for level, text in logged],
    ])
    logged.clear()
    now[0] += {step_s!r}
out(*found)
""",
        script,
    )
    return [Look(*one) for one in found]


@pytest.mark.parametrize(
    ("chip", "figures", "mem", "used", "listed"),
    [
        *(
            (chip, *case)
            for chip in (H100, UNKNOWN_CHIP)
            for case in (
                ("used=0", "9G", None, True),
                ("used=3G", "90G", 3 * GIB, False),
                ("answer=0/0/0", "9G", None, True),
                ("total=9T", "9G", None, True),
                ("answer=80G/0/0", "9G", None, True),
            )
        ),
        (H100, "used=na", "9G", None, True),  # of another chip it would become true
    ],
)
def test_doubt_is_a_fault_that_ends_and_leaves_no_trace(
    fake: Nvml, child: int, chip: str, figures: str, mem: str, used: int | None, listed: bool
) -> None:
    proc = f"proc 0 pid={child} mem=9G"
    odd = [f"{chip} {figures}", f"proc 0 pid={child} mem={mem}"]
    well = [chip, proc]
    # A minute of looks and more: however often it is said, it does not become true.
    found = looks(fake, *[odd] * 20, *[well] * 30)
    during, after = found[:20], found[20]
    for look in during:
        assert look.reading["used_bytes"] == used
        assert MEMORY in look.faults
        assert (look.pids == [child]) is listed
        assert look.reading["memory_api"] in {None, "v2"}
        assert look.device["memory_kind"] == "dedicated"
        assert look.device["memory_total_bytes"] in {None, 80 * GIB}
        assert look.reading["state"] == "ok"
    assert after.faults == []
    assert after.reading["used_bytes"] == 9 * GIB
    assert after.reading["total_bytes"] == 80 * GIB
    assert after.reading["memory_api"] == "v2"
    assert after.device["memory_kind"] == "dedicated"
    assert after.device["memory_total_bytes"] == 80 * GIB
    logged = [line for look in found for line in look.logged]
    assert logged == [["WARNING", MEMORY], ["INFO", MEMORY]]


def test_doubt_in_between_changes_nothing_that_was_known(fake: Nvml, child: int) -> None:
    well = [H100, f"proc 0 pid={child} mem=9G"]
    odd = [f"{H100} answer=0/0/0", well[1]]
    found = looks(fake, well, odd, odd, well, odd, well)
    assert [look.reading["used_bytes"] for look in found] == [
        9 * GIB, None, None, 9 * GIB, None, 9 * GIB,
    ]  # fmt: skip
    assert {look.device["memory_total_bytes"] for look in found} == {80 * GIB}
    # What comes again that soon was not over.
    assert [line for look in found for line in look.logged] == [["WARNING", MEMORY]]


@pytest.mark.parametrize(
    ("answer", "used", "free"),
    [
        ("80G/0/3G", 3 * GIB, 77 * GIB - 500 * MIB),  # nothing free, and nearly nothing used
        ("80G/70G/0", 10 * GIB - 500 * MIB, 70 * GIB),
        ("80G/70G/80G", 10 * GIB - 500 * MIB, 70 * GIB),
        ("80G/70G/90G", 10 * GIB - 500 * MIB, 70 * GIB),
        ("80G/10G/20G", 20 * GIB, 60 * GIB - 500 * MIB),
    ],
)
def test_of_two_figures_that_contradict_each_other_the_less_extreme_counts(
    fake: Nvml, answer: str, used: int, free: int
) -> None:
    (look,) = looks(fake, [f"{H100} answer={answer}"])
    assert (look.reading["used_bytes"], look.reading["free_bytes"]) == (used, free)
    assert look.reading["total_bytes"] == 80 * GIB
    assert look.faults == [MEMORY]


def test_a_chip_in_no_list_is_believed_to_have_no_memory_after_many_looks(
    fake: Nvml, child: int
) -> None:
    proc = f"proc 0 pid={child} mem=9G"
    refused, well = [f"{UNKNOWN_CHIP} used=na", proc], [UNKNOWN_CHIP, proc]
    once = looks(fake, refused, well)
    assert [look.device["memory_kind"] for look in once] == ["dedicated"] * 2
    assert [look.reading["used_bytes"] for look in once] == [None, 9 * GIB]
    assert [look.faults for look in once] == [[MEMORY], []]
    often = looks(fake, *[refused] * (LOOKS + 1), well, refused)
    kinds = [look.device["memory_kind"] for look in often]
    assert kinds == ["dedicated"] * (LOOKS - 1) + ["unified"] * 2 + ["dedicated"] * 2
    assert often[LOOKS].faults == []
    assert often[LOOKS + 1].reading["used_bytes"] == 9 * GIB
    assert often[LOOKS + 2].faults == [MEMORY]


@pytest.mark.parametrize(
    ("cc", "figures"),
    [
        *((cc, "used=na") for cc in (53, 62, 72, 101, 110, 121)),
        *((87, figures) for figures in ("answer=0/0/0", "used=0", "total=300M used=90M")),
    ],
)
def test_a_chip_without_memory_of_its_own_is_known_by_its_capability(
    fake: Nvml, child: int, cc: int, figures: str
) -> None:
    readings, devices, faults = one_read(
        fake, f"gpu 0 name=NVIDIA_Next cc={cc} total=119G {figures}", f"proc 0 pid={child} mem=9G"
    )
    assert devices[0]["memory_kind"] == "unified"
    assert readings[0]["used_bytes"] == 9 * GIB
    assert faults == []


def test_doubt_costs_no_call(fake: Nvml, child: int) -> None:
    proc = f"proc 0 pid={child} mem=9G"
    looks(fake, *[[f"{H100} answer=0/0/0", proc]] * 4, *[[f"{H100} used=0", proc]] * 4)
    calls = fake.stats()
    assert calls["nvmlDeviceGetCudaComputeCapability"] == 1
    assert calls["nvmlDeviceGetMemoryInfo_v2"] == 8
    assert "nvmlDeviceGetMemoryInfo" not in calls


def node(root: Path, number: int, cpus: str, size_gib: int) -> None:
    """Describe a NUMA node as the kernel does."""
    folder = root / f"devices/system/node/node{number}"
    folder.mkdir(parents=True)
    (folder / "cpulist").write_text(f"{cpus}\n")
    (folder / "meminfo").write_text(
        f"Node {number} MemTotal:       {size_gib * 1024**2} kB\n"
        f"Node {number} MemFree:        1024 kB\n"
    )


@pytest.mark.parametrize(
    ("name", "numa", "cpus", "size_gib", "kind"),
    [
        ("NVIDIA_H100", 0, "0-63", 96, "dedicated"),  # the node of the CPUs next to it
        ("NVIDIA_GH200_480GB", 0, "0-71", 480, "dedicated"),
        ("NVIDIA_H100", 2, "", 512, "dedicated"),  # memory without CPUs, but not a GPU's
        ("NVIDIA_Next", 1, "", 95, "coherent"),
        ("NVIDIA_GH200_480GB", 1, "", 95, "coherent"),
        ("NVIDIA_GH200_480GB", 1, "", 40, "coherent"),  # a part of it was taken out of use
    ],
)
def test_a_numa_node_is_a_cards_memory_when_it_looks_like_it(
    fake: Nvml, tmp_path: Path, name: str, numa: int, cpus: str, size_gib: int, kind: str
) -> None:
    node(tmp_path / "sys", numa, cpus, size_gib)
    (look,) = looks(
        fake, [f"gpu 0 total=96G name={name} numa={numa}"], sys_root=str(tmp_path / "sys")
    )
    assert look.device["memory_kind"] == kind
    assert look.faults == []


def test_a_node_that_cannot_be_looked_at_says_nothing_of_an_ordinary_card(fake: Nvml) -> None:
    (look,) = looks(fake, ["gpu 0 total=96G name=NVIDIA_H100 numa=0"])
    assert look.device["memory_kind"] == "dedicated"


def test_coherent_memory_without_a_list_says_what_is_missing(fake: Nvml) -> None:
    (look,) = looks(
        fake,
        [
            "gpu 0 total=96G used=3G name=NVIDIA_GH200_480GB numa=1",
            "fail *RunningProcesses* 0 3",
        ],
    )
    assert look.device["memory_kind"] == "coherent"
    assert look.faults == [PROCESSES]
    assert look.reading["used_bytes"] == 3 * GIB
    assert (look.pids, look.reading["state"]) == (None, "ok")


@pytest.mark.parametrize(
    "older", [[], ["fail *RunningProcesses_v2 0 13", "fail *RunningProcesses 0 13"],
              ["fail *RunningProcesses_v2 0 3"]]
)  # fmt: skip
def test_a_list_with_a_pid_that_cannot_be_is_read_again(
    fake: Nvml, child: int, older: list[str]
) -> None:
    proc = f"proc 0 pid={child} mem=1G"
    well, odd = [H100, proc, *older], [H100, proc, "proc 0 pid=4194999 mem=1G", *older]
    found = looks(fake, odd, odd, odd, well, odd, well)
    assert [look.pids for look in found] == [None, None, None, [child], None, [child]]
    assert [look.faults for look in found] == [
        [PROCESSES], [PROCESSES], [PROCESSES], [], [PROCESSES], [],
    ]  # fmt: skip


@pytest.mark.parametrize("code", [3, 13, 25])
@pytest.mark.parametrize("kind", ["C", "G"])
def test_a_list_that_is_missing_for_a_moment_is_not_off(
    fake: Nvml, child: int, code: int, kind: str
) -> None:
    name = {"C": "Compute", "G": "Graphics"}[kind]
    well = [H100, f"proc 0 pid={child} mem=1G type={kind}"]
    odd = [*well, f"fail nvmlDeviceGet{name}RunningProcesses* 0 {code}"]
    first, second, third = looks(fake, well, odd, well)
    assert (first.pids, first.faults) == ([child], [])
    assert (second.pids, second.faults) == (None, [PROCESSES]), "no list is not an empty list"
    assert (third.pids, third.faults) == ([child], [])


def test_a_list_that_is_gone_is_believed_so_and_asked_for_ever_more_rarely(
    fake: Nvml, child: int
) -> None:
    well = [H100, f"proc 0 pid={child} mem=1G"]
    odd = [*well, "fail nvmlDeviceGet*RunningProcesses* 0 3"]
    found = looks(fake, well, *[odd] * 800, *[well] * 300)
    assert found[500].faults == []
    assert found[500].pids is None
    last = [look.pids for look in found].index([child], 2)
    assert 800 < last < 900
    assert found[-1].pids == [child]
    assert fake.stats()["nvmlDeviceGetComputeRunningProcesses_v3"] < 1 + 15 + 300


def test_a_list_that_comes_to_be_is_found(fake: Nvml, child: int) -> None:
    well = [H100, f"proc 0 pid={child} mem=1G"]
    none = [*well, "fail nvmlDeviceGet*RunningProcesses* 0 3"]
    found = looks(fake, *[none] * 10, *[well] * 20)
    assert {str(look.pids) for look in found[:10]} == {"None"}
    assert [look.faults for look in found[:10]] == [[]] * 10, "a driver without it is no fault"
    assert found[-1].pids == [child]


@pytest.mark.parametrize(
    ("said", "field", "where"),
    [
        ("util=101", "util_pct", "util"),
        (f"temp={2**32 - 1}", "temp_c", "temp"),
        (f"power={2**32 - 1}", "power_w", "power"),
        ("clock=65535", "clock_mhz", "clock"),
        (f"ecc=1 ecc_errors={2**63}", "ecc_errors", "ecc"),
        (f"remapped={2**32 - 1}", "retired_pages", "remapped"),
    ],
)
def test_a_number_that_no_card_says_is_unknown_and_a_fault(
    fake: Nvml, said: str, field: str, where: str
) -> None:
    readings, _, faults = one_read(fake, f"{H100} used=3G {said}")
    assert (readings[0][field], readings[0]["used_bytes"]) == (None, 3 * GIB)
    assert [fault["where"] for fault in faults] == [f"nvml/0/{where}"]


def test_a_card_does_not_shrink_below_what_a_process_held_before(fake: Nvml) -> None:
    worlds = [[f"{H100} used=9G", "proc 0 pid=77 mem=9G"], [f"{UNKNOWN_CHIP} total=300M used=1M",
              "proc 0 pid=77 mem=9G"]]  # fmt: skip
    first, second = looks(fake, *worlds)
    assert first.reading["total_bytes"] == second.device["memory_total_bytes"] == 80 * GIB
    assert (second.reading["used_bytes"], second.pids, {*second.faults}) == (None, [77], {MEMORY})
