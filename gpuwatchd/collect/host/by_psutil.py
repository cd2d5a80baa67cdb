"""The same facts from psutil, where there is no /proc (macOS)."""

from __future__ import annotations

import ctypes
import re
from typing import Final

import msgspec
import psutil

from gpuwatchd.analysis import frameworks
from gpuwatchd.collect.host import program
from gpuwatchd.collect.host.program import MOST, Ancestor
from gpuwatchd.core.model import ProcessInfo, ProcessKey
from gpuwatchd.core.text import clean, mask_argv, mask_title

_FACTS: Final = ["name", "username", "cmdline", "ppid", "status", "exe", "cwd", "uids"]
_STARTS_EVERYTHING: Final = frozenset({"launchd", "login", "sshd", "systemd", "init"})
_UUID: Final = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_STATES: Final = {
    psutil.STATUS_RUNNING: "R",
    psutil.STATUS_SLEEPING: "S",
    psutil.STATUS_DISK_SLEEP: "D",
    psutil.STATUS_STOPPED: "T",
    psutil.STATUS_ZOMBIE: "Z",
    psutil.STATUS_IDLE: "I",
}


def started_at_s(pid: int) -> float | None:
    """Return when this pid's process started, epoch seconds; None when there is none."""
    try:
        return float(psutil.Process(pid).create_time())
    except (psutil.Error, OSError, OverflowError):
        return None


def identify(pid: int) -> ProcessInfo | None:
    """Return who a process is; None when there is none. Fields that are denied are None."""
    try:
        process = psutil.Process(pid)
        started = float(process.create_time())
        facts = process.as_dict(_FACTS)
    except (psutil.Error, OSError, OverflowError):
        return None
    argv = facts["cmdline"] or []
    name = facts["name"] or f"pid {pid}"
    framework, sure = frameworks.recognise(argv, (), name)
    info = ProcessInfo(
        key=ProcessKey(pid=pid, started_at_s=started),
        name=mask_title(name),
        user=clean(facts["username"]) if facts["username"] else None,
        argv=mask_argv(argv),
        parent_pid=facts["ppid"],
        state=_STATES.get(facts["status"] or ""),
        framework=framework,
        framework_sure=sure,
        role=frameworks.role(argv, name),
        uid=facts["uids"].real if facts["uids"] else None,
        parents=_ancestors(process),
    )
    key = program.key(info, argv, executable=facts["exe"] or None, folder=facts["cwd"] or None)
    return msgspec.structs.replace(info, program=key)


def _ancestors(process: psutil.Process) -> tuple[str, ...]:
    """Return who started a process, nearest first; never what starts everything."""
    labels: list[str] = []
    try:
        chain = [
            (parent.pid, parent.as_dict(["name", "cmdline"])) for parent in process.parents()[:MOST]
        ]
    except (psutil.Error, OSError):
        return ()  # one of them has ended meanwhile
    for pid, facts in chain:
        name = clean(facts["name"] or "")
        if pid <= 1 or not name or name in _STARTS_EVERYTHING:
            break
        argv = mask_argv(facts["cmdline"] or (), limit=8)
        labels.append(Ancestor(pid, 0, name, argv).label)
    return tuple(labels)


def rss_bytes() -> int:
    """Return the resident memory of this process, bytes."""
    return int(psutil.Process().memory_info().rss)


def boot_id() -> str:
    """Return a text that changes with every boot.

    The time of boot is taken only where the system names no boot: it moves with every step of the
    clock.
    """
    name = _boot_session()
    return name if _UUID.fullmatch(name) else f"boot-{int(psutil.boot_time())}"


def _boot_session() -> str:
    """Return what macOS names this boot by (kern.bootsessionuuid); not verified on hardware."""
    buffer = ctypes.create_string_buffer(64)
    size = ctypes.c_size_t(len(buffer))
    try:
        ask = ctypes.CDLL(None).sysctlbyname
        failed = ask(b"kern.bootsessionuuid", buffer, ctypes.byref(size), None, ctypes.c_size_t(0))
    except (AttributeError, OSError):  # another system
        return ""
    return "" if failed else buffer.value.decode("ascii", "replace")
