"""Whatever the files of a process hold, its record is made of safe words."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import example, given
from hypothesis import strategies as st

from gpuwatchd.collect.host import Host
from gpuwatchd.core.text import clean
from tests.host.world import STARTED, Clock, FakeProc

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
