"""``gpuwatchctl release`` without GPUs; with them: ``tests/test_daemon_nvml.py``."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.cli.verbs import release as verb
from gpuwatchd.store import live
from tests.cli import world
from tests.cli.calls import Terminal
from tests.conftest import need

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.calls import Ctl, Written

    Run = Callable[..., Written]


@pytest.fixture
def run(ctl: Ctl) -> Run:
    return lambda *words: ctl.both("release", *words, code=None)


def test_without_a_daemon_nothing_is_held_and_the_wish_is_kept(run: Run, tmp_path: Path) -> None:
    out, err, code = run("--for", "5m")
    assert (code, err) == (0, "")
    assert out.startswith("no daemon is running: gpuwatchd holds no GPU")
    found = live.read_release(tmp_path / "run", time.time())
    assert found is not None
    assert 290 < found.until_at_s - time.time() <= 300
    out, _, code = run("--end")
    assert (code, out) == (0, "the request is withdrawn; no daemon runs\n")
    assert run("--now-back") == ("no release was requested\n", "", 0)


def test_who_keeps_the_gpus_is_named_and_nobody_else(
    run: Run, monkeypatch: pytest.MonkeyPatch
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
    _, err, code = run()
    assert code == 1
    assert err.splitlines()[0].endswith("has not released the GPUs: GPU 1 is hung")
    world.write(devices=(well,), interval_s=0.05)
    assert "has not released the GPUs: GPU 0 is ok" in run().err


@pytest.mark.slow
@pytest.mark.parametrize(("flag", "told"), [("", True), ("--quiet", False), ("--json", False)])
def test_one_who_looks_on_is_told_what_takes_so_long(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    flag: str,
    told: bool,
) -> None:
    monkeypatch.setattr(verb, "WAIT_S", 0.5)
    monkeypatch.setattr(verb, "TELL_AFTER_S", 0.1)
    monkeypatch.setattr(verb, "open_files", lambda _: [])
    first, _ = world.state().devices
    assert first.reading is not None
    hung = msgspec.structs.replace(
        first, device=msgspec.structs.replace(first.device, source="nvml"),
        reading=msgspec.structs.replace(first.reading, state="hung"),
    )  # fmt: skip
    world.write(devices=(hung,), interval_s=0.05)
    monkeypatch.setattr("sys.stderr", stream := Terminal())
    assert run(*([flag] if flag else [])).code == 1
    said = [line for line in stream.getvalue().splitlines() if line.startswith("waiting")]
    assert said == (["waiting, 0 s at most: GPU 0 is hung"] if told else [])


def test_what_another_version_was_asked_is_not_called_done(
    run: Run,
) -> None:
    world.write(version="0.0.1")
    out, _, code = run("--no-wait")
    assert code == 0
    assert "not confirmed: the daemon is gpuwatchd 0.0.1" in " ".join(out.split())
    answer = json.loads(run("--no-wait", "--json").out)
    assert [one["code"] for one in answer["warnings"]] == ["unconfirmed"]
    world.write()
    assert "confirmed" not in run("--no-wait").out


@pytest.mark.parametrize("words", ["9s", "25h", "0", "soon", "-1"])
def test_times_out_of_bounds_are_a_usage_error(run: Run, tmp_path: Path, words: str) -> None:
    out, err, code = run("--for", words)
    assert (code, out) == (2, "")
    assert err.startswith("gpuwatchctl: Invalid value for")
    assert live.release_stamp(tmp_path / "run") is None


def test_json_says_until_when(run: Run) -> None:
    out, _, code = run("--json")
    data = json.loads(out)["data"]
    assert code == 0
    assert data["released"] is True
    assert data["daemon"] is None
    assert data["until_at"].endswith("Z")
    assert run("--end", "--json").code == 0


def test_what_a_process_has_open_of_the_driver(tmp_path: Path) -> None:
    need(Path("/proc/self/fd").is_dir(), "needs /proc")
    import os

    assert verb.open_files(os.getpid()) == []
    assert verb.open_files(2**22 - 1) is None


def test_doctor_does_not_ask_a_driver_that_was_let_go(run: Run, ctl: Ctl) -> None:
    run("--for", "5m")
    (line,) = [each for each in ctl("doctor", code=None).splitlines() if "source nvml" in each]
    assert "released on request until" in line
    assert line.startswith("ok")
