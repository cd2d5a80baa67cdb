"""A job under limits: which variables it gets, and how systemd is asked to start it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core.errors import ServiceError
from gpuwatchd.core.model import Device
from gpuwatchd.service import job_start
from gpuwatchd.service.unit_files import Done

if TYPE_CHECKING:
    from collections.abc import Sequence

GIB = 1 << 30
TORCH, JAX = "PYTORCH_CUDA_ALLOC_CONF", "XLA_PYTHON_CLIENT_MEM_FRACTION"


def cards(*sizes_gib: int) -> list[Device]:
    return [
        Device(
            uid=f"GPU-{index}0", vendor="nvidia", index=index, name="A", source="nvml",
            memory_total_bytes=size * GIB,
        )
        for index, size in enumerate(sizes_gib)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, [0, 1]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [0, 1]),  # of different cards: which one is not known
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-0, 9, GPU-1"}, [0]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-"}, []),
    ],
)
def test_which_cards_a_job_sees(environ: dict[str, str], expected: list[int]) -> None:
    assert [one.index for one in job_start.visible(cards(24, 80), environ)] == expected


def test_the_share_is_that_of_the_largest_card() -> None:
    limit = job_start.limited(20 * GIB, cards(24, 80), {})
    assert limit.variables == {TORCH: "per_process_memory_fraction:0.2500", JAX: "0.2500"}
    assert (limit.fraction, limit.total_bytes) == (0.25, 80 * GIB)


def test_what_the_user_has_set_stays() -> None:
    before = {
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        TORCH: "max_split_size_mb:128, per_process_memory_fraction:0.5",
        JAX: ".5",
    }
    made = job_start.limited(40 * GIB, cards(80), before).variables
    assert (
        made["PYTORCH_ALLOC_CONF"] == "expandable_segments:True,per_process_memory_fraction:0.5000"
    )
    assert made[TORCH] == before[TORCH]
    for other in ({TORCH: "per_process_memory_fraction:0.9"}, {JAX: "x"}):
        with pytest.raises(ValueError, match="already"):
            job_start.limited(40 * GIB, cards(80), other)


@pytest.mark.parametrize(("size", "sizes"), [(25 * GIB, (24, 80)), (1, (80,)), (GIB, ())])
def test_what_cannot_be_kept_to(size: int, sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="GPU"):
        job_start.limited(size, cards(*sizes), {})


class Manager:
    """Notes what it is asked."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.asked: list[Sequence[str]] = []

    def __call__(self, argv: Sequence[str], *, timeout_s: float = 30.0) -> Done:
        self.asked.append(argv)
        return Done(self.code if argv[0] == "systemd-run" else 0, "Unit was already loaded")


def test_systemd_is_asked_for_restarts_and_gets_no_value_on_the_line() -> None:
    run = Manager()
    environ = {"TOKEN": "hush", "BASH_FUNC_x%%": "()", "INVOCATION_ID": "1", "LC_ALL": "C"}
    name = job_start.start_unit(run, "night.service", ["echo", "$HOME"], environ, restarts=2)
    assert name == "night.service"
    argv = list(run.asked[-1])
    assert argv[argv.index("--") + 1 :] == ["echo", "$$HOME"]
    assert {"--setenv=TOKEN", "--setenv=LC_ALL=C", "StartLimitBurst=3"} <= set(argv)
    assert not [word for word in argv if "hush" in word or "BASH" in word or "INVOC" in word]
    with pytest.raises(ServiceError):
        job_start.start_unit(Manager(1), "night", ["true"], {}, restarts=0)
