"""The NVML source through a long bad day: whatever happens, it reads on and comes back whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sources.nvml_case import UID

if TYPE_CHECKING:
    from tests.sources.nvml_case import Nvml

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(3))
def test_after_everything_that_can_happen_every_card_is_back(fake: Nvml, seed: int) -> None:
    fake.write(*(f"gpu {index} total=24G" for index in range(4)))
    worst_s, wrong, after, kinds, threads = fake.play(
        """
import random, threading, time
dice = random.Random(int(sys.argv[1]))
root = folder / "roots"
(root / "module/nvidia").mkdir(parents=True)
def version(text):
    (root / "module/nvidia/version").write_text(text)
version("535.129.03")
cards = [f"gpu {i} total=24G" for i in range(4)]
def trouble():
    card, call = dice.randrange(4), dice.choice(
        ["nvmlDeviceGetMemoryInfo*", "nvmlDevice*", "nvmlDeviceGetHandle*", "*RunningProcesses*"]
    )
    return dice.choice([
        lambda: [f"fail {call} {card} {dice.choice([3, 4, 6, 10, 15, 16, 999])}"],
        lambda: [f"delay {call} {card} {dice.choice([1000, 90000, 150000])}"],
        lambda: ["init_error 9", "fail nvmlDevice* * 1"],
        lambda: ["fail nvmlDeviceGetCount* * 999"],
        lambda: [f"delay nvmlShutdown * {dice.choice([1000, 80000])}"],
        lambda: [],
    ])()
s = source(deadline_s=0.05, rescan_s=20, sys_root=str(root), proc_root=str(root))
worst, wrong, kinds = 0.0, [], []
for turn in range(80):
    here = list(cards)
    if dice.random() < 0.2:
        here.pop(dice.randrange(4))
    put(*here, *trouble(), *trouble())
    if dice.random() < 0.1:
        s.release_driver(dice.choice([0, 10, 30]))
    if dice.random() < 0.1:
        version(dice.choice(["535.129.03", "550.54.15"]))
    now[0] += dice.choice([0.2, 1, 5, 20, 70])
    began = time.monotonic()
    try:
        sample = s.read()
    except SourceUnavailable:
        continue
    finally:
        worst = max(worst, time.monotonic() - began)
    kinds += [event.kind for event in sample.events]
    known = {device.uid for device in s.devices()}
    for r in sample.readings:
        # What was not read is unknown: no number is carried over into another state.
        if r.device_uid not in known or (r.state not in {"ok", "unsupported"} and r.used_bytes):
            wrong.append([r.device_uid, r.state, r.used_bytes])
put(*cards)
s.release_driver(0)
for _ in range(60):
    now[0] += 61
    time.sleep(0.05)
    sample = s.read()
    if [r.state for r in sample.readings] == ["ok"] * 4:
        break
s.close()
time.sleep(0.3)
out(worst, wrong, [[r.device_uid, r.state] for r in sample.readings], sorted(set(kinds)),
    [t.name for t in threading.enumerate() if t.name == "nvml"])
""",
        seed,
    )
    assert wrong == []
    assert after == [[UID(index), "ok"] for index in range(4)]
    assert worst_s < 3.0
    assert "gpu-lost" in kinds or "gpu-hung" in kinds
    assert threads == []
