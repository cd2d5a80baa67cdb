"""What ``doctor`` says of device files, other people's processes, containers, GPUs and servers."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.cli import environment
from gpuwatchd.core.config import Config
from gpuwatchd.core.config.schema import EndpointsSection
from gpuwatchd.core.model import Event, ServerReading
from tests.cli import world

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuwatchd.cli.environment import Answer
    from gpuwatchd.store.live import LiveState

MOUNT = "22 1 0:21 / /proc rw,nosuid shared:5 - proc proc rw{}\n"


def _levels(answers: Iterator[Answer]) -> list[tuple[str, str]]:
    return [(name, level) for name, level, _, _ in answers]


def _proc(root: Path, options: str = "", *, namespace: str = "pid:[4026531836]") -> None:
    (root / "proc/self/ns").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text(MOUNT.format(options))
    (root / "proc/self/ns/pid").symlink_to(namespace)


def test_without_device_files_nothing_is_said(tmp_path: Path) -> None:
    assert list(environment.device_files(tmp_path)) == []


def test_files_that_may_not_be_opened_name_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("nvidiactl", "nvidia0", "nvidia1"):
        (tmp_path / "dev" / name).touch()
    ((name, level, said, _),) = environment.device_files(tmp_path)
    assert (name, level) == ("device files", "ok")
    assert "nvidia0" in said
    monkeypatch.setattr(os, "access", lambda path, _: not str(path).endswith("nvidia1"))
    ((_, level, said, hint),) = environment.device_files(tmp_path)
    assert level == "warning"
    assert "nvidia1" in said
    assert "nvidia0" not in said
    assert hint


@pytest.mark.parametrize(
    ("options", "user", "expected"),
    [
        ("", 1000, False), (",hidepid=2", 1000, True), (",hidepid=invisible,gid=5", 1000, True),
        (",hidepid=0", 1000, False), (",hidepid=off", 1000, False), (",hidepid=2", 0, False),
    ],
)  # fmt: skip
def test_hidepid_is_seen(
    options: str, user: int, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _proc(tmp_path, options)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert environment.hidden(tmp_path) is expected
    ((_, level, said, hint),) = environment.processes(tmp_path)
    assert level == ("warning" if expected else "ok")
    assert bool(hint) is expected
    assert ("guesses" in said) == (user != 0 and not expected)


def test_without_proc_nothing_is_said_of_processes(tmp_path: Path) -> None:
    assert environment.hidden(tmp_path) is None
    assert list(environment.processes(tmp_path)) == []
    assert list(environment.container(tmp_path)) == []


@pytest.mark.parametrize(
    ("namespace", "inside"), [("pid:[4026531836]", False), ("pid:[4026532999]", True)]
)
def test_a_container_is_told(namespace: str, inside: bool, tmp_path: Path) -> None:
    _proc(tmp_path, namespace=namespace)
    answers = list(environment.container(tmp_path))
    assert bool(answers) is inside
    assert all("stay unnamed" in said for _, _, said, _ in answers)


def _state(**changes: Any) -> LiveState:
    return msgspec.structs.replace(world.odd(), **changes)


def test_what_cannot_be_read_has_its_state_and_what_mends_it() -> None:
    first, lost = world.odd().devices
    ((name, level, said, hint),) = environment.device(lost, now_s=time.time())
    assert (name, level) == ("GPU 1", "warning")
    assert said.startswith("lost since")
    assert "dmesg" in hint
    ((_, level, said, hint),) = environment.device(first, now_s=time.time())
    assert (level, said) == ("warning", "processes unknown: train; last known 40s ago")
    assert hint


def test_a_gpu_that_sleeps_is_no_trouble() -> None:
    _, lost = world.odd().devices
    assert lost.reading is not None
    asleep = msgspec.structs.replace(
        lost,
        reading=msgspec.structs.replace(lost.reading, state="asleep"),
        events=(Event(at_s=1.0, kind="throttle", text="x"),),
    )
    ((_, level, said, _),) = environment.device(asleep, now_s=time.time())
    assert level == "ok"
    assert said.startswith("asleep")


def test_servers_answer_or_say_why_not() -> None:
    answers = list(environment.servers(Config(), _state()))
    assert [(name, level) for name, level, _, _ in answers] == [
        ("server Ollama", "ok"), ("server vLLM", "ok"), ("server SGLang", "warning"),
    ]  # fmt: skip
    assert "does not answer: train" in answers[2][2]
    assert _levels(environment.servers(Config(), _state(servers=()))) == [("servers", "ok")]
    off = msgspec.structs.replace(Config(), endpoints=EndpointsSection(enabled=False))
    ((_, _, said, _),) = environment.servers(off, _state())
    assert "not asked" in said


def test_a_dead_daemon_says_nothing_of_now() -> None:
    state = _state(servers=(ServerReading(kind="vLLM", url="u", at_s=0.0),))
    live = {name for name, *_ in environment.every(Config(), state, alive=True)}
    dead = {name for name, *_ in environment.every(Config(), state, alive=False)}
    assert live - dead == {"GPU 0", "GPU 1", "server vLLM"}
