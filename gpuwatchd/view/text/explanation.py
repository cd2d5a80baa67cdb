"""One explanation put together: the case, its sections, its steps."""

from __future__ import annotations

from contextlib import suppress
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from gpuwatchd import alerts
from gpuwatchd.analysis import cost, frameworks
from gpuwatchd.analysis.frameworks.engine_addresses import COUNTS_LIVE
from gpuwatchd.core import text, units
from gpuwatchd.core.errors import StoreError
from gpuwatchd.core.model import LEAK_PATTERNS, is_leak
from gpuwatchd.store.tables import same_process
from gpuwatchd.view.queries import cost_entries, history_query, remeasure, subjects
from gpuwatchd.view.queries.remeasure import ExplanationInput
from gpuwatchd.view.text import (
    alert_details,
    delivery_text,
    explanation_parts,
    subject_facts,
    verdict_text,
)
from gpuwatchd.view.text.explanation_parts import Section, Step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatchd.core.model import Alert, Delivery, Finding, ProcessKey, Profile, ServerReading
    from gpuwatchd.store.live import LiveProcess
    from gpuwatchd.view.queries.current_view import View
    from gpuwatchd.view.queries.subjects import NamedSubject
    from gpuwatchd.view.query import Query

_PLAIN_LINE = 400
_ENDS = {
    "gpu": (
        "it resolves when the GPU has answered for a minute",
        "it stays open while the GPU sleeps, is released or cannot be read",
    ),
    "held": (
        "it resolves when the process has ended, or has been active or held less for five minutes",
        "it stays open while the list of processes cannot be read",
    ),
    "limit": ("it resolves when its control group has been below 90 % of its limit for a minute",),
}
_ABOUT = {
    "gpu": "how the GPU answers",
    "held": "idle memory",
    "limit": "the limit of its control group",
}


def case_of(query: Query, target: str | None) -> tuple[ExplanationInput, list[tuple[str, str]]]:
    """Return everything about the subject that is meant, and what is missing.

    Raises
    ------
    GpuwatchdError
        When there is nothing to explain, or nothing that fits.
    """
    view = subjects.judged_view(query)
    return case_about(query, view, subjects.pick(view, target))


def case_about(
    query: Query, view: View, meant: NamedSubject
) -> tuple[ExplanationInput, list[tuple[str, str]]]:
    """Return the same about a subject that is known already."""
    alert = meant.alert
    if alert is not None:
        (alert,) = cost_entries.up_to_now(query, [alert])
    over = meant.alert is not None and meant.alert.state == "resolved"
    now_s = view.taken_at_s
    if over and meant.finding is not None:
        now_s = meant.finding.judged_at_s
    config = remeasure.with_own_thresholds(query.load_config().config, meant)
    found = remeasure.gather(meant, now_s, config.detection)
    warnings = [("no-series", found)] if isinstance(found, str) else []
    return ExplanationInput(
        **meant._replace(alert=alert)._asdict(),
        view=view,
        evidence=found,
        config=config,
        now_s=now_s,
        **_recorded(meant.alert, meant.subject.process),
    ), warnings


def _recorded(alert: Alert | None, process: ProcessKey | None) -> dict[str, Any]:
    """Return where the notices of an alert went, and its process's last checkpoint."""
    recorded: dict[str, Any] = {}
    with suppress(StoreError), history_query.reader() as history:
        if alert is not None:
            # A key comes again with the next growth of the same process.
            every, begun_s = history.deliveries(alert.key), alert.opened_at_s
            recorded["deliveries"] = tuple(one for one in every if one.created_at_s >= begun_s)
        if process is not None:
            points = [one for one in history.checkpoints() if same_process(one.process, process)]
            recorded["saved"] = points[-1] if points else None
    return recorded


def sections(case: ExplanationInput) -> list[Section]:
    """Return the explanation, part by part; parts without anything to say are empty."""
    if case.alert is not None and case.alert.kind in _ENDS:
        return _plain_sections(case, case.alert)
    pattern = case.finding.pattern if case.finding is not None else "no verdict"
    return [
        Section("What ended", tuple(_deaths(case)), answer=True),
        Section("Data", tuple(explanation_parts.subject_lines(case)), answer=True),
        Section("When it is full", tuple(limit_lines(case)), answer=True),
        Section(f"Why {pattern}", tuple(explanation_parts.pattern(case)), answer=True),
        Section("Who", tuple(who(case))),
        Section("Forecast", tuple(forecast_lines(case))),
        Section("How sure", tuple(explanation_parts.confidence_lines(case))),
        Section("Notifications", tuple(policy_lines(case))),
        Section("Hardware", tuple(subject_facts.hardware_lines(case))),
        Section("Why it is not harmless", tuple(explanation_parts.against(case))),
        Section("Framework", tuple(framework(case))),
        Section("What is known beside the curve", tuple(fact_lines(case))),
        Section("What is known of the program", tuple(baseline_lines(case))),
        Section("What would change it", tuple(change(case))),
        Section("Analysed", tuple(explanation_parts.window_lines(case))),
        Section("Detectors", tuple(explanation_parts.detectors(case))),
    ]


def _deaths(case: ExplanationInput) -> Iterator[str]:
    """Yield what ran out of memory on the same GPU within the last day, beside the subject."""
    if case.alert is not None and case.alert.state == "resolved":
        return
    for alert in case.view.deaths:
        if alert.subject.device_uid == case.item.device.uid and alert.subject != case.subject:
            parts = delivery_text.death_line(alert, now_s=case.view.now_s)
            yield " ".join(part if isinstance(part, str) else part[0] for part in parts)


def steps(case: ExplanationInput) -> list[Step]:
    """Return what to do next, in order."""
    if case.alert is not None and case.alert.kind in _ENDS:
        return _plain_steps(case.alert)
    found = explanation_parts.steps(case, hardware_first=subject_facts.first(case))
    if case.alert is not None and case.alert in case.view.deaths:
        off = f"gpuwatchctl feedback {case.alert.code} leak"
        found.append(Step("take this death off the list of status: mark it as a leak", off))
    return found


# What is said of an alert that no curve is judged for: a lost GPU, idle memory.


def _plain_sections(case: ExplanationInput, alert: Alert) -> list[Section]:
    """Return the explanation, part by part."""
    return [
        Section("What is sent", tuple(_plain_lines(case, alert)), answer=True),
        Section("Hardware", tuple(subject_facts.hardware_lines(case))),
        Section("Notifications", tuple(policy_lines(case))),
        Section("What would end it", () if alert.state == "resolved" else _ENDS[alert.kind]),
    ]


def _plain_lines(case: ExplanationInput, alert: Alert) -> Iterator[str]:
    yield f"{_ABOUT[alert.kind]}: {text.clean(alert.title)}"
    for part in alert.finding.parts:
        yield text.clean(part.whole, limit=_PLAIN_LINE)
    yield f"since {case.ago(alert.opened_at_s)}"
    yield from explanation_parts.ending(case)


def _plain_steps(alert: Alert) -> list[Step]:
    """Return what to do next, in order; what follows a colon is there to be typed."""
    found, finding = [], alert.finding
    for line, command in zip_longest(finding.advice, finding.commands or (), fillvalue=""):
        words = line[: -len(f": {command}")] if command else line
        found.append(
            Step(text.clean(words, limit=_PLAIN_LINE), text.clean(command, limit=_PLAIN_LINE))
        )
    if alert.kind == "held":
        found.append(Step("see everything that is held", "gpuwatchctl zombies"))
    elif alert.state != "resolved" and alert.kind == "gpu":
        found.append(Step("see what else the daemon misses", "gpuwatchctl doctor"))
    return found


# The limit, who, what is known, what was sent: beside the curve.

_KEEPS = {
    "PyTorch": (
        "its allocator keeps the memory of freed tensors: a staircase that ends is normal; what is "
        "taken outside it (extensions, NCCL, cuDNN) shows only here"
    ),
    "CuPy": "its pool keeps the memory of freed arrays: a staircase that ends is normal",
    "ONNX Runtime": "its arena doubles and never shrinks: a few large steps are normal",
    "Ollama": (
        "cache and buffers are fixed when a model is loaded: growth in between is not by design"
    ),
    "llama.cpp": (
        "cache and buffers are fixed when a model is loaded: growth in between is not by design"
    ),
    "MLX": "it keeps a cache up to a limit (mx.set_cache_limit): a rise that levels off is normal",
}
_UNEVEN, _RUNS = 0.3, 5


def limit_lines(case: ExplanationInput) -> Iterator[str]:
    """Yield when it will be full, and what it has cost."""
    finding = case.finding
    if finding is None:
        return
    if case.alert is not None and case.alert.state == "resolved":
        pass  # what was foreseen has come, or never will
    elif finding.eta is not None:
        eta = finding.eta
        yield f"full in {verdict_text.eta(eta)}: the middle, with 5 and 95 % of how it may come"
        if eta.high_s is None:
            yield "the end is open: it may level off before"
    elif verdict_text.stopped(finding):
        yield f"no forecast: it {verdict_text.stopped(finding)}"
    elif is_leak(finding):
        why = "its limit is not known" if finding.limit_bytes is None else "it rather ends before"
        yield f"no forecast: {why}"
    else:
        yield "no growth that would fill it"
    if finding.levels_off_bytes is not None:
        yield f"it may level off at about {units.size(finding.levels_off_bytes)}"
    if case.alert is not None and (words := cost.line(case.alert.cost)):
        yield f"it has cost {words}"


def forecast_lines(case: ExplanationInput) -> Iterator[str]:
    """Yield what the time left rests on, and what limits it."""
    finding = case.finding
    if finding is None:
        return
    held, limit = case.held_bytes, finding.limit_bytes
    if limit is not None and is_leak(finding):
        yield _limit(case, limit)
    rate = finding.rate_bytes_per_s
    if rate and held is not None and limit is not None and is_leak(finding) and limit > held:
        line = units.duration((limit - held) / rate)
        yield f"a straight line at {units.rate(rate)} would take {line}"
    yield from _pace(case, finding)


def _limit(case: ExplanationInput, limit_bytes: float) -> str:
    """Return where it is full, how far away that is, and why it is there."""
    at, held = f"it is full at {units.size(limit_bytes)}", case.held_bytes
    if held is None:
        return f"{at}: what it held and what was free"
    process = case.process
    others = "" if case.subject.host else subject_facts.why_sooner(case.item, limit_bytes, process)
    away = units.size(max(0.0, limit_bytes - held))
    return f"{at}, {away} away: {others or 'what it holds and what is free'}"


def _pace(case: ExplanationInput, finding: Finding) -> Iterator[str]:
    evidence = case.measured
    if evidence is None or finding.pattern not in LEAK_PATTERNS:
        return
    if evidence.pace is not None:
        proven = evidence.pace.proven
        if abs(proven) >= _UNEVEN:
            yield f"its pace provably {'quickens' if proven > 0 else 'slows down'}"
        else:
            loose = " but uneven: hence the wide interval" if evidence.pace.error > _UNEVEN else ""
            yield f"its pace is steady{loose}"
    others = sum(evidence.series.neighbours_bytes_per_s)
    if others > 0.0:
        own = (finding.rate_bytes_per_s or 0.0) / ((finding.rate_bytes_per_s or 0.0) + others)
        yield (
            f"others on the device leak {units.rate(others)} into the same free memory: "
            f"{units.percent(own)} of it counts as its own"
        )


def who(case: ExplanationInput) -> Iterator[str]:
    """Yield who it is, who else grows, and what nobody owns."""
    if case.process is not None:
        yield from _identity(case, case.process)
    yield from _others(case)
    unknown = subject_facts.processes(case.item)
    if unknown:
        yield unknown
    if case.item.ledger is not None and case.item.ledger.state != "none":
        yield subject_facts.balance(case.item.ledger)
    rest = subject_facts.unowned(case.item)
    if rest:
        yield rest


def _identity(case: ExplanationInput, process: LiveProcess) -> Iterator[str]:
    info = process.info
    yield verdict_text.who(info)
    if info.foreign:
        yield "the pid is of another pid namespace: no name is true here, and no signal is sent"
        return
    facts = [fact for fact, _ in subject_facts.wide(process, now_s=case.now_s)]
    if facts:
        yield ", ".join(facts)
    if case.saved is not None:
        yield f"saved its work {case.ago(case.saved.saved_at_s)}  {case.saved.detail}".rstrip()
    if info.group is None:
        return
    ranks = [
        one
        for item in case.view.devices
        for one in item.processes or ()
        if one.info.team == info.team and one.info.key != info.key
    ]
    if not ranks:
        return
    growing = sum(
        rank.finding is not None and rank.finding.pattern in LEAK_PATTERNS for rank in ranks
    )
    here = f"{units.count(len(ranks), 'other rank')} of {info.group}"
    look = "check what all ranks do" if growing else "check what only this rank does"
    yield f"{here} seen on these GPUs, growing too: {growing}; {look}"


def _others(case: ExplanationInput) -> Iterator[str]:
    others = [
        process
        for process in case.item.processes or ()
        if (case.process is None or process.info.key != case.process.info.key)
    ]
    growing = [other for other in others if is_leak(other.finding)]
    for item in growing:
        rate = item.finding.rate_bytes_per_s if item.finding is not None else None
        yield f"also growing: {verdict_text.who(item.info)}, {verdict_text.growth(rate)}"
    if others and not growing:
        all_of = (
            f"none of the {len(others)} other processes" if len(others) > 1 else "the other process"
        )
        yield f"{all_of} on the device {'grows' if len(others) > 1 else 'does not grow'}"


def baseline_lines(case: ExplanationInput) -> Iterator[str]:
    """Yield what earlier runs and the user say."""
    if case.process is None:
        yield "earlier runs are kept for processes, not for a device"
    elif case.process.history is None and case.item.device.recorded:
        yield "earlier runs are not kept of what is simulated or replayed"
    elif case.process.history is None:
        yield (
            "this program cannot be recognised in later runs (a notebook, a shell, code on the "
            "command line)"
        )
    else:
        words = verdict_text.baseline_text(case.process.history)
        yield f"{words}; they count in the verdict" if words else "this is its first run"
    evidence = case.measured
    for run in evidence.series.history[-_RUNS:] if evidence is not None else ():
        yield _run(run, now_s=case.now_s)
    if evidence is not None and evidence.growth is not None and evidence.growth.bounds is None:
        compared = evidence.growth.compared()
        if compared:
            yield f"compared with them: {compared}"
    if case.word is not None:
        yield verdict_text.user_label(case.word)


def fact_lines(case: ExplanationInput) -> Iterator[str]:
    """Yield what was known beside the curve and counted, the weightiest first."""
    facts = case.finding.facts or () if case.finding is not None else ()
    for fact in sorted(facts, key=lambda fact: -fact.weight):
        label, size = fact.name.value.replace("-", " "), fact.level_bytes or fact.part_bytes
        which = "" if size is None else "at most " if fact.level_bytes else "a part of "
        amount = f": {which}{units.size(size)}" if which else ""
        source = f"{label}, {fact.source}, weight {units.percent(fact.weight)}"
        yield text.clean(f"{fact.text or label} ({source}){amount}", limit=_PLAIN_LINE)


def _run(run: Profile, *, now_s: float) -> str:
    """Return one earlier run in a line: when, how long, how high, what was said of it."""
    what = {"run": "a run that ended", "sibling": "a sibling, at", "yesterday": "yesterday, at"}
    words = f", marked as {'normal' if run.word == 'normal' else 'a leak'}" if run.word else ""
    ended = ", ended near the limit" if run.near_limit else ""
    return (
        f"{what[run.kind]} {units.clock(run.ended_at_s, now_s=now_s)}: "
        f"{units.duration(run.run_s)} long, from {units.size(run.base_bytes)} up to "
        f"{units.size(run.top_bytes)}{ended}{words}"
    )


def framework(case: ExplanationInput) -> Iterator[str]:
    """Yield which framework it is, and what that means for the curve."""
    info = case.process.info if case.process is not None else None
    name = info.framework if info is not None else None
    if name is None and case.finding is not None:
        name = case.finding.framework
    if name is None:
        yield "unknown; no assumption is made about its allocator"
    else:
        sure = "guessed from names" if info is not None and not info.framework_sure else "known"
        model = f", serving {info.model}" if info is not None and info.model else ""
        yield f"{name} ({sure}){model}"
        if name in frameworks.PREALLOCATES:
            inside = ", the KV cache" if name in COUNTS_LIVE else ""
            yield (
                "it takes a pool at start: memory is flat by design, and a leak inside the pool is "
                f"invisible here; growth above the pool{inside} and host memory are watched"
            )
        elif name in frameworks.GRAPHICS:
            yield "what draws grows with the windows that are open: watched at most, never alerted"
        elif name in _KEEPS:
            yield _KEEPS[name]
    if case.process is not None:
        pid = case.process.info.key.pid
        yield from (_server(server) for server in case.view.servers if server.pid == pid)
    yield from _host(case)


def _server(server: ServerReading) -> str:
    if not server.ok:
        return f"{server.kind} does not answer: {server.why or 'no reason is known'}"
    facts = []
    if server.models is not None:
        facts.append(f"loaded: {', '.join(model.name for model in server.models) or 'nothing'}")
    if server.kv_share is not None:
        facts.append(f"KV cache {units.percent(server.kv_share)} in use")
    if server.running is not None:
        facts.append(f"{server.running} requests running")
    return f"{server.kind} says: {', '.join(facts) or 'no useful figures'}"


def _host(case: ExplanationInput) -> Iterator[str]:
    if case.process is None or case.process.host_bytes is None or case.subject.host:
        return
    finding = case.process.host_finding
    words = f"; {verdict_text.verdict(finding)[0]}" if finding is not None else ""
    yield f"on the host it holds {units.size(case.process.host_bytes)}{words}"


def policy_lines(case: ExplanationInput) -> Iterator[str]:
    """Yield what policy has made of it: confirmations, notices, what was held back."""
    alert, rules = case.alert, case.config.policy
    if alert is None:
        yield from _not_open(case)
        return
    case = case._replace(now_s=case.view.now_s)  # what was sent is no judgement: told as of now
    yield ", ".join(f"{name} {case.ago(at_s)}" for name, at_s in alert_details.steps(alert))
    if alert.state == "watch":
        yield from _watched(case, alert)
    if alert.state == "firing":
        # Those that it went to; the rules of today, or of this user, may name others.
        sent = tuple(
            dict.fromkeys(
                delivery.channel for delivery in case.deliveries if delivery.state == "sent"
            )
        )
        to = ", ".join(sent or alert.told_on or rules.channels) or "no one: channels is empty"
        yield _notices(alert.notices, case.deliveries, to)
        if alert.notices == 0 and not alert.held_back:
            wait = units.duration(rules.flap_hold)
            yield f"the first waits {wait} (flap-hold), in case it resolves quickly"
        if alert.next_notice_at_s is not None:
            yield f"next reminder {units.clock(alert.next_notice_at_s, now_s=case.now_s)}"
    for delivery in case.deliveries[-_RUNS:]:
        yield delivery_text.dated(delivery, now_s=case.now_s)
    yield from _unheard(case, alert)
    if alert.held_back:
        yield f"held: {alert.held_back}"


def _unheard(case: ExplanationInput, alert: Alert) -> Iterator[str]:
    """Yield what keeps it quiet: a channel that fails, another alert that says it, a silence."""
    if alert.key in case.view.untold:
        yield f"{delivery_text.UNDELIVERED}: gpuwatchctl notify test"
    if alert.inhibited_by:
        other = next((one for one in case.view.alerts if one.key == alert.inhibited_by), None)
        beside = alert.inhibited_by if other is None else other.title or other.key
        yield f"it is inhibited by another alert: {beside}"
    held = delivery_text.in_force(case.view.silences, case.view.now_s)
    silence = alerts.silenced(alert, held, None) if held else None
    if silence is not None:
        words = delivery_text.silence(silence, now_s=case.now_s, alerts=case.view.alerts)
        yield f"it is held for now: {words}"


def _notices(count: int, deliveries: Sequence[Delivery], to: str) -> str:
    """Return how many notices there were; those that reached nobody were not told."""
    words = units.count(count, "notice")
    late = [delivery for delivery in deliveries if delivery.state != "sent"]
    if not late or len(late) < len(deliveries):
        return f"{words} so far, to {to}"
    why = late[-1].error or late[-1].held or f"on its way to {late[-1].channel}"
    if all(delivery.state == "failed" for delivery in late):
        return f"{words} not delivered: {why}"
    return f"{words} {'waits' if count == 1 else 'wait'}: {why}"


def _not_open(case: ExplanationInput) -> Iterator[str]:
    confirm = case.config.policy.confirm
    finding = case.measured.finding if case.measured is not None else case.finding
    if finding is None or finding.tier == "none":
        yield "no watch and no alert is open"
        return
    chief = verdict_text.part_of(case.finding, None if case.process is None else case.process.info)
    if chief:
        yield f"one alert is sent for its job: {chief}"
        return
    if case.view.source != "state-file":
        yield "the alerts of the daemon are unknown; this verdict is from the history"
        return
    yield (
        f"no alert is open yet: {confirm} evaluations in a row (confirm) over "
        f"{units.duration(alerts.watch_hold_s(finding))} must support it"
    )


def _watched(case: ExplanationInput, alert: Alert) -> Iterator[str]:
    confirm = case.config.policy.confirm
    over, level = units.duration(alerts.evidence_s(alert.finding)), _level(case)
    mean = alerts.mean_confidence(alert)
    yield (
        f"a watch is shown but not sent; {alert.alert_confirmations} of {confirm} evaluations "
        f"support an alert, and its mean confidence over {over} is {units.percent(mean)} of {level}"
    )


def _level(case: ExplanationInput) -> str:
    return units.percent(case.config.detection.confidence_threshold)


def change(case: ExplanationInput) -> Iterator[str]:
    """Yield what would make it another verdict."""
    finding, evidence = case.finding, case.measured
    section, rules = case.config.detection, case.config.policy
    if finding is None or finding.pattern == "unknown":
        yield (
            f"more of it: {section.minimum_samples} samples (minimum-samples) and "
            f"{units.duration(section.minimum_duration)} (minimum-duration)"
        )
    if finding is None:
        return
    if case.alert is not None and case.alert.state in {"watch", "firing"}:
        hold = units.duration(alerts.clear_hold_s(case.alert))
        looks = f"{rules.clear_after} evaluations in a row"
        yield f"it resolves when {looks}, over {hold}, find no growth"
    if case.leaks:
        if finding.tier == "watch":
            over = units.duration(alerts.evidence_s(finding))
            yield (
                f"a mean confidence of {_level(case)} over {over} makes it an alert; the more time "
                "is left, the longer it is averaged"
            )
        yield "it stops being one when it releases half of its growth, or its process ends"
        yield "marking it as normal: gpuwatchctl feedback"
        return
    amount = f" of {units.size(evidence.least_bytes)} or more" if evidence is not None else ""
    yield f"growth{amount} that is kept, in three or more rises, is watched within minutes"
    if finding.pattern == "preallocated":
        yield "growth above its pool; what happens inside it only the framework's figures show"
