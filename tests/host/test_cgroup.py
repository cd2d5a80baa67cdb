"""Containers, pods, jobs and units from control groups."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.host.files import cgroup_names

if TYPE_CHECKING:
    from pathlib import Path

HEX = "0123456789ab" + "c" * 52


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (f"0::/system.slice/docker-{HEX}.scope", ("docker 0123456789ab", None)),
        (f"12:memory:/docker/{HEX}\n0::/", ("docker 0123456789ab", None)),
        (f"0::/machine.slice/libpod-{HEX}.scope/container", ("podman 0123456789ab", None)),
        ("0::/system.slice/node1_slurmstepd.scope/job_9/step_0/user/task_1", (None, "slurm 9")),
        ("4:memory:/slurm/uid_1000/job_77/step_0", (None, "slurm 77")),
        ("0::/user.slice/docker-compose.scope", (None, None)),
        ("0::/system.slice/slurmstepd.scope/system", (None, None)),
        ("0::/job_hello/", (None, None)),
        ("", (None, None)),
    ],
)
def test_container_and_job(line: str, names: tuple[str | None, str | None]) -> None:
    assert cgroup_names(line.encode()) == names


@pytest.mark.shared_data
def test_real_cgroup_lines(shared_data: Path) -> None:
    cases = json.loads((shared_data / "platforms/cgroup/cases.json").read_text())
    checked = 0
    for case in cases:
        expected = case["expect"] or {}
        container, job = cgroup_names(case["line"].encode())
        if expected.get("runtime") in {"docker", "podman"}:
            assert container == f"{expected['runtime']} {expected['cid'][:12]}", case["line"]
            checked += 1
        else:
            assert container is None, case["line"]
        assert bool(job) == ("slurm_job" in expected or "job" in expected), case
    assert checked >= 3
