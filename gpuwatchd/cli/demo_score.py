"""What the demo planted against what was found: pure bookkeeping, no screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core import units
from gpuwatchd.view.answers.base import Eta, fill
from gpuwatchd.view.answers.program import Scored

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuwatchd.collect.simulate import Planted
    from gpuwatchd.core.model import Alert, Finding, Subject


class _Story(msgspec.Struct, kw_only=True):
    """What happened to one subject's alerts."""

    subject: Subject
    watch_at_s: float | None = None
    firing: Alert | None = None


class DemoScore:
    """Collects judgements while the demo runs.

    Parameters
    ----------
    began_s
        World time at which the demo began, epoch seconds.
    """

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self._stories: dict[str, _Story] = {}
        self._findings: dict[str, Finding] = {}

    def note(self, findings: Mapping[str, Finding], changes: Iterable[Alert]) -> None:
        """Take what one tick said."""
        self._findings.update(findings)
        for alert in changes:
            if alert.kind != "leak":
                continue  # Nobody planted a program for it: it is not judged by its growth.
            story = self._stories.setdefault(alert.subject.id, _Story(subject=alert.subject))
            if alert.state == "watch" and story.watch_at_s is None:
                story.watch_at_s = alert.watch_at_s
            if alert.state == "firing" and story.firing is None:
                story.firing = alert
                story.watch_at_s = story.watch_at_s or alert.watch_at_s

    def rows(self, truth: Iterable[Planted]) -> list[Scored]:
        """Return one row per planted program, leaks first, and one per alert of nothing planted."""
        programs: dict[str, list[Planted]] = {}
        for planted in truth:
            programs.setdefault(planted.program, []).append(planted)
        rows = [self._row(program, runs) for program, runs in programs.items()]
        rows.sort(key=lambda row: not row.leak)
        names = {planted.subject.id for runs in programs.values() for planted in runs}
        leaky = {p.subject.device_uid for runs in programs.values() for p in runs if p.leak}
        for key, story in self._stories.items():
            # The memory of a whole card grows with its leaking process: that is no false alarm.
            if key not in names and story.firing and story.subject.device_uid not in leaky:
                rows.append(self._unplanted(story, story.firing))
        return rows

    def _row(self, program: str, runs: list[Planted]) -> Scored:
        stories = [(run, self._stories.get(run.subject.id)) for run in runs]
        fired = [(run, story.firing) for run, story in stories if story and story.firing]
        watched = [story.watch_at_s for _, story in stories if story and story.watch_at_s]
        run, alert = fired[0] if fired else (runs[0], None)
        at_s = alert.firing_at_s if alert is not None else None
        in_time = at_s is not None and (run.oom_at_s is None or at_s < run.oom_at_s)
        return Scored(
            program=program,
            planted=f"{run.pattern} leak" if run.leak else run.pattern,
            found=self._found(runs, alert, watched=bool(watched)),
            watch_s=self._since(min(watched)) if watched else None,
            alert_s=self._since(at_s),
            eta=None if alert is None else fill(Eta, alert.finding.eta),
            true_eta_s=None if run.oom_at_s is None or at_s is None else run.oom_at_s - at_s,
            leak=run.leak,
            right=in_time if run.leak else alert is None,
        )

    def _found(self, runs: list[Planted], alert: Alert | None, *, watched: bool) -> str:
        if alert is not None:
            return f"{alert.finding.pattern} ALERT"
        last = self._findings.get(runs[-1].subject.id) or self._findings.get(runs[0].subject.id)
        pattern = last.pattern if last is not None else "nothing"
        return f"{pattern} (watch)" if watched else pattern

    def _unplanted(self, story: _Story, alert: Alert) -> Scored:
        return Scored(
            program=alert.title or story.subject.id,
            planted="nothing",
            found=f"{alert.finding.pattern} ALERT",
            watch_s=self._since(story.watch_at_s),
            alert_s=self._since(alert.firing_at_s),
            eta=fill(Eta, alert.finding.eta),
            true_eta_s=None,
            leak=False,
            right=False,
        )

    def _since(self, at_s: float | None) -> float | None:
        return None if at_s is None else at_s - self.began_s


def clock(world_s: float) -> str:
    """Return "+7 min": simulated time, everywhere in the same unit."""
    return f"+{world_s / 60:.0f} min"


def verdict_line(rows: Iterable[Scored], *, simulated_s: float) -> str:
    """Return the result in one sentence."""
    rows = list(rows)
    leaks = [row for row in rows if row.leak]
    found = sum(row.right for row in leaks)
    false = sum(not row.leak and not row.right for row in rows)
    alarms = "1 false alarm" if false == 1 else f"{false or 'no'} false alarms"
    if not leaks:
        return f"no leak planted, {alarms}, in {units.duration(simulated_s)} of simulated time"
    return (
        f"{found} of {len(leaks)} leaks found before the crash, {alarms}, "
        f"in {units.duration(simulated_s)} of simulated time"
    )


HEADERS = ("GPU, program", "planted", "found", "when", "ETA", "true ETA", "right")
WRONG = "NO"


def cells(row: Scored, *, wide: bool) -> list[str]:
    """Return the row as people read it; ``wide`` has room for the interval of the prediction."""
    text = "-"
    eta = row.eta
    if eta is not None and eta.low_s is not None and eta.mid_s is not None:
        text = units.band(eta.low_s, eta.mid_s, eta.high_s) if wide else units.duration(eta.mid_s)
    return [
        row.program.removeprefix("GPU "),
        row.planted,
        row.found,
        "-" if row.alert_s is None else clock(row.alert_s),
        text,
        "-" if row.true_eta_s is None else units.duration(row.true_eta_s),
        "yes" if row.right else WRONG,
    ]
