"""The values that travel."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuwatchd.core.codes import NameKind
from gpuwatchd.core.model import Device, ProcessInfo, ProcessKey, Subject
from gpuwatchd.core.model.alerts import host_title
from gpuwatchd.core.text import mask_argv
from tests.making import KEY


@pytest.mark.parametrize(
    ("argv", "label"),
    [
        (("python", "train.py", "--lr", "0.1"), "python train.py"),
        (("python", "/home/alice/jobs/train.py"), "python train.py"),
        (("python", "-u", "train.py"), "python train.py"),
        (("python", "-m", "torch.distributed.run", "x.py"), "python -m torch.distributed.run"),
        (("python", "-c", "import torch"), "python"),
        (("python", "-uc", "import torch", "torchrun"), "python"),
        (("python", "/opt/env/bin/torchrun", "--nproc", "2", "x.py"), "python torchrun"),
        (("python", "-X", "dev", "-W", "ignore", "serve"), "python serve"),
        (("python", "my job.py"), "python my job.py"),
        (("python", "-", "serve"), "python"),
        (("python", "****"), "python"),
        (("python", "print(open('/etc/x'))"), "python"),
        (("python",), "python"),
        ((), "python"),
    ],
)
def test_a_label_names_what_an_interpreter_runs(argv: tuple[str, ...], label: str) -> None:
    assert ProcessInfo(key=KEY, name="python", argv=argv).label == label


def test_what_a_script_is_called_keeps_no_secret() -> None:
    argv = mask_argv(["python", "/opt/bin/hf_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789", "--x"])
    assert "hf_" not in ProcessInfo(key=KEY, name="python", argv=argv).label


def test_a_framework_says_more_than_the_script_that_starts_it() -> None:
    info = ProcessInfo(
        key=KEY, name="python", argv=("python", "/opt/bin/vllm", "serve"), framework="vLLM",
        framework_sure=True,
    )  # fmt: skip
    assert info.label == "python vllm"
    assert info.attribution == "vLLM - pid 4711"


def test_a_pid_is_said_once() -> None:
    """Who has no name is called by the pid: "pid 270 (outside this container)"."""
    named = ProcessInfo(key=KEY, name="python", argv=("python", "train.py"))
    assert (named.numbered, named.name_and_pid) == ("python train.py[4711]", "python[4711]")
    nameless = ProcessInfo(
        key=KEY, name="pid 4711 (outside this container)", name_kind=NameKind.STAND_IN, foreign=True
    )
    assert nameless.numbered == nameless.name_and_pid == nameless.name
    assert ProcessInfo(key=KEY, name="").numbered == "process[4711]"
    assert str(host_title(nameless)) == "host memory of pid 4711 (outside this container)"


def test_the_label_of_anything_else_is_its_name() -> None:
    assert ProcessInfo(key=KEY, name="VLLM::EngineCore", argv=("x", "y.py")).label == (
        "VLLM::EngineCore"
    )


POD = "5696ffab-ca6c-4d45-a16f-a164cdbcbf2b"


@pytest.mark.parametrize(
    ("facts", "whose"),
    [
        (
            {
                "job": "slurm 1392969.0",
                "framework": "vLLM",
                "framework_sure": True,
                "user": "alice",
            },
            "slurm 1392969.0 - alice - vLLM - pid 4711",
        ),
        (
            {"pod": POD, "container": "docker 6ff8daebd14c", "user": "root", "model": "llama3:8b"},
            "pod 5696ffab - root - python - llama3:8b - pid 4711",
        ),
        (
            {
                "container": "docker 6ff8daebd14c",
                "argv": ("python", "train.py"),
                "framework": "PyTorch",
                "framework_sure": True,
            },
            "docker 6ff8daebd14c - python train.py - pid 4711",
        ),
        ({"container": f"docker {'6f' * 32}"}, "docker 6f6f6f6f6f6f - python - pid 4711"),
        (
            {"argv": ("python", "-m", "vllm.x"), "framework": "vLLM", "framework_sure": True},
            "vLLM - pid 4711",
        ),
        ({"framework": "PyTorch"}, "python - pid 4711"),
        ({"name": "pid 4711 (outside this container)", "foreign": True, "user": "x"}, None),
    ],
)
def test_whose_it_is_begins_with_what_tells_most(facts: dict[str, Any], whose: str | None) -> None:
    info = msgspec.structs.replace(ProcessInfo(key=KEY, name="python"), **facts)
    assert info.attribution == (whose or "pid 4711 (outside this container)")


def test_subjects_of_one_device_have_ids_of_their_own() -> None:
    subjects = [
        Subject(device_uid="u"),
        Subject(device_uid="u", unattributed=True),
        Subject(device_uid="u", process=ProcessKey(pid=1, started_at_s=None)),
        Subject(device_uid="u", process=ProcessKey(pid=1, started_at_s=2.0)),
        Subject(device_uid="u", process=ProcessKey(pid=1, started_at_s=3.0)),
    ]
    assert len({subject.id for subject in subjects}) == 5


@pytest.mark.parametrize(
    ("uid", "index", "parent", "label"),
    [
        ("GPU-1a2b3c4d-5e6f", 3, None, "GPU 3"),
        ("GPU-1a2b3c4d-5e6f", None, None, "GPU 1a2b3c4d"),
        ("MIG-9f8e7d6c-5b4a", None, "GPU-1", "MIG 9f8e7d6c"),
        ("MIG-9f8e7d6c-5b4a", 0, "GPU-1", "MIG 0"),
        ("log:-/-", None, None, "GPU"),
        ("log:node/0000:65:00.0", None, None, "GPU 0000:65:00.0"),
    ],
)
def test_a_device_has_a_label_without_a_question_mark(
    uid: str, index: int | None, parent: str | None, label: str
) -> None:
    device = Device(
        uid=uid, vendor="nvidia", index=index, name="A100", memory_total_bytes=None,
        parent_uid=parent,
    )  # fmt: skip
    assert device.label == label


def test_an_instance_is_named_with_its_card() -> None:
    """Two cards have an instance 0 each, and a mail must say which one is meant."""
    device = Device(
        uid="MIG-9", vendor="nvidia", index=0, name="A100", memory_total_bytes=None,
        parent_uid="GPU-1", parent_index=3,
    )  # fmt: skip
    assert device.label == "MIG 3:0"
