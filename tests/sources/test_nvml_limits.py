"""What the driver allows control groups: asked for once a minute, and never where it cannot say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.sources.nvml_case import GIB

if TYPE_CHECKING:
    from tests.sources.nvml_case import Nvml

pytestmark = pytest.mark.slow

CARD = "gpu 0 total=80G;proc 0 pid=4711 mem=5G;proc 0 pid=4712 mem=3G"
HARD = "limits 0 group=*/sys/fs/cgroup/a.scope hard=20G used=8G"
CALL = "nvmlDeviceGetMemoryLimits_v1"

READS = """
groups = {4711: "0::/a.scope", 4712: "0::/a.scope", 4713: "0::/b.scope"}
for pid, line in groups.items():
    (folder / f"proc/{pid}").mkdir(parents=True)
    (folder / f"proc/{pid}/cgroup").write_text(line + "\\n")
s = source(proc_root=str(folder / "proc"), sys_root=str(folder / "sys"))
told = []
for step in sys.argv[1:]:
    if step.startswith("+"):
        now[0] += float(step)
        continue
    if step != "-":
        put(*step.split(";"))
    told.append([plain(reading.limits) for reading in s.read().readings])
out(told)
"""


def reads(fake: Nvml, *steps: str) -> list[list[dict[str, Any]]]:
    """Return the limits of the one card at each read."""
    fake.write(*CARD.split(";"))
    (told,) = fake.play(READS, *steps)
    return [of_cards[0] for of_cards in told]


def test_a_group_is_asked_about_once_a_minute_and_at_the_sight_of_a_new_one(fake: Nvml) -> None:
    more = f"{CARD};proc 0 pid=4713 mem=1G;{HARD}"
    told = reads(fake, f"{CARD};{HARD}", "-", more, "-", "+61", f"{more} soft=2G used=7G")
    first = {
        "kind": "driver", "name": f"{fake.folder}/sys/fs/cgroup/a.scope", "hard_bytes": 20 * GIB,
        "used_bytes": 8 * GIB, "soft_bytes": None, "process_bytes": None,
    }  # fmt: skip
    later = {**first, "soft_bytes": 2 * GIB, "used_bytes": 7 * GIB}
    whole = [[{**first, **one} for one in limits] for limits in told]
    assert whole == [[first]] * 4 + [[later]]
    # One for both processes of the first group; then, and a minute later, for both groups.
    assert fake.stats()[CALL] == 5


@pytest.mark.parametrize("code", [3, 13, 4, 25])
def test_a_driver_without_limits_is_asked_once(fake: Nvml, code: int) -> None:
    told = reads(fake, f"{CARD};{HARD};fail {CALL} * {code}", "-", "+61", "-")
    assert told == [[], [], []]
    assert fake.stats()[CALL] == 1


@pytest.mark.parametrize("line", ["hard=na", "hard=0", "hard=2000000T", "soft=0 hard=na"])
def test_no_limit_is_none(fake: Nvml, line: str) -> None:
    assert reads(fake, f"{CARD};limits 0 {line}") == [[]]


def test_a_question_that_fails_now_is_asked_again(fake: Nvml) -> None:
    failing = f"{CARD};{HARD};fail {CALL} * 999"
    told = reads(fake, failing, "-", "+61", f"{CARD};{HARD}")
    assert [len(limits) for limits in told] == [0, 0, 1]


def test_an_instance_of_mig_is_not_asked_about(fake: Nvml) -> None:
    card = "gpu 0 total=80G mig=1;mig 0 gi=1 ci=0 total=20G;proc 0 pid=4711 mem=5G gi=1 ci=0"
    reads(fake, f"{card};{HARD}", "-")
    assert CALL not in fake.stats()
