"""The values that travel."""

from __future__ import annotations

import msgspec
import pytest

from gpuwatchd.model import ProcessInfo, ProcessKey, Subject
from tests.making import KEY, alert, finding


@pytest.mark.parametrize(
    ("argv", "label"),
    [
        (("python", "train.py", "--lr", "0.1"), "python train.py"),
        (("python", "/home/alice/jobs/train.py"), "python train.py"),
        (("python", "-u", "train.py"), "python train.py"),
        (("python", "-m", "torch.distributed.run", "x.py"), "python -m torch.distributed.run"),
        (("python", "-c", "import torch"), "python"),
        (("python",), "python"),
        ((), "python"),
    ],
)
def test_a_label_names_what_an_interpreter_runs(argv: tuple[str, ...], label: str) -> None:
    assert ProcessInfo(key=KEY, name="python", argv=argv).label == label


def test_the_label_of_anything_else_is_its_name() -> None:
    assert ProcessInfo(key=KEY, name="VLLM::EngineCore", argv=("x", "y.py")).label == (
        "VLLM::EngineCore"
    )


def test_subjects_of_one_device_have_ids_of_their_own() -> None:
    subjects = [
        Subject(device_uid="u"),
        Subject(device_uid="u", unattributed=True),
        Subject(device_uid="u", process=ProcessKey(pid=1, started_at_s=None)),
        Subject(device_uid="u", process=ProcessKey(pid=1, started_at_s=2.0)),
        Subject(device_uid="u", process=ProcessKey(pid=1, started_at_s=3.0)),
    ]
    assert len({subject.id for subject in subjects}) == 5


def test_values_survive_json() -> None:
    before = alert(finding=finding())
    assert msgspec.json.decode(msgspec.json.encode(before), type=type(before)) == before


def test_values_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        finding().tier = "none"  # type: ignore[misc]
