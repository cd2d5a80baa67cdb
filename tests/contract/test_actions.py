"""What every action owes: it does nothing unasked, and refuses what it must never touch."""

from __future__ import annotations

import inspect
import os
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.act import ACTIONS
from gpuwatchd.core import config
from gpuwatchd.core.errors import ActionError
from gpuwatchd.core.model import ProcessKey, Subject
from gpuwatchd.core.registry import load
from tests.act.children import booted_at_s, job, key_of
from tests.conftest import ON_LINUX
from tests.making import finding

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = ON_LINUX


@pytest.fixture(params=ACTIONS)
def kind(request: pytest.FixtureRequest) -> Any:
    return load(ACTIONS, request.param)


@pytest.fixture
def willing(kind: Any) -> Any:
    """Return it as it is when the user allows all it can do."""
    return kind(checkpoint="signal", signal="USR1", booted_at_s=booted_at_s())


def test_its_section_is_its_call(kind: Any) -> None:
    section = config.ActSection()
    parameters = inspect.signature(kind).parameters
    settings = [one for one in parameters.values() if one.name in section.__struct_fields__]
    assert settings
    for parameter in settings:
        assert parameter.default == getattr(section, parameter.name)


def test_without_settings_it_does_nothing(kind: Any, tmp_path: Path) -> None:
    with job(tmp_path / "saved") as process:
        about = finding(subject=Subject(device_uid="GPU-1", process=key_of(process.pid)))
        with pytest.raises(ActionError):
            kind().run(about, dry_run=False)
        assert not (tmp_path / "saved").exists()


def test_a_dry_run_touches_nothing(willing: Any, tmp_path: Path) -> None:
    with job(tmp_path / "saved") as process:
        about = finding(subject=Subject(device_uid="GPU-1", process=key_of(process.pid)))
        said = willing.run(about, dry_run=True)
        assert said
        assert "\n" not in said
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize(
    "key",
    [
        ProcessKey(pid=1, started_at_s=0.0),
        ProcessKey(pid=0, started_at_s=0.0),
        ProcessKey(pid=-1, started_at_s=0.0),
        ProcessKey(pid=4_194_304, started_at_s=0.0),
        ProcessKey(pid=os.getpid(), started_at_s=0.0),
    ],
    ids=["init", "group", "everybody", "nobody", "itself"],
)
def test_what_it_must_never_touch_it_refuses(willing: Any, key: ProcessKey) -> None:
    with pytest.raises(ActionError):
        willing.run(finding(subject=Subject(device_uid="GPU-1", process=key)), dry_run=False)


def test_a_pid_that_is_another_ones_now_is_refused(willing: Any, tmp_path: Path) -> None:
    with job(tmp_path / "saved") as process:
        key = ProcessKey(pid=process.pid, started_at_s=12_345.0)
        with pytest.raises(ActionError):
            willing.run(finding(subject=Subject(device_uid="GPU-1", process=key)), dry_run=False)
        assert not (tmp_path / "saved").exists()
