"""``gpuwatchctl release`` without GPUs; with them: ``tests/test_daemon_nvml.py``."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.ctl import main
from gpuwatchd.ctl import release as verb
from gpuwatchd.store import release
from tests.cli import world

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.setenv("GPUWATCHD_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("GPUWATCHD_STATE_DIR", str(tmp_path / "state"))

    def call(*words: str) -> tuple[int, str, str]:
        code = main(["release", *words])
        said: Any = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_without_a_daemon_nothing_is_held_and_the_wish_is_kept(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    code, out, err = run("--for", "5m")
    assert (code, err) == (0, "")
    assert out.startswith("no daemon runs: nothing of gpuwatchd holds a GPU")
    found = release.read(tmp_path / "run", time.time())
    assert found is not None
    assert 290 < found.until_at_s - time.time() <= 300
    code, out, _ = run("--end")
    assert (code, out) == (0, "the request is taken back; no daemon runs\n")
    assert run("--now-back")[:2] == (0, "nothing was released\n")


def test_who_keeps_the_gpus_is_named_and_nobody_else(
    run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One GPU that hangs keeps all: that the others are well is no reason."""
    monkeypatch.setattr(verb, "WAIT_S", 0.1)
    monkeypatch.setattr(verb, "open_files", lambda _: [])
    nvml = {"source": "nvml"}
    well, ill = (
        msgspec.structs.replace(
            one, device=msgspec.structs.replace(one.device, **nvml),
            reading=None if one.reading is None
            else msgspec.structs.replace(one.reading, state=state),
        )
        for one, state in zip(world.state().devices, ("ok", "hung"), strict=True)
    )  # fmt: skip
    world.write(devices=(well, ill), interval_s=0.05)
    code, _, err = run()
    assert code == 1
    assert err.splitlines()[0].endswith("has not let go of the GPUs: GPU 1 is hung")
    world.write(devices=(well,), interval_s=0.05)
    assert "has not let go of the GPUs: GPU 0 is ok" in run()[2]


@pytest.mark.parametrize("words", ["9s", "25h", "0", "soon", "-1"])
def test_times_out_of_bounds_are_a_usage_error(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path, words: str
) -> None:
    code, out, err = run("--for", words)
    assert (code, out) == (2, "")
    assert err.startswith("gpuwatchctl: Invalid value for")
    assert release.stamp(tmp_path / "run") is None


def test_json_says_until_when(run: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = run("--json")
    data = json.loads(out)["data"]
    assert code == 0
    assert data["released"] is True
    assert data["daemon"] is None
    assert data["until"].endswith("Z")


def test_what_a_process_has_open_of_the_driver(tmp_path: Path) -> None:
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("no /proc here")
    import os

    assert verb.open_files(os.getpid()) == []
    assert verb.open_files(2**22 - 1) is None


def test_doctor_does_not_ask_a_driver_that_was_let_go(
    run: Callable[..., tuple[int, str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    run("--for", "5m")
    main(["doctor"])
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "source nvml" in each]
    assert "let go on request until" in line
    assert line.startswith("ok")
