"""Can history and live state be written, and for how long: directories, disk, history."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.cli.doctor import Check, failed, named, ok, warning
from gpuwatchd.collect.host.procfs import mounts
from gpuwatchd.core import directories as places
from gpuwatchd.core import units
from gpuwatchd.core.errors import GpuwatchdError, StoreDamaged
from gpuwatchd.store import private_files
from gpuwatchd.view.queries import state_location

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.cli.doctor import CheckContext
    from gpuwatchd.core.config import Config

MOUNTINFO = Path("/proc/self/mountinfo")
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs",
     "fuse.sshfs", "fuse.glusterfs", "ncpfs", "coda"}
)  # fmt: skip
_MIB = 1 << 20
_TRIED_BYTES = 64 * 1024
_READ_S = 5.0
"""A history that takes longer to read whole counts as sound: the deadline of a check is near."""


def check(around: CheckContext) -> Iterator[Check]:
    """Yield whether both directories can be used, and whether the disk has room."""
    place = state_location.chosen()
    for name, directory, variable in (
        ("history", place.state_dir, "GPUWATCHD_STATE_DIR"),
        ("live", place.runtime_dir, "GPUWATCHD_RUNTIME_DIR"),
    ):
        if place.scope == "system":
            answers = iter([_of_system(directory)])
        else:
            answers = _of_user(directory, around.settings.daemon.readers, variable)
        yield from named(answers, f"{name} directory")
    if place.scope != "system":
        yield from named([_disk_space(around.settings, place.state_dir)], "disk")


def _of_user(directory: Path, readers: private_files.Readers, variable: str) -> Iterator[Check]:
    found = _directory(directory, readers, variable)
    kind = file_system(directory)
    if found.level == "ok" and kind in NETWORK_FILE_SYSTEMS:
        words = f"{directory} is on a network file system ({kind})"
        found = warning("directory-network", words, f"export {variable}=/a/local/dir")
    if found.level == "ok" and not directory.is_absolute():
        whole = directory.absolute()
        found = warning(
            "directory-relative",
            f"{variable}={directory} depends on the folder that one stands in: here it is {whole}",
            f"export {variable}={shlex.quote(str(whole))}, and in the unit too",
        )
    yield found
    if found.level != "failed" and directory.is_dir() and (why := _refused(directory)):
        yield failed(f"disk-{why[0]}", why[1], why[2])


def _of_system(directory: Path) -> Check:
    """Return how a directory of the machine's own service is, which others only read."""
    try:
        mode = directory.stat().st_mode
    except OSError:
        return ok(f"{directory} is not there: the service of this machine does not run")
    if mode & stat.S_IRWXO:
        hint = f"sudo chmod 750 {shlex.quote(str(directory))}"
        return warning("directory-open", f"everybody can read {directory}", hint)
    return ok(f"{directory}, of the service of this machine; its group reads it")


def _existing(directory: Path) -> Path:
    """Return the directory, or how much of the way to it is there and may be looked at."""
    while not os.path.lexists(directory) and directory != directory.parent:
        directory = directory.parent
    return directory


def _directory(
    directory: Path, readers: private_files.Readers = "user", variable: str = ""
) -> Check:
    existing = _existing(directory)
    quoted = shlex.quote(str(existing))
    if not existing.is_dir():
        hint = f"mv {quoted} {shlex.quote(f'{existing}.old')}"
        return failed("directory-none", f"{existing} is not a directory", hint)
    if not os.access(existing, os.W_OK | os.X_OK):
        if os.statvfs(existing).f_flag & os.ST_RDONLY:
            words = f"{existing} is mounted read-only"
            return failed("disk-read-only", words, _writable(existing))
        homeless = places.HOMELESS in directory.parents
        words = f"{existing} cannot be written by you"
        words = "your home directory is unknown" if homeless else words
        return failed("directory-closed", words, _opened(directory, existing, variable))
    if existing != directory:
        return ok(f"{directory} does not exist yet and can be made")
    about = directory.stat()
    if about.st_uid != os.geteuid():
        words = f"{directory} belongs to somebody else"
        return warning("directory-foreign", words, _opened(directory, existing, variable))
    if readers == "group" and private_files.is_shared(about.st_mode):
        return ok(f"{directory}, read by its group")
    if stat.S_IMODE(about.st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
        return warning("directory-open", f"others can read {directory}", f"chmod 700 {quoted}")
    return ok(str(directory))


def _opened(directory: Path, existing: Path, variable: str) -> str:
    """Return what makes a directory ours; a directory of the system is left to the system."""
    uid, quoted = os.geteuid(), shlex.quote(str(directory))
    if places.HOMELESS in directory.parents:
        return f"export HOME=/a/folder/of/yours (it is not set), or {variable}"
    elsewhere = f'export {variable}="$HOME/gpuwatchd", and install the service again'
    if "gpuwatchd" not in directory.name:
        return elsewhere
    if existing != directory:
        made = f"sudo install -d -m 700 -o {uid} {quoted}"
        return f"{made}, or {elsewhere}" if os.access(existing, os.X_OK) else elsewhere
    own = directory.stat().st_uid == uid
    return f"chmod 700 {quoted}" if own else f"sudo chown -R {uid} {quoted}"


def _writable(directory: Path) -> str:
    where = shlex.quote(_mount(directory)[0] or str(directory))
    return f"sudo mount -o remount,rw {where}, or another GPUWATCHD_STATE_DIR"


def _refused(directory: Path) -> tuple[str, str, str] | None:
    """Return (fault, words, hint) when a few bytes cannot be written there; leaves nothing."""
    if not hasattr(os, "O_TMPFILE"):
        return None
    try:
        handle = os.open(directory, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, b"\0" * _TRIED_BYTES)
        finally:
            os.close(handle)
    except OSError as error:
        return _access_problem(error, directory)
    return None


def _access_problem(error: OSError, directory: Path) -> tuple[str, str, str] | None:
    if error.errno == errno.EDQUOT:
        return "quota", f"your quota is used up: nothing can be written to {directory}", "quota -s"
    if error.errno == errno.ENOSPC:
        return "full", f"the disk of {directory} is full", f"df -h {shlex.quote(str(directory))}"
    if error.errno == errno.EROFS:
        return "read-only", f"{directory} is mounted read-only", _writable(directory)
    return None  # a file system without nameless files: its directory was looked at before


def _disk_space(settings: Config, directory: Path) -> Check:
    """Return whether the history can grow to its bound."""
    existing = _existing(directory)
    try:
        about = os.statvfs(existing)
    except OSError as error:
        words = f"{existing}: {error.strerror or 'cannot be asked'}"
        return warning("disk-unknown", words, f"df {shlex.quote(str(existing))}")
    free = about.f_bavail * about.f_frsize
    held = _size(directory)
    bound, spare = settings.store.max_db_mib * _MIB, settings.store.min_free_mib * _MIB
    words = f"{units.size(free)} free for the history ({units.size(held)} of {units.size(bound)})"
    if free < spare:
        return warning(
            "disk-low",
            f"{words}: below {units.size(spare)} (store.min-free-mib) no samples are recorded",
            f"du -xsh {shlex.quote(str(existing))}/* | sort -h, or a lower [store] min-free-mib",
        )
    missing = max(0, bound - held) + spare - free
    if missing > 0:
        return warning(
            "disk-small",
            f"{words}: {units.size(missing)} too few for it to reach its bound",
            "free some space, or set a lower [store] max-db-mib",
        )
    full = held >= 0.95 * bound
    return ok(f"{words}; at its bound: the oldest samples go first" if full else words)


def _size(directory: Path) -> int:
    """Return the bytes of the history and its log."""
    total = 0
    with contextlib.suppress(OSError), os.scandir(directory) as files:
        for file in files:
            if file.name.startswith("history.db"):
                with contextlib.suppress(OSError):
                    total += file.stat().st_size
    return total


def file_system(directory: Path) -> str | None:
    """Return the type of the file system below a path, None where that cannot be told."""
    return _mount(directory)[1]


def _mount(directory: Path) -> tuple[str, str | None]:
    """Return mount point and type of the file system below a path: the longest above it wins."""
    target = os.path.realpath(directory)
    best, kind = "", None
    for point, of, _ in mounts(MOUNTINFO):
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, of
    return best, kind


def history(_: CheckContext) -> Iterator[Check]:
    """Yield whether the history can be read, all of it."""
    from gpuwatchd.store import checked_connection, schema  # noqa: PLC0415
    from gpuwatchd.view.queries import history_query  # noqa: PLC0415

    directory = state_location.state_dir()
    file = directory / history_query.FILE_NAME
    try:
        if not file.exists():
            yield ok("no data recorded yet")
            return
        with history_query.reader() as reader:
            count = len(reader.devices())
            if (why := reader.ask(lambda it: schema.damage_within(it, _READ_S))) is not None:
                raise checked_connection.damaged(file, why)
    except StoreDamaged as error:
        one = failed("history-damaged", error.message, error.hint)
        yield msgspec.structs.replace(one, page=error.page)
        return
    except GpuwatchdError as error:
        yield failed("history-unreadable", error.message, error.hint or "gpuwatchctl service logs")
        return
    except PermissionError:
        words = f"you may not read {directory}"
        yield failed("history-unreadable", words, "gpuwatchctl doctor disk")
        return
    yield ok(f"{file}: {units.size(file.stat().st_size)}, {units.count(count, 'GPU')}")
    # Its log and its index were set aside with it, under names that sort after its own.
    aside = [
        path
        for path in sorted(directory.glob(f"{history_query.FILE_NAME}.corrupt-*"))
        if not path.name.endswith(("-wal", "-shm"))
    ]
    if aside:
        yield warning(
            "history-damaged",
            f"a damaged history was moved aside: {aside[-1].name}",
            checked_connection.rescue(aside[-1]),
        )
