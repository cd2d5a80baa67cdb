"""Whatever the files of a process hold, its record is made of safe words."""

from __future__ import annotations

import os
import pwd
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuwatchd.collect.host import Host
from gpuwatchd.collect.host.process_identity import Users
from gpuwatchd.collect.host.procfs import full_name, libraries_in, parse_stat
from gpuwatchd.core.text import clean
from tests.conftest import present
from tests.host.world import STARTED, TORCH_MAPS, Clock, FakeProc

if TYPE_CHECKING:
    from gpuwatchd.core.model import ProcessInfo

ANY = st.binary(max_size=120)
LINES = st.lists(
    st.sampled_from(
        [
            *(
                b"Uid:\t7\t7\t7\t7\n",
                b"Uid:\n",
                b"Uid:\t99999999999999999999\n",
                b"\nRssAnon:\t x kB\n",
            ),
            *(b"RANK=1\0", b"WORLD_SIZE=-3\0", b"MASTER_ADDR=\x1b[2J\0", b"MASTER_PORT=\0"),
            *(b"SLURM_JOB_ID=\0", b"SLURM_STEP_ID=9\0", b"OMPI_COMM_WORLD_RANK=\xff\0", b"=\0=\0"),
            *(b"0::/kubepods/pod\n", b"0::/docker/\n", b"::::\n", b"0::/lxc/\xff\x1b[31m\n"),
            *(b"\0", b"\n", b"python3\0-m\0", b"ray::", b"VLLM::Worker_TP9999999999999999\0"),
        ]
    ),
    max_size=8,
).map(b"".join)
FILE = ANY | LINES


def words(info: ProcessInfo) -> list[str]:
    texts = (info.name, info.user, info.container, info.job, info.unit, info.pod, info.group)
    more = (info.state, info.framework, info.label, info.attribution, info.place)
    return [text for text in (*texts, *more, *info.argv, *info.parents) if text is not None]


@pytest.mark.slow
@given(name=st.binary(min_size=1, max_size=15), files=st.tuples(FILE, FILE, FILE, FILE, FILE))
@example(name=b"x", files=(b"", b"Uid:\t99999999999999999999\n", b"", b"", b""))
def test_any_files_give_a_record(name: bytes, files: tuple[bytes, ...]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        proc = FakeProc(Path(folder) / "proc")
        proc.process(40, name=name, starttime=STARTED - 1)
        proc.process(7, name=name, parent=40)
        for file, content in zip(
            ("cmdline", "status", "cgroup", "environ", "maps"), files, strict=True
        ):
            proc.put(f"7/{file}", content)
            proc.put(f"40/{file}", content)
        host = Host(proc.folder, contained=False, monotonic=Clock())
        for _ in range(2):
            info = host.processes([7])[7]
            assert info.key.pid == 7
            assert all(clean(text, limit=9999) == text for text in words(info))
            assert sum(len(text) for text in words(info)) < 20_000
        assert set(host.memory([7])) == {7}
        assert host.states([7]) == {7: "S"}
        host.close()


def test_a_user_has_a_name_and_nobody_a_number() -> None:
    users = Users()
    assert users.name(os.getuid()) == pwd.getpwuid(os.getuid()).pw_name
    assert users.name(3_999_999_999) == "3999999999"


def test_a_directory_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, asked = threading.Event(), []

    def slow(uid: int) -> SimpleNamespace:
        asked.append(uid)
        gate.wait()
        return SimpleNamespace(pw_name="alice")

    monkeypatch.setattr(pwd, "getpwuid", slow)
    users = Users()
    began_s = time.monotonic()
    assert [users.name(7) for _ in range(100)] == ["7"] * 100
    assert time.monotonic() - began_s < 5.0
    assert asked == [7]
    gate.set()
    until_s = time.monotonic() + 60.0
    while users.name(7) != "alice":
        assert time.monotonic() < until_s
    assert asked == [7]


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
