"""The thread of the probe: it writes the mailbox and does what its owner asks for.

No thread is there while the job forks: Python 3.12 and later warn of a fork beside threads, which
is fatal under ``-W error``. It starts when CUDA starts, where there is no device after a
framework's import, and is stopped before each fork and started again after it in the parent.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
import time
from typing import Any

from . import attributes, counters, mailbox, requests

TICK_S = 1.0
"""How often a request is looked for: one open of a file that is not there."""
WRITE_S = (2.0, 10.0)
"""A mailbox is written this often while its figures move, and while they do not."""
IMPORT_S = 10.0
"""Without a device, the first look comes this long after a framework's import."""
STACK_BYTES = 1 << 20
"""Of our thread, where the job has its own made smaller."""
STILL_RUNS_S = 10.0
_GRACE_S = 0.7
"""So long a fork waits for a census that is under way; one that takes longer is taken again."""
_JOIN_S = 1.0

_agent: Agent | None = None
_hooked = False


def framework_imported(name: str) -> None:
    """Start the agent when the framework uses a device, or now where no device is there."""
    if name == "torch" and counters.has_device_nodes():
        queue = getattr(sys.modules["torch.cuda"], "_lazy_call", None)
        if queue is not None:
            queue(lambda: start(name))
            return
    start(name)


def start(framework: str, first_s: float = IMPORT_S) -> None:
    """Start the agent of this process; a second framework is read by the one that runs."""
    global _agent, _hooked  # noqa: PLW0603 - one agent per process
    try:
        if _agent is None:
            folder = mailbox.directory()
            if folder is None:
                return
            _agent = Agent(folder, first_s)
            if not _hooked:
                _hooked = True
                os.register_at_fork(
                    before=lambda: _have("end"),
                    after_in_parent=lambda: _have("start"),
                    after_in_child=_in_child,
                )
                atexit.register(_have, "close")
                _chain_excepthook()
        if framework not in _agent.frameworks:
            _agent.frameworks.append(framework)
        _agent.start()
    except Exception:  # nothing of ours may reach the job
        pass


def _have(what: str) -> None:
    """Have the agent start, end or close; what it raises Python would print."""
    try:
        if _agent is not None:
            getattr(_agent, what)()
    except Exception:  # nothing of ours may reach the job
        pass


def _in_child() -> None:
    """Forget the parent's agent; the queued start of CUDA, where there is one, begins a new one."""
    global _agent  # noqa: PLW0603
    _agent = None


def _at_prompt() -> bool:
    """Say whether an exception ends nothing: a person is at a prompt, or comes to one."""
    program = sys.modules.get("__main__")
    return bool(sys.flags.inspect) or (hasattr(sys, "ps1") and not hasattr(program, "__file__"))


def _chain_excepthook() -> None:
    before = sys.excepthook

    def hook(kind: Any, value: Any, trace: Any) -> None:
        """Write down what ends the job, then do as before."""
        if _agent is not None and not _at_prompt():
            _agent.failed(kind)
        before(kind, value, trace)

    sys.excepthook = hook


class Agent:
    """The agent of one process."""

    def __init__(self, folder: str, first_s: float) -> None:
        self.frameworks: list[str] = []
        self._mailbox = mailbox.Mailbox(folder)
        self._thread: threading.Thread | None = None
        self._stop, self._abort = threading.Event(), threading.Event()
        self._first_s = 0.0 if counters.has_device_nodes() else first_s
        self._inspections = requests.Inspections(time.monotonic())
        self._due_s = self._every_s = 0.0
        self._content: dict[str, Any] = {}
        self._failure: str | None = None
        self._failed_s = 0.0
        self._recorder: Any = None
        self._closed = False

    def start(self) -> None:
        """Start the thread, where none runs that is not about to end."""
        if self._thread is None and not self._closed:
            self._stop, self._abort = events = threading.Event(), threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=events, name="gpuwatchd-probe", daemon=True
            )
            size = threading.stack_size()
            small = 0 < size < STACK_BYTES
            try:
                if small:
                    threading.stack_size(STACK_BYTES)
                self._thread.start()
            except Exception:  # no thread can be had now; a later fork tries again
                self._thread = None
            finally:
                if small:
                    threading.stack_size(size)

    def end(self) -> None:
        """Stop the thread; one that waits for a child of its own ends as soon as it has."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop.set()
            thread.join(_GRACE_S)
            self._abort.set()
            thread.join(_JOIN_S)

    def close(self) -> None:
        """Take the mailbox away, but leave what says why the job failed."""
        self._closed = True  # a fork that comes later starts nothing again
        self.end()
        if self._failure is None:
            self._mailbox.remove()
        elif self._content:  # again: the thread may have written in between
            self._mailbox.write(**dict(self._content, failure=self._failure))
        running = self._inspections.running
        if running is not None:
            self._mailbox.answer(running, {"error": "stopped"})

    def failed(self, kind: Any) -> None:
        """Write down which exception ends the job."""
        try:
            module = type.__dict__["__module__"].__get__(kind)  # whatever a metaclass says
            self._failed_s = time.monotonic()
            self._failure = "%s.%s" % (module, attributes.class_name(kind))
            self._write()
        except Exception:  # nothing of ours may reach the job
            pass

    def _run(self, stop: threading.Event, abort: threading.Event) -> None:
        wait_s = max(TICK_S / 100, self._inspections.began_s + self._first_s - time.monotonic())
        while not stop.wait(wait_s):
            if (
                time.monotonic() > self._failed_s + STILL_RUNS_S
                and threading.main_thread().is_alive()
            ):
                self._failure = None  # it ended nothing: whoever called the hook goes on
            try:
                self._tick(abort)
            except Exception:  # nothing of ours may reach the job
                pass
            wait_s = TICK_S
            if self._inspections.running is not None:
                left_s = self._inspections.due_s - time.monotonic()
                wait_s = min(TICK_S, max(TICK_S / 100, left_s))

    def _tick(self, abort: threading.Event) -> None:
        asked = self._mailbox.request()
        if asked is not None:
            try:
                answer = self._inspections.answer(asked, self.frameworks)
            except Exception:  # whoever asked must not wait in vain
                answer = {"error": "died"}
            if answer is not None and asked.get("answer", True):
                self._mailbox.answer(asked["id"], answer)
            self._due_s = 0.0
        last = self._inspections.last
        answer = self._inspections.step(abort)
        if answer is not None:
            self._mailbox.answer(answer["id"], answer)
        if last is not self._inspections.last:
            self._due_s = 0.0
        if time.monotonic() >= self._due_s:
            before = self._content
            self._write()
            least_s, most_s = WRITE_S
            moved = before.get("devices") != self._content["devices"]
            self._every_s = least_s if moved else min(most_s, max(least_s, self._every_s * 1.5))
            self._due_s = time.monotonic() + self._every_s

    def _write(self) -> None:
        rows = [row for name in self.frameworks for row in counters.read(name)]
        first = self.frameworks[0]
        spans = requests.spans()
        version = getattr(sys.modules.get(first), "__version__", None)
        self._content = {
            "framework": {"name": first, "version": None if version is None else str(version)},
            "devices": rows,
            "spans": [] if spans is None else spans.most(),
            "counters_only": requests.counters_only(),
            "inspect_on_alert": os.environ.get("GPUWATCHD_PROBE") == "alert",
            "last": self._inspections.last,
            "frozen": gc.get_freeze_count(),
            "recording": self._record(),
            "failure": self._failure,
            "inspecting": self._inspections.running,
        }
        self._mailbox.write(**self._content)

    def _record(self) -> bool:
        if self._recorder is None and os.environ.get("GPUWATCHD_PROBE_RECORD"):
            from . import oom

            self._recorder = oom.begin(self._mailbox)
        return self._recorder is not None and bool(self._recorder.recording)
