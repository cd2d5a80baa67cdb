"""What a process held at most, told once when it has ended and the driver keeps accounts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.sources.nvml_case import GIB, UID

if TYPE_CHECKING:
    from tests.sources.nvml_case import Nvml

pytestmark = pytest.mark.slow

CARD = "gpu 0 total=80G accounting=1"
HERE = "proc 0 pid=4711 mem=20G"
GONE = "proc 0 pid=4711 type=- mem=0"
TEXT = "pid 4711 has ended; its peak was 21.3 GiB (driver accounting)"

READS = """
s = NvmlSource(
    monotonic=lambda: now[0], clock=lambda: 1.75e9 + now[0], sys_root="/nowhere"
)
told = []
for step in sys.argv[1:]:
    if step != "-":
        put(*step.split(";"))
    told.append([[e.kind, e.device_uid, e.pid, e.peak_bytes, e.text, e.hardware]
                 for e in s.read().events])
    now[0] += 5
s.close()
out(told)
"""


def reads(fake: Nvml, *worlds: str) -> list[Any]:
    """Return the events of one read after another; "-" leaves the world as it is."""
    fake.write(CARD)
    (told,) = fake.play(READS, *worlds)
    assert isinstance(told, list)
    return told


def calls(fake: Nvml, name: str) -> int:
    return fake.stats().get(name, 0)


def test_who_has_ended_is_told_once_with_what_it_held_at_most(fake: Nvml) -> None:
    told = reads(
        fake,
        f"{CARD};{HERE};proc 0 pid=4712 mem=1G",
        "-",
        f"{CARD};{GONE} peak=21.3G;proc 0 pid=4712 mem=1G",
        "-",
        "-",
    )
    peak = int(21.3 * GIB)
    assert told == [[], [], [["process-peak", UID(0), 4711, peak, TEXT, None]], [], []]
    assert calls(fake, "nvmlDeviceGetAccountingMode") == 1
    assert calls(fake, "nvmlDeviceGetAccountingStats") == 1


@pytest.mark.parametrize(
    "account",
    [
        "peak=na",
        "peak=0",
        "peak=18446744073709551615",
        "peak=5G",  # less than it was seen to hold: of an earlier process with its number
        "peak=21G began=1750009000000000 lasted=1000",  # began long after it was seen
        "peak=21G began=1749000000000000 lasted=1000",  # was over long before it was seen
    ],
)
def test_an_account_that_is_unknown_or_of_another_process_is_not_told(
    fake: Nvml, account: str
) -> None:
    told = reads(fake, f"{CARD};{HERE}", f"{CARD};{GONE} {account}", "-", "-", "-", "-")
    assert told == [[]] * 6
    assert calls(fake, "nvmlDeviceGetAccountingStats") <= 3


def test_its_own_account_is_known_by_its_time(fake: Nvml) -> None:
    own = "peak=21G began=1750000900000000 lasted=103000"  # the first read is at 1750001000 s
    told = reads(fake, f"{CARD};{HERE}", f"{CARD};{GONE} {own}")
    assert len(told[1]) == 1


def test_an_account_that_is_not_there_yet_is_asked_for_again(fake: Nvml) -> None:
    gone = f"{GONE} peak=21.3G"
    told = reads(
        fake,
        f"{CARD};{HERE}",
        f"{CARD};fail nvmlDeviceGetAccountingStats 0 6",
        f"{CARD};{gone}",
    )
    assert [len(events) for events in told] == [0, 0, 1]


OFF = "gpu 0 total=80G accounting=0"
PARTS = "gpu 0 total=80G accounting=1 mig=1;mig 0 gi=1 ci=0 total=20G"
REFUSED = "fail nvmlDeviceGetComputeRunningProcesses* 0 4"


@pytest.mark.parametrize(
    ("worlds", "asked"),
    [
        # It is back.
        ((f"{CARD};{HERE}", CARD, f"{CARD};{HERE} peak=21G", "-", "-"), None),
        # The list cannot be read.
        ((f"{CARD};{HERE}", f"{CARD};{REFUSED}", f"{CARD};{HERE}"), 0),
        # Accounting is switched off meanwhile.
        ((f"{CARD};{HERE}", OFF, f"{OFF};{HERE}", OFF, "-"), 1),
        # Of a card that is cut into instances.
        ((f"{PARTS};proc 0 pid=4711 mem=2G gi=1 ci=0", PARTS, "-"), 0),
    ],
)
def test_nobody_is_told_as_ended_who_is_not_known_to_have(
    fake: Nvml, worlds: tuple[str, ...], asked: int | None
) -> None:
    assert reads(fake, *worlds) == [[]] * len(worlds)
    assert asked in {None, calls(fake, "nvmlDeviceGetAccountingStats")}
    assert calls(fake, "nvmlDeviceGetAccountingMode") == (0 if worlds[0].startswith(PARTS) else 1)


@pytest.mark.parametrize(
    "line",
    [
        "gpu 0 total=80G accounting=0",
        "gpu 0 total=80G accounting=na",
        f"{CARD};fail nvmlDeviceGetAccountingMode 0 4",
        f"{CARD};fail nvmlDeviceGetAccountingMode 0 13",
    ],
)
def test_where_the_driver_keeps_no_accounts_it_is_asked_once(fake: Nvml, line: str) -> None:
    worlds = [f"{line};proc 0 pid={pid} mem=2G" for pid in range(4711, 4721)]
    assert reads(fake, *worlds) == [[]] * 10
    assert calls(fake, "nvmlDeviceGetAccountingMode") == 1
    assert calls(fake, "nvmlDeviceGetAccountingStats") == 0
