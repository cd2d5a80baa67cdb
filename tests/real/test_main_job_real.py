"""The main job with every real part: stand-in GPUs, live processes, pop-up, mail, daemon.

A shortened run: the leak is faster and less time is asked for before an alert.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.store import live
from tests.conftest import ROOT, need, present
from tests.fakenvml import FakeNvml
from tests.real.stage import Stage, ctl, missing, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.real.mailserver import Post

pytestmark = [pytest.mark.real_dbus, pytest.mark.real_smtp, pytest.mark.timeout(400)]

QUICK = """
[detection]
minimum-duration = "20s"
minimum-samples = 10
"""


GIB, MIB = 1024**3, 1024**2
TOTAL_BYTES, START_BYTES = 80 * GIB, 20 * GIB


def configure(out: Path, post: Post, more: str = "") -> Path:
    """Write the user's configuration; return the file."""
    file = out / "config.toml"
    hook = json.dumps([sys.executable, "-c", "import sys; sys.stdin.read()"])
    file.write_text(
        f"""[policy]
channels = ["desktop", "email", "command"]
[notify.email]
host = "localhost"
port = {post.start()}
security = "starttls"
ca-file = "{post.settings["ca_file"]}"
username = "gpu"
password-file = "{post.settings["password_file"]}"
sender = "gpuwatchd@localhost"
to = ["me@localhost"]
[notify.command]
argv = {hook}
{more}
"""
    )
    return file


class Run:
    """The stand-in's GPUs, live processes on them, and the one that leaks."""

    def __init__(self, out: Path, rate_mib: float) -> None:
        self.out = out
        self.rate = rate_mib * MIB
        self.children = [subprocess.Popen(["sleep", "7200"]) for _ in range(8)]
        self.fake = FakeNvml(out)
        self.leaker = self.children[2]
        self.onset_s = 0.0

    def world(self, *, leak: bool) -> None:
        """Write the stand-in's GPUs: two processes on each of four cards."""
        card = "total=80G reserved=600M base=0 util=90 temp=60 power=300 name=NVIDIA_A100-SXM4-80GB"
        lines = [f"gpu {i} {card}" for i in range(4)]
        for position, child in enumerate(self.children):
            held = f"mem={START_BYTES}" if child is self.leaker else f"mem={2 + position}G"
            grows = (
                f" rate={int(self.rate)} since={self.onset_s:.3f}"
                if child is self.leaker and leak
                else ""
            )
            lines.append(f"proc {position // 2} pid={child.pid} {held}{grows} alive=1")
        self.fake.write(*lines)

    def left_s(self) -> float:
        """Return the true time to out-of-memory now."""
        used = START_BYTES + self.rate * (time.time() - self.onset_s) + 5 * GIB
        return (TOTAL_BYTES - 600 * MIB - used) / self.rate


def start(
    run: Run, stage: Stage, post: Post, interval: str, more: str = ""
) -> subprocess.Popen[bytes]:
    """Bring up the desktop, then the daemon as a user would."""
    stage.start_bus()
    stage.start_screen()
    stage.start_server()
    run.world(leak=False)
    out = run.out
    environ = {
        **run.fake.env(), **stage.environ,
        "GPUWATCHD_STATE_DIR": str(out / "state"), "GPUWATCHD_RUNTIME_DIR": str(out / "run"),
    }  # fmt: skip
    with (out / "daemon.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "gpuwatchd", "--config", str(configure(out, post, more)),
             "--interval", interval],
            env=environ, stdout=log, stderr=log, cwd=ROOT,
        )  # fmt: skip


def ask(out: Path, *words: str) -> Any:
    """Ask the daemon of this run through the command line."""
    places = {"GPUWATCHD_STATE_DIR": str(out / "state"), "GPUWATCHD_RUNTIME_DIR": str(out / "run")}
    return ctl({**os.environ, **places}, *words)


def alerts(out: Path) -> list[Any]:
    state = live.read(out / "run")
    return list(state.alerts) if state is not None else []


_CALM_TICKS = 30
"""How often nothing has grown before the leak begins."""


@pytest.fixture
def scene(tmp_path: Path, post: Post) -> Any:
    need(FakeNvml.available(), "the stand-in library needs Linux and a C compiler")
    need(not missing(), f"missing on this machine: {', '.join(missing())}")
    stage, run = Stage(tmp_path), Run(tmp_path, 75)
    daemon = start(run, stage, post, "0.5s", QUICK)
    yield stage, run, daemon
    if daemon.poll() is None:
        daemon.kill()
        daemon.wait(10)
    for child in run.children:
        child.kill()
        child.wait()
    stage.close()


@pytest.mark.filterwarnings("ignore:Session.login_data:DeprecationWarning")
@pytest.mark.requirement("G1")
def test_a_leak_is_found_predicted_announced_and_let_go(
    scene: Any, post: Post, tmp_path: Path
) -> None:
    stage, run, daemon = scene
    assert until(lambda: (seen := live.read(tmp_path / "run")) and seen.ticks >= _CALM_TICKS, 60)
    run.onset_s = time.time()
    run.world(leak=True)

    assert until(lambda: any(a.state == "watch" for a in alerts(tmp_path)), 200), "no watch"
    assert until(lambda: any(a.state == "firing" for a in alerts(tmp_path)), 400), "no alert"
    fired = next(a for a in alerts(tmp_path) if a.state == "firing")
    assert present(fired.subject.process).pid == run.leaker.pid
    assert present(fired.finding.eta).mid_s == pytest.approx(run.left_s(), rel=0.15)
    said = ask(tmp_path, "predict")
    leaking = [d for d in said["data"] if d["verdict"] and d["verdict"]["leak"]]
    assert [d["device"]["index"] for d in leaking] == [1]
    assert said["daemon"]["pid"] == daemon.pid

    assert until(lambda: post.box.mails, 60), "no mail"
    assert until(lambda: stage.windows() > 0, 30), "no pop-up"
    os.kill(run.leaker.pid, signal.SIGKILL)
    run.leaker.wait()
    assert until(lambda: len(post.box.mails) >= 2, 60), "no recovery"
    first, last = post.box.mails[0], post.box.mails[-1]
    assert last["Subject"].startswith("Resolved: ")
    assert "its process ended" in last["Subject"]
    assert last["In-Reply-To"] == first["Message-ID"]

    # What is sent is first written down: the history knows it all, also after the daemon.
    daemon.terminate()
    assert daemon.wait(10) == 0
    kept = ask(tmp_path, "alerts", "--all")["data"]
    assert [a["state"] for a in kept] == ["resolved"]
    log = (tmp_path / "daemon.log").read_text()
    assert "Traceback" not in log
