"""``plot``: in the terminal, as a file, as JSON; of GPUs and of processes; with nothing to draw."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import msgspec
import pytest

from gpuwatchd.charts import drawing_process as children
from tests.cli import recorded, world
from tests.conftest import need

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calls import Ctl


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def _hour() -> None:
    """Leave an hour of a process that leaks, and the live state at its end."""
    end_s = recorded.record("gradual")
    world.write(taken_at_s=end_s)


@pytest.fixture
def _charts() -> None:
    need(children.available(), "the extra charts is not installed")


def refused(ctl: Ctl, code: int, *arguments: str) -> str:
    said = ctl.both("plot", *arguments, code=code)
    assert said.out == ""
    assert "Traceback" not in said.err
    return said.err


def test_a_simulation_that_runs_ahead_of_the_clock_is_drawn_to_its_own_now(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead_s = time.time() + 7200.0
    with monkeypatch.context() as later:
        later.setattr(time, "time", lambda: ahead_s)
        end_s = recorded.record("gradual")
    (one, *_) = world.state().devices
    card = msgspec.structs.replace(one.device, source="simulate")
    world.write(taken_at_s=end_s, devices=(msgspec.structs.replace(one, device=card),))
    pictures = ctl.data("plot")
    at_s = max((one["curve"]["at_s"] for one in pictures), key=len)
    assert len(at_s) > 200, "what was recorded is not drawn"
    assert at_s[-1] == pytest.approx(end_s, abs=60.0)


@pytest.mark.usefixtures("_hour")
@pytest.mark.parametrize("gpu", ["0", "gpu0", "GPU-1"])
def test_one_gpu(ctl: Ctl, gpu: str) -> None:
    for said in (ctl("plot", gpu), ctl("plot", "--gpu", gpu)):
        assert "GPU 0 " in said
        assert "GPU 1 " not in said


def test_a_process_that_has_ended(ctl: Ctl) -> None:
    end_s = recorded.record("plateau")
    calm = world.state(taken_at_s=end_s).devices[1]
    world.write(taken_at_s=end_s, devices=(calm,), alerts=())
    said = ctl("plot", "--pid", "4711", "--since", "2h")
    assert "python train.py[4711] of alice on GPU 0" in said
    assert "full in" not in said


@pytest.mark.usefixtures("_hour")
def test_it_begins_where_the_record_begins_unless_told(ctl: Ctl) -> None:
    def span_s(*arguments: str) -> float:
        one = ctl.data("plot 0", *arguments)[0]
        from gpuwatchd.core import units

        begin, end = (units.parse_instant(one[key], now_s=0) for key in ("begin_at", "end_at"))
        return end - begin

    assert 3500 < span_s() < 4000
    assert span_s("--since", "24h") == pytest.approx(86400, abs=5)


def test_without_anything_it_says_what_to_do(ctl: Ctl) -> None:
    state = world.state()
    empty = [
        msgspec.structs.replace(item, recent_bytes=(), recent_step_s=0.0) for item in state.devices
    ]
    world.write(devices=tuple(empty))
    said = refused(ctl, 1)
    assert "no history yet" in said
    assert "hint: gpuwatchctl service install" in said


@pytest.mark.usefixtures("_hour")
def test_a_time_without_a_record(ctl: Ctl) -> None:
    said = refused(ctl, 1, "--since", "2020-01-01", "--until", "2020-01-02")
    assert "no data between" in said
    assert "--since 7d" in said


@pytest.mark.usefixtures("_hour")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--since", "1h", "--until", "2h"), "--since is not before --until"),
        (("--output", "a.png", "--size", "big"), "is not a size"),
        (("--output", "a.png", "--size", "10x10"), "200 to 10000 pixels"),
        (("--dark",), "--dark and --size are of a file"),
    ],
)
def test_nonsense_is_a_usage_error(ctl: Ctl, arguments: tuple[str, ...], said: str) -> None:
    assert said in refused(ctl, 2, *arguments)


@pytest.mark.usefixtures("_hour")
def test_what_is_not_there(ctl: Ctl) -> None:
    assert "no GPU matches 7" in refused(ctl, 1, "7")
    assert "no process of pid 5" in refused(ctl, 1, "--pid", "5")
    assert "no process of user nobody" in refused(ctl, 1, "--user", "nobody")


@pytest.mark.slow
@pytest.mark.usefixtures("_hour", "_charts")
def test_a_file_of_several(ctl: Ctl, tmp_path: Path) -> None:
    place = tmp_path / "all.svg"
    assert ctl("plot", "--output", str(place)) == f"{place}: 2 charts\n"
    root = ET.fromstring(place.read_text("utf-8"))
    words = "".join(root.itertext())
    assert "GPU 0" in words
    assert "GPU 1" in words
    assert ctl("plot", "0", "--output", str(tmp_path / "A.PNG"), "--quiet") == ""
    assert (tmp_path / "A.PNG").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("_hour")
def test_without_the_extra_the_command_is_named(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(children, "available", lambda: False)
    said = refused(ctl, 1, "0", "--output", str(tmp_path / "a.png"))
    assert "the extra charts" in said
    assert "charts" in said.partition("hint:")[2]
    assert list(tmp_path.glob("*.png")) == []


@pytest.mark.usefixtures("_hour")
def test_a_gpu_that_is_not_there_is_named(ctl: Ctl) -> None:
    said = ctl("plot", "0", "8")
    assert "no GPU matches 8" in said
    assert "no GPU matches" not in ctl("plot", "0")
    warned = ctl.json("plot 0 8")["warnings"]
    assert {"code": "no-such-gpu", "text": "no GPU matches 8"} in warned
    assert "no GPU matches 8" in ctl("status --gpu 0 --gpu 8")
