"""Draws what the program shows: ``python -m tests.docs.screens``; ``--check`` only compares.

A simulated world runs through the real pipeline at its own clock; then the real verb is called, and
what it writes to a terminal becomes a picture. No picture is made by hand, and the same code makes
the same picture anywhere. The picture of a mail is drawn by a browser and not compared::

    python -m tests.docs.screens --message >alert.json
    python -m tests.real.mail_picture FOLDER alert.json
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock
from xml.sax.saxutils import escape

import msgspec

from gpuwatchd.cli import main as gpuwatchctl
from gpuwatchd.collect.simulate import SimulateSource
from gpuwatchd.core import config
from gpuwatchd.core.model import Message
from gpuwatchd.store.private_files import hold_lock
from gpuwatchd.store.writer import History
from gpuwatchd.view.blocks import width_of
from tests.docs import live_screens, made
from tests.docs.live_screens import BAR, CELL, CIRCLES, LINE, MARGIN, WORDS, Live
from tests.pipelines import make_pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.core.model import Delivery

FOLDER = Path(__file__).resolve().parent.parent.parent / "docs" / "pictures"
EPOCH_S = 1_795_269_600.0
"""Saturday, 21 November 2026, 14:00 UTC: a world of some hours stays within the day."""
TICK_S = 10.0
COLUMNS = 96
_ESCAPE = re.compile(r"\x1b\[([\d;]*)m")
_CLASSES = {"1": "b", "2": "d", "31": "r", "32": "g", "33": "y", "36": "c"}
_STYLE = (
    ".w{fill:#10161d}.t{fill:#1b2530}text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"
    "'DejaVu Sans Mono','Liberation Mono',monospace;fill:#d5dde5;white-space:pre}"
    ".b{font-weight:700}.d{fill:#8493a1}.r{fill:#ff7b72}.g{fill:#63c174}.y{fill:#e3b341}.c{fill:#56c2d6}"
    ".n{fill:#8493a1;font-size:12px}"
)


class Shown(NamedTuple):
    """One picture."""

    scenario: str
    minutes: float
    """Of the world, after which one looks."""
    argv: tuple[str, ...]
    words: str
    """For those who cannot see it."""


SCREENS = {
    "screen-status.svg": Shown(
        "demo", 70, ("status",),
        "gpuwatchctl status on four simulated GPUs: a gradual leak of 50 MB a minute that is full "
        "in three hours, a web server that leaks in steps and is full in one hour, a sawtooth and "
        "a preallocated pool that are left alone, and the two open alerts.",
    ),
    "screen-explain.svg": Shown(
        "one-leak", 30, ("explain",),
        "gpuwatchctl explain: what was judged, what the detectors say, why it is a leak, how sure "
        "that is, when memory is full, who it is and what to do.",
    ),
    "screen-plot.svg": Shown(
        "demo", 70, ("plot", "1"),
        "gpuwatchctl plot of a simulated GPU: memory rises in steps along its fit, the forecast "
        "opens as a cone up to the limit, where the crash window is a thick line, and the marks on "
        "the time axis are explained below.",
    ),
}  # fmt: skip
LIVE = {
    "screen-top.svg": Live(
        "demo", 70, (), (112, 28),
        "gpuwatchctl top on four simulated GPUs: a row for each with its verdict, memory and the "
        "time that is left, the processes by growth, and two open alerts.",
    ),
    "screen-predict.svg": Live(
        "demo", 70, ("down", "P"), (112, 30),
        "The Predict view of gpuwatchctl top: a row for each of four GPUs with growth, time left "
        "and suspect; of the chosen one the chart with its fit and the forecast up to the limit, "
        "and beside it growth rate, R squared, confidence, detector, pattern and advice.",
    ),
}  # fmt: skip


class Kept:
    """A dispatcher that delivers nothing and keeps what it was given."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def submit(self, delivery: Delivery) -> bool:
        self.messages.append(delivery.message)
        return True

    def results(self) -> list[Delivery]:
        return []

    def close(self, timeout_s: float = 2.0) -> list[Delivery]:
        return []


@contextlib.contextmanager
def world(scenario: str, minutes: float, message_dispatcher: Kept | None = None) -> Iterator[None]:
    """Let a world run for so long, and stop every clock there, with its daemon's files in place."""
    with tempfile.TemporaryDirectory(prefix="gpuwatchd-screens-") as name:
        state, runtime = Path(name, "state"), Path(name, "run")
        runtime.mkdir(mode=0o700)
        source = SimulateSource(scenario, 7, 1.0, epoch_s=EPOCH_S)
        source.advance(0.0)
        settings = config.Config()
        channels = ("email",) if message_dispatcher is not None else ()
        policy = msgspec.structs.replace(settings.policy, channels=channels)
        settings = msgspec.structs.replace(settings, policy=policy)
        changed = {
            "GPUWATCHD_STATE_DIR": str(state), "GPUWATCHD_RUNTIME_DIR": str(runtime),
            "GPUWATCHD_CONFIG": os.devnull, "COLUMNS": str(COLUMNS), "TZ": "UTC",
        }  # fmt: skip
        with contextlib.ExitStack() as stack:
            stack.callback(time.tzset)
            stack.enter_context(mock.patch.dict(os.environ, changed))
            time.tzset()
            history = History.open(state, settings.store, clock=lambda: source.now_s)
            stack.callback(history.close)
            pipeline = make_pipeline(
                config=settings, sources=[source], history=history, runtime_dir=runtime,
                message_dispatcher=message_dispatcher, wall=lambda: source.now_s,
                mono=lambda: source.elapsed_s,
            )  # fmt: skip
            stack.callback(pipeline.close)
            while source.elapsed_s < minutes * 60.0:
                pipeline.tick()
                source.advance(TICK_S)
            pipeline.tick()
            stack.callback(os.close, hold_lock(runtime))
            stack.enter_context(mock.patch("time.time", return_value=source.now_s))
            yield


def message() -> Message:
    """Return the first message about a leak, as this host "lab3" would send it by mail."""
    message_dispatcher = Kept()
    with world("demo", 75, message_dispatcher):
        found = next(one for one in message_dispatcher.messages if "RTX 4090" in str(one.facts))
    shown = msgspec.json.encode(found).decode().replace(os.uname().nodename, "lab3")
    return msgspec.json.decode(shown, type=Message)


def written(argv: tuple[str, ...]) -> str:
    """Return what a verb writes to a terminal with colours."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(stream):
        code = gpuwatchctl([*argv, "--color", "always"])
    stream.flush()
    if code:
        raise RuntimeError(f"gpuwatchctl {' '.join(argv)} ended with {code}")
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()


def runs(line: str) -> Iterator[tuple[int, str, str]]:
    """Yield (column, text, classes) of one line with colours.

    >>> list(runs("a \x1b[1;31mred\x1b[0m b"))
    [(0, 'a ', ''), (2, 'red', 'b r'), (5, ' b', '')]
    """
    column, style, at = 0, "", 0
    for match in [*_ESCAPE.finditer(line), None]:
        text = line[at : match.start() if match else len(line)]
        if text:
            yield column, text, style
            column += width_of(text)
        if match:
            codes = match[1].split(";")
            style = " ".join(_CLASSES[code] for code in codes if code in _CLASSES)
            at = match.end()


def drawn(command: str, output: str, words: str) -> str:
    """Return a terminal window that shows a command and what it wrote."""
    lines = [f"\x1b[2m$\x1b[0m \x1b[1m{command}\x1b[0m", *output.rstrip("\n").splitlines()]
    frame = live_screens.window(command, words, _STYLE, (COLUMNS, len(lines)))
    parts = [*frame, "".join(CIRCLES)]
    for number, line in enumerate(lines):
        y = BAR + (number + 0.75) * LINE
        for column, text, style in runs(line):
            kind = f' class="{style}"' if style else ""
            # Not everything that draws an SVG keeps more than one blank.
            for match in WORDS.finditer(text):
                x = MARGIN + (column + width_of(text[: match.start()])) * CELL
                parts.append(
                    f'<text x="{x:.1f}" y="{y:.1f}" textLength="{width_of(match[0]) * CELL:.1f}"'
                    f"{kind}>{escape(match[0])}</text>"
                )
    return "\n".join([*parts, "</svg>"]) + "\n"


def picture(name: str) -> str:
    """Return one picture."""
    one = LIVE.get(name) or SCREENS[name]
    return _pictures(one.scenario, one.minutes)[name]


@functools.cache
def _pictures(scenario: str, minutes: float) -> dict[str, str]:
    """Return all pictures of one world, which is played once for them."""
    found = {}
    with world(scenario, minutes):
        for name, one in SCREENS.items():
            if (one.scenario, one.minutes) == (scenario, minutes):
                command = f"gpuwatchctl {' '.join(one.argv)}"
                found[name] = drawn(command, written(one.argv), one.words)
        for name, live in LIVE.items():
            if (live.scenario, live.minutes) == (scenario, minutes):
                found[name] = live_screens.picture(live)
    return found


PICTURES = {name: functools.partial(picture, name) for name in (*SCREENS, *LIVE)}


def main() -> int:
    """Draw the pictures, or check them."""
    if "--message" in sys.argv[1:]:
        sys.stdout.write(msgspec.json.encode(message()).decode())
        return 0
    return made.main(FOLDER, PICTURES)


if __name__ == "__main__":
    sys.exit(main())
