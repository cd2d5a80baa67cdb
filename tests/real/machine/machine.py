"""One Debian, booted: systemd-nspawn, and commands within."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from tests.real.machine.roots import CACHE, ENVIRONMENT, PATH, Root, alone, dying, mounted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

TOOLS: Final = ("systemd-nspawn", "debootstrap", "nsenter", "unshare", "setpriv", "gpg")
GROUPS: Final = Path("/sys/fs/cgroup")
GROUP: Final = "gpuwatchd-tests"
INTO_GROUP: Final = f"""
    for place in {GROUPS}/systemd {GROUPS}/unified; do
        [ ! -d $place ] || {{ mkdir -p $place/{GROUP}; echo $$ >$place/{GROUP}/cgroup.procs; }}
    done
    exec "$@"
"""
"""A cgroup of its own, so that no other machine that somebody runs here shares one with ours."""
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
        return "boots a whole Debian: set GPUWATCHD_TEST_MACHINE=1"
    return ""


class Machine:
    """A booted machine.

    Parameters
    ----------
    leader
        Its first process, by our number.
    root
        Its files.
    """

    def __init__(self, leader: int, root: Root) -> None:
        self.leader, self.root = leader, root

    @property
    def files(self) -> Path:
        """Its file system as it sees it, with what is mounted within."""
        return Path(f"/proc/{self.leader}/root")

    def run(
        self, *argv: str, user: str | None = None, env: Mapping[str, str] | None = None,
        timeout: float = 60, cwd: str | None = None, ok: bool = False, typed: str = "",
    ) -> Done:  # fmt: skip
        """Run a command as root, or as a user with that user's bus.

        Parameters
        ----------
        timeout
            Seconds until it is ended, and a failure.
        ok
            Fail unless it ends with 0.
        typed
            Its standard input.
        """
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
        enter = ["nsenter", f"--target={self.leader}", "--all"]
        if user is None:
            given = {**ENVIRONMENT, "HOME": "/root", "USER": "root", **(env or {})}
            enter.append(f"--wd={self.files}{cwd or '/root'}")
            return [*enter, "env", "-i", *(f"{k}={v}" for k, v in given.items()), *argv]
        number = self.uid(user)
        given = {
            "HOME": f"/home/{user}", "USER": user, "LOGNAME": user,
            "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8",
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
    """Boot a root tree; end with the machine as it was outside.

    One at a time over all processes that test here: two would share the cgroups of one.
    """
    with alone("machine"), tempfile.TemporaryFile() as log:
        _end_left_over()
        before = _outside()
        binds = [f"--bind-ro={folder}" for folder in root.binds]
        began = time.monotonic()
        nspawn = subprocess.Popen(
            [
                *root.enter(*dying("TERM"), "sh", "-c", INTO_GROUP, "sh", "systemd-nspawn"),
                "-D", str(root.place), "--boot",
                "--register=no", "--keep-unit", "--machine=gpuwatchd", "--console=pipe",
                "--quiet", *binds,
            ],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=ENVIRONMENT,
        )  # fmt: skip
        try:
            machine = Machine(until(lambda: _init(nspawn), "an init", 20), root)
            until((machine.files / "run/systemd/private").exists, "its systemd", 20)
            done = machine.run("systemctl", "is-system-running", "--wait", timeout=60)
            failed = machine.run("systemctl", "--failed", "--no-legend", "--plain").stdout
            assert (done.stdout, failed) == ("running\n", ""), machine.journal()
            print(f"booted in {time.monotonic() - began:.1f} s")
            yield machine
        except BaseException:
            log.seek(0)
            print(log.read().decode(errors="replace")[-4000:])
            raise
        finally:
            _end(nspawn)
            until(_remove_groups, "no cgroup is left", 10)
            assert _outside() == before, "the machine outside is as it was"
            assert not mounted()


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


def _end_left_over() -> None:
    """Unplug machines of tests that were killed; whoever holds the lock has none of his own yet."""
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            first = re.search(r"^NSpid:\s*\d+\s+1$", status.read_text(), re.MULTILINE)
            ours = f"overlay / overlay rw,relatime,lowerdir={CACHE}/"
            if first and ours in (status.parent / "mounts").read_text():
                os.kill(int(status.parent.name), signal.SIGKILL)
        except OSError:
            continue
    until(_remove_groups, "no other machine runs here", 10)


def _outside() -> tuple[str, list[str]]:
    """Return what must stay: where this machine's first process is, and its cgroups."""
    own = [place for name in ("systemd", "unified") if (place := GROUPS / name).is_dir()]
    found = (folder for place in own or [GROUPS] for folder, _, _ in os.walk(place))
    # Another machine that somebody runs here at the same time has these two.
    others = re.compile(r"/sys/fs/cgroup/\w+/(payload|supervisor)(/|$)")
    groups = sorted(folder for folder in found if not others.match(folder))
    return Path("/proc/1/cgroup").read_text(encoding="utf-8"), groups


def _remove_groups() -> bool:
    """Remove the empty cgroups that a machine leaves; say whether all of them are gone."""
    ours = [folder for folder in _outside()[1] if GROUP in Path(folder).parts]
    for folder in reversed(ours):
        with suppress(OSError):
            Path(folder).rmdir()
    return not any(Path(folder).exists() for folder in ours)


def _end(nspawn: subprocess.Popen[bytes]) -> None:
    """Power the machine off; pull the plug where that takes too long."""
    nspawn.send_signal(signal.SIGTERM)
    try:
        nspawn.wait(10)
    except subprocess.TimeoutExpired:
        nspawn.kill()
        nspawn.wait(10)
