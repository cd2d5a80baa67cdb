"""Containers, pods, jobs and units from control groups."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.collect.host.process_identity import Place, place_of
from gpuwatchd.core.text import clean
from tests.host.world import FakeProc, host_of

if TYPE_CHECKING:
    from pathlib import Path

HEX = "0123456789ab" + "c" * 52
OTHER = "fedcba987654" + "d" * 52
POD = "0f3a9c11-7b2e-4d55-8c10-9a8b7c6d5e4f"
UNDER = POD.replace("-", "_")
DOCKER = Place("docker", HEX)

CASES: list[tuple[str, Place]] = [
    # Docker: both drivers, version 1, rootless
    (f"0::/system.slice/docker-{HEX}.scope", DOCKER),
    (f"0::/docker/{HEX}", DOCKER),
    (f"0::/my.slice/docker-{HEX}.scope/inner", DOCKER),
    (f"12:memory:/docker/{HEX}\n0::/", DOCKER),
    (
        f"0::/user.slice/user-1007.slice/user@1007.service/docker.service/docker-{HEX}.scope",
        DOCKER._replace(uid=1007),
    ),
    # podman: root, rootless, and what watches over a container
    (f"0::/machine.slice/libpod-{HEX}.scope/container", Place("podman", HEX)),
    (f"0::/machine.slice/libpod-conmon-{HEX}.scope", Place("podman", HEX)),
    (f"0::/libpod_parent/libpod-{HEX}", Place("podman", HEX)),
    (
        f"0::/user.slice/user-5.slice/user@5.service/user.slice/libpod-{HEX}.scope",
        Place("podman", HEX, uid=5),
    ),
    # containerd and CRI-O, alone
    (f"0::/default/{HEX}", Place("containerd", HEX)),
    (f"5:pids:/k8s.io/{HEX}", Place("containerd", HEX)),
    (f"0::/system.slice/nerdctl-{HEX}.scope", Place("containerd", HEX)),
    (f"0::/../crio-{HEX}.scope", Place("cri-o", HEX)),
    (f"0::/machine.slice/crio-conmon-{HEX}.scope", Place("cri-o", HEX)),
    # Kubernetes: systemd's driver and the other, every class of service
    (
        (
            "0::/kubepods.slice/kubepods-burstable.slice/"
            f"kubepods-burstable-pod{UNDER}.slice/cri-containerd-{HEX}.scope"
        ),
        Place("containerd", HEX, POD),
    ),
    (
        f"0::/kubepods.slice/kubepods-pod{UNDER}.slice/crio-{HEX}.scope",
        Place("cri-o", HEX, POD),
    ),
    (
        f"0::/kubepods-besteffort-pod{UNDER}.slice:cri-containerd:{HEX}",
        Place("containerd", HEX, POD),
    ),
    (f"4:cpu:/kubepods/besteffort/pod{POD}/{HEX}", Place(pod=POD)),
    (f"4:cpu:/kubepods/pod{'ab' * 16}/{HEX}", Place(pod="ab" * 16)),
    # Docker in Docker, and a cluster inside a container: what this machine started counts
    (f"0::/docker/{HEX}/docker/{OTHER}", DOCKER),
    (
        (
            f"0::/system.slice/docker-{HEX}.scope/kubelet.slice/kubelet-kubepods.slice/"
            f"kubelet-kubepods-pod{UNDER}.slice/cri-containerd-{OTHER}.scope"
        ),
        Place("docker", HEX, POD),
    ),
    # Slurm, both versions
    (
        "0::/system.slice/n1_slurmstepd.scope/job_9/step_3/user/task_1",
        Place(slurm_job="9", slurm_step="3"),
    ),
    (
        "0::/system.slice/slurmstepd.scope/job_9/step_batch/user/task_special",
        Place(slurm_job="9", slurm_step="batch"),
    ),
    (
        "4:memory:/slurm/uid_77/job_10/step_extern/task_0\n1:name=systemd:/system.slice/x.service",
        Place(slurm_job="10", slurm_step="extern", uid=77),
    ),
    ("4:memory:/slurm_node4/uid_77/job_10", Place(slurm_job="10", uid=77)),
    # Slurm around a container
    (
        f"0::/system.slice/slurmstepd.scope/job_9/step_0/user/task_0/libpod-{HEX}",
        Place("podman", HEX, None, "9", "0"),
    ),
    # lxc and machines
    ("0::/lxc.payload.web/system.slice/ssh.service", Place("lxc", "web")),
    ("3:cpu,memory:/lxc/build-7", Place("lxc", "build-7")),
    (r"0::/machine.slice/machine-lab\x2d2.scope/payload", Place("machine", "lab-2")),
    # units
    ("0::/system.slice/ollama.service", Place(unit="ollama.service")),
    ("0::/system.slice/slurmstepd.scope/system", Place(unit="slurmstepd.scope")),
    (
        "0::/user.slice/user-3.slice/user@3.service/app.slice/jupyter.service",
        Place(unit="jupyter.service", uid=3),
    ),
    ("0::/\n1:name=systemd:/system.slice/a.service\n2:cpu:/", Place(unit="a.service")),
    (r"0::/system.slice/dev\x2dbox.service", Place(unit="dev-box.service")),
    # nothing
    ("", Place()),
    ("0::/", Place()),
    ("/job_hello/", Place()),
    ("0::/job_7/step_0", Place()),
    ("0::/system.slice/slurmstepd.scope/job_x/step_0", Place(unit="slurmstepd.scope")),
    ("0::/user.slice/docker-compose.scope", Place(unit="docker-compose.scope")),
    (f"0::/data/{HEX}", Place()),
    (f"0::/pod{POD}", Place()),
    (f"no/docker/{HEX}", Place()),
]


@pytest.mark.parametrize(("lines", "place"), CASES)
def test_where_a_process_belongs(lines: str, place: Place) -> None:
    assert place_of(lines.encode()) == place


@pytest.mark.shared_data
def test_real_lines(shared_data: Path) -> None:
    cases = json.loads((shared_data / "platforms/cgroup/cases.json").read_text())
    assert len(cases) == 33
    for case in cases:
        place = place_of(case["line"].encode())
        names = ("runtime", "cid", "pod", "slurm_job", "slurm_step", "unit", "uid")
        found = {n: v for n, v in zip(names, place, strict=True) if v is not None}
        assert found == case["expect"], case["line"]


@pytest.mark.parametrize(
    ("place", "container", "job"),
    [
        (DOCKER, "docker 0123456789ab", None),
        (Place("lxc", "a-long-name-of-a-container"), "lxc a-long-name-of-a-container", None),
        (Place(slurm_job="42", slurm_step="0"), None, "slurm 42.0"),
        (Place(slurm_job="42", slurm_step="batch"), None, "slurm 42 batch"),
        (Place(slurm_job="42"), None, "slurm 42"),
        (Place(), None, None),
    ],
)
def test_how_it_is_told(place: Place, container: str | None, job: str | None) -> None:
    assert (place.container, place.job) == (container, job)


def test_a_process_carries_it(proc: FakeProc) -> None:
    scope = f"kubepods-pod{UNDER}.slice/cri-containerd-{HEX}.scope"
    proc.process(7, cgroup=f"0::/kubepods.slice/{scope}\n")
    proc.process(8, cgroup="0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_3\n")
    proc.process(9, cgroup="0::/user.slice/user-1000.slice/session-3.scope\n")
    found = host_of(proc).processes([7, 8, 9])
    assert [(i.container, i.pod, i.job, i.unit) for i in found.values()] == [
        ("containerd 0123456789ab", POD, None, None),
        (None, None, "slurm 42.0", None),
        (None, None, None, "session-3.scope"),
    ]


@given(st.binary(max_size=200))
def test_any_bytes_give_safe_words(raw: bytes) -> None:
    place = place_of(b"0::/" + raw)
    for word in (place.container, place.job, place.pod, place.unit):
        assert word is None or clean(word) == word
