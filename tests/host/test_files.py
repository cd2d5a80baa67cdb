"""Parsing what the files under /proc say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.collect.host.files import full_name, libraries_in, parse_stat
from tests.conftest import present
from tests.host.world import TORCH_MAPS


def test_libraries_of_a_map() -> None:
    maps = TORCH_MAPS + "7f03-7f04 r--p 0 fe:00 12 /lib/x86_64-linux-gnu/libc.so.6 (deleted)\n"
    assert libraries_in(maps.encode()) == [
        "/opt/venv/lib/torch/lib/libtorch_cpu.so",
        "/lib/x86_64-linux-gnu/libc.so.6 (deleted)",
    ]


@given(st.binary(max_size=80))
def test_any_bytes_are_parsed_or_refused(raw: bytes) -> None:
    stat = parse_stat(raw)
    assert stat is None or stat.starttime == int(raw[raw.rfind(b")") + 1 :].split()[19])


@given(st.binary(min_size=1, max_size=15), st.integers(0, 2**63), st.integers(1, 2**22))
def test_stat_survives_any_name(name: bytes, starttime: int, parent: int) -> None:
    raw = b"7 (" + name + f") R {parent} 7 7 0 -1 0 0 0 0 0 1 2 0 0 20 0 1 0 {starttime} 0".encode()
    stat = present(parse_stat(raw))
    assert (stat.name, stat.parent_pid, stat.starttime) == (name, parent, starttime)


@pytest.mark.parametrize(
    ("name", "argv", "full"),
    [
        (b"VLLM::EngineCor", ["VLLM::EngineCore_DP0"], "VLLM::EngineCore_DP0"),
        (b"a-very-long-nam", ["/opt/a-very-long-name-indeed", "-x"], "a-very-long-name-indeed"),
        (b"a-very-long-nam", ["other"], "a-very-long-nam"),
        (b"short", ["short-but-not-cut"], "short"),
        (b"worker-na\xc3\xafve-\xc3", ["worker-naïve-ärger"], "worker-naïve-ärger"),
    ],
)
def test_the_kernels_cut_is_undone(name: bytes, argv: list[str], full: str) -> None:
    assert full_name(name, argv) == full
