"""Root trees of Debian releases: made once with mmdebstrap, used as private copies."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator

CACHE: Final = Path(os.environ.get("GPUWATCHD_TEST_CACHE", "/var/cache/gpuwatchd-tests"))
RUN: Final = Path("/run")
PARTS: Final = (
    "systemd", "systemd-sysv", "dbus", "dbus-user-session", "libpam-systemd", "python3",
)  # fmt: skip
PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRONMENT: Final = {"PATH": PATH, "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}


class Root:
    """A private, writable copy of a root tree, in a mount namespace of its own.

    The copy is an overlay that only the processes of that namespace see. A process that does
    nothing holds the namespace open, and is ended by the kernel when the tests end. ``tree`` is
    below, and never written to; what is written goes to ``scratch``, an empty folder.
    """

    def __init__(self, tree: Path, scratch: Path) -> None:
        for name in ("upper", "work", "root"):
            (scratch / name).mkdir()
            (scratch / name).chmod(0o755)  # whatever our umask: nobody but root would see a file
        self.scratch, self.place = scratch, scratch / "root"
        script = (
            "mount -t overlay overlay"
            f" -o lowerdir={tree},upperdir={scratch}/upper,workdir={scratch}/work {self.place}"
            # systemd-nspawn wants to empty this folder, and refuses where it is on a disk.
            " && mkdir -p /run/systemd && mount -t tmpfs tmpfs /run/systemd"
            " && echo ready && exec sleep infinity"
        )
        self.keeper = subprocess.Popen(
            ["unshare", "--mount", *dying(), "sh", "-c", script],
            stdout=subprocess.PIPE, env=ENVIRONMENT, text=True,
        )  # fmt: skip
        assert self.keeper.stdout is not None
        if self.keeper.stdout.readline() != "ready\n":
            raise RuntimeError("no overlay can be mounted here")
        self.binds: list[str] = []

    @property
    def path(self) -> Path:
        """The tree as seen from outside its namespace."""
        return Path(f"/proc/{self.keeper.pid}/root{self.place}")

    def enter(self, *argv: str) -> list[str]:
        """Return a command that runs within the namespace."""
        return ["nsenter", f"--target={self.keeper.pid}", "--mount", "--", *argv]

    def bind(self, folder: Path) -> None:
        """Show a folder of this machine within, at the same place, read-only once it is booted."""
        if folder.exists():
            self.binds.append(str(folder))

    def files(self) -> set[str]:
        """Return every path of the tree, without what only a running system has."""
        found: set[str] = set()
        for folder, names, files in os.walk(self.path):
            here = "/" + os.path.relpath(folder, self.path) if folder != str(self.path) else ""
            if not here:
                names[:] = [one for one in names if one not in {"proc", "sys", "dev", "tmp", "run"}]
            found.update(f"{here}/{name}" for name in (*names, *files))
        return found

    def end(self) -> None:
        """Give everything up that was mounted."""
        self.keeper.kill()
        self.keeper.wait()
        assert self.keeper.stdout is not None
        self.keeper.stdout.close()


def dying(by: str = "KILL") -> list[str]:
    """Return what makes the kernel end a command by this signal with us, however we end."""
    return ["setpriv", f"--pdeathsig={by}"]


@contextmanager
def root(suite: str) -> Iterator[Root]:
    """Give a private copy of a release's root tree; what is written there is thrown away."""
    with alone(f"{suite}-tree"):
        _sweep(suite)
        tree = _tree(suite)
        scratch = Path(tempfile.mkdtemp(prefix=f"{suite}-", dir=CACHE))
        found = Root(tree, scratch)
    try:
        yield found
    finally:
        found.end()
        assert not mounted(), "nothing of it may stay mounted"
        shutil.rmtree(scratch, ignore_errors=True)  # somebody else may be sweeping it already


def prepare(suite: str) -> None:
    """Make a release's root tree where it is not there yet."""
    with alone(f"{suite}-tree"):
        _sweep(suite)
        _tree(suite)


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Let one at a time do it, over all processes of this machine."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def tried(name: str) -> TextIO | None:
    """Return a lock that is held until it is closed; None while anybody here holds it."""
    # Whatever the cache is: the cgroups are the machine's.
    lock = (RUN / f"{name}.lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def mounted() -> list[str]:
    """Return what is mounted below our folder, as everybody sees it."""
    lines = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.split()[1].startswith(f"{CACHE}/")]


def _tree(suite: str) -> Path:
    """Return the tree of a release; make it where it is not there yet."""
    key = hashlib.sha256(" ".join(("mmdebstrap", *PARTS)).encode()).hexdigest()[:8]
    tree = CACHE / f"{suite}-{key}.tree"
    if not tree.is_dir():
        began = time.monotonic()
        fresh = Path(tempfile.mkdtemp(prefix=f"{suite}-", dir=CACHE))
        fresh.chmod(0o755)
        _bootstrap(suite, fresh)
        fresh.rename(tree)
        print(f"{suite}: root tree made in {time.monotonic() - began:.0f} s")
    return tree


def _bootstrap(suite: str, folder: Path) -> None:
    # It takes less than half as long as debootstrap.
    include = f"--include={','.join(PARTS)}"
    make = ["mmdebstrap", "--mode=root", "--variant=minbase", include, suite, str(folder), mirror()]
    done = subprocess.run(
        ["unshare", "--mount", *make],  # what it mounts is nobody else's
        env={**os.environ, **ENVIRONMENT}, umask=0o022, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"mmdebstrap {suite}: {(done.stdout + done.stderr)[-2000:]}")
    # Packages come from the repository that is tested, and from nowhere else.
    (folder / "etc/apt/sources.list").write_text("")
    (folder / "etc/apt/sources.list").chmod(0o644)
    for user in ("mleng", "reader", "stranger"):
        subprocess.run(
            ["chroot", str(folder), "useradd", "-m", "-s", "/bin/bash", user],
            env=ENVIRONMENT, umask=0o022, check=True, capture_output=True,
        )  # fmt: skip


def mirror() -> str:
    """Return where apt gets this release of Debian from; the same place has the next one."""
    release = Path("/etc/os-release").read_text(encoding="utf-8")
    ours = next(
        line.partition("=")[2].strip('"')
        for line in release.splitlines()
        if line.startswith("VERSION_CODENAME=")
    )
    done = subprocess.run(
        [
            "apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages",
            f"Codename: {ours}", "Label: Debian", "Component: main",
        ],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    if not done.stdout.strip():
        raise RuntimeError("apt names no mirror of Debian: run apt-get update first")
    return done.stdout.split()[0]


def _sweep(suite: str) -> None:
    """Remove what a run that was killed has left; its mounts ended with its processes."""
    busy = _roots_in_use()
    for left in CACHE.glob(f"{suite}-*"):
        if left.suffix or str(left) in busy or not left.is_dir():
            continue
        subprocess.run(["rm", "-rf", "--one-file-system", str(left)], check=False)


def _roots_in_use() -> set[str]:
    """Return the folders of copies that a namespace of some process still has mounted."""
    busy: set[str] = set()
    for mounts in Path("/proc").glob("[0-9]*/mounts"):
        try:
            lines = mounts.read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        places = (line.split()[1] for line in lines if line.startswith("overlay "))
        busy.update(str(Path(place).parent) for place in places)
    return busy
