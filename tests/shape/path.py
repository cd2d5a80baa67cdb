"""The path of a tick: which of our modules it enters, and how often it goes from one to another.

One whole incident on the stand-in NVML with clocks of our own: a card at rest, a leak, its end, and
the messages in their channel's hands. Every thread is profiled, the chores are done every minute,
and only our own files count; importing a module is not entering it. A change is a call into another
module than the call before it in the same thread. A judging tick enters the verdict; a sending
tick hands a message over without judging anything; a quiet tick does neither.

The figures of Python 3.11, 3.12 and 3.13 differ by one change at most. What waits for real time, as
the driver's events do, falls into one tick or another on a busy machine: hence ``TOLERANCE``.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fakenvml import FakeNvml
from tests.host.world import TORCH_MAPS, FakeProc
from tests.pipelines import make_pipeline
from tests.shape.figures import Figure
from tests.shape.tree import PACKAGE, ROOT

if TYPE_CHECKING:
    from types import FrameType

    from gpuwatchd.core.model import Availability, Message
    from gpuwatchd.notify.outbox.dispatcher import MessageDispatcher
    from gpuwatchd.pipeline.live_pipeline import LivePipeline
    from gpuwatchd.store.writer import History

Kinds = dict[str, list[tuple[list[str], int]]]
"""Kind of tick -> (modules entered, changes of module) of each."""

TOLERANCE = 0.03
"""Share by which a measured figure may lie above its limit: threads take turns as they like."""
TARGETS = {"in all": (90, None), "judging": (60, 200), "sending": (45, 150), "quiet": (30, 110)}
"""Kind of tick -> the most modules and changes, when the house is done."""
JUDGES = (f"{PACKAGE}.verdict.", f"{PACKAGE}.analysis.verdict.")
"""A tick that enters one of these judges."""
_NO_CALLS = frozenset({"<module>", "<listcomp>", "<dictcomp>", "<setcomp>"})
"""Importing, and what is a frame of its own in Python 3.11 only."""
GIB, MIB = 1 << 30, 1 << 20
PID, GROWTH_BYTES = 4711, 200 * MIB
INTERVAL_S, CHORES_EVERY, REST, MOST_TICKS = 5.0, 12, 60, 400
"""Seconds between ticks; ticks between chores, before the leak, and at most."""
BEGIN_S = 1_800_000_000.0


class Steps:
    """What the threads of this process do in our own files, until it is taken."""

    def __init__(self) -> None:
        self._prefix = str(ROOT / PACKAGE) + "/"
        self._names: dict[str, str] = {}
        self._last: dict[int, str] = {}
        self._modules: set[str] = set()
        self._changes = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call; this is the function that profiles every thread."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(self._prefix):
            return
        if code.co_name in _NO_CALLS:
            return
        here = self._names.get(code.co_filename) or self._named(code.co_filename)
        thread = threading.get_ident()
        self._modules.add(here)
        self._changes += self._last.get(thread, here) != here
        self._last[thread] = here

    def _named(self, file: str) -> str:
        inner = file.removeprefix(self._prefix).removesuffix(".py").replace("/", ".")
        name = self._names[file] = f"{PACKAGE}.{inner}".removesuffix(".__init__")
        return name

    def taken(self) -> tuple[list[str], int]:
        """Return the modules entered and the changes since the last time, and begin again."""
        found = sorted(self._modules), self._changes
        self._modules, self._changes = set(), 0
        return found


class Channel:
    """A channel that keeps what it is handed."""

    name = "command"

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def probe(self) -> Availability:
        from gpuwatchd.core.model import Availability

        return Availability(ok=True, reason="keeps what it is handed")

    def send(self, message: Message) -> str:
        self.messages.append(message)
        return "kept"


class Clock:
    """Both clocks of the incident, moved by hand."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def wall(self) -> float:
        return BEGIN_S + self.passed_s

    def mono(self) -> float:
        return 10_000.0 + self.passed_s


def _daemon(
    folder: Path, proc: Path, clock: Clock, courier: MessageDispatcher
) -> tuple[LivePipeline, History]:
    """Put the parts together as the daemon does."""
    from gpuwatchd.collect.host import Host
    from gpuwatchd.collect.nvml.source import NvmlSource
    from gpuwatchd.core.config import Config, DaemonSection, PolicySection
    from gpuwatchd.core.config.schema import Seconds
    from gpuwatchd.store.writer import History

    settings = Config(
        daemon=DaemonSection(source_deadline=Seconds(30)),
        policy=PolicySection(channels=(Channel.name,)),
    )
    host = Host(proc, contained=False, monotonic=clock.mono)
    history = History.open(
        folder / "state",
        settings.store,
        clock=clock.wall,
        monotonic=clock.mono,
        boot_id=host.boot_id,
    )
    source = NvmlSource(
        deadline_s=30.0,
        proc_root=str(proc),
        sys_root=str(folder / "sys"),
        clock=clock.wall,
        monotonic=clock.mono,
    )
    (folder / "run").mkdir()
    pipeline = make_pipeline(
        config=settings,
        sources=[source],
        host=host,
        history=history,
        runtime_dir=folder / "run",
        message_dispatcher=courier,
        wall=clock.wall,
        mono=clock.mono,
    )
    return pipeline, history


def _play(folder: Path) -> Kinds:
    """Play the incident; return kind of tick -> (modules, changes) of each."""
    from gpuwatchd.notify.outbox.dispatcher import MessageDispatcher
    from gpuwatchd.service import own_process

    fake, proc = FakeNvml(folder), FakeProc(folder / "proc")
    proc.process(PID, maps=TORCH_MAPS)
    steps, channel, clock = Steps(), Channel(), Clock()
    threading.setprofile(steps)
    sys.setprofile(steps)
    courier = MessageDispatcher({Channel.name: channel}, clock=clock.wall, monotonic=clock.mono)
    pipeline, history = _daemon(folder, proc.folder, clock, courier)
    pipeline.resume()
    steps.taken()  # an incident begins with the first sample
    kinds: Kinds = {}
    judged = ended = False
    for tick in range(MOST_TICKS):
        clock.passed_s = tick * INTERVAL_S
        # The process ends between two judging ticks, so that its end is sent without judging.
        if channel.messages and judged and not ended:
            ended = True
            shutil.rmtree(proc.folder / str(PID))
        used_bytes = 4 * GIB + GROWTH_BYTES * max(0, tick - REST)
        fake.write(
            "gpu 0 total=24G base=300M",
            "" if ended else f"proc 0 pid={PID} mem={used_bytes} type=C",
        )
        before = len(channel.messages)
        handed = any(one.kind == "notify" for one in pipeline.tick().decisions)
        until_s = time.monotonic() + 30.0
        while handed and not courier._done and time.monotonic() < until_s:
            time.sleep(0.001)  # the channel's thread is part of this tick
        done = steps.taken()
        judged = any(name.startswith(JUDGES) for name in done[0])
        sent = len(channel.messages) > before
        kind = "judging" if judged else "sending" if sent else "quiet"
        kinds.setdefault(kind, []).append(done)
        if kind == "sending":
            break
        if tick % CHORES_EVERY == 0:
            history.chores(clock.wall())
            own_process.trim()
            kinds.setdefault("chores", []).append(steps.taken())
    sys.setprofile(None)
    threading.setprofile(None)
    pipeline.close()
    return kinds


def incident() -> Kinds:
    """Play the incident in a process of its own; return kind of tick -> what each one did."""
    with tempfile.TemporaryDirectory() as folder:
        script = "import sys\nfrom tests.shape import path\npath.main(sys.argv[1])"
        found: Kinds = FakeNvml(Path(folder)).run(script, folder, timeout_s=300)
    return found


def main(folder: str) -> None:
    """Print the incident as one line of JSON."""
    print(json.dumps(_play(Path(folder))))


def figures_of(kinds: Kinds) -> list[Figure]:
    """Return the rows of the table: modules in all, and the median of each kind of tick."""
    every = {name for ticks in kinds.values() for modules, _ in ticks for name in modules}
    rows = [Figure("path, modules in all", len(every), TARGETS["in all"][0], tuple(sorted(every)))]
    for kind in ("judging", "sending", "quiet"):
        ticks = kinds[kind]
        modules = statistics.median_low(len(names) for names, _ in ticks)
        changes = statistics.median_low(changes for _, changes in ticks)
        rows.append(Figure(f"path, modules of a {kind} tick", modules, TARGETS[kind][0]))
        rows.append(Figure(f"path, changes of module in a {kind} tick", changes, TARGETS[kind][1]))
    return rows
