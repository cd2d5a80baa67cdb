"""A kernel of the tests: files of processes that can be replaced, and pids that are given anew."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

from gpuwatchd.act import reap
from gpuwatchd.act.target import Target
from gpuwatchd.core.errors import ActionError
from gpuwatchd.core.model import ProcessInfo, ProcessKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PID = 4711
TICKS = os.sysconf("SC_CLK_TCK")


class View:
    """What looks like /proc: some files are as a test has them, the others real."""

    def __init__(self, files: Mapping[str, bytes | Callable[[], bytes]], at: str = "") -> None:
        self._files = files
        self._at = at

    def __truediv__(self, name: str) -> View:
        return View(self._files, f"{self._at}/{name}".lstrip("/"))

    def read_bytes(self) -> bytes:
        content = self._files.get(self._at)
        if content is None:
            return (Path("/proc") / self._at).read_bytes()
        return content if isinstance(content, bytes) else content()


class _Kernel:
    """One pid, which is given to another process after so many calls."""

    def __init__(self, chance: random.Random) -> None:
        self._left = chance.randrange(24)
        self._chance = chance
        self.now = 0
        """Number of the process that has the pid."""
        self.held: dict[int, int] = {}
        self.hit: list[int] = []
        """Numbers of the processes that a signal reached."""
        self._starts = [1_000_000]
        # Many are alike in all but their start; some are another user's.
        self._uids = [os.getuid()]

    def call(self) -> None:
        """Let the pid be given anew when its time has come."""
        self._left -= 1
        if self._left < 0:
            self._left = self._chance.randrange(24)
            self.now += 1
            self._starts.append(self._starts[-1] + TICKS * self._chance.randrange(1, 10**6))
            self._uids.append(self._chance.choice([os.getuid(), 64321]))

    def open(self, pid: int) -> int:
        self.call()
        assert pid == PID
        descriptor = os.open("/dev/null", os.O_RDONLY)
        self.held[descriptor] = self.now
        return descriptor

    def send(self, descriptor: int, number: int) -> None:
        self.call()
        assert number in {signal.SIGTERM, signal.SIGINT, signal.SIGKILL}
        if self.held[descriptor] != self.now:
            raise ProcessLookupError
        self.hit.append(self.now)

    def files(self) -> dict[str, Callable[[], bytes]]:
        def stat() -> bytes:
            self.call()
            rest = [b"S", b"1", b"9", b"9", *[b"0"] * 15, b"%d" % self._starts[self.now]]
            return b"4711 (python) " + b" ".join(rest)

        def status() -> bytes:
            self.call()
            uid = self._uids[self.now]
            return b"TracerPid:\t0\nUid:\t%d\t%d\t%d\t%d\nNSpid:\t4711\nSigCgt:\t%x\n" % (
                *[uid] * 4, self._chance.choice([0, 2, 0x4002]),
            )  # fmt: skip

        def other() -> bytes:
            self.call()
            return b""

        here = {"stat": stat, "status": status, "cgroup": other, "environ": other}
        return {f"{PID}/{name}": read for name, read in here.items()} | {"self/cgroup": other}

    def wait(self, _: float) -> bool:
        self.call()
        return False


class Races(NamedTuple):
    """What came of many races."""

    wrong: int
    """Signals that reached another process than the one that was listed."""
    right: int
    refused: int


def races(count: int, seed: int = 1) -> Races:
    """Let a pid be given anew at any moment between the look and the last signal, many times."""
    chance = random.Random(seed)
    wrong = right = refused = 0
    key = ProcessKey(pid=PID, started_at_s=1_000_000 / TICKS)
    for _ in range(count):
        kernel = _Kernel(chance)

        def look(kernel: _Kernel = kernel) -> reap.Subject:
            kernel.call()
            return reap.Subject(ProcessInfo(key=key, name="python"), frozenset({"idle"}))

        proc = View(kernel.files())
        with (
            mock.patch("gpuwatchd.act.target._open", kernel.open),
            mock.patch("gpuwatchd.act.target._parents", return_value=set()),
            mock.patch.object(signal, "pidfd_send_signal", kernel.send),
            mock.patch.object(Target, "wait", kernel.wait),
        ):
            try:
                with reap.hold(key, look, booted_at_s=0.0, proc=proc) as (target, signals):  # type: ignore[arg-type]
                    reap.end(target, signals, 1.0, lambda: True, [])
            except ActionError:
                refused += 1
        wrong += sum(number != 0 for number in kernel.hit)
        right += sum(number == 0 for number in kernel.hit)
    return Races(wrong, right, refused)
