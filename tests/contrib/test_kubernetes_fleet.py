"""The workers of a fleet on Kubernetes: a StatefulSet that no cluster checks."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped]

from gpuwatchd.fleet import config
from tests.conftest import ROOT
from tests.contrib.test_container import image

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

TEXT = (ROOT / "contrib" / "kubernetes" / "fleet.yaml").read_text()
CONFIG, WORKERS = yaml.safe_load_all(TEXT)
POD: dict[str, Any] = WORKERS["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
ENV = {one["name"]: one for one in CONTAINER["env"]}
MOUNTS = {one["name"]: one["mountPath"] for one in CONTAINER["volumeMounts"]}
VOLUMES = {one["name"]: one for one in POD["volumes"]}


def test_every_pod_has_its_shard_and_every_shard_a_pod() -> None:
    spec = WORKERS["spec"]
    assert (WORKERS["kind"], spec.get("ordinals")) == ("StatefulSet", None)
    assert CONTAINER["args"][-2:] == ["--shard", f"hostname/{spec['replicas']}"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert "NOT RUN" in TEXT.partition("\n")[0]


def test_it_has_no_rights() -> None:
    about, user = CONTAINER["securityContext"], POD["securityContext"]
    assert POD["automountServiceAccountToken"] is False
    assert f"{user['runAsUser']}:{user['runAsGroup']}" == image("fleet")["USER"]
    assert user["runAsNonRoot"] is True
    assert about["allowPrivilegeEscalation"] is False
    assert about["readOnlyRootFilesystem"] is True
    assert about["capabilities"] == {"drop": ["ALL"]}
    assert not {"hostPID", "hostNetwork", "hostIPC"} & set(POD)


def test_what_it_writes_and_reads_is_mounted() -> None:
    assert set(VOLUMES) == set(MOUNTS)
    assert VOLUMES["config"]["configMap"]["name"] == CONFIG["metadata"]["name"]
    written = dict(word.split("=", 1) for word in shlex.split(image("fleet")["ENV"]))
    for name in ("GPUWATCHD_STATE_DIR", "GPUWATCHD_RUNTIME_DIR"):
        assert written[name] in MOUNTS.values()
    file = json.loads(image("fleet")["CMD"])
    assert CONTAINER["args"][:2] == file
    assert file[1] == f"{MOUNTS['config']}/{next(iter(CONFIG['data']))}"


def test_its_configuration_and_its_token_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ENV["CREDENTIALS_DIRECTORY"]["value"] == MOUNTS["secrets"]
    (tmp_path / "prometheus-token").write_text("s3cret\n")
    (tmp_path / "prometheus-token").chmod(VOLUMES["secrets"]["secret"]["defaultMode"])
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    file = tmp_path / "fleet.toml"
    file.write_text(CONFIG["data"]["fleet.toml"].replace(MOUNTS["secrets"], str(tmp_path)))
    taken = config.load(file)
    assert taken.headers == {"Authorization": "Bearer s3cret"}
    assert taken.section.alertmanagers  # else it does not start
    assert "--from-file=prometheus-token=" in TEXT
