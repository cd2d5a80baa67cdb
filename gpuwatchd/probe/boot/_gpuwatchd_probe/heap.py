"""Read the heap of the job in a forked child, where nothing that is done can harm the job.

``gc.get_objects`` and ``gc.get_referrers`` hand out tuples that another thread is still filling.
CPython resizes such a tuple only while nobody else holds it, so a look from a thread of the job
raises SystemError in the user's ``tuple(generator)``. A child has one thread: ours.

The fork is the one of the C library, called with the GIL held. ``os.fork`` would delete the thread
states of the other threads in the child, and with them the frames that are to be read; it also
warns on Python 3.12 and later.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import struct
import sys
import time
from typing import Any, Callable, Dict, Optional, Tuple

try:
    import resource
except ImportError:  # not on this system: the refusal below comes first
    resource = None  # type: ignore[assignment]

GIB = 1 << 30
START_LIMIT_S = 5.0
"""A child that could run at all has said so by then, even on a crowded machine."""
ATTEMPTS = 3
LARGEST_ANSWER = 64 << 20
KILL_LIMIT_S = 5.0
SWITCH_INTERVAL_S = 0.1
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
EVERY_SIGNAL = signal.valid_signals()
STARTED = b"+"
LENGTH = struct.Struct("<Q")


class HeapError(Exception):
    """Why the heap was not read.

    ``code`` is one of timeout, memory, free-threaded, no-fork, died, stopped, compiling.
    """

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class _NeverStarted(Exception):
    """The child waits for a thread that it does not have."""


def in_child(
    work: Callable[[], Dict[str, Any]],
    limit_s: float = 20.0,
    is_stopping: Callable[[], bool] = bool,
) -> Dict[str, Any]:
    """Return what ``work`` returns in a copy of this process, which is killed after ``limit_s``.

    And where ``is_stopping`` turns true: the job is about to fork, and waits for this thread.
    That is a dict that JSON can hold; ``pause_ms``, how long the fork stopped the job, is added.
    ``work`` may read everything, and may not take locks, import, print or touch a device.
    HeapError where the heap may not be read here, or the child gave no answer.
    """
    _check_allowed()
    for _ in range(ATTEMPTS):
        reader, writer = os.pipe()
        pid = 0
        try:
            try:
                pid, pause_s = _fork(work, writer, limit_s)
            finally:
                os.close(writer)
            answer = json.loads(_receive(pid, reader, limit_s, is_stopping).decode())
        except _NeverStarted:
            continue
        finally:
            os.close(reader)
            if pid > 0:
                _reap(pid)
        if not isinstance(answer, dict) or "died" in answer:
            raise HeapError(answer["died"] if isinstance(answer, dict) else "died")
        answer["pause_ms"] = round(pause_s * 1000, 3)
        return answer
    raise HeapError("timeout")


def expected_pause_s() -> float:
    """Return how long a fork will stop this process, from the size of its page tables.

    Measured 33 to 81 ms at 2 GiB of small pages, 180 at 6 GiB, and 7 and 11 ms of huge ones at 2
    and 8 GiB.
    """
    sizes = _sizes("/proc/self/smaps_rollup")
    huge = sizes.get("AnonHugePages", 0)
    small = max(0, sizes.get("Anonymous", 0) - huge)
    return 0.030 + 0.025 * small / GIB + 0.001 * huge / GIB


def _check_allowed() -> None:
    if sys.platform != "linux" or _libc is None:
        raise HeapError("no-fork")
    if "free-threading" in sys.version:
        raise HeapError("free-threaded")
    available = min(_sizes("/proc/meminfo").get("MemAvailable", 1 << 62), _free_in_cgroup())
    # In the worst case the job writes to every page while the child lives, and each is copied.
    if available < 2 * _sizes("/proc/self/status").get("RssAnon", 0):
        raise HeapError("memory")


def _sizes(path: str) -> Dict[str, int]:
    """Return the sizes of a file of ``Name: 12 kB`` lines, in bytes."""
    sizes = {}
    try:
        with open(path, encoding="ascii", errors="replace") as lines:
            for line in lines:
                name, _, rest = line.partition(":")
                words = rest.split()
                if len(words) == 2 and words[1] == "kB":
                    sizes[name] = int(words[0]) * 1024
    except (OSError, ValueError):
        return {}
    return sizes


def _free_in_cgroup() -> int:
    """Return what a container's limit leaves, caches of files counted as free."""
    try:
        with open("/proc/self/cgroup", encoding="ascii") as lines:
            place = next(line.strip()[3:] for line in lines if line.startswith("0::"))
        folder = "/sys/fs/cgroup" + place.rstrip("/") + "/"
        numbers = []
        for name in ("memory.max", "memory.current"):
            with open(folder + name, encoding="ascii") as file:
                numbers.append(int(file.read()))
        with open(folder + "memory.stat", encoding="ascii") as lines:
            rows = (line.split() for line in lines)
            cached = sum(int(row[1]) for row in rows if row[0] == "inactive_file")
        return numbers[0] - numbers[1] + cached
    except (OSError, ValueError, StopIteration):  # no limit ("max"), no cgroup, or the older kind
        return 1 << 62


def _load_libc() -> Optional[ctypes.PyDLL]:
    """Return the C library, called with the GIL held: a child that lets go of it may hang."""
    try:
        libc = ctypes.PyDLL(None)
        libc.fork.restype = ctypes.c_int
        libc.write.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]
        libc.write.restype = ctypes.c_ssize_t
    except (AttributeError, OSError, TypeError):
        return None
    return libc


def _load_yield() -> Callable[[], Any]:
    """Return what lets another thread run: not ``time.sleep``, which a job may have replaced."""
    try:
        found: Callable[[], Any] = ctypes.CDLL(None).sched_yield
    except (AttributeError, OSError, TypeError):
        return lambda: None
    return found


_libc = _load_libc()
_yield_gil = _load_yield()


def _fork(work: Callable[[], Dict[str, Any]], writer: int, limit_s: float) -> Tuple[int, float]:
    """Fork, and return the child's pid and how long it took; in the child, never return."""
    assert _libc is not None  # noqa: S101  # checked by _check_allowed
    fork, clock = _libc.fork, time.perf_counter
    pid = -1
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, EVERY_SIGNAL)
    interval = sys.getswitchinterval()
    # A thread that waits for the GIL asks for it after this interval, and the child would inherit
    # the request: it would let go and wait for ever for a thread that it does not have. So the
    # interval is made longer than the fork, and letting go once clears what was asked before.
    sys.setswitchinterval(max(SWITCH_INTERVAL_S, 2 * expected_pause_s(), interval))
    try:
        _yield_gil()
        began = clock()
        pid = fork()
        if pid == 0:
            _run_child(work, writer, limit_s)
        pause_s = clock() - began
    finally:
        if pid == 0:  # pragma: no cover  # only if the lines above were interrupted
            os._exit(1)
        sys.setswitchinterval(interval)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if pid < 0:
        raise HeapError("no-fork")
    return pid, pause_s


def _run_child(  # pragma: no cover  # no tracer sees the child
    work: Callable[[], Dict[str, Any]], writer: int, limit_s: float
) -> None:
    """Do the work and end, whatever happens."""
    try:
        # Collecting would run finalizers of the user, and tracing his debugger.
        gc.disable()
        sys.settrace(None)
        sys.setprofile(None)
        sys.setrecursionlimit(max(1000, sys.getrecursionlimit()))
        _stop_monitoring()
        _isolate(writer, limit_s)
        for _ in range(1000):  # bytecode boundaries: here an inherited request would stop us
            pass
        _write(writer, STARTED)
        try:
            text = json.dumps(work())
        except BaseException as error:  # the job must not see it
            text = json.dumps({"died": error.code if type(error) is HeapError else "died"})
        data = text.encode("ascii", "replace")
        _write(writer, LENGTH.pack(len(data)) + data)
    finally:
        os._exit(0)


def _stop_monitoring() -> None:
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None:
        for tool in range(6):
            if monitoring.get_tool(tool) is not None:
                monitoring.set_events(tool, 0)


def _isolate(writer: int, limit_s: float) -> None:
    """Die with the job, be the first to be killed for memory, hold none of its files."""
    assert _libc is not None  # noqa: S101
    _libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    _libc.prctl(PR_SET_NAME, b"gpuwatchd-probe", 0, 0, 0)
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        seconds = int(limit_s) + 2
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        if hard == resource.RLIM_INFINITY or hard > seconds:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    score = _libc.open(b"/proc/self/oom_score_adj", os.O_WRONLY)
    if score >= 0:
        _libc.write(score, b"1000", 4)
        _libc.close(score)
    # An open end of one of the job's pipes or sockets in here would delay its other end.
    close_range = getattr(_libc, "close_range", None)
    if close_range is not None:
        if writer > 0:
            close_range(0, writer - 1, 0)
        close_range(writer + 1, 0xFFFFFFFF, 0)


def _write(writer: int, data: bytes) -> None:
    assert _libc is not None  # noqa: S101
    while data:
        count = _libc.write(writer, data, len(data))
        if count <= 0:
            os._exit(1)
        data = data[count:]


def _receive(pid: int, reader: int, limit_s: float, is_stopping: Callable[[], bool]) -> bytes:
    """Return the child's answer.

    The end of the file is not waited for: a child that the job forks just then holds the pipe too.
    """
    end = time.monotonic() + limit_s
    start_end = time.monotonic() + min(limit_s, START_LIMIT_S)
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    data = bytearray()
    head = len(STARTED) + LENGTH.size
    while True:
        if poll.poll(50):
            chunk = os.read(reader, 1 << 16)
            data += chunk
            size = (
                LENGTH.unpack_from(data, len(STARTED))[0] if len(data) >= head else LARGEST_ANSWER
            )
            if len(data) - head >= size:
                return bytes(data[head:])
            if not chunk or size > LARGEST_ANSWER:
                raise HeapError("died")
            continue
        if is_stopping():
            raise HeapError("stopped")
        now = time.monotonic()
        if not data and now > start_end:
            raise _NeverStarted
        if now > end:
            raise HeapError("timeout")
        if _has_ended(pid) and not poll.poll(0):
            raise HeapError("died")


def _has_ended(pid: int) -> bool:
    """Tell whether the child is gone, without taking its status."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except OSError:  # the job ignores SIGCHLD, or waits for any child and took ours
        return True


def _reap(pid: int) -> None:
    """Kill the child if it lives and take its status; a pid that is not ours is left alone."""
    end = time.monotonic() + KILL_LIMIT_S
    try:
        if not _has_ended(pid):
            os.kill(pid, signal.SIGKILL)
        while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < end:
            time.sleep(0.002)
    except OSError:
        return
