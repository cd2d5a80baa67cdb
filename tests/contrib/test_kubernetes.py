"""The DaemonSet for Kubernetes: what a cluster would check, and what it would not."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from gpuwatchd.core import config
from gpuwatchd.notify.channels.email.channel import CREDENTIAL
from tests.conftest import ROOT
from tests.contrib import test_container

FOLDER = ROOT / "contrib" / "kubernetes"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())


def _load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
    return found


@pytest.fixture(scope="module")
def daemonset() -> dict[str, Any]:
    return _load("daemonset.yaml")


@pytest.fixture(scope="module")
def pod(daemonset: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = daemonset["spec"]["template"]["spec"]
    return found


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod["containers"]
    return dict(found)


def test_the_selector_is_that_of_the_pods(daemonset: dict[str, Any]) -> None:
    labels = daemonset["spec"]["template"]["metadata"]["labels"]
    assert daemonset["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_it_has_no_rights(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert pod["automountServiceAccountToken"] is False
    assert _load("serviceaccount.yaml")["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    user = f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
    assert [user] == test_container._of("USER")
    about = container["securityContext"]
    assert about["allowPrivilegeEscalation"] is False
    assert about["readOnlyRootFilesystem"] is True
    assert about["capabilities"] == {"drop": ["ALL"]}
    assert "privileged" not in about


def test_it_sees_the_gpus_and_takes_none(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert pod["hostPID"] is True
    assert pod["runtimeClassName"] == "nvidia"
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in (
        pod["tolerations"]
    )
    for amounts in container["resources"].values():
        assert "nvidia.com/gpu" not in amounts


def test_every_mount_has_its_volume_and_its_use(
    pod: dict[str, Any], container: dict[str, Any]
) -> None:
    volumes = {one["name"]: one for one in pod["volumes"]}
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert set(volumes) == set(mounts)
    values = {one["name"]: one["value"] for one in container["env"]}
    # A volume belongs to root: the daemon takes a directory of its own in it.
    for name, variable in (("history", "GPUWATCHD_STATE_DIR"), ("live", "GPUWATCHD_RUNTIME_DIR")):
        assert values[variable].startswith(mounts[name] + "/")
    assert values["GPUWATCHD_CONFIG"] == f"{mounts['config']}/config.toml"
    assert values["CREDENTIALS_DIRECTORY"] == mounts["secrets"]
    assert volumes["secrets"]["secret"]["defaultMode"] == 0o400
    assert f"--from-file={CREDENTIAL}=" in (FOLDER / "kustomization.yaml").read_text()


def test_its_probes_are_in_the_image(container: dict[str, Any]) -> None:
    for name in ("startupProbe", "livenessProbe"):
        program, limit = container[name]["exec"]["command"]
        assert program in test_container.SCRIPTS
        assert int(limit.removesuffix("s")) < container[name]["timeoutSeconds"]


def test_its_configuration_is_valid() -> None:
    (generated,) = KUSTOMIZATION["configMapGenerator"]
    file = FOLDER / generated["files"][0]
    assert tomllib.loads(file.read_text())
    loaded = config.load(file, environ={})
    assert loaded.config.policy.channels == ("email",)
    assert loaded.config.notify.email.username
