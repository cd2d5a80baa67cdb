"""What the page on charts takes from the code: marks, verdicts, colours, and patterns as drawn."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from gpuwatchd.analysis import numerics
from gpuwatchd.charts import terminal
from gpuwatchd.charts.chart_model import Curve, Forecast, Gap, Mark, Picture
from gpuwatchd.core import design
from tests.docs.pictures import LEAKS, judged
from tests.docs.scenes import SCENES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuwatchd.core.model import Finding, Series
    from tests.docs.scenes import Scene

NAME = "explanation/reading-the-charts.md"
FILE = Path(__file__).resolve().parent.parent.parent / "docs" / NAME
_BLOCK = re.compile(r"(<!-- (\w+): written by make docs -->\n).*?(<!-- end -->)", re.DOTALL)
_WIDTH, _HEIGHT = 76, 11
_POINTS = 300

MEANS = {
    "critical": "a leak that will fill memory soon: an alert was raised",
    "leak": "a leak: an alert was raised",
    "watch": "a possible leak, seen early; nobody is disturbed",
    "calm": "nothing to do: stable, plateau, sawtooth, spike, or growth that you called normal",
    "unknown": "too little is known yet, or the GPU is asleep or let go",
    "trouble": "cannot be read, or is broken: lost, hung, no access, needs a reset",
    "held": "idle memory",
}
HAPPENED = {
    "watch": "a watch was opened: a suspicion, which is sent to nobody",
    "alert": "it became an alert",
    "critical": "it became critical, or began so",
    "died": "its process ended, or gave its memory back, near the limit: probably out of memory",
    "resolved": "it is over",
    "event": "of the hardware or the driver: an Xid, ECC, throttling",
    "restart": "the daemon or the machine began anew, or the clock was set",
    "began": "the process took its first memory here",
    "ended": "it ended, or gave all of it back",
    "saved": "the job has saved its work",
    "asked": "the job was asked to save its work",
}


def marks() -> str:
    """Return the table of marks."""
    rows = [
        f"| {flag.mark} | `{flag.ascii_mark}` | {flag.word} | {HAPPENED[kind]} |"
        for kind, flag in design.FLAGS.items()
    ]
    head = ["| mark | plain | word | what happened |", "|---|---|---|---|"]
    return "\n".join([*head, *rows])


def verdicts() -> str:
    """Return the table of kinds of verdicts."""
    rows = [
        f"| {look.mark} | `{look.ascii_mark}` | {look.word} | `{look.fill}` | `{look.light}` |"
        f" `{look.dark}` | {MEANS[kind]} |"
        for kind, look in design.LOOKS.items()
    ]
    head = [
        "| mark | plain | word | badge | text on white | text on night | what it means |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows])


def parts() -> str:
    """Return the table of the colours of parts."""
    lines = {"fit": "dashes", "floor": "dots", "band": "shade", "range": "shade",
             "gap": "hatching", "now": "dots"}  # fmt: skip
    rows = [
        f"| {word} | {lines.get(part, 'line')} | `{design.PARTS[part].light}` |"
        f" `{design.PARTS[part].dark}` |"
        for part, word in design.LEGEND.items()
    ]
    head = ["| part | drawn as | on white | on night |", "|---|---|---|---|"]
    return "\n".join([*head, *rows])


def picture(scene: Scene) -> Picture:
    """Return the chart of a scene with what the detectors say of it."""
    series = scene.series()
    finding = judged(series)
    now_s = float(series.t_s[-1])
    eta = finding.eta if finding is not None and finding.pattern in LEAKS else None
    floor = numerics.prepare(series)
    return Picture(
        key=scene.pattern,
        title=scene.title,
        kind="leak" if eta is not None else "calm",
        verdict=scene.pattern,
        begin_s=float(series.t_s[0]),
        end_s=now_s,
        now_s=now_s,
        curve=_curve(series.t_s.tolist(), series.used_bytes.tolist()),
        floor=None
        if finding is None
        else _curve((floor.t_s + now_s).tolist(), floor.floor.tolist()),
        limit_bytes=series.limit_bytes,
        forecast=None if eta is None or finding is None else _forecast(series, finding),
    )


def day() -> str:
    """Return a made-up day in which everything happens that a chart can show of the past."""
    begin_s, width_s, gib = 1_795_219_200.0, 300.0, 1024.0**3
    lost = (begin_s + 9.5 * 3600, begin_s + 12 * 3600)
    rows: list[tuple[float, float | None]] = []
    for n in range(288):
        at_s = begin_s + (n + 0.5) * width_s
        if lost[0] <= at_s < lost[1]:
            rows += [(sum(lost) / 2, None)] if rows[-1][1] is not None else []
            continue
        rows.append((at_s, gib * (20 + 9 * ((n % 36) / 36) + (12 if n > 200 else 0))))
    at, used = zip(*rows, strict=True)
    low = tuple(None if v is None else v - 2 * gib for v in used)
    high = tuple(
        None if v is None else v + (14 if n % 60 < 4 else 4) * gib for n, v in enumerate(used)
    )
    made = Picture(
        key="day", title="GPU 0", kind="calm", verdict="sawtooth",
        begin_s=begin_s, end_s=begin_s + 86400.0, now_s=begin_s + 86400.0,
        curve=Curve(at_s=at, used_bytes=used, low_bytes=low, high_bytes=high, width_s=width_s),
        limit_bytes=80 * gib,
        marks=(
            Mark(at_s=lost[1], kind="restart", text="the machine was started"),
            Mark(at_s=begin_s + 16.7 * 3600, kind="began", text="eval.py[5120] of bob began"),
            Mark(at_s=begin_s + 19 * 3600, kind="event", text="Xid 31: GPU memory page fault"),
            Mark(at_s=begin_s + 21 * 3600, kind="saved", text="train.py[4711] saved its work"),
        ),
        gaps=(Gap(begin_s=lost[0], end_s=lost[1], why="machine off"),),
    )  # fmt: skip
    drawn = terminal.draw(made, _WIDTH, 16, numbered=True)
    rows_ = [*drawn, *terminal.legend(made, _WIDTH)]
    lines = ["".join(words for words, _ in row).rstrip() for row in rows_]
    return "\n".join(["```", *lines, "```"])


def _forecast(series: Series, finding: Finding) -> Forecast:
    assert finding.eta is not None
    return Forecast(
        judged_at_s=float(series.t_s[-1]),
        level_bytes=float(numerics.prepare(series).floor[-1]),
        rate_bytes_per_s=finding.rate_bytes_per_s or 0.0,
        onset_at_s=finding.onset_at_s,
        limit_bytes=series.limit_bytes,
        low_s=finding.eta.low_s,
        mid_s=finding.eta.mid_s,
        high_s=finding.eta.high_s,
    )


def _curve(at_s: list[float], used: list[float]) -> Curve:
    every = max(1, len(at_s) // _POINTS)
    kept = tuple(used[::every])
    return Curve(at_s=tuple(at_s[::every]), used_bytes=kept, low_bytes=kept, high_bytes=kept)


def patterns() -> str:
    """Return every pattern as a terminal shows it."""
    found = []
    for scene in SCENES:
        rows = terminal.draw(picture(scene), _WIDTH, _HEIGHT)
        lines = ["".join(words for words, _ in row).rstrip() for row in rows]
        found += [f"### {scene.title}", "", "```", *lines, "```", "", scene.words, ""]
    return "\n".join(found).rstrip()


BLOCKS: dict[str, Callable[[], str]] = {
    "day": day, "marks": marks, "verdicts": verdicts, "parts": parts, "patterns": patterns,
}  # fmt: skip


@contextlib.contextmanager
def _utc() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.callback(time.tzset)
        stack.enter_context(mock.patch.dict(os.environ, {"TZ": "UTC"}))
        time.tzset()
        yield


def page() -> str:
    """Return the page with its blocks as the code has them."""
    text = FILE.read_text(encoding="utf-8")
    with _utc():
        return _BLOCK.sub(lambda one: f"{one[1]}\n{BLOCKS[one[2]]()}\n\n{one[3]}", text)
