"""The screen of ``status``: a few lines per GPU, then what is open and what is wrong."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec import structs

from gpuwatchd import units
from gpuwatchd.ctl import envelope, exits, look, output, words
from gpuwatchd.ctl.envelope import is_leak, live_device_json
from gpuwatchd.ctl.output import width_of
from gpuwatchd.errors import GpuwatchdError
from gpuwatchd.model import LEAK_PATTERNS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from gpuwatchd.ctl.flags import Globals
    from gpuwatchd.ctl.look import View
    from gpuwatchd.ctl.output import Out, Part
    from gpuwatchd.model import Alert, Finding
    from gpuwatchd.store.live import LiveDevice, LiveProcess

_INDENT = "       "
_BAR_CELLS = 10
_SPARK_POINTS = (32, 16, 8)
_SPARK_MIN_SPAN = 0.02
_LARGEST = 3
_SEVERITY_STYLE = {"critical": "red-bold", "warning": "yellow-bold", "info": ""}


def narrow(view: View, pids: Sequence[int]) -> None:
    """Keep only the GPUs and processes that ``--pid`` names.

    Raises
    ------
    GpuwatchdError
        When none of them is on a GPU here.
    """
    if not pids:
        return
    kept = []
    for item in view.devices:
        processes = tuple(p for p in item.processes or () if p.info.key.pid in pids)
        if processes:
            kept.append(structs.replace(item, processes=processes))
    if not kept:
        named = ", ".join(map(str, pids))
        unknown = all(item.processes is None for item in view.devices)
        why = "the processes are unknown here" if unknown else f"pid {named} is on no GPU here"
        raise GpuwatchdError(why, hint="gpuwatchctl status -v")
    view.devices = tuple(kept)
    view.alerts = tuple(
        a for a in view.alerts if a.subject.process is not None and a.subject.process.pid in pids
    )


def payload(view: View) -> list[dict[str, Any]]:
    """Return the devices as JSON."""
    return [live_device_json(item) for item in view.devices]


def leaks(view: View, *, whole: bool) -> bool:
    """Return whether anything that is shown leaks; without ``whole``, any of the processes."""
    return any(
        is_leak(finding)
        for item in view.devices
        for finding in (
            item.finding if whole else None,
            *(process.finding for process in item.processes or ()),
        )
    )


def run(flags: Globals, pids: Sequence[int], *, exit_code: bool) -> int:
    """Show the state once, as ``status`` does, and return the exit code.

    1 when no GPU could be read; 3 for a leak where ``exit_code`` asks for it.
    """
    view = look.see(flags)
    narrow(view, pids)
    if flags.json:
        output.emit_json(envelope.answer("status", payload(view), view=view))
    else:
        show(output.Out(flags), view, whole=not pids, verbose=flags.verbose)
    if all(item.reading is None for item in view.devices):
        return exits.FAILED
    return exits.FINDINGS if exit_code and leaks(view, whole=not pids) else exits.OK


def bar(used: float | None, total: float | None, cells: int, *, ascii_only: bool) -> str:
    """Return a bar of the used share; "" when it is unknown.

    Examples
    --------
    >>> bar(5, 10, 4, ascii_only=True)
    '[##--]'
    """
    if used is None or not total:
        return ""
    full = min(cells, max(0, round(used / total * cells)))
    if ascii_only:
        return f"[{'#' * full}{'-' * (cells - full)}]"
    return "█" * full + "░" * (cells - full)


def show(out: Out, view: View, *, whole: bool = True, verbose: bool = False) -> None:
    """Write the screen; without ``whole`` it is about the processes that are left, all of them."""
    _banner(out, view)
    for item in view.devices:
        _device(out, view, item, whole=whole, verbose=verbose)
    _alerts(out, view)
    for problem in view.daemon.problems:
        out.flow([("problem: " + problem, "yellow")], rest="  ")


def _banner(out: Out, view: View) -> None:
    for code, sentence in view.warnings:
        age = ""
        if code in {"daemon-dead", "daemon-late"}:
            at = units.clock(view.taken_at_s, now_s=time.time())
            age = f" {units.duration(view.stale_s)} ago ({at})"
        style = "red-bold" if code.startswith("daemon") else "yellow"
        out.flow([(f"! {sentence}{age}", style)])


def _label(item: LiveDevice) -> str:
    index = item.device.index
    return f"GPU {index if index is not None else '?'}"


def _device(out: Out, view: View, item: LiveDevice, *, whole: bool, verbose: bool) -> None:
    reading = item.reading
    total = reading.total_bytes if reading is not None else item.device.memory_total_bytes
    used = reading.used_bytes if reading is not None else None
    first: list[Part] = [
        (
            output.fit(item.device.name, 28, out.safe("…")) if out.terminal else item.device.name,
            "bold",
        )
    ]
    shown = bar(used, total, _BAR_CELLS, ascii_only=out.ascii)
    if shown:
        first.append(shown)
    first.append(f"{_amount(used)}/{units.size(total)}{_share(used, total)}")
    marks = _spark(item, total, room=_room(out, first), ascii_only=out.ascii)
    if marks:
        first.append((marks, "cyan"))
    if verbose and reading is not None:
        first += _extras(item)
    out.flow(first, first=f"{_label(item):<7}", rest=_INDENT)
    if reading is None or reading.state != "ok":
        state = "not readable" if reading is None else reading.state
        why = f": {item.faults[0]}" if item.faults else ""
        out.flow([(f"{state}{why}", "yellow")], first=_INDENT, rest=_INDENT)
    if view.trend and whole:
        out.flow(_judgement(item, item.finding), first=_INDENT, rest=_INDENT)
    _processes(out, item, whole=whole, verbose=verbose)
    if verbose:
        for fault in item.faults:
            out.flow([(f"fault: {fault}", "yellow")], first=_INDENT, rest=_INDENT)


def _amount(used: int | None) -> str:
    return units.size(used).removesuffix(" GiB") if used is not None else "?"


def _share(used: int | None, total: int | None) -> str:
    return f"  {units.percent(used / total)}" if used is not None and total else ""


def _room(out: Out, parts: Sequence[Part]) -> int:
    """Return the columns that are left on the first line."""
    taken = sum(width_of(p if isinstance(p, str) else p[0]) + 2 for p in parts)
    return out.width - len(_INDENT) - taken


def _spark(item: LiveDevice, total: int | None, *, room: int, ascii_only: bool) -> str:
    values = list(item.recent_bytes)
    known = [value for value in values if value is not None]
    points = next((n for n in _SPARK_POINTS if n <= room), 0)
    if len(known) < 2 or not points:
        return ""
    every = -(-len(values) // points)
    shown: list[float | None] = list(values[::-1][::every][::-1])  # the newest point stays
    low, high = float(min(known)), float(max(known))
    # Noise must not look like a mountain: the scale spans at least 2 % of the card.
    floor = _SPARK_MIN_SPAN * (total or high or 1)
    if high - low < floor:
        low, high = max(0.0, low - floor / 2), high + floor / 2
    return units.spark(shown, low=low, high=high, ascii_only=ascii_only)


def _extras(item: LiveDevice) -> list[Part]:
    reading = item.reading
    if reading is None:
        return []
    facts = (
        ("util", reading.util_pct, "%"), ("", reading.temp_c, " °C"), ("", reading.power_w, " W"),
    )  # fmt: skip
    return [f"{name} {value:.0f}{unit}".strip() for name, value, unit in facts if value is not None]


def _judgement(item: LiveDevice, finding: Finding | None) -> list[Part]:
    parts: list[Part] = [words.verdict(finding, samples=item.samples)]
    if finding is None or finding.pattern not in LEAK_PATTERNS | {"spike"}:
        return parts
    if finding.rate_bytes_per_s is not None:
        parts.append(words.growth(finding.rate_bytes_per_s))
    if is_leak(finding):
        band = words.eta(finding.eta)
        parts.append(f"full in {band}" if band else "full in ?")
        by = suspect(item, finding)
        if by:
            parts.append(f"by {by}")
    return parts


def suspect(item: LiveDevice, finding: Finding) -> str:
    """Return whose growth it is: the judged process, else the one that explains most of it."""
    if finding.subject.unattributed:
        return "memory that no process owns"
    known = {process.info.key: process.info for process in item.processes or ()}
    key, share = finding.subject.process, None
    if key is None and finding.blame:
        worst = max(finding.blame, key=lambda b: b.share)
        key, share = worst.process, worst.share
        if key is None:
            return f"{worst.name}, {units.percent(share)}"
    if key is None:
        return ""
    info = known.get(key)
    named = words.who(info) if info is not None else f"pid {key.pid}"
    kind = f" ({info.framework})" if info is not None and info.framework else ""
    return f"{named}{kind}" + (f", {units.percent(share)}" if share is not None else "")


def _processes(out: Out, item: LiveDevice, *, whole: bool, verbose: bool) -> None:
    rows = item.processes
    inner = _INDENT + "  "
    if rows is None:
        if verbose:
            reason = (item.reading.uses_reason if item.reading is not None else None) or "unknown"
            out.flow([(f"processes: {reason}", "dim")], first=_INDENT, rest=_INDENT)
        return
    ordered = sorted(rows, key=lambda p: -(p.used_bytes or 0))
    if whole and not verbose:
        ordered = [p for p in ordered if is_leak(p.finding) or p in ordered[:_LARGEST]]
    for process in ordered:
        out.flow(_process(process, in_full=not whole), first=inner, rest=inner + "  ")
    if len(rows) > len(ordered):
        out.flow([(f"and {len(rows) - len(ordered)} more (-v)", "dim")], first=inner)
    if verbose and item.unattributed_bytes is not None:
        out.flow([(f"unattributed {units.size(item.unattributed_bytes)}", "dim")], first=inner)


def _process(process: LiveProcess, *, in_full: bool) -> list[Part]:
    parts: list[Part] = [words.who(process.info), units.size(process.used_bytes)]
    if process.info.framework:
        parts.append((words.framework(None, process.info), "dim"))
    finding = process.finding
    if finding is not None and (in_full or is_leak(finding)):
        parts.append(words.verdict(finding))
        if in_full and finding.pattern in LEAK_PATTERNS:
            parts.append(words.growth(finding.rate_bytes_per_s))
            parts.append(f"full in {words.eta(finding.eta) or '?'}" if is_leak(finding) else "")
    if finding is not None and finding.pattern in LEAK_PATTERNS:
        parts.append((words.known(process.history), "dim"))
    return parts


def alert_line(alert: Alert) -> list[Part]:
    """Return one open alert in a line."""
    state = alert.state if alert.state != "firing" else alert.severity
    since = alert.firing_at_s or alert.watch_at_s or alert.opened_at_s
    finding = alert.finding
    band = words.eta(finding.eta)
    return [
        (
            f"{state} since {units.clock(since, now_s=time.time())}:",
            _SEVERITY_STYLE[alert.severity],
        ),
        alert.title or alert.key,
        f"{words.growth(finding.rate_bytes_per_s)} {finding.pattern}",
        f"full in {band}" if band else "",
        (f"held back: {alert.held_back}", "dim") if alert.held_back else "",
    ]


def _alerts(out: Out, view: View) -> None:
    for alert in sorted(view.alerts, key=lambda a: a.opened_at_s):
        if alert.state in {"firing", "watch"}:
            out.flow(alert_line(alert), rest="  ")
    firing = sum(1 for alert in view.alerts if alert.state == "firing")
    if firing:
        out.flow(
            [("gpuwatchctl alerts show KEY says why; gpuwatchctl predict has the numbers", "dim")]
        )
