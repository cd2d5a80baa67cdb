"""Hostile answers of the driver, on the stand-in library: what is shown is true, or unknown.

``python -m tests.campaign.nvml COUNT SEED`` runs beside the stand-in, which is found once per
process; :func:`hostile` starts it. Four GPUs are watched by a real pipeline; one or two of them
answer what no driver should, while the others are well.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwatchd.collect.nvml.calls import GLOBAL_CODES
from gpuwatchd.collect.nvml.source import NvmlSource
from gpuwatchd.core.config import Config
from tests.campaign import Figures, require
from tests.conftest import ran
from tests.fakenvml import FakeNvml
from tests.making import GIB
from tests.pipelines import make_pipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpuwatchd.store.live import LiveDevice, LiveState

CARDS = 4
TOTAL, BASE = 80 * GIB, 2 * GIB
H100 = "name=NVIDIA_H100_80GB_HBM3 cc=90"
MOST = {
    "util_pct": 100.0, "memory_util_pct": 100.0, "temp_c": 150.0, "power_w": 10_000.0,
    "clock_mhz": 20_000.0, "ecc_errors": 2.0**53, "retired_pages": 2.0**53,
}  # fmt: skip
"""No card says more; nothing is ever below zero."""
SIZES = ("0", "1", "300M", "79G", "80G", "81G", "4096T", str(2**63), str(2**64 - 2), "na")
NUMBERS = ("0", "1", "101", "255", "65535", str(2**31), str(2**32 - 1), str(2**63), "na")
NOTHING: Mapping[int, str] = {}
CODES = (*range(1, 30), 999)
CALLS = (
    "nvmlDevice*", "nvmlDeviceGetMemoryInfo*", "nvmlDeviceGetMemoryInfo_v2", "*RunningProcesses*",
    "nvmlDeviceGetHandle*", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetUtilization*",
    "nvmlDeviceGetPciInfo*", "nvmlDeviceGetMigMode", "nvmlDeviceGetProcessUtilization",
)  # fmt: skip
LOOKS, RECOVERY = 6, 60
DEADLINE_S = 0.6


class World:
    """The file of the stand-in, and what is well in it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.names = [H100] * CARDS
        self.uids = [f"GPU-0000000{i}-aaaa-bbbb-cccc-00000000000{i}" for i in range(CARDS)]

    def card(self, index: int) -> list[str]:
        """Return the lines of a card that is well."""
        return [
            f"gpu {index} {self.names[index]} total=80G base=2G util=50 uuid={self.uids[index]}",
            f"proc {index} pid={os.getppid()} mem={index + 1}G sm=50",
        ]

    def put(self, *lines: str, more: Mapping[int, str] = NOTHING, gone: Iterable[int] = ()) -> None:
        """Replace the file: every card but those that are gone, with ``more`` of what it says."""
        well = [
            " ".join((line, more.get(i, "") if line.startswith("gpu") else ""))
            for i in set(range(CARDS)) - set(gone)
            for line in self.card(i)
        ]
        fresh = self._file.with_suffix(".fresh")
        fresh.write_text("\n".join((*well, *lines)) + "\n")
        fresh.replace(self._file)


def _figures(_: int, chance: random.Random) -> list[str]:
    """Return what more a card says: figures that are drawn."""
    fields: dict[str, tuple[str, ...]] = dict.fromkeys(("total", "used", "base", "reserved"), SIZES)
    numbers = (
        "util", "memutil", "temp", "power", "limit", "clock", "memclock", "fan", "energy", "ecc",
        "ecc_errors", "ecc_corrected", "retired", "remapped", "remap_pending", "numa", "addressing",
        "events", "cc", "accounting",
    )  # fmt: skip
    fields |= dict.fromkeys(numbers, NUMBERS)
    drawn = chance.sample(sorted(fields), chance.randint(1, 5))
    words = [f"{name}={chance.choice(fields[name])}" for name in drawn]
    if chance.random() < 0.4:
        words.append("answer=" + "/".join(chance.choice(SIZES[:-1]) for _ in range(3)))
    return [" ".join(words)]


def _lists(card: int, chance: random.Random) -> list[str]:
    """Return lists of processes that cannot be, or that change while they are read."""
    pids = (0, 1, os.getppid(), os.getppid(), 4_194_999, 2**31, 2**32 - 1)
    count = chance.choice((1, 3, 60, 900))
    lines = [
        f"proc {card} pid={chance.choice(pids) + i // 20} mem={chance.choice(SIZES)}"
        f" type={chance.choice(('C', 'G', 'CG', 'M', '-'))} sm={chance.choice(NUMBERS)}"
        for i in range(count)
    ]
    more = (
        "procs_v3_fail_second", "procs_v3_fail_second 3", "procs_widened", "procutil_success",
        "procutil_room 100000", "v2_inclusive",
    )  # fmt: skip
    return [*lines, *chance.sample(more, chance.randint(0, 2))]


def _codes(card: int, chance: random.Random) -> list[str]:
    return [
        f"fail {chance.choice(CALLS)} {card} {chance.choice(CODES)}"
        for _ in range(chance.randint(1, 3))
    ]


def _delays(card: int, chance: random.Random) -> list[str]:
    pause_us = chance.choice((1_000, 20_000, 200_000, 900_000))
    return [f"delay {chance.choice(CALLS)} {card} {pause_us}"]


def _driver(_: int, chance: random.Random) -> list[str]:
    """Return what the driver as a whole says."""
    code = chance.choice(CODES)
    return chance.choice([
        [f"init_error {code}", "fail nvmlDevice* * 1"],
        [f"fail nvmlDeviceGetCount* * {code}"],
        [f"fail nvmlSystem* * {code}"], ["delay nvmlShutdown * 80000"],
        ["driver 999.99.99", "nvml x.y", "cuda -1"],
        ["gpu 31 total=80G"],
    ])  # fmt: skip


def _mig(card: int, chance: random.Random) -> list[str]:
    instances = [
        f"mig {card} gi={chance.choice((0, 1, 1, 7, 99))} ci={chance.choice((0, 0, 5))}"
        f" total={chance.choice(SIZES)} used={chance.choice(SIZES)}"
        for _ in range(chance.randint(0, 8))
    ]
    return ["mig=1", *instances]


DRAWS: dict[str, Callable[[int, random.Random], list[str]]] = {
    "values": _figures, "lists": _lists, "codes": _codes, "delays": _delays, "driver": _driver,
    "mig": _mig,
}  # fmt: skip


class Watch:
    """A pipeline on the stand-in, and what it must never show."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 1000.0
        self.figures: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.world = World(Path(os.environ["FAKE_NVML_CONF"]))
        self.world.put()
        self.source = NvmlSource(
            monotonic=lambda: self.now_s, clock=self._wall, deadline_s=DEADLINE_S,
            sys_root=str(folder),
        )  # fmt: skip
        self._module = folder / "module/nvidia/version"
        self._module.parent.mkdir(parents=True)
        self.pipeline = make_pipeline(
            config=Config(), sources=[self.source], runtime_dir=folder,
            wall=self._wall, mono=lambda: self.now_s,
        )  # fmt: skip

    def _wall(self) -> float:
        return 1.7e9 + self.now_s

    def look(self, pass_s: float = 5.0) -> LiveState:
        """Let time go by, and return what is shown then."""
        self.now_s += pass_s
        self.figures["looks"] += 1
        return self.pipeline.tick().state

    def check(self, state: LiveState, what: str, sick: set[int]) -> None:
        """Note what is shown and cannot be, and each card that is well and not shown so."""
        for live in state.devices:
            for why in impossible(live):
                self.note("impossible", f"{what}: {live.device.label} {why}")
            if live.device.parent_uid is None and live.device.memory_kind != "dedicated":
                self.note("changed_kind", f"{what}: {live.device.label} {live.device.memory_kind}")
        shown = {live.device.uid: live for live in state.devices}
        for index in set(range(CARDS)) - sick:
            unwell = self.unwell(shown.get(self.world.uids[index]), index)
            if unwell is not None:
                self.note("hidden", f"{what}: GPU {index} {unwell}")

    def note(self, figure: str, why: str) -> None:
        """Count something that must not be."""
        self.figures[figure] += 1
        self.wrong.append(f"{figure}: {why}")

    def unwell(self, live: LiveDevice | None, index: int) -> str | None:
        """Return why a card is not shown as it is when it is well; None where it is."""
        if live is None or live.reading is None:
            return "is not shown" if live is None else "is not read"
        holds, reading = (index + 1) * GIB, live.reading
        uses = [process.used_bytes for process in live.processes or ()]
        name = " ".join(self.world.names[index].split()[0].removeprefix("name=").split("_"))
        bus = f"0000:{index + 1:02x}:00.0"
        wanted = (("ok", BASE + holds, TOTAL), [holds], (index, name, bus, TOTAL))
        device = live.device
        said = (
            (reading.state, reading.used_bytes, reading.total_bytes),
            uses, (device.index, device.name, device.pci_bus, device.memory_total_bytes),
        )  # fmt: skip
        return None if said == wanted else f"{said}, not {wanted}"

    def recovers(self, what: str) -> None:
        """Let the driver be well again, and count it if not every card comes back."""
        self.source.release_driver(0.0)
        self.world.put()
        self.until(what, "not_recovered", self._whole)

    def until(self, what: str, figure: str, is_so: Callable[[LiveState], str | None]) -> None:
        """Look until something is so; count it where it never comes."""
        why: str | None = None
        for turn in range(RECOVERY):
            while self.source._lanes.busy:  # a call that sleeps takes real time
                time.sleep(0.01)
            if (why := is_so(self.look(61.0 if turn % 2 else 5.0))) is None:
                return
        self.note(figure, f"{what}: {why}")

    def _whole(self, state: LiveState) -> str | None:
        shown = {live.device.uid: live for live in state.devices}
        read = {uid: live.reading for uid, live in shown.items() if live.reading is not None}
        here = {uid for uid, reading in read.items() if reading.state == "ok"}
        if here != set(self.world.uids):
            return f"shows {sorted(here)}"
        whys = (self.unwell(shown[uid], i) for i, uid in enumerate(self.world.uids))
        return next((why for why in whys if why is not None), None)

    def answer(self, number: int, chance: random.Random) -> None:
        """Let one or two cards answer what is drawn, which changes between looks; then recover."""
        kind = [*DRAWS][number % len(DRAWS)]
        sick = set(chance.sample(range(CARDS), chance.randint(1, 2)))
        self.figures[kind] += 1
        drawn: dict[int, list[str]] = {}
        said = ""
        for turn in range(LOOKS):
            if kind == "driver" and chance.random() < 0.2:
                self.source.release_driver(chance.choice((0.0, 10.0, 30.0)))
                self._module.write_text(chance.choice(("535.129.03", "550.54.15")))
            if turn % 2 == 0:
                drawn = {card: DRAWS[kind](card, chance) for card in sick}
                more = {card: drawn[card].pop(0) for card in sick if kind in {"values", "mig"}}
                gone = {card for card in sick if chance.random() < 0.1}
                self.world.put(*(x for part in drawn.values() for x in part), more=more, gone=gone)
                said = f"{kind} {drawn if kind in {'codes', 'driver'} else ''} {more} gone {gone}"
            what = f"{number} look {turn} {said}"
            state = self.look(chance.choice((5.0, 5.0, 5.0, 61.0)))
            # These speak of the driver as a whole: it is begun anew, and no card can be read.
            whole = kind == "driver" or any(
                int(line.split()[-1]) in GLOBAL_CODES for part in drawn.values() for line in part
                if line.startswith("fail")
            )  # fmt: skip
            self.check(state, what, set(range(CARDS)) if whole else sick)
        self.recovers(f"{number} {kind}")

    def exchange(self, number: int, chance: random.Random) -> None:
        """Let cards get other UUIDs, another order or another name, while they are watched."""
        kind = ("uuid", "order", "name")[number % 3]
        one, two = chance.sample(range(CARDS), 2)
        world = self.world
        if kind == "uuid":
            world.uids[one] = f"GPU-{chance.getrandbits(32):08x}-dddd-eeee-ffff-000000000000"
        elif kind == "order":
            world.uids[one], world.uids[two] = world.uids[two], world.uids[one]
        else:
            world.names[one] = f"name=NVIDIA_A100-SXM4-80GB_{number} cc=80"
        self.figures["exchanges"] += 1
        world.put()
        self.until(f"{number} {kind}", "not_read_again", self._whole)


def impossible(live: LiveDevice) -> list[str]:
    """Return what of a device cannot be, as name and value."""
    reading, total = live.reading, live.total_bytes
    most: list[tuple[str, float | None, float | None]] = [
        ("total", total, None),
        ("total of the device", live.device.memory_total_bytes, None),
        *(("recent", value, None) for value in live.recent_bytes),
        *(("process", one.used_bytes, total) for one in live.processes or ()),
        *(("sm", one.sm_pct, 100.0) for one in live.processes or ()),
        *(("pid", one.info.key.pid - 1, 4_194_302.0) for one in live.processes or ()),
    ]
    if live.ledger is None or live.ledger.state != "overlap":
        most.append(("unattributed", live.unattributed_bytes, total))
    if reading is not None:
        sizes = ("used_bytes", "free_bytes", "reserved_bytes")
        most += [(name, getattr(reading, name), reading.total_bytes) for name in sizes]
        most += [(name, getattr(reading, name), limit) for name, limit in MOST.items()]
        if reading.state not in {"ok", "unsupported"}:
            most.append((f"used while {reading.state}", reading.used_bytes, 0.0))
    return [
        f"{name} {value:g} of {limit}"
        for name, value, limit in most
        if value is not None and not 0 <= value <= (2.0**50 if limit is None else limit)
    ]


def watched(count: int, seed: int) -> dict[str, Any]:
    """Return figures, and in words what was wrong, of so many hostile answers."""
    logging.disable()
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(Path(folder))
        watch.recovers("at first")
        for number in range(count):
            watch.answer(number, chance)
            if number % 5 == 4:
                watch.exchange(number // 5, chance)
        threads = [one for one in threading.enumerate() if one is not threading.main_thread()]
        watch.pipeline.close()
    return {"figures": {**watch.figures, "threads": len(threads)}, "wrong": watch.wrong}


WRONGS = ("impossible", "changed_kind", "hidden", "not_recovered", "not_read_again")


def hostile(count: int, seed: int) -> Figures:
    """Let a driver answer what none should, so many times, beside cards that are well."""
    with tempfile.TemporaryDirectory() as folder:
        fake = FakeNvml(Path(folder))
        fake.write("gpu 0 total=80G")
        words = [sys.executable, "-m", "tests.campaign.nvml", count, seed]
        done = ran(words, env=fake.env(), timeout=60 + 20 * count)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for why in found["wrong"][:20]:
        print(f"  {why}", file=sys.stderr)
    figures = {"answers": count, **found["figures"]}
    figures |= {name: figures.get(name, 0) for name in WRONGS}
    if figures["threads"] > 2 + 2 * CARDS:
        raise AssertionError(f"{figures}: threads are left")
    return require(figures, **dict.fromkeys(WRONGS, 0))


if __name__ == "__main__":
    print(json.dumps(watched(int(sys.argv[1]), int(sys.argv[2]))))
