"""What is there for Kubernetes: a DaemonSet that no cluster checks, and a pretended kubectl."""

from __future__ import annotations

import json
import os
import shutil
import time
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
import yaml  # type: ignore[import-untyped]

from gpuwatchd.core import config
from gpuwatchd.notify.channels.command import payload
from gpuwatchd.notify.channels.email.channel import CREDENTIAL
from tests import making
from tests.children import shell_script
from tests.conftest import ROOT, need, ran
from tests.contrib import test_container
from tests.contrib.test_hooks import MESSAGE

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

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


UID = "01234567-89ab-cdef-0123-456789abcdef"
POD = {"metadata": {"namespace": "ml", "name": "train-0", "uid": UID}}
REQUEST = payload(MESSAGE).decode()
ACT = json.dumps({"schema_version": 1, "ask": "checkpoint", "process": {"pid": 4711,
                  "started_at_s": making.KEY.started_at_s, "name": "python"}})  # fmt: skip


class Cluster:
    """A kubectl that writes down what it is told, and a /proc with process 4711 in a pod."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.proc = folder, folder / "proc"
        (folder / "bin").mkdir()
        (self.proc / "4711").mkdir(parents=True)
        ticks = 100 * os.sysconf("SC_CLK_TCK")
        fields = ["0"] * 18 + [str(ticks), "0"]
        (self.proc / "4711" / "stat").write_text(f"4711 (a) b) S {' '.join(fields)}\n")
        (self.proc / "stat").write_text(f"cpu 1\nbtime {int(making.KEY.started_at_s or 0) - 100}\n")
        self.cgroup(f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-1.scope\n")
        self.answers(items=[POD])

    def cgroup(self, line: str) -> None:
        (self.proc / "4711" / "cgroup").write_text(line)

    def answers(self, items: list[Any] | None = None, evict: str = "cat > {0}/body") -> None:
        (self.folder / "pods").write_text(json.dumps({"items": items or []}))
        evict = evict.format(self.folder)
        shell_script(
            self.folder / "bin" / "kubectl",
            f'echo "$*" >> {self.folder}/said\n'
            f'case "$*" in\n*" get pods "*) cat {self.folder}/pods ;;\n'
            f'*" create "*) {evict} ;;\nesac',
        )

    def evict(self, request: str, *words: str) -> subprocess.CompletedProcess[str]:
        environ = {"PATH": f"{self.folder}/bin:/usr/bin:/bin", "NODE_NAME": "node7",
                   "EVICT_PROC": str(self.proc), "EVICT_WAIT_S": "1"}  # fmt: skip
        return ran([FOLDER / "evict", *words], env=environ, input=request, timeout=60)

    def said(self, word: str) -> int:
        file = self.folder / "said"
        return file.read_text().count(f" {word} ") if file.exists() else 0


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    need(shutil.which("jq"), "jq is missing")
    return Cluster(tmp_path)


def test_the_example_is_clean_shell_and_says_that_it_was_not_run() -> None:
    need(shutil.which("shellcheck"), "shellcheck is missing")
    done = ran(["shellcheck", FOLDER / "evict"])
    assert (done.returncode, done.stdout) == (0, "")
    assert (FOLDER / "evict").read_text().splitlines()[1].startswith("# NOT RUN")


END = ACT.replace('"checkpoint"', '"end"')


@pytest.mark.parametrize("request_", [REQUEST, ACT, END])
@pytest.mark.requirement("W14")
def test_the_pod_of_the_process_is_evicted_by_its_uid(request_: str, cluster: Cluster) -> None:
    assert cluster.evict(request_).returncode == 0
    body = json.loads((cluster.folder / "body").read_text())
    assert body["deleteOptions"] == {"preconditions": {"uid": UID}}
    assert body["metadata"] == {"namespace": "ml", "name": "train-0"}
    assert cluster.said("cordon") == 0
    said = (cluster.folder / "said").read_text()
    assert "--selector gpuwatchd/evict=yes" in said
    assert "/api/v1/namespaces/ml/pods/train-0/eviction" in said


def _changed(**finding: Any) -> str:
    found = json.loads(REQUEST)
    found["finding"]["subject"]["process"] |= finding
    return json.dumps(found)


@pytest.mark.parametrize(
    "request_",
    [REQUEST.replace('"critical"', '"warning"'), REQUEST.replace('"firing"', '"resolved"'),
     REQUEST.replace('"firing"', '"repeat"'), _changed(pid=1), _changed(started_at_s=900.0),
     _changed(started_at_s=None), _changed(pid="../4711")],
)  # fmt: skip
def test_what_is_not_asked_or_not_certain_evicts_nobody(request_: str, cluster: Cluster) -> None:
    assert cluster.evict(request_).returncode == 0
    assert cluster.said("create") == 0


def test_a_step_that_it_has_not_taken_as_runner_is_told(cluster: Cluster) -> None:
    assert cluster.evict(END.replace("4711", "4712")).returncode == 1
    cluster.answers(items=[])
    assert cluster.evict(END).returncode == 1
    assert cluster.said("create") == 0


@pytest.mark.parametrize("request_", ["", "no JSON", "{}", "[]", "7"])
def test_what_is_no_request_is_refused(request_: str, cluster: Cluster) -> None:
    assert cluster.evict(request_).returncode == 65
    assert cluster.said("create") == 0


def test_a_pod_that_is_not_opted_in_or_no_pod_at_all_is_left_alone(cluster: Cluster) -> None:
    hostile = {"metadata": {"namespace": "ml/../x", "name": "$(touch planted)", "uid": UID}}
    for items in ([], [{"metadata": {**POD["metadata"], "uid": "other"}}], [hostile]):
        cluster.answers(items=items)
        assert cluster.evict(REQUEST).returncode == 0
    cluster.answers(items=[POD])
    cluster.cgroup("0::/user.slice/session-3.scope\n")
    assert cluster.evict(REQUEST).returncode == 0
    assert cluster.said("create") == 0


@pytest.mark.parametrize(
    ("answer", "code", "least", "most"),
    [("echo 'Error from server (TooManyRequests): budget' >&2; exit 1", 75, 2, 4),
     ("echo 'Error from server (Conflict): uid' >&2; exit 1", 0, 1, 1),
     ("echo 'Error from server (NotFound): pod' >&2; exit 1", 0, 1, 1),
     ("echo 'Error from server (Forbidden): you' >&2; exit 1", 69, 1, 1), ("exit 1", 69, 1, 1),
     ("sleep 60", 69, 1, 1)],
)  # fmt: skip
def test_the_server_has_the_last_word(
    answer: str, code: int, least: int, most: int, cluster: Cluster
) -> None:
    cluster.answers(items=[POD], evict=answer)
    began_s = time.monotonic()
    assert cluster.evict(REQUEST).returncode == code
    assert least <= cluster.said("create") <= most
    assert time.monotonic() - began_s < 30


def test_to_cordon_is_a_request_of_its_own_about_a_whole_gpu(cluster: Cluster) -> None:
    assert cluster.evict(REQUEST, "cordon").returncode == 0
    assert (cluster.said("cordon"), cluster.said("create")) == (0, 0)
    found = json.loads(REQUEST)
    found["finding"]["subject"]["process"] = None
    assert cluster.evict(json.dumps(found), "cordon").returncode == 0
    assert (cluster.said("cordon"), cluster.said("create")) == (1, 0)
