"""Inside a pid namespace of its own the driver's pids are those of strangers."""

from __future__ import annotations

import pytest

from gpuwatchd.host import Host, files
from gpuwatchd.host.files import inside_container
from tests.host.world import TORCH_MAPS, Clock, FakeProc


def test_inside_a_container_a_pid_is_only_a_number(proc: FakeProc) -> None:
    proc.process(7, maps=TORCH_MAPS)
    host = Host(proc.folder, contained=True, monotonic=Clock())
    for _ in range(3):
        found = host.look([7, 8])
        assert [info.name for info in found.values()] == [
            "pid 7 (outside this container)",
            "pid 8 (outside this container)",
        ]
        assert all(
            (info.user, info.argv, info.framework, info.key.started_at_s) == (None, (), None, None)
            for info in found.values()
        )


@pytest.mark.parametrize(
    ("link", "contained"), [(files.INITIAL_PID_NAMESPACE, False), ("pid:[4026532300]", True)]
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
