"""A small daemon that dies where it is told to: ``python -m tests.promises.dying FOLDER``.

It decides on one alert and delivers it with the real history, outbox and dispatcher; the channel
appends the message's id to a file. First it lists the places that a life passes between decision
and delivery (each line of the program that runs then, on any thread); then it dies by SIGKILL at
each of them, in a process of its own, is started again, and counts what has arrived.

The lives are forks of one process that has imported everything: a start takes milliseconds.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwatchd.core.config import PolicySection, Seconds, StoreSection
from gpuwatchd.core.errors import NotifyError
from gpuwatchd.core.model import Availability, Message
from gpuwatchd.notify.outbox.dispatcher import MessageDispatcher
from gpuwatchd.notify.outbox.outbox import Outbox
from gpuwatchd.store.writer import History
from tests.making import alert, delivery, message

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.core.ports import Notifier

ROOT = Path(__file__).resolve().parents[2]
WATCHED = tuple(
    f"{ROOT}/{part}"
    for part in (
        "gpuwatchd/store",
        "gpuwatchd/notify",
        "tests/promises/dying",
    )
)
CASES = ("plain", "retry", "fallback")
KEY = "leak:1"
TICK_S = 20.0
"""A tick of the daemon's own clock; the true one takes milliseconds."""


class Sink:
    """Appends the id of each message to a file."""

    name = "sink"

    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def probe(self) -> Availability:
        return Availability(ok=True, reason="a file")

    def send(self, message: Message) -> str:
        os.write(self._file, f"{message.id}\n".encode())
        return "written"


class Fails:
    """Fails at first: for good, or a few times."""

    name = "fails"

    def __init__(self, then: Notifier | None) -> None:
        self._then = then
        self._left = 2

    def probe(self) -> Availability:
        return Availability(ok=False, reason="it fails")

    def send(self, message: Message) -> str:
        self._left -= 1
        if self._then is not None and self._left < 0:
            return self._then.send(message)
        raise NotifyError("it fails", permanent=self._then is None)


def live(folder: Path, case: str, decided: Callable[[], object] = int) -> None:
    """Live one life: open, take up what is left, decide what is undecided, deliver, end."""
    began_s = time.time()
    ticks = 0

    def clock() -> float:
        return began_s + TICK_S * ticks

    history = History.open(
        folder, StoreSection(min_free_mib=0), clock=clock, monotonic=clock, boot_id="boot"
    )
    assert history.writing, history.problems
    sink = Sink(folder / "arrived")
    cases: dict[str, Notifier] = {"plain": sink, "retry": Fails(sink), "fallback": Fails(None)}
    own = cases[case]
    message_dispatcher = MessageDispatcher({"own": own, "other": sink}, clock=clock)
    policy = PolicySection(channels=("own",), fallback=("other",), fallback_after=Seconds(1e6))
    post = Outbox(message_dispatcher, history, policy=policy, wall=clock, mono=clock)
    post.resume(clock())
    decided()
    if not history.open_alerts():
        told = alert(key=KEY, opened_at_s=began_s, notices=1)
        said = message(id=KEY, severity="critical", alert_key=KEY)
        times = {"created_at_s": began_s, "next_try_at_s": began_s}
        made = delivery(alert_key=KEY, channel="own", message=said, **times)
        post.send([made], [told])
    until_s = time.monotonic() + 60.0
    while history.pending_deliveries():
        assert time.monotonic() < until_s, history.pending_deliveries()
        ticks += 1
        post.collect(clock())
        time.sleep(0.001)
    post.close(timeout_s=1.0)
    history.close()


class Points:
    """Notes each place that is passed for the first time; dies at the chosen one."""

    def __init__(self, deadly: str | None) -> None:
        self.passed: dict[str, None] = {}
        self._deadly = deadly

    def start(self) -> None:
        threading.settrace(self._trace)
        sys.settrace(self._trace)

    def stop(self) -> None:
        sys.settrace(None)
        threading.settrace(None)

    def _trace(self, frame: Any, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(WATCHED):
            return None
        if event == "line":
            point = f"{os.path.relpath(frame.f_code.co_filename, ROOT)}:{frame.f_lineno}"
            if point not in self.passed:
                self.passed[point] = None
                if point == self._deadly:
                    os.kill(os.getpid(), signal.SIGKILL)
        return self._trace


def _life(folder: Path, case: str, points: Points | None, report: Path | None = None) -> int:
    """Fork; return the child's pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        live(folder, case, points.start if points is not None else int)
        if points is not None and report is not None:
            points.stop()
            report.write_text("\n".join(points.passed))
        code = 0
    except Exception as error:  # noqa: BLE001 - told, and a fork must end here
        sys.stderr.write(f"{case}: {error!r}\n")
    finally:
        os._exit(code)


def _ended(pid: int) -> str:
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return "killed" if os.WTERMSIG(status) == signal.SIGKILL else "crashed"
    return "ended" if os.WEXITSTATUS(status) == 0 else "failed"


def main(base: Path, more: int, seed: int) -> None:
    """Die at every place of every case once, and ``more`` times at random, half of them twice."""
    logging.disable()
    template = base / "template"
    History.open(template, StoreSection(min_free_mib=0), boot_id="boot").close()
    report = base / "points"
    dice = random.Random(seed)
    known: set[str] = set()
    for case in CASES:
        began_s = time.monotonic()
        pid = _life(_fresh(base, template), case, Points(None), report)
        assert _ended(pid) == "ended", case
        took_s = time.monotonic() - began_s
        # A line that the case before has passed as well is not another place.
        points = [point for point in report.read_text().split("\n") if point not in known]
        known |= set(points)
        plan: list[list[str | float]] = [[point] for point in points]
        plan += [
            [dice.uniform(0.0, took_s) for _ in range(1 + number % 2)]
            for number in range(more // len(CASES))
        ]
        for deaths in plan:
            folder = _fresh(base, template)
            ends = [_death(folder, case, death) for death in deaths]
            ends.append(_ended(_life(folder, case, None)))
            arrived = (folder / "arrived").read_text().split("\n")[:-1]
            said = {"case": case, "deaths": deaths, "ends": ends, "arrived": arrived.count(KEY)}
            print(json.dumps(said), flush=True)


def _fresh(base: Path, template: Path) -> Path:
    folder = base / "life"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)
    return folder


def _death(folder: Path, case: str, death: str | float) -> str:
    if isinstance(death, str):
        return _ended(_life(folder, case, Points(death)))
    pid = _life(folder, case, Points(None))
    time.sleep(death)
    os.kill(pid, signal.SIGKILL)
    return _ended(pid)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
