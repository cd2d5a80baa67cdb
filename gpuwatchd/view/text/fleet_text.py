"""A fleet's workers, and one of its GPUs, as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd import alerts
from gpuwatchd.core import units
from gpuwatchd.core.model import is_leak
from gpuwatchd.core.units import is_number
from gpuwatchd.view.queries import fleet_state
from gpuwatchd.view.queries.fleet_state import CalmGpu
from gpuwatchd.view.text import verdict_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatchd.view.blocks import Page
    from gpuwatchd.view.queries.fleet_state import FleetGpu, FleetState, Worker

_MOST_ROWS: Final = 40
_SHORT: Final = 12
"""Of a UUID: enough to tell a few thousand apart, and accepted by ``fleet explain``."""
_ASKED: Final = {
    "round": ("round", "rounds"),
    "query_range": ("question about the past", "questions about the past"),
    "read": ("question for open alerts to", "questions for open alerts to"),
    "post": ("message of alerts to", "messages of alerts to"),
}
_DATA: Final = {
    "late": "no value in the last round",
    "none": "no value for five minutes: not judged, and its alert stays as it is",
}


def problems(workers: Sequence[Worker], now_s: float) -> list[tuple[str, str]]:
    """Return (code, sentence) of what keeps workers from judging, and alerts from arriving."""
    out = []
    for worker in workers:
        state, found = worker.state, list(_problems(worker, now_s))
        several = f"shard {state.shard}: " if len(workers) > 1 else ""
        out += [(code, several + words) for code, words in found]
    return out


def _problems(worker: Worker, now_s: float) -> Iterator[tuple[str, str]]:
    state = worker.state
    gone_ = gone(worker, now_s)
    if gone_:
        yield "worker-gone", gone_
    if state.error or not (state.rounds or gone_):
        since_s = state.started_at_s if state.round_at_s is None else state.round_at_s
        why = state.error or "the past is read"
        yield "no-round", f"no round since {_ago(since_s, now_s)}: {why}"
    elif not gone_:
        yield from fleet_state.warnings(state.round, state.shard)
    for member in state.failing_members:
        since = _ago(member.since_s, now_s)
        yield "alertmanager", f"alerts are not taken since {since}: {member.error}"


def _ago(at_s: float, now_s: float) -> str:
    return f"{units.clock(at_s, now_s=now_s)} ({units.duration(now_s - at_s)} ago)"


def show(out: Page, workers: Sequence[Worker], *, now_s: float, every: bool, sure: bool) -> None:
    """Show what is open, then how the workers are; ``sure``: there are no problems."""
    gpus = [gpu for worker in workers for gpu in worker.state.round.verdicts]
    gpus.sort(key=fleet_state.urgency)
    shown = gpus if every else gpus[:_MOST_ROWS]
    if shown:
        headers = ("state", "host", "GPU", "job", "verdict", "growth", "full in", "UUID")
        out.table(headers, [_cells(gpu, whole=out.wide or not out.terminal) for gpu in shown])
    elif sure:
        out.line(("no GPU leaks, as far as is known", "green"))
    else:
        out.line(("no GPU with a verdict is known", "yellow"))
    if len(gpus) > len(shown):
        out.line((f"--all shows {len(gpus) - len(shown)} more", "dim"))
    for worker in workers:
        _worker(out, worker, now_s)


def _cells(gpu: FleetGpu, *, whole: bool) -> tuple[str, ...]:
    finding = gpu.finding
    eta = finding.eta.mid_s if finding.eta is not None and is_leak(finding) else None
    return (
        gpu.state if gpu.data == "fresh" else f"{gpu.state}, no data",
        gpu.host,
        gpu.gpu,
        "/".join(part for part in (gpu.namespace, gpu.job) if part),
        f"{verdict_text.verdict_parts(finding).head} {finding.pattern}",
        verdict_text.rate(finding),
        "" if eta is None else units.duration(eta),
        gpu.id if whole else gpu.id[:_SHORT],
    )


def gone(worker: Worker, now_s: float) -> str:
    """Return that a worker is not there, and since when; "" where it is."""
    state = worker.state
    if worker.running(now_s):
        return ""
    if state.stopped:
        why = "has stopped"
    elif worker.process_runs is False:
        why = f"has ended without being stopped (pid {state.pid}): killed, or a fault"
    else:
        why = "has done nothing since its next round was due"
        why += ", though its process runs" if worker.process_runs else ""
    at = units.clock(state.written_at_s, now_s=now_s)
    return f"the worker of shard {state.shard} {why}; its state is of {at}"


def _worker(out: Page, worker: Worker, now_s: float) -> None:
    state, found = worker.state, worker.state.round
    last = "no round yet"
    if state.round_at_s is not None and state.round_s is not None:
        age = units.duration(now_s - state.round_at_s)
        last = f"last round {age} ago, took {state.round_s:.1f} s"
    out.flow(
        [
            (f"shard {state.shard}", "bold"),
            f"of {state.server}, pid {state.pid} on {state.host}",
            last,
            *(["dry run: no alerts are sent"] if state.dry_run else []),
            units.count(found.gpus, "GPU"),
            f"{len(found.verdicts)} with a verdict",
            f"{len(state.calm)} calm",
            f"{found.no_data} without data",
            *([f"{found.failed} could not be judged"] if found.failed else []),
        ],
        rest="  ",
    )
    if found.dropped:
        parts = [f"{what} {many}" for what, many in sorted(found.dropped.items())]
        out.flow([("left out", "dim"), *parts], first="  ", rest="    ")
    if found.failures:
        last = "" if state.failed_at_s is None else f", last {_ago(state.failed_at_s, now_s)}"
        parts = [_failure(kind, many) for kind, many in sorted(found.failures.items())]
        out.flow([(f"failed since the start{last}", "dim"), *parts], first="  ", rest="    ")
    if state.left_out:
        out.line(f"  {state.left_out} GPUs had no room in the state")


def _failure(kind: str, many: int) -> str:
    """Return what a key of :attr:`FleetRoundState.failures` means."""
    parts = kind.split(" ")
    member = "" if parts[0] in _ASKED else f" {parts.pop(0)}"
    what, status = parts[0] if parts else "", parts[-1] if parts else ""
    if what not in _ASKED:
        return f"{kind} {many}"
    one, more = _ASKED[what]
    how = f"answered with {status}" if is_number(status) else "without a usable answer"
    return f"{many} {one if many == 1 else more}{member} {how}"


def explain(out: Page, worker: Worker, gpu: FleetGpu | CalmGpu, *, now_s: float) -> None:
    """Show what a worker knows of one GPU."""
    place = " ".join(part for part in (gpu.host, gpu.gpu and f"GPU {gpu.gpu}") if part)
    head = ("calm", "green") if isinstance(gpu, CalmGpu) else verdict_text.verdict(gpu.finding)
    out.flow([(place, "bold"), gpu.id, head], rest="  ")
    if words := _DATA.get(gpu.data, ""):
        out.prose(f"! {words}", "yellow", rest="  ")
    if isinstance(gpu, CalmGpu):
        since = units.clock(gpu.since_at_s, now_s=now_s)
        out.prose(f"nothing to say of it since the round of {since}", first="  ", rest="    ")
        return
    for line in _lines(gpu, now_s, worker.state):
        out.prose(line, first="  ", rest="    ")
    if gpu.finding.advice:
        out.line(("What to do", "bold"))
    for number, line in enumerate(gpu.finding.advice, 1):
        out.prose(line, first=f"  {number}. ", rest="     ")


def _lines(gpu: FleetGpu, now_s: float, state: FleetState) -> Iterator[str]:
    finding, alert = gpu.finding, gpu.alert
    if gpu.used_bytes is not None:
        limit = units.size(gpu.limit_bytes) if gpu.limit_bytes is not None else "unknown"
        yield f"{units.size(gpu.used_bytes)} of {limit} in use"
    if gpu.job or gpu.namespace:
        yield f"job {gpu.job or '?'}" + (f" in {gpu.namespace}" if gpu.namespace else "")
    for part in finding.parts:
        yield part.whole
    if finding.samples:
        sure = f"{units.strength(finding.confidence)} {units.percent(finding.confidence)}"
        yield f"confidence {sure}, from {finding.samples} values"
        if finding.onset_at_s is not None:
            yield f"it grows since {units.clock(finding.onset_at_s, now_s=now_s)}"
        yield f"judged with the values until {units.clock(finding.judged_at_s, now_s=now_s)}"
    else:
        yield (
            "not judged since the worker started: its alert was read back from Alertmanager, "
            "whose annotations have the figures"
        )
    if alert is None:
        yield "no alert is open"
        return
    since = f"{alert.state}, open since {units.clock(alert.opened_at_s, now_s=now_s)}"
    if state.dry_run:
        yield f"its alert would be {since}; this is a dry run, and none is sent"
    else:
        yield f"its alert is {since}"
    if alert.state == "pending":
        yield f"it is a watch after {state.confirm} rounds; {alert.confirmations} support it so far"
    if alert.state == "watch" and state.alert_confidence is not None:
        over, mean = units.duration(alerts.evidence_s(finding)), alerts.mean_confidence(alert)
        yield (
            f"a watch is not sent: {alert.alert_confirmations} of {state.confirm} rounds support "
            f"an alert, and its mean confidence over {over} is {units.percent(mean)} of "
            f"{units.percent(state.alert_confidence)}"
        )
