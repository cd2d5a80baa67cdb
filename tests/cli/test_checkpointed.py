"""``checkpointed``: of one's own processes, with or without a daemon, never in the future."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.cli import main
from gpuwatchd.cli.verbs import checkpointed
from gpuwatchd.collect.host import Host
from gpuwatchd.core import config
from gpuwatchd.core.config import StoreSection
from gpuwatchd.core.model import ProcessInfo, ProcessKey
from gpuwatchd.store import tables
from gpuwatchd.store.reader import Reader
from gpuwatchd.store.writer import History
from tests.act.children import job
from tests.conftest import need
from tests.store.world import actions, opened
from tests.test_daemon import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.calls import Ctl, Written

    Run = Callable[..., Written]


PID = str(os.getpid())


@pytest.fixture(autouse=True)
def _history() -> None:
    History.open(config.state_dir(), StoreSection(min_free_mib=0), boot_id="b").close()


def kept() -> list[tables.Checkpoint]:
    with Reader.open(config.state_dir()) as reader:
        return reader.checkpoints()


def test_it_is_written_with_the_start_of_the_process(ctl: Ctl) -> None:
    assert "saved its work at" in ctl("checkpointed", PID)
    (one,) = kept()
    assert tables.same_process(one.process, Host().processes([os.getpid()])[os.getpid()].key)
    assert one.saved_at_s == pytest.approx(time.time(), abs=5.0)


def test_a_time_in_the_past_and_json(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = ProcessInfo(
        key=ProcessKey(pid=int(PID), started_at_s=time.time() - 9000.0), name="p", uid=os.getuid()
    )
    monkeypatch.setattr(checkpointed, "_whose", lambda _: mine)
    (entry,) = ctl.data("checkpointed", PID, "--at", "5m")
    assert entry["pid"] == int(PID)
    assert entry["daemon_running"] is False
    assert kept()[0].saved_at_s == pytest.approx(time.time() - 300.0, abs=5.0)


@pytest.mark.parametrize(("at", "said"), [("2099-01-01", "future"), ("7300d", "started later")])
def test_a_time_that_cannot_be_is_refused(ctl: Ctl, at: str, said: str) -> None:
    assert said in ctl.err("checkpointed", PID, "--at", at, code=2)
    assert kept() == []


def test_only_the_owner_or_root_may_say_it(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(self: Host, pids: list[int]) -> dict[int, ProcessInfo]:
        key = ProcessKey(pid=pids[0], started_at_s=1.0)
        return {pids[0]: ProcessInfo(key=key, name="p", user="bob", uid=os.getuid() + 1)}

    monkeypatch.setattr(Host, "processes", look)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "not yours" in ctl.err("checkpointed", PID)
    assert kept() == []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert main(["checkpointed", PID]) == 0


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, ctl: Ctl) -> Run:
    need(sys.platform == "linux", "needs /proc")
    monkeypatch.setenv("GPUWATCHD_ACT_CHECKPOINT", "signal")

    return lambda *words: ctl.both("ask-checkpoint", *words, code=None)


def test_it_says_first_and_asks_only_when_told(run: Run, tmp_path: Path) -> None:
    opened(tmp_path / "state").close()
    saved = tmp_path / "saved"
    with job(saved) as process:
        out, err, code = run(str(process.pid))
        assert (code, err) == (0, "")
        assert "would ask" in out
        assert not saved.exists()
        assert actions(tmp_path / "state") == []
        out, err, code = run(str(process.pid), "--yes", "--json")
        assert wait_for(lambda: saved.exists() and saved.read_text()) == "saved\n"  # once
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert said["data"]["asked"] is True
    assert said["data"]["result"].endswith("not confirmed")
    assert said["warnings"] == []
    assert [row.phase for row in actions(tmp_path / "state")] == ["asked", "done"]


def test_a_refusal_is_one_line_a_hint_and_a_row(run: Run, tmp_path: Path) -> None:
    opened(tmp_path / "state").close()
    with job() as process:
        out, err, code = run(str(process.pid), "--yes")
        assert process.poll() is None
    assert (code, out) == (1, "")
    assert "has no handler for SIGUSR1 and would be ended by it" in err
    assert err.splitlines()[2:] == ["see: gpuwatchctl docs errors#no-handler"]
    assert [row.phase for row in actions(tmp_path / "state")] == ["asked", "refused"]


def test_without_a_history_it_is_asked_and_that_is_said(run: Run, tmp_path: Path) -> None:
    (tmp_path / "state" / "history.db").unlink()
    with job(tmp_path / "saved") as process:
        out, _, code = run(str(process.pid), "--yes")
    assert code == 0
    assert "it is not written down" in out


@pytest.mark.parametrize(
    ("pid", "expected"),
    [
        ("1", "belongs to the system"),
        (str(os.getpid()), "gpuwatchd itself"),
        ("4194304", "no such"),
    ],
    ids=["the-first", "ourselves", "nobody"],  # a pid in a name would differ from run to run
)
def test_who_is_never_asked(run: Run, pid: str, expected: str) -> None:
    out, err, code = run(pid, "--yes")
    assert (code, out) == (1, "")
    assert expected in err


def test_off_is_the_default(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GPUWATCHD_ACT_CHECKPOINT")
    with job(tmp_path / "saved") as process:
        _, err, code = run(str(process.pid), "--yes")
    assert code == 1
    assert "[act] checkpoint is off" in err
