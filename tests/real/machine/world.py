"""What stands in a machine for the scenarios: GPUs, a repository, people at work."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.fakenvml.build import LIBRARY, cached
from tests.packaging import debs
from tests.real.machine.machine import Machine, booted, until
from tests.real.machine.roots import ENVIRONMENT, Root, prepare, root

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator

    from tests.real.machine.machine import Done

UNIT: Final = "gpuwatchd"
FLEET: Final = "gpuwatchd-fleet"
CONF: Final = "/etc/fakenvml.conf"
CARD: Final = "gpu 0 name=NVIDIA_A100 total=80G reserved=600M base=500M util=95"
SOURCES: Final = "/etc/apt/sources.list.d/gpuwatchd.sources"
QUICK: Final = """\
# written by hand
[daemon]
interval = "1s"
[detection]
minimum-samples = 10
minimum-duration = "10s"
[policy]
confirm = 1
flap-hold = "0s"
"""
"""Detection as it is; only what it waits for is shorter, and nobody waits to be told."""
MANY_S: Final = 150.0


class World:
    """A booted machine with GPUs of the stand-in library and a repository to install from."""

    def __init__(self, machine: Machine, suite: str, *builds: Path) -> None:
        self.machine, self.suite, self.builds = machine, suite, builds
        self.before: set[str] = set()
        self.accounts = ""

    def ctl(self, *words: str, user: str | None = "mleng", timeout: float = 60) -> Done:
        """Run gpuwatchctl as a user."""
        env = {"FAKE_NVML_CONF": CONF}
        return self.machine.run("gpuwatchctl", *words, user=user, env=env, timeout=timeout)

    def data(self, *words: str, user: str | None = "mleng") -> Any:
        """Return the data of a verb's JSON."""
        done = self.ctl(*words, "--json", user=user)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)["data"]

    def firing(self) -> list[Any]:
        """Return the alerts that fire."""
        return [one for one in self.data("alerts") if one["state"] == "firing"]

    def service_is_well(self) -> bool:
        """Say whether the doctor looked at the service and has nothing against it."""
        levels = [one["level"] for one in self.data("doctor") if one["name"] == "service"]
        return set(levels) == {"ok"}

    def send(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to a process within."""
        self.machine.run("sh", "-c", f"kill -{number:d} {pid}", ok=True)

    def systemctl(self, *words: str, user: str | None = "mleng") -> Done:
        """Run systemctl, for a user's manager or the machine's."""
        scope = ["--user"] if user else []
        return self.machine.run("systemctl", *scope, *words, user=user)

    def pid(self, user: str | None = "mleng") -> int:
        """Return the daemon's number within, 0 while none runs."""
        return int(self.machine.show(UNIT, "MainPID", user=user)["MainPID"])

    def state(self, user: str | None = "mleng") -> str:
        """Return the unit's state."""
        return self.machine.show(UNIT, "ActiveState", user=user)["ActiveState"]

    def running(self, other_than: int = 0, user: str | None = "mleng") -> int:
        """Return the daemon's number once it watches, as another process than before."""

        def seen() -> int:
            pid = self.pid(user)
            return pid if pid != other_than and self.state(user) == "active" else 0

        return until(seen, f"the daemon runs\n{self.machine.journal()}", 40)

    def leak(self, user: str, rate: str = "300M") -> int:
        """Let a program of a user take more and more memory of GPU 0; return its number within.

        It counts from now on for everybody who looks, also for a daemon that starts later.
        """
        done = self.machine.run(
            "sh", "-c", "sleep 3600 >/dev/null 2>&1 & echo $!", user=user, ok=True
        )
        line = f"proc 0 pid={done.stdout.strip()} mem=5G rate={rate} since={time.time():.0f}"
        self.machine.write(CONF, f"{CARD}\n{line} max=75G\n")
        return int(done.stdout)

    def counts(self, state: str = "/home/mleng/.local/state/gpuwatchd") -> dict[str, int]:
        """Return how many rows some tables of a history have, and how many deliveries are done."""
        path = self.machine.files / state.lstrip("/") / "history.db"
        # A copy: reading in place would need the other side's locks.
        copy = self.machine.root.scratch / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for file in path.parent.glob("history.db*"):
            shutil.copy(file, copy / file.name)
        tables = ("gpu_raw", "process_raw", "alert", "delivery", "event", "segment")
        queries = {table: f"select count(*) from {table}" for table in tables}
        queries["sent"] = "select count(*) from delivery where state = 'sent'"
        with closing(sqlite3.connect(copy / path.name)) as db:
            return {name: db.execute(query).fetchone()[0] for name, query in queries.items()}

    def notes(self, user: str = "mleng") -> list[dict[str, Any]]:
        """Return the notifications that reached a user's session."""
        path = self.machine.files / f"home/{user}/notes"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def serve_notifications(self, user: str = "mleng") -> None:
        """Let a notification server run on a user's session bus."""
        script = Path(__file__).with_name("server.py").read_text(encoding="utf-8")
        self.machine.write("/usr/local/lib/server.py", script)
        python = "/usr/lib/gpuwatchd/bin/python3"
        self.machine.run(
            "systemd-run", "--user", "--quiet", "--unit=notifications", python, "-I", "-B",
            "/usr/local/lib/server.py", f"/home/{user}/notes", user=user, ok=True,
        )  # fmt: skip
        notes = self.machine.files / f"home/{user}/notes"
        until(notes.exists, f"a notification server\n{self.machine.journal()}")

    def linger(self, user: str) -> None:
        """Let a user's manager run without a login."""
        self.machine.run("loginctl", "enable-linger", user, ok=True)
        bus = self.machine.files / f"run/user/{self.machine.uid(user)}/bus"
        until(bus.exists, "a session bus")

    def apt(self, *words: str, timeout: float = 120) -> Done:
        """Run apt-get."""
        return self.machine.run("apt-get", *words, timeout=timeout)

    def version(self) -> str:
        """Return the version of the package that is installed, "" without one."""
        done = self.machine.run("dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Version}", UNIT)
        status, _, version = done.stdout.partition("  ")
        return version if status == "ii" else ""

    def accounts_now(self) -> str:
        """Return all users and groups."""
        return "".join(self.machine.read(f"/etc/{name}") for name in ("passwd", "group"))


def publish(tree: Root, *packages: Path) -> None:
    """Put a repository at /srv/repo of a machine, signed with a key of its own."""
    place, made = tree.path / "srv/repo", tree.scratch / "repo"
    for old in (place, made):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(debs.repository(made, *packages), place)


def world(suite: str, before: Callable[[str], Path] = debs.older) -> Iterator[World]:
    """Boot a machine and put GPUs and a repository of an earlier package into it."""
    # The one loads and waits for a disk, the other computes.
    with ThreadPoolExecutor(1) as aside:
        prepared = aside.submit(prepare, suite)
        fresh, older = debs.deb(suite), before(suite)
        prepared.result()
    with root(suite) as tree:
        library = cached() / LIBRARY
        place = tree.path / "usr/local/lib" / LIBRARY
        shutil.copy(library, place)
        place.chmod(0o755)
        (tree.path / CONF[1:]).write_text(f"{CARD}\n")
        variables = tree.path / "etc/environment.d/90-gpus.conf"
        variables.parent.mkdir(exist_ok=True)
        variables.write_text(f"FAKE_NVML_CONF={CONF}\n")
        logind = tree.path / "etc/systemd/logind.conf.d/quick.conf"
        logind.parent.mkdir(parents=True, exist_ok=True)
        logind.write_text("[Login]\nUserStopDelaySec=1s\n")
        # Nobody turns this machine off: dpkg need not wait for a disk.
        (tree.path / "etc/dpkg/dpkg.cfg.d/quick").write_text("force-unsafe-io\n")
        publish(tree, older)
        subprocess.run(
            tree.enter("chroot", str(tree.place), "ldconfig"), env=ENVIRONMENT, check=True
        )
        with booted(tree) as machine:
            found = World(machine, suite, older, fresh)
            machine.write(SOURCES, machine.read(f"/srv/repo/{suite}.sources"))
            found.before = tree.files()
            found.accounts = found.accounts_now()
            yield found
