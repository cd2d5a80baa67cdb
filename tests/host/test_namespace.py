"""Inside a pid namespace of its own the driver's pids are those of strangers."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpuwatchd.collect.host import Host, procfs
from gpuwatchd.collect.host.procfs import inside_container
from gpuwatchd.core.codes import NameKind
from gpuwatchd.core.model import ProcessInfo
from tests.conftest import ROOT, not_here, ran
from tests.host.world import TORCH_MAPS, Clock, FakeProc, linux


def test_inside_a_container_a_pid_is_only_a_number(proc: FakeProc) -> None:
    proc.process(7, maps=TORCH_MAPS)
    host = Host(proc.folder, contained=True, monotonic=Clock())
    for _ in range(3):
        found = host.processes([7, 8])
        assert [info.name for info in found.values()] == [
            "pid 7 (outside this container)",
            "pid 8 (outside this container)",
        ]
        assert all(
            info
            == ProcessInfo(key=info.key, name=info.name, name_kind=NameKind.STAND_IN, foreign=True)
            and info.key.started_at_s is None
            for info in found.values()
        )


@pytest.mark.parametrize(
    ("link", "contained"), [(procfs.INITIAL_PID_NAMESPACE, False), ("pid:[4026532300]", True)]
)
def test_the_namespace_decides(proc: FakeProc, link: str, *, contained: bool) -> None:
    # Signs that say the opposite do not count.
    (proc.folder.parent / ".dockerenv").touch()
    proc.put("1/comm", "bash\n")
    (proc.folder / "self/ns").mkdir(parents=True)
    (proc.folder / "self/ns/pid").symlink_to(link)
    assert inside_container(proc.folder, proc.folder.parent) is contained
    assert Host(proc.folder).is_contained is contained


@pytest.mark.parametrize(
    ("put", "contained"),
    [
        ({"1/comm": "systemd\n", "self/cgroup": "0::/\n"}, False),
        ({"1/comm": "bash\n", "self/cgroup": "0::/user.slice\n"}, False),
        ({"1/comm": "bash\n", "self/cgroup": "0::/\n"}, True),
        ({"1/comm": "bash\n", "../.dockerenv": ""}, True),
        ({"1/comm": "bash\n", "../run/.containerenv": ""}, True),
        ({"1/comm": "systemd\n", "../.dockerenv": ""}, False),
        ({"1/comm": "systemd\n", "self/status": "NSpid:\t812\t7\n"}, True),
        ({"self/status": "NSpid:\t812\n"}, False),
    ],
)
def test_without_the_namespace_signs_decide(
    proc: FakeProc, put: dict[str, str], *, contained: bool
) -> None:
    for path, text in put.items():
        proc.put(path, text)
    assert inside_container(proc.folder, proc.folder.parent) is contained


def test_a_process_of_ours_is_no_evidence_for_the_drivers_number(proc: FakeProc) -> None:
    """The driver names pid 7 of the machine; here 7 is somebody else, who must not be named."""
    proc.process(7, argv=b"python3\0innocent.py\0", maps=TORCH_MAPS, environ=b"RANK=0\0A=1\0")
    proc.put("self/status", "NSpid:\t4812\t1\n")
    host = Host(proc.folder, monotonic=Clock())
    assert host.is_contained
    for _ in range(3):
        found = host.processes([7, 4711])
        assert [info.attribution for info in found.values()] == [
            "pid 7 (outside this container)",
            "pid 4711 (outside this container)",
        ]
        assert "innocent" not in repr(found)
    assert host.memory([7]) == {7: None}
    assert host.states([7]) == {}
    host.processes([])
    assert host.gone(7) is None
    host.close()


def test_a_container_that_shares_the_hosts_numbers_names_them(proc: FakeProc) -> None:
    (proc.folder.parent / ".dockerenv").touch()
    proc.put("self/cgroup", "0::/\n")
    (proc.folder / "self/ns").mkdir(parents=True)
    (proc.folder / "self/ns/pid").symlink_to(procfs.INITIAL_PID_NAMESPACE)
    proc.process(7)
    info = Host(proc.folder, monotonic=Clock()).processes([7])[7]
    assert (info.name, info.foreign) == ("python3", False)


@linux
def test_a_real_pid_namespace_of_its_own() -> None:
    script = """
from gpuwatchd.collect.host import Host
host = Host()
found = host.processes([1, 999999, 4711])
print(host.is_contained, [(i.name, i.foreign, i.user, i.argv) for i in found.values()] == [
    (f"pid {pid} (outside this container)", True, None, ()) for pid in found
], len(found))
"""
    inside = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    try:
        possible = subprocess.run([*inside, "true"], capture_output=True, check=False).returncode
    except FileNotFoundError:
        not_here("unshare is not installed")
    if possible != 0:
        not_here("no pid namespace may be made here")
    # The first process of a namespace is a shell's work.
    command = [*inside, "sh", "-c", '"$0" -c "$1"; true', sys.executable, script]
    done = ran(command, check=True, cwd=ROOT, timeout=60)
    assert done.stdout.split() == ["True", "True", "3"]
