"""``predict``: rate, R², confidence, time left, detector, pattern, framework, suspect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpuwatchd import text, units
from gpuwatchd.ctl import envelope, look, options, output, panel, words
from gpuwatchd.ctl.envelope import is_leak
from gpuwatchd.errors import GpuwatchdError
from gpuwatchd.model import LEAK_PATTERNS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.ctl.flags import Globals
    from gpuwatchd.ctl.output import Out, Part
    from gpuwatchd.model import Finding
    from gpuwatchd.store.live import LiveDevice, LiveProcess

_LABEL_WIDTH = 14
_TOLD_IN_FULL = LEAK_PATTERNS | {"spike"}


@click.command("predict", epilog=options.examples("predict", "predict --pid 4711 --json"))
@options.pid_option
@options.exit_code_option
def command(pids: tuple[int, ...], exit_code: bool) -> int:  # noqa: FBT001
    """Say how fast memory grows, how sure that is, and when it will be full.

    From the daemon's live judgement; without one, judged again from the history.
    """
    flags = options.current()
    view = _view(flags)
    panel.narrow(view, pids)
    if flags.json:
        output.emit_json(envelope.answer("predict", panel.payload(view), view=view))
    else:
        out = output.Out(flags)
        for _, sentence in view.warnings:
            out.flow([(f"! {sentence}", "yellow")])
        for item in view.devices:
            _device(out, item, whole=not pids, verbose=flags.verbose)
    return 3 if exit_code and panel.leaks(view, whole=not pids) else 0


def _view(flags: Globals) -> look.View:
    """Return judged devices.

    Raises
    ------
    GpuwatchdError
        When there is neither a live state nor a history to judge.
    """
    state, _ = look.read_state()
    if state is not None and state.devices:
        return look.see(flags, want_trend=True)
    from gpuwatchd.ctl import past  # noqa: PLC0415 - numpy and SQLite come with it

    strange: list[tuple[str, str]] = []
    view = past.judged(flags, strange)
    if view is None:
        look.see(flags)  # says it when there is no GPU at all
        raise GpuwatchdError(
            strange[0][1] if strange else "no history to predict from: nothing was watched yet",
            hint="gpuwatchctl service install",
        )
    view.devices = tuple(item for item in view.devices if flags.wants(item.device))
    return view


def _subjects(
    item: LiveDevice, *, whole: bool
) -> Iterator[tuple[str, Finding, LiveProcess | None]]:
    """Yield (who, judgement, process) per subject, the device first."""
    finding = item.finding
    own = finding is not None and finding.subject.process is None
    if finding is not None and own and whole:
        rest = " (memory that no process owns)" if finding.subject.unattributed else ""
        yield f"the whole device{rest}", finding, None
    seen = False
    for process in item.processes or ():
        if process.finding is None:
            continue
        seen = seen or process.finding.subject == (finding.subject if finding else None)
        yield words.who(process.info), process.finding, process
    key = finding.subject.process if finding is not None else None
    if finding is not None and key is not None and not seen and whole:
        yield f"pid {key.pid}", finding, None


def _device(out: Out, item: LiveDevice, *, whole: bool, verbose: bool) -> None:
    index = item.device.index
    subjects = list(_subjects(item, whole=whole))
    out.line((f"GPU {index if index is not None else '?'}  {item.device.name}", "bold"))
    if not subjects:
        out.flow([words.verdict(None, samples=item.samples)], first="  ", rest="  ")
    for who, finding, process in subjects:
        if verbose or finding.pattern in _TOLD_IN_FULL:
            _full(out, item, who, finding, process)
        else:
            said = words.verdict(finding)
            reason = finding.reason if finding.reason != said[0] else ""
            known = words.known(process.history) if process is not None else ""
            out.flow([who, said, (reason, "dim"), (known, "dim")], first="  ", rest="    ")


def _full(
    out: Out, item: LiveDevice, who: str, finding: Finding, process: LiveProcess | None
) -> None:
    info = process.info if process is not None else None
    out.flow([who, words.verdict(finding)], first="  ", rest="    ")
    facts: list[tuple[str, Part]] = [
        ("growth rate", words.growth(finding.rate_bytes_per_s)),
        ("R²", _r_squared(finding)),
        ("confidence", _confidence(finding)),
        ("full in", _eta(finding)),
        ("detector", finding.detector or "?"),
        ("pattern", finding.pattern),
        ("framework", words.framework(finding, info)),
        ("suspect", panel.suspect(item, finding) or "?"),
    ]
    if finding.onset_at_s is not None:
        facts.append(("since", units.clock(finding.onset_at_s, now_s=finding.judged_at_s)))
    if finding.reason:
        facts.append(("because", finding.reason))
    if process is not None and process.history is not None:
        facts.append(("known", words.known(process.history) or "its first run"))
    facts += [("advice", advice) for advice in finding.advice]
    for label, value in facts:
        out.flow(
            text_parts(value),
            first=f"    {out.safe(label):<{_LABEL_WIDTH}}",
            rest=" " * (4 + _LABEL_WIDTH),
            gap=" ",
        )


def text_parts(value: Part) -> list[Part]:
    """Return a value split at its spaces, so that a long sentence wraps between words."""
    words_, style = (value, "") if isinstance(value, str) else value
    return [(word, style) for word in text.clean(words_, limit=1024).split(" ")]


def _r_squared(finding: Finding) -> str:
    if finding.r_squared is None:
        return "?"
    return f"{finding.r_squared:.3f} ({words.fit(finding.r_squared)})"


def _confidence(finding: Finding) -> str:
    if finding.pattern == "unknown":
        return "?"
    return f"{units.percent(finding.confidence)} ({units.strength(finding.confidence)})"


def _eta(finding: Finding) -> str:
    if finding.eta is not None:
        return words.eta(finding.eta)
    return "?" if is_leak(finding) else "stable" if finding.pattern == "stable" else "not foreseen"
