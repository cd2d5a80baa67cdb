"""The daemon: a monotonic sampling loop, chores, signals, one instance, and nothing that judges.

It runs without GPU, driver, D-Bus and network, and says what is missing. Everything that can fail
while it runs fails inside one tick of the pipeline; what can fail here is its start, and that is
one line, one hint and an exit code: 0 stopped, 1 already running or cannot run, 75 start it again
(a new NVIDIA library, and it could not replace itself), 78 configuration.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import signal
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuwatchd import __version__
from gpuwatchd.collect import selection
from gpuwatchd.collect.host import BootAnchor, Host
from gpuwatchd.core import config, registry, text
from gpuwatchd.core.codes import ProblemCode
from gpuwatchd.core.errors import USAGE, ConfigError, GpuwatchdError
from gpuwatchd.core.ports import OwnClock
from gpuwatchd.core.state_log import StateLog, masked
from gpuwatchd.notify import credentials
from gpuwatchd.notify.outbox import dispatcher
from gpuwatchd.pipeline.clock import Clocks
from gpuwatchd.pipeline.live_pipeline import LivePipeline
from gpuwatchd.pipeline.live_state import Inputs, Outputs
from gpuwatchd.pipeline.source_workers import DriverRelease
from gpuwatchd.service import own_process
from gpuwatchd.service.own_process import NotifySocket, Wakeup, watchdog_s
from gpuwatchd.store import live
from gpuwatchd.store.private_files import hold_lock, private_directory, still_locked
from gpuwatchd.store.writer import History

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuwatchd.core.config import Config, DaemonSection, MetricsSection
    from gpuwatchd.core.ports import Source
    from gpuwatchd.daemon.metrics import MetricsPublisher
    from gpuwatchd.pipeline.tick import Problem, Tick
    from gpuwatchd.pipeline.track import TrackedDevice

log = logging.getLogger("gpuwatchd")

EXIT_CONFIG = 78
_FLEET = {"fleet": "gpuwatchd.fleet.main:command"}
"""Another program under the same name: it watches no GPU of this machine."""
LEAVE_WITHIN_S = 4.5
MUTE_AFTER_S = 600.0
"""With every source stuck for this long the watchdog is no longer fed: systemd then restarts us."""
_CLOCK_STEP_S = 2.0
_CHORES_EVERY_S = 60.0
_CHECK_EVERY_S = 7 * 86400.0
_INSTALLED_EVERY_TICKS = 6
STILL_S = 300.0
"""After so long without anything that moves the pause between two ticks may be longer."""
_LONG_PAUSE_S = 15.0
_PUBLISHERS = {"metrics": "gpuwatchd.daemon.metrics:MetricsPublisher"}
"""12 ms and half a MiB, for a section that few have."""


class HistoryChores:
    """Tends the history each minute, between ticks; the chores of a tick are the pipeline's.

    The file is looked over weekly, in a thread: a large one takes seconds. APScheduler tells when.
    After a step of the wall clock it sleeps until the old time comes again, so it is built anew.
    """

    def __init__(
        self, history: History | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._scheduler: Any = None
        self._history, self._clock = history, clock
        self._difference_s = time.time() - time.monotonic()
        self._due_mono_s = math.inf

    def start(self) -> None:
        """Start the clockwork; heavy to import, hence not before the first tick."""
        from apscheduler.schedulers.background import BackgroundScheduler  # noqa: PLC0415

        logging.getLogger("apscheduler").setLevel(logging.WARNING)
        self._due_mono_s = min(self._due_mono_s, time.monotonic() + _CHORES_EVERY_S)
        self._scheduler = BackgroundScheduler(
            timezone="UTC",
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
        )
        if self._history is not None:
            first = datetime.now(UTC) + timedelta(seconds=_CHORES_EVERY_S)
            self._scheduler.add_job(
                self._history.check, "interval", seconds=_CHECK_EVERY_S, next_run_time=first
            )
        self._scheduler.start()

    def guard(self) -> None:
        """Notice a step of the wall clock; cheap, called every tick."""
        difference_s = time.time() - time.monotonic()
        if abs(difference_s - self._difference_s) > _CLOCK_STEP_S:
            self._difference_s = difference_s
            self.stop()
            self.start()

    def check_now(self) -> None:
        """Look the history over at once, and set it aside where it is damaged."""
        if self._history is not None and self._history.check() is not None:
            self._history.chores(self._clock())

    def run_due(self) -> None:
        """Roll up, delete what is too old, and give back unused memory, where that is due."""
        now_mono_s = time.monotonic()
        if now_mono_s < self._due_mono_s or self._history is None:
            return
        self._due_mono_s = now_mono_s + _CHORES_EVERY_S
        try:
            self._history.chores(self._clock())
            own_process.trim()
        except Exception:
            # A chore is safe to skip and to repeat; sampling is not.
            log.exception("failed chore=chores")

    def stop(self) -> None:
        """Stop the clockwork without waiting."""
        if self._scheduler is not None:
            self._scheduler.shutdown(wait=False)
            self._scheduler = None


def _clocks(sources: Sequence[Source]) -> tuple[Callable[[], float], Callable[[], float]]:
    """Return the wall clock and the monotonic one: those of a source that is all there is.

    Its messages, silences and samples are then of one time, however fast it runs.
    """
    world = sources[0] if len(sources) == 1 else None
    if not isinstance(world, OwnClock):
        return time.time, time.monotonic
    ahead_s = time.time() - time.monotonic()
    return lambda: world.now_s, lambda: world.now_s - ahead_s


def _publisher(section: MetricsSection) -> MetricsPublisher | None:
    """Return what ``[metrics]`` asks for; None where it asks for nothing."""
    if not (section.listen or section.file):
        return None
    publisher: MetricsPublisher = registry.load(_PUBLISHERS, "metrics")(section)
    return publisher


class RunningConfig:
    """The configuration in force, and what is wrong with it or with a newer one.

    ``read`` reads it again, and raises ConfigError when the new one is bad. The sources and the
    history stay as it ``began``.
    """

    def __init__(self, loaded: config.Loaded, read: Any) -> None:
        self.began = self.now = loaded.config
        self._read = read
        self._warnings = (*loaded.warnings, *config.channels.unused(self.now))
        self.refused = ""
        """Why the newest one is not in force."""

    @property
    def problems(self) -> tuple[str, ...]:
        """One sentence for each thing that is wrong."""
        return (*self._warnings, self.refused) if self.refused else self._warnings

    def reload(
        self, build: Callable[[Config], dispatcher.MessageDispatcher]
    ) -> dispatcher.MessageDispatcher | None:
        """Take over what is in the file now; return what was built of it, None where it is bad."""
        try:
            loaded = self._read()
            fresh: Config = loaded.config
            built = build(fresh)
        except GpuwatchdError as error:
            log.error(  # noqa: TRY400
                "configuration kept, the new one is bad: %s; see: gpuwatchctl docs %s",
                error,
                error.page,
            )
            self.refused = f"the configuration was not reloaded: {error}"
            return None
        self.now, self.refused = fresh, ""
        restart = own_process.takes_restart(self.began, fresh)
        self._warnings = (*loaded.warnings, *config.channels.unused(fresh), *restart)
        return built


class Requests:
    """What signals have asked for; a handler only notes it, and the bell ends the wait."""

    def __init__(self) -> None:
        self.bell = Wakeup()
        self.stop = self.restart = self.reload = False

    def listen(self) -> None:
        """Take the signals; only the main thread may."""
        self.bell.ring_on_signals()
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGINT, self._on_stop)
        signal.signal(signal.SIGHUP, self._on_reload)

    def start_anew(self) -> None:
        """End this process for a new one; who asks for an end meanwhile gets that."""
        self.restart = self.stop = True

    def take_reload(self) -> bool:
        """Return whether the configuration is to be read again; asked for once."""
        asked, self.reload = self.reload, False
        return asked

    # A handler runs between any two instructions of the main thread: it takes no lock.

    def _on_stop(self, *_: object) -> None:
        self.stop, self.restart = True, False

    def _on_reload(self, *_: object) -> None:
        self.reload = True


class RuntimeDirectory:
    """Where the live state and the bell are, locked: one daemon has it."""

    def __init__(self, section: DaemonSection, bell: Wakeup) -> None:
        self._readers, self._bell = section.readers, bell
        self.path = private_directory(config.runtime_dir(), self._readers)
        self._lock = hold_lock(self.path)

    def keep(self) -> None:
        """Make it anew when somebody has removed it."""
        if still_locked(self.path, self._lock):
            return
        try:
            private_directory(self.path, self._readers)
            fresh = hold_lock(self.path)
        except GpuwatchdError as error:
            # Said every tick by the live state, which has no place either.
            log.debug("runtime directory: %s", error)
            return
        os.close(self._lock)
        self._lock = fresh
        self._bell.hang_up(self.path)
        log.warning("the runtime directory was removed and has been made anew")


class ProblemLog:
    """Logs a problem when it appears and when it is over, not per tick."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._problems: dict[str, str] = {}
        self._changes = StateLog()

    def update(self, problems: Sequence[str]) -> None:
        """Take the problems of a tick."""
        own = self._history.problems  # the history logs its own
        present = {masked(problem): problem for problem in problems if problem not in own}
        values = {**self._problems, **present}
        for shape, problem in values.items():
            there = shape in present
            change = self._changes.change(shape, "there" if there else "over", first="over")
            if change is not None and there:
                log.warning("%s", problem)
            elif change is not None:
                log.info("problem over%s what=%r", change.fields, problem)
        logged = self._changes.logged
        self._problems = {
            shape: problem
            for shape, problem in values.items()
            if shape in present or logged(shape) == "there"
        }


class Watchdog:
    """Tells the service manager that we live, unless every source is stuck for long."""

    def __init__(self, manager: NotifySocket, pipeline: LivePipeline) -> None:
        self.every_s = watchdog_s(os.environ) / 2
        self._manager, self._pipeline = manager, pipeline
        self._stuck_since_s: float | None = None

    def feed(self) -> None:
        """Tell it now."""
        if self._alive():
            self._manager.send("WATCHDOG=1")

    def _alive(self) -> bool:
        workers = self._pipeline.sources.workers.values()
        if self._pipeline.sources.answered or not any(worker.stuck for worker in workers):
            self._stuck_since_s = None
            return True
        now_s = time.monotonic()
        self._stuck_since_s = now_s if self._stuck_since_s is None else self._stuck_since_s
        return now_s - self._stuck_since_s < MUTE_AFTER_S


class Pace:
    """Chooses the pause before the next tick: longer than the interval while nobody needs more.

    That is: each GPU and its memory at rest for :data:`STILL_S`, and no reader of the live state.
    """

    def __init__(self, pipeline: LivePipeline, directory: Path) -> None:
        self._pipeline, self._directory = pipeline, directory
        self._moved_s = time.monotonic()
        self._is_read = False

    def before_tick(self) -> None:
        """Note whether somebody has read the live state that the tick replaces."""
        self._is_read = live.was_read(self._directory)

    def pause_s(self, interval_s: float, tick: Tick) -> float:
        """Return the seconds from this tick to the next one."""
        state, now_s = self._pipeline.state, time.monotonic()
        devices = state.devices.values()
        leaks = tick.state.pending or any(alert.kind == "leak" for alert in tick.alerts)
        if tick.changes or leaks or state.countdowns or not (devices and all(map(_rests, devices))):
            self._moved_s = now_s
        if now_s - self._moved_s < STILL_S or self._is_read:
            pause_s = interval_s
        else:
            pause_s = max(interval_s, min(3 * interval_s, _LONG_PAUSE_S))
        self._pipeline.live.note_pause(pause_s)
        return pause_s


def _rests(device: TrackedDevice) -> bool:
    return device.still and device.reading is not None and device.reading.util_pct == 0


class Daemon:
    """One running daemon.

    ``reload`` reads the configuration again on SIGHUP, and raises ConfigError when the new one is
    bad; ``file`` is the only one that it is read from, None for the usual ones.
    """

    def __init__(self, loaded: config.Loaded, *, reload: Any, file: Path | None = None) -> None:
        settings = loaded.config
        self.config = RunningConfig(loaded, reload)
        self._requests = Requests()
        self.manager = NotifySocket(os.environ.pop("NOTIFY_SOCKET", ""))
        self._code = own_process.Installed()
        state_dir = private_directory(config.state_dir(), settings.daemon.readers)
        self.runtime = RuntimeDirectory(settings.daemon, self._requests.bell)
        chosen = selection.choices(settings.sources)
        sources = [selection.make(choice.word, settings.sources) for choice in chosen]
        self._wall, mono = _clocks(sources)
        self.host = Host(anchor=BootAnchor(state_dir / "boot.json"), monotonic=mono)
        history = History.open(
            state_dir, settings.store, clock=self._wall, monotonic=mono, boot_id=self.host.boot_id
        )
        self.chores = HistoryChores(history, self._wall)
        self._problem_log = ProblemLog(history)
        self.pipeline = LivePipeline(
            settings,
            Inputs(
                sources,
                self.host,
                fresh=lambda at: selection.make(chosen[at].word, settings.sources),
                absences=lambda faults: selection.absences(zip(chosen, faults, strict=True)),
            ),
            Outputs(history, self.runtime.path, self._new_dispatcher(settings)),
            Clocks(self._wall, mono),
        )
        self.pipeline.buttons.file = None if file is None else file.absolute()
        self._watchdog = Watchdog(self.manager, self.pipeline)
        self._pace = Pace(self.pipeline, self.runtime.path)
        self.driver_release = DriverRelease(
            self.runtime.path, self.pipeline.sources.workers.values()
        )
        self.metrics = _publisher(settings.metrics)

    def _new_dispatcher(self, settings: Config) -> dispatcher.MessageDispatcher:
        channels = dispatcher.build(settings.notify, config.channels.used(settings))
        put = lambda *press: self.pipeline.buttons.put(*press)  # noqa: E731, PLW0108 - comes later
        return dispatcher.MessageDispatcher(channels, clock=self._wall, pressed=put)

    def run(self, *, once: bool = False) -> int:
        """Sample until told to stop; return the exit code."""
        self._requests.listen()
        self._requests.bell.hang_up(self.runtime.path)
        self.pipeline.resume()
        log.info(
            "start version=%s pid=%d interval_s=%g sources=%s",
            __version__,
            os.getpid(),
            self.config.now.daemon.interval,
            ",".join(choice.word for choice in selection.choices(self.config.began.sources)),
        )
        try:
            self.driver_release.update(time.time())
            if once:
                self.chores.check_now()  # none will follow
            tick = self._tick()
            self._after(tick)
            self.manager.send("READY=1")
            if once:
                return 0 if tick.state.devices else 1
            self.chores.start()
            own_process.rarely_look_for_cycles()
            self._loop()
        finally:
            self._leave()
        if not self._requests.restart:
            return 0
        log.info("starting anew")
        environment = {**credentials.environment(), **self.manager.environment}
        return own_process.start_anew(environment, self._code.moved_to())

    def _loop(self) -> None:
        requests, watchdog = self._requests, self._watchdog
        following_s = time.monotonic() + self.config.now.daemon.interval
        while not requests.stop:
            wait_s = max(0.0, following_s - time.monotonic())
            requests.bell.wait(min(wait_s, watchdog.every_s))
            if requests.stop:
                return
            if requests.take_reload():
                self._take_over()
                following_s = min(following_s, time.monotonic() + self.config.now.daemon.interval)
            now_s = time.monotonic()
            if self.driver_release.update(time.time()):
                following_s = min(following_s, now_s)
            if now_s < following_s:
                watchdog.feed()
                continue
            # Ticks that were missed (a stall, a suspend) are skipped, never caught up in a burst.
            self._pace.before_tick()
            tick = self._tick()
            self._after(tick)
            pause_s = self._pace.pause_s(self.config.now.daemon.interval, tick)
            following_s += pause_s * max(1, int((now_s - following_s) / pause_s) + 1)
            self.runtime.keep()
            self.chores.guard()
            self.chores.run_due()

    def _own_problems(self) -> tuple[Problem, ...]:
        """Return what is to be shown beside the problems of the pipeline."""
        problems = () if self.metrics is None else self.metrics.problems
        return (*((text, ProblemCode.OTHER) for text in self.config.problems), *problems)

    def _tick(self) -> Tick:
        tick = self.pipeline.tick(self._own_problems())
        if self.metrics is not None:
            self.metrics.publish(tick.state)
        return tick

    def _close_metrics(self) -> None:
        if self.metrics is not None:
            self.metrics.close()

    def _after(self, tick: Tick) -> None:
        state = tick.state
        firing = [alert for alert in state.alerts if alert.state == "firing"]
        seen = {"GPU": len(state.devices), "alert": len(firing)}
        text = ", ".join(f"{many} {name}{'s' * (many != 1)}" for name, many in seen.items())
        text = "; ".join([text, *state.problems[:1]])
        self._problem_log.update(state.problems)
        self.manager.status(text)
        self._watchdog.feed()
        # Only a new process can load what was replaced, a library or ourselves; never in a loop.
        workers = self.pipeline.sources.workers.values()
        look = state.ticks % _INSTALLED_EVERY_TICKS == 0
        stale = any(worker.needs_restart for worker in workers) or (look and self._code.replaced())
        if stale and own_process.may_start_anew(self.runtime.path):
            self._requests.start_anew()

    def _take_over(self) -> None:
        before = self.config.now
        message_dispatcher = self.config.reload(self._new_dispatcher)
        if message_dispatcher is None:
            self.manager.status(self.config.refused)
            return
        fresh = self.config.now
        if fresh.metrics != before.metrics:
            self._close_metrics()
            self.metrics = _publisher(fresh.metrics)
        logging.getLogger().setLevel(fresh.daemon.log_level.upper())
        self.pipeline.reconfigure(fresh)
        self.pipeline.outbox.replace(message_dispatcher)
        log.info("configuration reloaded")

    def _leave(self) -> None:
        restart = self._requests.restart
        if not restart:
            self.manager.send("STOPPING=1")
        code = own_process.EXIT_AGAIN if restart else 0
        # A thread that is stuck in a driver must not keep us: the last resort ends the process.
        last_resort = threading.Timer(LEAVE_WITHIN_S, os._exit, args=[code])
        last_resort.daemon = True
        last_resort.start()
        self.chores.stop()
        problems = self._own_problems()
        self._close_metrics()
        self.pipeline.close(problems)
        self.host.close()
        self._requests.bell.take_down()
        last_resort.cancel()
        log.info("stopped")


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80})
@click.option("--config", "file", type=click.Path(path_type=Path), help="Use this file only.")
@click.option("--interval", help="Time between two samples, for example 5s.")
@click.option("--source", "sources", multiple=True, help="nvml, drm, metal, replay:FILE, simulate.")
@click.option("--once", is_flag=True, help="Take one sample, write the live state, and leave.")
@click.option("--log-level", type=click.Choice(own_process.LOG_LEVELS), help="Log level on stderr.")
@click.version_option(__version__, message="gpuwatchd %(version)s")
def command(
    file: Path | None,
    interval: str | None,
    sources: tuple[str, ...],
    once: bool,  # noqa: FBT001 - a click flag
    log_level: str | None,
) -> int:
    """Watch every GPU of this machine; ask gpuwatchctl what it sees.

    \b
    Examples:
      gpuwatchd --interval 1s
      gpuwatchd --source simulate --log-level debug
      gpuwatchd fleet --help
    """  # noqa: D301 - click reads the backspace
    given = {"interval": interval, "log-level": log_level}
    section = {key: value for key, value in given.items() if value is not None}
    overrides: dict[str, Any] = {"daemon": section} if section else {}
    if sources:
        overrides["sources"] = {"enabled": list(sources)}
    os.umask(0o077)
    credentials.withhold()
    own_process.one_arena()
    own_process.spare_openssl()
    # One BLAS thread: our matrices are small, and each further thread keeps a buffer.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    loaded = config.load(file, overrides=overrides)
    own_process.set_up_logging(loaded.config.daemon.log_level)
    daemon = Daemon(loaded, reload=lambda: config.load(file, overrides=overrides), file=file)
    return daemon.run(once=once)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon, or the worker of a fleet, and return its exit code."""
    own_process.hold_standard_descriptors()
    words, run, name = list(sys.argv[1:] if argv is None else argv), command, "gpuwatchd"
    if words[:1] == ["fleet"]:
        words, name = words[1:], "gpuwatchd fleet"
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        run = registry.load(_FLEET, "fleet")
        own_process.set_up_logging("info")
    try:
        result = run.main(args=words, prog_name=name, standalone_mode=False)
    except click.ClickException as error:
        usage = GpuwatchdError(error.format_message(), hint=f"{name} --help", page="cli")
        return _refuse(usage, error.exit_code)
    except click.Abort:
        return 130
    except ConfigError as error:
        return _refuse(error, EXIT_CONFIG)
    except GpuwatchdError as error:
        return _refuse(error, 1)
    except Exception as error:
        # A user gets a line, whatever it was.
        log.debug("ended by", exc_info=True)
        why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        why, hint, page = f"internal error: {why}", "run again with --log-level debug", "internal"
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            why, hint = "the result cannot be written: no space left", "free some space"
            page = "no-space"
        return _refuse(GpuwatchdError(why, hint=hint, page=f"errors#{page}"), 1)
    return int(result or 0)


def _refuse(error: GpuwatchdError, code: int) -> int:
    hint = [f"hint: {error.hint}"] if error.hint else []
    see = [f"see: gpuwatchctl docs {error.page}"] if code != USAGE else []
    lines = [f"gpuwatchd: {error.message}", *hint, *see]
    with contextlib.suppress(OSError):  # perhaps nobody listens
        sys.stderr.write("".join(f"{text.clean(line, limit=1024)}\n" for line in lines))
        sys.stderr.flush()
    return code
