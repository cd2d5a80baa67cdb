"""``gpuwatchctl demo``: the real pipeline on simulated GPUs, from first sample to alert."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from gpuwatchd.cli import options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.cli.demo_act import Announcer
    from gpuwatchd.cli.demo_screen import Event, Show
    from gpuwatchd.collect.simulate import Planted, SimulateSource
    from gpuwatchd.core.model import Delivery, Message
    from gpuwatchd.notify.outbox.dispatcher import MessageDispatcher
    from gpuwatchd.pipeline.live_pipeline import LivePipeline
    from gpuwatchd.pipeline.tick import Tick

SPEED = 120.0
DURATION_S = 3 * 3600.0
MAX_POPUPS = 2
SCENARIO_NAMES = ("demo", "quiet", "one-leak", "mixed-8x8", "lost-gpu", "idle")
"""Known without importing the worlds: help and completion must stay quick."""
_MARK = "Demo: "
_INTERRUPTED = 130
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _number(_: click.Context, __: click.Parameter, value: float) -> float:
    if math.isnan(value):  # which no bound of a range refuses
        raise click.BadParameter("nan is no number")
    return value


@click.command(
    name="demo",
    epilog=options.examples("demo", "demo --speed 600 --plain", "demo --scenario quiet --json"),
)
@click.option(
    "--speed",
    type=click.FloatRange(min=0.1),
    callback=_number,
    default=SPEED,
    show_default=True,
    metavar="FACTOR",
    help="Simulated seconds per second.",
)
@click.option("--seed", type=int, default=7, show_default=True, help="Seed of the noise.")
@click.option(
    "--scenario",
    default="demo",
    show_default=True,
    metavar="NAME",
    shell_complete=options.complete_from(lambda: SCENARIO_NAMES),
    help=f"What happens: {', '.join(SCENARIO_NAMES)}.",
)
@click.option(
    "--duration",
    "duration_s",
    type=options.SPAN,
    default=DURATION_S,
    metavar="TIME",
    help="Simulated time to show, for example 90m (3h).",
)
@click.option("--no-notify", is_flag=True, help="No pop-up.")
@click.option("--plain", is_flag=True, help="Lines instead of a live table.")
def command(
    *,
    speed: float,
    seed: int,
    scenario: str,
    duration_s: float,
    no_notify: bool,
    plain: bool,
) -> int:
    """Show the whole job on simulated GPUs.

    Samples, history, detection, alerts and pop-ups are the real ones; only the GPUs are
    simulated. It needs no GPU, no daemon and no configuration, and leaves nothing behind.
    """
    from gpuwatchd.collect.simulate import SimulateSource  # noqa: PLC0415

    # A full hour, so that the same seed gives the same numbers whenever it is started.
    source = SimulateSource(scenario, seed, speed, epoch_s=time.time() // 3600 * 3600)
    if not options.current().debug:
        # What fails is shown as a problem at the end; log lines would tear the live table.
        logging.getLogger("gpuwatchd").addHandler(logging.NullHandler())
    source.advance(0.0)
    try:
        with _scratch() as folder, contextlib.ExitStack() as stack:
            popups, note = _channel(source, scenario, stack, none=no_notify)
            show = _show(plain=plain, length_s=duration_s, speed=speed)
            stack.callback(show.close)
            pipeline = _assemble(source, folder, popups, stack)
            show.begin(source.title, note)
            _play(source, pipeline, show, popups, duration_s=duration_s)
    except KeyboardInterrupt:
        print("gpuwatchctl: demo stopped; no files are left behind", file=sys.stderr)
        return _INTERRUPTED
    return 0


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """Yield a folder that is gone afterwards, however the demo ends."""
    handlers = {number: signal.getsignal(number) for number in _STOPS[1:]}
    for number in handlers:
        signal.signal(number, _leave)
    # Stops are held back while the folder comes and goes, so that none falls between.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    folder = Path(tempfile.mkdtemp(prefix="gpuwatchd-demo-"))
    last_resort = functools.partial(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(last_resort)
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield folder
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        last_resort()
        atexit.unregister(last_resort)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def _show(*, plain: bool, length_s: float, speed: float) -> Show:
    from gpuwatchd.cli import demo_screen, output  # noqa: PLC0415

    flags = options.current()
    if flags.json:
        return demo_screen.Json()
    out = output.Out(flags)
    # A live table is made of escape sequences: where colour is off, none is written.
    lines_only = not out.terminal or not out.colour or os.environ.get("TERM") == "dumb"
    if plain or flags.quiet or lines_only:
        return demo_screen.Lines(out, speed=speed, quiet=flags.quiet)
    return demo_screen.Screen(out, length_s=length_s, speed=speed)


def _assemble(
    source: SimulateSource,
    folder: Path,
    popups: Popups | Announcer | None,
    stack: contextlib.ExitStack,
) -> LivePipeline:
    """Put the real parts together, with the world's clock.

    Settings are the defaults, or what ``--config`` names; the usual files are left out. A demo is
    the same everywhere, and reaches nobody but the one who started it.
    """
    from gpuwatchd.cli import demo_act  # noqa: PLC0415
    from gpuwatchd.core import config  # noqa: PLC0415
    from gpuwatchd.pipeline.clock import Clocks  # noqa: PLC0415
    from gpuwatchd.pipeline.live_pipeline import LivePipeline  # noqa: PLC0415
    from gpuwatchd.pipeline.live_state import Inputs, Outputs  # noqa: PLC0415
    from gpuwatchd.store.writer import History  # noqa: PLC0415

    flags = options.current()
    settings = flags.load_config().config if flags.config is not None else config.Config()
    acts = isinstance(popups, demo_act.Announcer)
    channels = () if popups is None else ("command",) if acts else ("desktop",)
    policy = msgspec.structs.replace(settings.policy, channels=channels)
    act = msgspec.structs.replace(settings.act, mode="auto" if acts else settings.act.mode)
    settings = msgspec.structs.replace(settings, policy=policy, act=act)
    history = History.open(folder / "history", settings.store, clock=lambda: source.now_s)
    stack.callback(history.close)
    runtime = folder / "run"
    runtime.mkdir()
    pipeline = LivePipeline(
        settings,
        Inputs([source]),
        Outputs(history, runtime, popups),
        Clocks(lambda: source.now_s, lambda: source.elapsed_s),
    )
    stack.callback(pipeline.close)
    if isinstance(popups, demo_act.Announcer):
        demo_act.arm(pipeline, source, popups, history.shelf)
    return pipeline


class Popups:
    """The normal message_dispatcher, but at most two pop-ups, and each says that it is a demo."""

    def __init__(self, message_dispatcher: MessageDispatcher) -> None:
        self._courier = message_dispatcher
        self._left = MAX_POPUPS
        self._marked: dict[str, Message] = {}
        """By id: what is sent again is the same."""
        self._news: list[Delivery] = []

    def submit(self, delivery: Delivery) -> bool:
        """Hand on what may be shown; the rest goes through as a dry run."""
        shown = self._left > 0
        first = delivery.message
        message = self._marked.setdefault(first.id, _marked(first))
        dry_run = delivery.dry_run or not shown
        taken = self._courier.submit(
            msgspec.structs.replace(delivery, message=message, dry_run=dry_run)
        )
        self._left -= taken and shown
        return taken

    def results(self) -> list[Delivery]:
        """Return what became of them."""
        done = self._courier.results()
        self._news += [delivery for delivery in done if not delivery.dry_run]
        return done

    def close(self, timeout_s: float = 2.0) -> list[Delivery]:
        """Stop, and return what has not ended."""
        return self._courier.close(timeout_s)

    def news(self, world_s: float) -> list[Event]:
        """Return what became of real pop-ups since the last call."""
        from gpuwatchd.cli.demo_screen import Event  # noqa: PLC0415

        news, self._news = self._news, []
        return [
            Event(
                "pop-up",
                world_s,
                f"shown on your desktop: {delivery.message.subject}"
                if delivery.state == "sent"
                else f"not shown: {delivery.error}",
            )
            for delivery in news
        ]


def _marked(message: Message) -> Message:
    from gpuwatchd.pipeline.messages import SUBJECT_CHARS  # noqa: PLC0415

    return msgspec.structs.replace(
        message,
        subject=f"{_MARK}{message.subject}"[:SUBJECT_CHARS],
        body=f"{message.body}\nSimulated by gpuwatchctl demo; it does not reflect your own GPUs.",
        command="gpuwatchctl doctor",
    )


def _channel(
    source: SimulateSource, scenario: str, stack: contextlib.ExitStack, *, none: bool
) -> tuple[Popups | Announcer | None, str]:
    """Return who is told, and what to know of that."""
    from gpuwatchd.cli import demo_act  # noqa: PLC0415

    if scenario == demo_act.SCENARIO:
        return demo_act.Announcer(source), demo_act.NOTE
    return (None, "") if none else _popups(stack)


def _popups(stack: contextlib.ExitStack) -> tuple[Popups | None, str]:
    """Return the pop-ups, or None and why there are none."""
    from gpuwatchd.core.config import NotifySection  # noqa: PLC0415
    from gpuwatchd.notify.outbox import dispatcher  # noqa: PLC0415

    channels = dispatcher.build(NotifySection(), ("desktop",))
    answer = channels["desktop"].probe()
    if not answer.ok:
        return None, f"No pop-ups here: {answer.reason}."
    message_dispatcher = dispatcher.MessageDispatcher(channels)
    stack.callback(message_dispatcher.close)
    return Popups(message_dispatcher), ""


def _play(
    source: SimulateSource,
    pipeline: LivePipeline,
    show: Show,
    popups: Popups | Announcer | None,
    *,
    duration_s: float,
) -> None:
    """Run the world to its end, at its speed or as fast as this machine can."""
    from gpuwatchd.cli import demo_screen  # noqa: PLC0415

    interval_s = pipeline.state.settings.config.daemon.interval
    ledger = demo_screen.DemoScore(source.now_s)
    doomed = [planted for planted in source.truth() if planted.oom_at_s is not None]
    fates = sorted(doomed, key=lambda fate: fate.oom_at_s or 0.0)
    began_s = time.monotonic()
    problems: dict[str, None] = {}
    while True:
        tick = pipeline.tick()
        ledger.note(tick.findings, tick.changes)
        problems.update(dict.fromkeys(tick.state.problems))
        show.update(tick.state, source.elapsed_s, _events(tick, source, fates, popups))
        if source.elapsed_s >= duration_s:
            break
        source.advance(min(interval_s, duration_s - source.elapsed_s))
        ahead_s = source.elapsed_s / source.speed - (time.monotonic() - began_s)
        if ahead_s > 0:
            time.sleep(ahead_s)
    show.end(ledger.rows(source.truth()), simulated_s=source.elapsed_s)
    for problem in problems:
        print(f"gpuwatchctl: problem during the demo: {problem}", file=sys.stderr)


def _events(
    tick: Tick, source: SimulateSource, fates: list[Planted], popups: Popups | Announcer | None
) -> list[Event]:
    """Return what happened, in the order in which it happened; takes what is told from fates."""
    from gpuwatchd.cli.demo_screen import Event, event_of  # noqa: PLC0415

    world_s = source.elapsed_s
    events: list[Event] = []
    while fates and (fates[0].oom_at_s or 0.0) <= source.now_s:
        fate = fates.pop(0)
        events.append(Event("crashed", world_s, f"{fate.title} died: out of memory"))
    events += [event_of(alert, world_s) for alert in tick.changes]
    return events if popups is None else events + popups.news(world_s)
