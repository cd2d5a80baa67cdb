"""The main job for real: four GPUs of the stand-in, live processes, one of them leaking.

``python -m tests.real.main_job OUT_DIR [--minutes 10] [--rate-mib 40]`` starts a session bus, a
screen, a notification server, an SMTP server with STARTTLS and AUTH, and the daemon as a user
would; lets one process leak 40 MiB/s of an 80 GB card; ends that process; and writes what was
seen and when: report.json, popup.png, every mail, the daemon's log.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gpuwatchd.store import live
from tests.fakenvml import FakeNvml
from tests.real import mailserver
from tests.real.stage import Stage, until

GIB, MIB = 1024**3, 1024**2
TOTAL_BYTES, START_BYTES = 80 * GIB, 20 * GIB


class Post:
    """An SMTP server on the loopback that wants TLS and a password."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificate = mailserver.certificate(folder, "smtp", "DNS:localhost,IP:127.0.0.1")
        self.mails: list[tuple[float, bytes]] = []
        self.server = mailserver.start(self, self.certificate)
        self.port = self.server.port

    async def handle_DATA(self, server: object, session: object, envelope: Any) -> str:  # noqa: N802
        """Keep the mail."""
        self.mails.append((time.time(), bytes(envelope.content)))
        (self.folder / f"mail-{len(self.mails)}.eml").write_bytes(envelope.content)
        return "250 kept"


def configure(out: Path, post: Post, more: str = "") -> Path:
    """Write the user's configuration; return the file."""
    secret = out / "smtp-password"
    secret.write_text(mailserver.PASSWORD)
    secret.chmod(0o600)
    file = out / "config.toml"
    hook = json.dumps([sys.executable, "-c", "import sys; sys.stdin.read()"])
    file.write_text(
        f"""[policy]
channels = ["desktop", "email", "command"]
[notify.email]
host = "localhost"
port = {post.port}
security = "starttls"
ca-file = "{post.certificate}"
username = "gpu"
password-file = "{secret}"
sender = "gpuwatchd@localhost"
to = ["me@localhost"]
[notify.command]
argv = {hook}
{more}
"""
    )
    return file


class Run:
    """One run, from the first tick to the recovery."""

    def __init__(self, out: Path, rate_mib: float) -> None:
        self.out = out
        self.rate = rate_mib * MIB
        self.seen: dict[str, Any] = {}
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

    def note(self, what: str, **facts: Any) -> None:
        """Remember when something was first seen, in seconds after the onset."""
        if what not in self.seen:
            self.seen[what] = {"after_s": round(time.time() - self.onset_s, 1), **facts}
            print(what, self.seen[what], flush=True)

    def left_s(self) -> float:
        """Return the true time to out-of-memory now."""
        used = START_BYTES + self.rate * (time.time() - self.onset_s) + 5 * GIB
        return (TOTAL_BYTES - 600 * MIB - used) / self.rate

    def look(self, runtime: Path) -> None:
        """Note what the live state says."""
        state = live.read(runtime)
        for one in state.alerts if state is not None else ():
            key = one.subject.process
            eta = one.finding.eta
            facts = {
                "pid_right": key is not None and key.pid == self.leaker.pid,
                "pattern": one.finding.pattern,
                "eta_s": None if eta is None else round(eta.mid_s),
                "true_s": round(self.left_s()),
            }
            if one.state in {"watch", "firing"}:
                self.note(one.state, **facts)


def arguments() -> argparse.Namespace:
    """Return what the caller wants."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--quiet-s", type=float, default=60, help="before the leak begins")
    parser.add_argument("--rate-mib", type=float, default=40)
    parser.add_argument("--interval", default="5s")
    return parser.parse_args()


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
            env=environ, stdout=log, stderr=log, cwd=Path(__file__).parents[2],
        )  # fmt: skip


def stop(run: Run, daemon: subprocess.Popen[bytes]) -> None:
    """End the daemon and note how it left."""
    state = live.read(run.out / "run")
    asked = time.monotonic()
    daemon.terminate()
    run.seen["daemon"] = {
        "exit": daemon.wait(20),
        "left_in_s": round(time.monotonic() - asked, 2),
        "rss_mib": round((state.rss_bytes or 0) / MIB, 1) if state is not None else None,
        "problems": list(state.problems) if state is not None else None,
    }


def main() -> int:
    """Run it and write the report."""
    chosen = arguments()
    out = chosen.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    stage, post, run = Stage(out), Post(out), Run(out, chosen.rate_mib)
    daemon: subprocess.Popen[bytes] | None = None
    try:
        daemon = start(run, stage, post, chosen.interval)
        time.sleep(chosen.quiet_s)
        run.onset_s = time.time()
        run.world(leak=True)
        watch(run, stage, post, chosen.minutes * 60)
        os.kill(run.leaker.pid, signal.SIGKILL)
        run.leaker.wait()
        run.note("ended")
        if until(lambda: len(post.mails) >= 2, 90):
            run.note("recovery mail")
        stage.picture(out / "recovery.png")
    finally:
        if daemon is not None:
            stop(run, daemon)
        for child in run.children:
            child.kill()
            child.wait()
        stage.close()
        post.server.stop()
    (out / "report.json").write_text(json.dumps(run.seen, indent=1))
    print(json.dumps(run.seen, indent=1))
    return 0 if {"watch", "firing", "popup", "mail", "recovery mail"} <= run.seen.keys() else 1


def watch(run: Run, stage: Stage, post: Post, seconds: float) -> None:
    """Look every second until the time is over."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        run.look(run.out / "run")
        if stage.windows() > 0 and "popup" not in run.seen:
            run.note("popup")
            time.sleep(0.5)
            stage.picture(run.out / "popup.png")
        if post.mails:
            run.note("mail")
        time.sleep(1.0)


if __name__ == "__main__":
    sys.exit(main())
