"""What the service of a whole machine needs beside its unit: root, an account, a safe program."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import gpuwatchd
from gpuwatchd.core import config
from gpuwatchd.core.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpuwatchd.service.unit_files import Done, Runner

GROUP = config.SYSTEM_GROUP
_NAME = "systemd"
_SUDO_PATH = {"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
_HOMES = ("/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/", "/dev/shm/")  # noqa: S108
_ELSEWHERE = (
    "install it where only root writes: apt install gpuwatchd, or a virtual environment of root's"
    " in /opt"
)
_WHAT = "GPU memory leak watchdog"


def ourselves(path: str | None = None) -> str:
    """Return gpuwatchctl as it is typed after sudo, whose PATH is the system's."""
    text = shutil.which("gpuwatchctl", path=path)
    program = Path(sys.argv[0])
    if text is None and program.name == "gpuwatchctl" and program.is_absolute():
        text = str(program)
    return "gpuwatchctl" if text is None or str(Path(text).parent) in _SUDO_PATH else text


def need_root(verb: str, path: str | None = None) -> None:
    """Refuse to go on without root.

    Raises
    ------
    ServiceError
        With the command that has it.
    """
    if os.geteuid():
        raise ServiceError(
            _NAME,
            f"service {verb} --system",
            "only root may change the services of the machine",
            hint=f"sudo {ourselves(path)} service {verb} --system",
            page="errors#root-needed",
        )


def unsafe(
    argv: Sequence[str],
    *,
    look: Callable[[Path], os.stat_result] = os.stat,
    homes: Sequence[str] = _HOMES,
) -> str:
    """Return why a program should not run as a service of the machine; "" when it may.

    Whoever can change the program, its interpreter, its library or a directory above them decides
    what the service does with everybody's data.
    """
    for path in _looked_at(argv):
        if any(f"{path}/".startswith(home) for home in homes):
            return f"{path} lies in a directory of one user, or a temporary one"
        for part in (path, *path.parents):
            try:
                status = look(part)
            except OSError as error:
                return f"{part}: {error.strerror}"
            if status.st_uid:
                return f"{part} belongs to {owner(status.st_uid)}, who could change it"
            writable = status.st_mode & 0o022
            sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
            # A group of root's own is root; a sticky directory protects what lies in it.
            if (writable & 0o002 and not sticky) or (writable & 0o020 and status.st_gid):
                return f"others can write {part} (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def _looked_at(argv: Sequence[str]) -> Iterator[Path]:
    """Yield the program, its interpreter and our library, and each link that leads to them."""
    program = Path(argv[0])
    for path in [program, program.with_name("python3"), Path(gpuwatchd.__file__).parent]:
        if os.path.lexists(path):
            yield from _on_the_way(Path(os.path.abspath(path)))  # noqa: PTH100 - links count, too
            yield path.resolve()


def _on_the_way(path: Path, links: int = 40) -> Iterator[Path]:
    """Yield a path, and what it is called after each link on the way to it."""
    yield path
    for part in (*reversed(path.parents), path):
        if links and part.is_symlink():
            target = part.parent / part.readlink() / path.relative_to(part)
            yield from _on_the_way(Path(os.path.normpath(target)), links - 1)
            return


def refuse_unsafe(argv: Sequence[str]) -> None:
    """Refuse a program that should not run as a service of the machine."""
    if why := unsafe(argv):
        raise ServiceError(_NAME, f"a service of the machine with {argv[0]}", why, hint=_ELSEWHERE)


def owner(uid: int) -> str:
    """Return the name of a user; "user 1001" where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def exists() -> bool:
    """Say whether user and group are there."""
    try:
        pwd.getpwnam(GROUP)
        grp.getgrnam(GROUP)
    except KeyError:
        return False
    return True


def commands(find: Callable[[str], str | None] = shutil.which) -> list[list[str]]:
    """Return the commands that make user and group, the first that is there."""
    home = str(config.SYSTEM_STATE_DIR)
    if find("systemd-sysusers") is not None:
        return [["systemd-sysusers", "--inline", f'u {GROUP} - "{_WHAT}" {home}']]
    return [
        ["useradd", "--system", "--user-group", "--home-dir", home, "--no-create-home",
         "--shell", find("nologin") or "/usr/sbin/nologin", "--comment", _WHAT, GROUP],
    ]  # fmt: skip


def make(run: Runner, find: Callable[[str], str | None] = shutil.which) -> list[str]:
    """Make user and group where they are missing; return what was done.

    Raises
    ------
    ServiceError
        When neither tool can.
    """
    if exists():
        return []
    _all(run, commands(find))
    return [f"made the user and the group {GROUP}"]


def make_settings(folder: Path) -> None:
    """Make the directory of the configuration: root's, for everybody to read.

    Raises
    ------
    ServiceError
        When it cannot be made.
    """
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True)
            folder.chmod(0o755)
    except OSError as error:
        raise ServiceError(_NAME, f"making {folder}", error.strerror or "impossible") from error


def remove(run: Runner) -> list[str]:
    """Remove user and group where they are there; return what was done.

    Raises
    ------
    ServiceError
        When it fails: a process of that user runs, say.
    """
    if not exists():
        return []
    _all(run, [["userdel", GROUP]])
    # userdel takes the group along, unless it has other members.
    try:
        grp.getgrnam(GROUP)
    except KeyError:
        pass
    else:
        _all(run, [["groupdel", GROUP]])
    return [f"removed the user and the group {GROUP}"]


def _all(run: Runner, wanted: Iterable[list[str]]) -> None:
    for argv in wanted:
        done: Done = run(argv)
        if done.code:
            raise ServiceError(_NAME, " ".join(argv), done.last_line)


def readers() -> str:
    """Return how somebody gets to read the machine's history."""
    return f"to let NAME read it: sudo usermod -aG {GROUP} NAME (and log in again)"
