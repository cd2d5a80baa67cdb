"""``gpuwatchctl ask-checkpoint``: says first, asks only with --yes, and writes down both."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.cli import main
from gpuwatchd.store import access, actions
from tests.act.children import job
from tests.store.world import opened

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.setenv("GPUWATCHD_ACT_CHECKPOINT", "signal")

    def call(*words: str) -> tuple[int, str, str]:
        code = main(["ask-checkpoint", *words])
        said: Any = capsys.readouterr()
        return code, said.out, said.err

    return call


def _rows(folder: Path) -> list[actions.Action]:
    with closing(access.connect(access.find(folder), "mode=ro")) as connection:
        return actions.load(connection)


def test_it_says_first_and_asks_only_when_told(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    opened(tmp_path / "state").close()
    saved = tmp_path / "saved"
    with job(saved) as process:
        code, out, err = run(str(process.pid))
        assert (code, err) == (0, "")
        assert "would ask" in out
        assert "--yes does it" in out
        time.sleep(0.2)
        assert not saved.exists()
        assert _rows(tmp_path / "state") == []
        code, out, err = run(str(process.pid), "--yes", "--json")
        end = time.monotonic() + 60
        while not saved.exists() and time.monotonic() < end:
            time.sleep(0.01)
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert said["data"]["asked"] is True
    assert said["data"]["result"].endswith("not confirmed")
    assert said["warnings"] == []
    assert saved.exists()
    assert [row.phase for row in _rows(tmp_path / "state")] == ["asked", "done"]


def test_a_refusal_is_one_line_a_hint_and_a_row(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    opened(tmp_path / "state").close()
    with job() as process:
        code, out, err = run(str(process.pid), "--yes")
        assert process.poll() is None
    assert (code, out) == (1, "")
    assert "has no handler for SIGUSR1 and would be ended by it" in err
    assert err.splitlines()[2:] == ["see: gpuwatchctl docs errors#no-handler"]
    assert [row.phase for row in _rows(tmp_path / "state")] == ["asked", "refused"]


def test_without_a_history_it_is_asked_and_that_is_said(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    with job(tmp_path / "saved") as process:
        code, out, _ = run(str(process.pid), "--yes")
    assert code == 0
    assert "it is not written down" in out


@pytest.mark.parametrize(
    ("pid", "expected"),
    [("1", "belong to the system"), (str(os.getpid()), "gpuwatchd itself"), ("4194304", "no such")],
    ids=["the-first", "ourselves", "nobody"],  # a pid in a name would differ from run to run
)
def test_who_is_never_asked(
    run: Callable[..., tuple[int, str, str]], pid: str, expected: str
) -> None:
    code, out, err = run(pid, "--yes")
    assert (code, out) == (1, "")
    assert expected in err


def test_off_is_the_default(
    run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GPUWATCHD_ACT_CHECKPOINT")
    with job(tmp_path / "saved") as process:
        code, _, err = run(str(process.pid), "--yes")
    assert code == 1
    assert "[act] checkpoint is off" in err
