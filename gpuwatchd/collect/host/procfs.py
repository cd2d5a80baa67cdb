"""What the files under /proc say, and which of the processes still live."""

from __future__ import annotations

import errno
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.core.model import Value
from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# How much memory the host has, and how much of it programs can still take.

_LINE: Final = re.compile(rb"^(MemTotal|MemAvailable|SwapFree):\s+(\d+) kB$", re.MULTILINE)


class Headroom(NamedTuple):
    """The host's memory, bytes."""

    total_bytes: int
    free_bytes: int
    """What programs can still take without anybody being killed, free swap included."""


def headroom(proc: Path = Path("/proc")) -> Headroom | None:
    """Return the host's memory now; None where that cannot be read. Some 30 µs.

    From /proc/meminfo: MemAvailable, the kernel's own estimate (caches that it can drop count as
    free), and SwapFree. Limits of a single control group are not looked at.
    """
    if not sys.platform.startswith("linux") and proc == Path("/proc"):
        import psutil  # noqa: PLC0415 - 35 ms, only where there is no /proc

        memory = psutil.virtual_memory()
        return Headroom(memory.total, memory.available + psutil.swap_memory().free)
    found = {name: int(value) * 1024 for name, value in _LINE.findall(read_bytes(proc / "meminfo"))}
    total_bytes, available = found.get(b"MemTotal"), found.get(b"MemAvailable")
    if not total_bytes or available is None:
        return None
    return Headroom(total_bytes, available + found.get(b"SwapFree", 0))


INITIAL_PID_NAMESPACE: Final = "pid:[4026531836]"
"""What /proc/self/ns/pid points to on the host: the number is part of the kernel's interface."""

_INITS: Final = frozenset({b"systemd", b"init", b"openrc-init", b"runit", b"s6-svscan", b"launchd"})
_COMM_BYTES: Final = 15
STAT_BYTES: Final = 4096
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_LIBRARY: Final = re.compile(rb"(/[^\n]*\.(?:so|dylib|metallib)\b[^\n]*)$", re.MULTILINE)
_UID: Final = re.compile(rb"^Uid:\s*(\d+)", re.MULTILINE)
_ANONYMOUS: Final = re.compile(rb"\nRssAnon:\s*(\d+) kB")
_SWAPPED: Final = re.compile(rb"\nVmSwap:\s*(\d+) kB")


class Stat(NamedTuple):
    """Fields of /proc/PID/stat."""

    name: bytes
    """At most 15 bytes, possibly cut inside a character."""
    state: str
    parent_pid: int
    starttime: int
    """Clock ticks since boot."""
    leads_terminal: bool = False
    """It leads the session of a terminal: a login shell, the shell of a window."""


class Status(NamedTuple):
    """Fields of /proc/PID/status; None for what it does not say."""

    uid: int | None
    """Of the user who started it."""
    anonymous_bytes: int | None
    """Memory of its own, and what of that was swapped out; a zombie has none."""


def read_bytes(path: str | Path, limit_bytes: int = 1 << 20) -> bytes:
    """Return at most so much of a file; b"" when it cannot be read (gone, forbidden)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        first = os.read(descriptor, min(limit_bytes, 1 << 16))
        if len(first) < 2048:  # the usual small file: the rest is empty
            return first
        parts, length = [first], len(first)
        while length < limit_bytes and (more := os.read(descriptor, limit_bytes - length)):
            parts.append(more)
            length += len(more)
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


class NoDescriptor(Exception):
    """There is no descriptor to spare to look with: nothing is known of what was to be read."""


def read_stat(path: str | Path) -> bytes:
    """Return the content of /proc/PID/stat; b"" when there is no such process.

    Raises
    ------
    NoDescriptor
        When this process, or the system, can open no more files: nobody has ended by that.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _EXHAUSTED:
            raise NoDescriptor from error
        return b""
    try:
        return os.read(descriptor, STAT_BYTES)
    except OSError:  # it has ended since
        return b""
    finally:
        os.close(descriptor)


def stat_of(pid: int, proc: Path) -> Stat | None:
    """Return what /proc/PID/stat says; None when there is no such process.

    Raises
    ------
    NoDescriptor
        When this process, or the system, can open no more files.
    """
    return parse_stat(read_stat(f"{proc}/{pid}/stat"))


def parse_stat(raw: bytes) -> Stat | None:
    """Parse /proc/PID/stat; None for what is none.

    The name stands in brackets and may hold blanks and brackets itself, so the last one counts.

    Examples
    --------
    >>> parse_stat(b"7 (a) (b) S 1 7 7 0 -1 0 0 0 0 0 1 2 0 0 20 0 1 0 4242 0")
    Stat(name=b'a) (b', state='S', parent_pid=1, starttime=4242, leads_terminal=False)
    """
    start, end = raw.find(b"("), raw.rfind(b")")
    fields = raw[end + 1 :].split()
    if start < 0 or end < start or len(fields) < 20:
        return None
    try:
        parent, starttime = int(fields[1]), int(fields[19])
    except ValueError:
        return None
    leads = fields[4] != b"0" and raw[:start].strip() == fields[3]
    name, state = raw[start + 1 : end], fields[0][:1].decode("ascii", "replace")
    return Stat(name, state, parent, starttime, leads)


def parse_status(raw: bytes) -> Status:
    r"""Parse what matters of /proc/PID/status, which every user may read.

    Examples
    --------
    >>> parse_status(b"Name:\tx\nUid:\t7\t7\t7\t7\nRssAnon:\t  12 kB\nVmSwap:\t 4 kB\n")
    Status(uid=7, anonymous_bytes=16384)
    """
    uid = _UID.search(raw)
    return Status(int(uid[1]) if uid else None, anonymous_bytes(raw))


def anonymous_bytes(status: bytes) -> int | None:
    """Return RssAnon + VmSwap of /proc/PID/status; None where it does not tell."""
    anonymous = _ANONYMOUS.search(status)
    if anonymous is None:
        return None
    swapped = _SWAPPED.search(status, anonymous.end())
    return 1024 * (int(anonymous[1]) + (int(swapped[1]) if swapped else 0))


def boot_time(proc: Path) -> float | None:
    """Return when the kernel says now that the system was booted, epoch seconds; None: it does not.

    It moves with every step of the clock.
    """
    found = re.search(rb"^btime +(\d+)", read_bytes(proc / "stat"), re.MULTILINE)
    return float(found[1]) if found else None


def words_of(cmdline: bytes) -> list[str]:
    r"""Return the words of /proc/PID/cmdline; a title that was written over it is one word.

    Examples
    --------
    >>> words_of(b"python3\0train.py\0"), words_of(b"ray::IDLE" + bytes(90)), words_of(b"")
    (['python3', 'train.py'], ['ray::IDLE'], [])
    """
    raw = cmdline.rstrip(b"\0")
    return [word.decode("utf-8", "surrogateescape") for word in raw.split(b"\0")] if raw else []


def full_name(name: bytes, argv: Sequence[str]) -> str:
    """Return the process's name, undoing the kernel's cut where the command line allows.

    Examples
    --------
    >>> full_name(b"VLLM::EngineCor", ["VLLM::EngineCore_DP0"])
    'VLLM::EngineCore_DP0'
    >>> full_name(b"python", ["/usr/bin/python", "train.py"])
    'python'
    """
    short = name.decode("utf-8", "replace")
    if len(name) < _COMM_BYTES or not argv:
        return short
    start = short.rstrip("\ufffd")
    for candidate in (argv[0], argv[0].rsplit("/", 1)[-1]):
        if candidate.startswith(start):
            return candidate.split(" ", 1)[0] if " " not in short else candidate
    return short


def libraries_in(maps: bytes) -> list[str]:
    """Return the libraries that a memory map (/proc/PID/maps) names, each once."""
    return [path.decode("utf-8", "replace") for path in dict.fromkeys(_LIBRARY.findall(maps))]


def inside_container(proc: Path, root: Path) -> bool:
    """Say whether this process has a pid namespace of its own, where host pids mean nothing.

    The namespace itself is the proof: a container that shares the host's pids is as good as the
    host. Only where it cannot be read do signs decide.
    """
    try:
        return str((proc / "self/ns/pid").readlink()) != INITIAL_PID_NAMESPACE
    except OSError:
        pass
    for line in read_bytes(proc / "self/status").splitlines():
        if line.startswith(b"NSpid:") and len(line.split()) > 2:
            return True
    first = read_bytes(proc / "1/comm").strip()
    if not first or first in _INITS:
        return False
    marked = (root / ".dockerenv").exists() or (root / "run/.containerenv").exists()
    return marked or b"0::/" in read_bytes(proc / "self/cgroup").splitlines()


def mounts(file: Path) -> Iterator[tuple[str, str, str]]:
    """Yield mount point, type and options of each file system in a file as /proc/self/mountinfo."""
    for line in read_bytes(file).decode(errors="replace").splitlines():
        left, _, right = line.partition(" - ")
        before, after = left.split(), right.split()
        if len(before) > 4 and after:
            yield before[4].replace("\\040", " "), after[0], after[-1]


def exists(pid: int) -> bool:
    """Say whether a process exists although its files do not show it (hidepid)."""
    if pid <= 0:  # a group of processes, or all of them
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return False  # ours: then its files would have been readable, so it has just ended


# Who has a GPU's device files open: what ``fuser`` answers, without the screen.
# A process without memory on a GPU may still keep it from being reset or taken away, and memory
# that the driver lists for nobody may belong to one of these. Read from the links under
# /proc/PID/fd, which others than root may follow for their own processes only: who could not be
# read is counted.

NODES: Final = re.compile(r"/dev/(?:nvidia[\w./-]*|kfd|dri/render[D]\d+)")
"""Device files of GPUs: NVIDIA's, AMD's for computing, and those for rendering without a screen."""
MOST_PIDS: Final = 65_536
MOST_FILES: Final = 16_384
"""Descriptors of one process that are looked at."""
DEADLINE_S: Final = 3.0


class Holder(Value, frozen=True, kw_only=True):
    """One process that has device files open."""

    pid: int
    name: str
    nodes: tuple[str, ...]
    """Which, each once, sorted."""

    @property
    def computes(self) -> bool:
        """Whether it has opened what computing needs; a monitor opens the cards alone."""
        return any(node.startswith(("/dev/nvidia-uvm", "/dev/kfd")) for node in self.nodes)


class Holders(Value, frozen=True, kw_only=True):
    """The answer of one scan."""

    found: tuple[Holder, ...] = ()
    looked: int = 0
    """Processes whose open files were read."""
    unreadable: int = 0
    """Processes of others, whose open files only root may see."""
    whole: bool = True
    """False: it took too long, or there are too many processes."""
    possible: bool = True
    """False: this system has no /proc."""


def scan(proc: str | Path = "/proc", *, clock: Callable[[], float] = time.monotonic) -> Holders:
    """Return who has device files of GPUs open. Takes 10 ms and more: on demand only."""
    root = Path(proc)
    try:
        pids = sorted(int(name) for name in os.listdir(root) if name.isdecimal())  # noqa: PTH208
    except OSError:
        return Holders(possible=False, whole=False)
    if not pids:
        return Holders(possible=False, whole=False)
    until_s = clock() + DEADLINE_S
    holders, looked, unreadable = [], 0, 0
    whole = len(pids) <= MOST_PIDS
    for pid in pids[:MOST_PIDS]:
        if clock() > until_s:
            whole = False
            break
        nodes = _nodes(root / str(pid) / "fd")
        if nodes is None:
            # Threads of the kernel have no command line and no files either.
            unreadable += bool(read_bytes(root / str(pid) / "cmdline"))
            continue
        looked += 1
        if nodes:
            name = clean(read_bytes(root / str(pid) / "comm").strip()) or "?"
            holders.append(Holder(pid=pid, name=name, nodes=tuple(sorted(nodes))))
    return Holders(found=tuple(holders), looked=looked, unreadable=unreadable, whole=whole)


def _nodes(folder: Path) -> set[str] | None:
    """Return the device files that a process has open; None where that may not be read."""
    nodes: set[str] = set()
    try:
        with os.scandir(folder) as links:
            for link, _ in zip(links, range(MOST_FILES), strict=False):
                try:
                    target = os.readlink(link.path)  # noqa: PTH115
                except FileNotFoundError:
                    continue  # closed meanwhile
                if target.startswith("/dev/") and NODES.fullmatch(target):
                    nodes.add(clean(target))
    except FileNotFoundError:
        return nodes  # it has ended meanwhile
    except OSError:
        return None
    return nodes


# One process at one instant: does it exist, in which state, how much of a CPU has it used.

PROC: Final = Path("/proc")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class ProcessStat(NamedTuple):
    """Fields of /proc/PID/stat."""

    name: str
    """At most 15 bytes of it."""
    state: str
    """Letter of the kernel: R, S, D, Z, ..."""
    parent_pid: int
    started_s: float
    """Seconds after the boot: with the pid, the identity of the process."""
    cpu_s: float
    """Time that it has had a CPU so far, all threads, in user and kernel mode."""


def probe(pid: int, proc: str | Path = "/proc") -> ProcessStat | None:
    """Return what the kernel says of a process now; None where it says nothing (or has no /proc).

    One read, some 10 µs.
    """
    raw = read_bytes(f"{proc}/{pid}/stat", STAT_BYTES)
    stat = parse_stat(raw)
    if stat is None:
        return None
    fields = raw[raw.rfind(b")") + 1 :].split(maxsplit=14)
    try:
        ticks = int(fields[11]) + int(fields[12])
    except ValueError:
        return None
    name = clean(stat.name)
    started_s = stat.starttime / _TICKS_PER_S
    return ProcessStat(name, stat.state, stat.parent_pid, started_s, ticks / _TICKS_PER_S)


def absent(pid: int, proc: Path = PROC) -> bool:
    """Return whether there is certainly no such process, zombies included.

    Asked of the kernel by the null signal, which reaches nobody: files under /proc may be hidden.
    """
    if proc != PROC:
        return not (proc / str(pid)).exists()
    if pid <= 0:  # a group of processes, or all of them
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        return False  # somebody else's: it exists
    return False
