"""The main job with every real part: stand-in GPUs, live processes, pop-up, mail, daemon.

A shortened run: the leak is faster and less time is asked for before an alert. The full one, with
default settings, is ``python -m tests.real.main_job OUT --minutes 10``.
"""

from __future__ import annotations

import email
import email.policy
import os
import shutil
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.store import live
from tests.conftest import need, present
from tests.fakenvml import FakeNvml
from tests.real.main_job import Post, Run, start
from tests.real.stage import Stage, ctl, missing, until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.real_dbus, pytest.mark.real_smtp, pytest.mark.timeout(400)]

QUICK = """
[detection]
minimum-duration = "20s"
minimum-samples = 10
"""


def ask(out: Path, *words: str) -> Any:
    """Ask the daemon of this run through the command line."""
    places = {"GPUWATCHD_STATE_DIR": str(out / "state"), "GPUWATCHD_RUNTIME_DIR": str(out / "run")}
    return ctl({**os.environ, **places}, *words)


def alerts(out: Path) -> list[Any]:
    state = live.read(out / "run")
    return list(state.alerts) if state is not None else []


@pytest.fixture
def scene(tmp_path: Path) -> Any:
    need(FakeNvml.available(), "the stand-in library needs Linux and a C compiler")
    need(not missing(), f"missing on this machine: {', '.join(missing())}")
    need(shutil.which("openssl"), "openssl is missing")
    pytest.importorskip("aiosmtpd", reason="aiosmtpd is not installed")
    stage, post, run = Stage(tmp_path), Post(tmp_path), Run(tmp_path, 250)
    daemon = start(run, stage, post, "0.5s", QUICK)
    yield stage, post, run, daemon
    if daemon.poll() is None:
        daemon.kill()
        daemon.wait(10)
    for child in run.children:
        child.kill()
        child.wait()
    stage.close()
    post.server.stop()


@pytest.mark.filterwarnings("ignore:Session.login_data:DeprecationWarning")
def test_a_leak_is_found_predicted_announced_and_let_go(scene: Any, tmp_path: Path) -> None:
    stage, post, run, daemon = scene
    assert until((tmp_path / "run" / live.FILE_NAME).exists, 30)
    time.sleep(15)
    run.onset_s = time.time()
    run.world(leak=True)

    assert until(lambda: any(a.state == "watch" for a in alerts(tmp_path)), 100), "no watch"
    assert until(lambda: any(a.state == "firing" for a in alerts(tmp_path)), 160), "no alert"
    fired = next(a for a in alerts(tmp_path) if a.state == "firing")
    assert present(fired.subject.process).pid == run.leaker.pid
    assert present(fired.finding.eta).mid_s == pytest.approx(run.left_s(), rel=0.15)
    said = ask(tmp_path, "predict")
    leaking = [d for d in said["data"] if d["verdict"] and d["verdict"]["leak"]]
    assert [d["device"]["index"] for d in leaking] == [1]
    assert said["daemon"]["pid"] == daemon.pid

    assert until(lambda: post.mails, 60), "no mail"
    assert until(lambda: stage.windows() > 0, 30), "no pop-up"
    os.kill(run.leaker.pid, signal.SIGKILL)
    run.leaker.wait()
    assert until(lambda: len(post.mails) >= 2, 60), "no recovery"
    first, last = (
        email.message_from_bytes(raw, policy=email.policy.default)
        for raw in (post.mails[0][1], post.mails[-1][1])
    )
    assert last["Subject"].startswith("Over: ")
    assert "its process has ended" in last["Subject"]
    assert last["In-Reply-To"] == first["Message-ID"]

    # What is sent is first written down: the history knows it all, also after the daemon.
    daemon.terminate()
    assert daemon.wait(10) == 0
    kept = ask(tmp_path, "alerts", "--all")["data"]
    assert [a["state"] for a in kept] == ["resolved"]
    log = (tmp_path / "daemon.log").read_text()
    assert "Traceback" not in log
