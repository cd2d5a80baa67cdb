"""One Debian, booted: systemd-nspawn, and commands within."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from tests.real.machine.roots import ENVIRONMENT, PATH, Root, dying, mounted, tried

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

TOOLS: Final = ("systemd-nspawn", "mmdebstrap", "nsenter", "unshare", "setpriv", "gpg")
GROUPS: Final = Path("/sys/fs/cgroup")
SLOTS: Final = ("gpuwatchd-tests-1", "gpuwatchd-tests-2")
"""Names of machines and of their cgroups: as many run at a time, over all processes that test."""
INTO_GROUP: Final = f"""
    for place in {GROUPS} {GROUPS}/systemd {GROUPS}/unified; do
        [ ! -f $place/cgroup.procs ] || {{ mkdir -p $place/$1; echo $$ >$place/$1/cgroup.procs; }}
    done
    shift
    exec "$@"
"""
"""A cgroup of its own: no other machine shares it, and whoever is in there is ours to end."""
ASKED: Final = bool(os.environ.get("CI") or os.environ.get("GPUWATCHD_TEST_MACHINE"))
Done = subprocess.CompletedProcess[str]
T = TypeVar("T")


def why_not() -> str:
    """Return why no machine can be booted here; "" when one can."""
    missing = [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if os.geteuid():
        return "only root can boot a machine"
    if not ASKED:
        return "boots a whole Debian: set GPUWATCHD_TEST_MACHINE=1 and PACKAGES=1"
    return ""


class Machine:
    """A booted machine: its first process by our number, its files, its name and its cgroups'."""

    def __init__(self, leader: int, root: Root, slot: str) -> None:
        self.leader, self.root = leader, root
        # Who is not in a cgroup of the machine is nobody to its systemd (from 256 on: an error).
        visit = ["sh", "-c", INTO_GROUP, "sh", f"{slot}/payload/visitors"]
        self._enter = [*visit, "nsenter", f"--target={leader}", "--all"]

    @property
    def files(self) -> Path:
        """Its file system as it sees it, with what is mounted within."""
        return Path(f"/proc/{self.leader}/root")

    def run(
        self, *argv: str, user: str | None = None, env: Mapping[str, str] | None = None,
        timeout: float = 60, cwd: str | None = None, ok: bool = False, typed: str = "",
    ) -> Done:  # fmt: skip
        """Run a command as root, or as a user with that user's bus."""
        done = subprocess.run(
            self.command(*argv, user=user, env=env, cwd=cwd),
            capture_output=True, text=True, timeout=timeout, check=False, input=typed,
        )  # fmt: skip
        if ok:
            said = done.stdout[-4000:] + done.stderr[-4000:]
            assert done.returncode == 0, f"{' '.join(argv)} -> {done.returncode}\n{said}"
        return done

    def command(
        self, *argv: str, user: str | None = None, env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> list[str]:  # fmt: skip
        """Return the command that runs ``argv`` within."""
        enter = list(self._enter)
        if user is None:
            given = {**ENVIRONMENT, "HOME": "/root", "USER": "root", **(env or {})}
            enter.append(f"--wd={self.files}{cwd or '/root'}")
            return [*enter, "env", "-i", *(f"{k}={v}" for k, v in given.items()), *argv]
        number = self.uid(user)
        given = {
            "HOME": f"/home/{user}", "USER": user, "LOGNAME": user,
            "PATH": f"/home/{user}/.local/bin:/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8",
            "XDG_RUNTIME_DIR": f"/run/user/{number}",
            "DBUS_SESSION_BUS_ADDRESS": f"unix:path=/run/user/{number}/bus", **(env or {}),
        }  # fmt: skip
        enter.append(f"--wd={self.files}{cwd or f'/home/{user}'}")
        become = ["setpriv", f"--reuid={number}", f"--regid={number}", "--init-groups"]
        variables = [f"{k}={v}" for k, v in given.items()]
        return [*enter, "--", *become, "env", "-i", *variables, *argv]

    def uid(self, user: str) -> int:
        """Return a user's number within."""
        for line in (self.files / "etc/passwd").read_text(encoding="utf-8").splitlines():
            name, _, number, *_ = line.split(":")
            if name == user:
                return int(number)
        raise LookupError(f"no user {user} within")

    def show(self, unit: str, *properties: str, user: str | None = None) -> dict[str, str]:
        """Return what its manager, or a user's, says of a unit."""
        scope = ["--user"] if user else []
        done = self.run(
            "systemctl", *scope, "show", unit, f"--property={','.join(properties)}",
            user=user, ok=True,
        )  # fmt: skip
        return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)

    def write(self, path: str, content: str | bytes, *, mode: int = 0o644, owner: str = "") -> None:
        """Write a file within, and the folders that lead to it."""
        raw = content.encode() if isinstance(content, str) else content
        target = self.files / path.lstrip("/")
        missing = [one for one in (target, *target.parents) if not one.exists()]
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".{target.name}.new")
        fresh.write_bytes(raw)
        fresh.chmod(mode)
        fresh.replace(target)
        for one in (target, *missing) if owner else ():
            os.chown(one, self.uid(owner), self.uid(owner))

    def read(self, path: str) -> str:
        """Return the content of a file within."""
        return (self.files / path.lstrip("/")).read_text(encoding="utf-8")

    def journal(self, *words: str) -> str:
        """Return the end of its journal."""
        return self.run("journalctl", "--no-pager", "--lines=60", *words).stdout


def until(see: Callable[[], T], what: str, limit_s: float = 30.0, every_s: float = 0.2) -> T:
    """Return what is seen once it is true."""
    end = time.monotonic() + limit_s
    while not (seen := see()):
        assert time.monotonic() < end, f"not within {limit_s:g} s: {what}"
        time.sleep(every_s)
    return seen


@contextmanager
def booted(root: Root) -> Iterator[Machine]:
    """Boot a root tree; end with the machine as it was outside."""
    with _slot() as slot, tempfile.TemporaryFile() as log:
        before = Path("/proc/1/cgroup").read_text(encoding="utf-8")
        binds = [f"--bind-ro={folder}" for folder in root.binds]
        began = time.monotonic()
        nspawn = subprocess.Popen(
            [
                *root.enter(*dying("TERM"), "sh", "-c", INTO_GROUP, "sh", slot, "systemd-nspawn"),
                "-D", str(root.place), "--boot",
                "--register=no", "--keep-unit", f"--machine={slot}", "--console=pipe",
                "--quiet", *binds,
            ],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=ENVIRONMENT,
        )  # fmt: skip
        try:
            machine = Machine(until(lambda: _init(nspawn), "an init", 60), root, slot)
            until((machine.files / "run/systemd/private").exists, "its systemd", 60)
            done = machine.run("systemctl", "is-system-running", "--wait", timeout=120)
            failed = machine.run("systemctl", "--failed", "--no-legend", "--plain").stdout
            assert (done.stdout, failed) == ("running\n", ""), machine.journal()
            print(f"booted in {time.monotonic() - began:.1f} s")
            yield machine
        except BaseException:
            log.seek(0)
            print(log.read().decode(errors="replace")[-4000:])
            raise
        finally:
            # What was written stays: it is in our kernel's cache, not in one that is unplugged.
            until(partial(_emptied, slot), "no process and no cgroup is left", 30)
            nspawn.wait(30)
            outside = Path("/proc/1/cgroup").read_text(encoding="utf-8")
            assert outside == before, "the machine outside is as it was"
            assert not mounted()


@contextmanager
def _slot() -> Iterator[str]:
    """Hold the name of a machine; end what killed tests left under those that nobody holds."""
    while not (held := {name: lock for name in SLOTS if (lock := tried(name))}):
        time.sleep(0.5)
    try:
        for name in held:
            until(partial(_emptied, name), f"{name} has ended", 30)
        ours, *others = held
        for name in others:
            held.pop(name).close()
        yield ours
    finally:
        for lock in held.values():
            lock.close()


def _init(nspawn: subprocess.Popen[bytes]) -> int:
    """Return the machine's first process once it is systemd; 0 before."""
    assert nspawn.poll() is None, f"systemd-nspawn ended with {nspawn.returncode}"
    children = Path(f"/proc/{nspawn.pid}/task/{nspawn.pid}/children").read_text().split()
    for child in children:
        try:
            if Path(f"/proc/{child}/comm").read_text() == "systemd\n":
                return int(child)
        except OSError:
            continue
    return 0


def _emptied(slot: str) -> bool:
    """End whatever runs in the cgroups of a machine and remove them; say whether all is gone."""
    places = [GROUPS / name / slot for name in (".", "systemd", "unified")]
    for place in places:
        for folder, _, _ in os.walk(place, topdown=False):
            with suppress(OSError):
                for pid in map(int, (Path(folder) / "cgroup.procs").read_text().split()):
                    if pid > 1:
                        os.kill(pid, signal.SIGKILL)
            with suppress(OSError):
                Path(folder).rmdir()
    return not any(place.exists() for place in places)
