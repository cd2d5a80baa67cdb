"""Why a verdict is what it is, in sentences with their numbers, and what to do, in steps."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, NamedTuple

from gpuwatchd.alerts import wording
from gpuwatchd.analysis.verdict import WATCH_CONFIDENCE
from gpuwatchd.core import units
from gpuwatchd.core.model import LEAK_PATTERNS, is_leak
from gpuwatchd.view.queries.remeasure import Evidence, ExplanationInput, kept, slows
from gpuwatchd.view.text import subject_facts, verdict_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.core.model import Finding, ProcessInfo, Signal


_URGENT_S = 7200.0
_PROFILES: dict[str, tuple[str, str]] = {
    "PyTorch": (
        "record in the program, write it out, drop the file on pytorch.org/memory_viz",
        'torch.cuda.memory._record_memory_history(); torch.cuda.memory._dump_snapshot("a.pickle")',
    ),
    "JAX": (
        "in the program: name the arrays that are kept (read it with pprof)",
        'jax.profiler.save_device_memory_profile("a.prof")',
    ),
    "TensorFlow": (
        "in the program: compare what is used inside the pool",
        'tf.config.experimental.get_memory_info("GPU:0")',
    ),
    "CuPy": (
        "in the program: compare used and kept bytes of its pool",
        "cupy.get_default_memory_pool().used_bytes()",
    ),
    "MLX": ("in the program: compare active and cached memory", "mx.get_active_memory()"),
    "Ollama": ("see what is loaded and for how long", "ollama ps"),
    "vLLM": (
        "see the KV cache and the requests",
        "curl -s localhost:8000/metrics | grep -i kv_cache",
    ),
    "SGLang": (
        "see what its pool is used for",
        "curl -s localhost:30000/metrics | grep token_usage",
    ),
    "llama.cpp": ("see what its slots hold", "curl -s localhost:8080/slots"),
}
_METRICS = {
    "vLLM": "metrics", "SGLang": "metrics", "llama.cpp": "slots", "Ollama": "api/ps",
}  # fmt: skip
_PROBED = {"PyTorch", "JAX", "TensorFlow", "CuPy", "MLX"}
"""What the probe can read from inside."""
_ANY = ("who allocates on the device?", "nsys profile --cuda-memory-usage=true PROGRAM")


class Step(NamedTuple):
    """One thing to do."""

    text: str
    command: str = ""


def steps(case: ExplanationInput, *, hardware_first: bool) -> list[Step]:
    """Return what to do, in order: identify, isolate, stack trace, profiler."""
    out: list[Step] = []
    if hardware_first:
        out.append(Step("rule the hardware out first", "sudo dmesg | grep -iE 'xid|nvrm'"))
    finding = case.finding
    if finding is None or not is_leak(finding):
        return [*out, *_calm(case)]
    first = len(finding.hardware_at_s or ()) if hardware_first else 0
    advice = [Step(words) for words in finding.advice[first:]]
    if case.alert is not None and case.alert.ran_out and case.process is None:
        again = [step._replace(text=f"before it is started again: {step.text}") for step in advice]
        return [*out, *again, _started(case), *_prepare(case, case.known)]
    if case.subject.unattributed or case.process is None:
        return [*out, *_nobody(case), *advice]
    info = case.process.info
    out += list(_identify(case, info))
    if not info.foreign:
        out += list(_inside(case, info))
    out += advice
    # As ``feedback`` says it when it is given.
    alone = case.process.history is None
    applies = "it holds for this alone" if alone else "it applies to its next runs"
    which = f"{info.key.pid}/host" if case.subject.host else info.key.pid
    out.append(
        Step(
            f"if this is expected, mark it: {applies}",
            f'gpuwatchctl feedback {which} normal --why "..."',
        )
    )
    if not case.finding or not case.finding.allocator:
        out += list(_prepare(case, info))
    return out


def _calm(case: ExplanationInput) -> Iterator[Step]:
    if (
        case.finding is not None
        and case.finding.pattern == "preallocated"
        and case.process is not None
    ):
        yield from _profile(case, case.process.info)
    key = case.subject.process
    flag = f" --pid {key.pid}" if key is not None else f" --gpu {_gpu(case)}"
    if any(holding.device_uid == case.item.device.uid for holding in case.view.holdings):
        yield Step("see which memory is idle there", "gpuwatchctl zombies")
        calm = ""
    else:
        calm = "" if subject_facts.first(case) else "no action needed; "
    yield Step(
        f"{calm}check the curve yourself",
        f"gpuwatchctl history{flag} --since 6h",
    )
    if case.finding is None or case.finding.pattern == "unknown":
        yield Step("ask again when more has been seen", f"gpuwatchctl explain {_name(case)}")


def _nobody(case: ExplanationInput) -> Iterator[Step]:
    yield Step("see which memory is idle, and who holds the device", "gpuwatchctl zombies")
    if not case.item.processes:
        yield Step("learn why the processes are unknown", "gpuwatchctl doctor")
    yield Step("list every program that has the device open", "sudo fuser -v /dev/nvidia*")
    yield _started(case)


def _started(case: ExplanationInput) -> Step:
    return Step(
        "see when it started, and what else started then",
        f"gpuwatchctl history --gpu {_gpu(case)} --since 6h",
    )


def _identify(case: ExplanationInput, info: ProcessInfo) -> Iterator[Step]:
    pid = info.key.pid
    eta = case.finding.eta if case.finding is not None else None
    if eta is not None and eta.low_s <= _URGENT_S:
        yield Step(f"save its work now: it may be full in {units.duration(eta.low_s)}")
    yield Step(
        "identify: when it started, and what else started then",
        f"gpuwatchctl history --pid {pid} --since 6h",
    )
    if info.foreign:
        yield Step("look on the host of this container: the pid is not valid here", f"ps -fp {pid}")
    elif info.group is not None:
        yield Step("isolate: one rank or all of them?", "gpuwatchctl status --wide")
    else:
        yield Step("isolate: run it alone, shorter, and analyse its log", "gpuwatchctl analyze LOG")


def _prepare(case: ExplanationInput, info: ProcessInfo | None) -> Iterator[Step]:
    """Yield how a job is to be started that is to say which variable keeps what grows."""
    if info is None or info.foreign or case.subject.host:
        return
    if info.name.startswith("python") or _PROBED & {info.framework, *info.frameworks}:
        yield Step("to see which variable keeps it: start it with", "gpuwatchctl run -- COMMAND")


def _inside(case: ExplanationInput, info: ProcessInfo) -> Iterator[Step]:
    pid = info.key.pid
    if case.finding is not None and case.finding.allocator:
        yield Step("ask it which variable keeps the memory", f"gpuwatchctl inspect {pid}")
    if info.name.startswith("python") or info.frameworks or info.framework in _PROFILES:
        yield Step("stack trace: what is it doing while it grows?", f"py-spy dump --pid {pid}")
    else:
        yield Step(
            "stack trace: what is it doing while it grows?",
            f"gdb -p {pid} -batch -ex 'thread apply all bt'",
        )
    if case.subject.host:
        yield Step("profiler: what holds host memory?", f"memray attach {pid}")
        return
    yield from _profile(case, info)


def _profile(case: ExplanationInput, info: ProcessInfo) -> Iterator[Step]:
    server = next((reading for reading in case.view.servers if reading.pid == info.key.pid), None)
    if server is not None and server.kind in _METRICS:
        command = f"curl -s {shlex.quote(server.url.rstrip('/'))}/{_METRICS[server.kind]}"
        yield Step("profiler: ask the server itself", command)
        return
    names = (info.framework or "", *info.frameworks)
    text, command = next((_PROFILES[name] for name in names if name in _PROFILES), _ANY)
    yield Step(f"profiler: {text}", command)


def _gpu(case: ExplanationInput) -> str:
    index = case.item.device.index
    return case.item.device.uid if index is None or case.item.device.parent_uid else str(index)


def _name(case: ExplanationInput) -> str:
    key = case.subject.process
    return str(key.pid) if key is not None else _gpu(case)


NOT_SEEN = {
    "trend": "no steady rise",
    "step": "no stairs: fewer than three sharp rises of one size",
    "cycle": "no cycles: memory is not released and allocated again",
    "spike": "no single jump that stands out",
    "plateau": "no levelling off: no growth has stopped or provably slows down",
}
_SMALL_P = 0.001
_SHORTEST_S = 30.0
_SAME_TIME_S = 60.0
"""What is judged and what is recorded are of one time up to here: rows are a minute wide."""


class Section(NamedTuple):
    """One part of an explanation."""

    title: str
    lines: tuple[str, ...]
    answer: bool = False
    """Whether it says what is the matter; the others say why that is so."""


def ending(case: ExplanationInput) -> Iterator[str]:
    """Yield how the alert ended; nothing of one that is open."""
    alert = case.alert
    if alert is not None and alert.ended:
        # The rest is told as of its last judgement; this is over since then.
        today = case._replace(now_s=case.view.now_s)
        at = "" if alert.resolved_at_s is None else f" {today.ago(alert.resolved_at_s)}"
        yield f"resolved{at}: {alert.ended}"


def subject_lines(case: ExplanationInput) -> Iterator[str]:
    """Yield what the verdict is about, since when, and how it ended."""
    yield from ending(case)
    where = case.item.device.label
    held = case.held_bytes
    now = "" if held is None else f", {units.size(held)} now"
    if case.subject.process is not None:
        info = case.process.info if case.process is not None else case.known
        who = verdict_text.who(info) if info is not None else f"pid {case.subject.process.pid}"
        place = "on the host" if case.subject.host else f"on {where}"
        kind = "anonymous memory and swap" if case.subject.host else "memory"
        yield f"the {kind} of {who} {place}{now}"
    elif case.subject.unattributed:
        yield f"memory on {where} that no process owns{now}: used, less what every process holds"
    else:
        none = "no process is known there" if not case.item.processes else "all processes together"
        yield f"the memory of {where} as a whole{now}; {none}"
    finding = case.finding
    instead = subject_facts.judged_instead(case.item, case.view.devices)
    if instead and case.subject.process is None:
        yield instead
    if finding is None:
        return
    grows = finding.pattern in LEAK_PATTERNS or finding.tier != "none"
    if finding.onset_at_s is not None and grows:
        past = verdict_text.stopped(finding)
        if past:
            yield f"its growth started {case.ago(finding.onset_at_s)}: it {past}"
        else:
            since = units.clock(finding.onset_at_s, now_s=case.now_s)
            lasted = units.duration(max(0.0, finding.judged_at_s - finding.onset_at_s))
            yield f"it has grown since {since}, for {lasted}"
    if finding.blame:
        parts = (
            f"{verdict_text.share(blame)} ({verdict_text.growth(blame.rate_bytes_per_s)})"
            for blame in sorted(finding.blame, key=lambda blame: -blame.share)
        )
        yield f"of the growth since then: {', '.join(parts)}"
    for label, line in wording.inside(finding).items():
        yield f"{label.lower()}: {line}"
    late = case.now_s - finding.judged_at_s
    if late > 1.0:
        yield f"last evaluated {units.duration(late)} before the last sample"


def window_lines(case: ExplanationInput) -> Iterator[str]:
    """Yield what was looked at: samples, window, noise, floor."""
    evidence = case.measured
    if evidence is None:
        count = case.finding.samples if case.finding is not None else case.item.samples
        yield f"{count} samples; {case.evidence}"
        return
    view, section = evidence.view, case.config.detection
    yield (
        f"{view.samples} recorded samples over {units.duration(view.span_s)}, one every "
        f"{units.duration(view.interval_s)}, until {units.clock(view.now_s, now_s=case.now_s)}"
    )
    apart_s = 0.0 if case.finding is None else abs(case.finding.judged_at_s - view.now_s)
    if case.finding is not None and apart_s > _SAME_TIME_S:
        judged = units.clock(case.finding.judged_at_s, now_s=case.now_s)
        yield f"the verdict is of {judged}, {units.duration(apart_s)} apart: figures may differ"
    if view.samples < evidence.series.t_s.size:
        yield "what is older lies before a gap or a restart and is not joined to it"
    window = f"{section.analysis_window_hours:g} h"
    yield f"never further back than {window} (analysis-window-hours)"
    yield (
        f"noise from one sample to the next: {units.size(view.noise_bytes)}; growth of less than "
        f"{units.size(evidence.least_bytes)} counts as none (minimum-growth-mib, or 0.15 % of the "
        "device)"
    )
    low, high = float(view.low.min()), float(view.high.max())
    yield f"it moved between {units.size(low)} and {units.size(high)}"
    grown = evidence.growth
    if grown is not None:
        windows, k = grown.found, grown.best
        yield (
            f"what was never released (the floor) grew by "
            f"{units.size(float(windows.growth[k]))} in the "
            f"{units.duration(float(windows.age_s[k]))} that deserve a verdict most, in "
            f"{_rises(float(windows.events[k]))}"
        )


def _rises(events: float) -> str:
    """Return "about 11 independent rises"."""
    count = round(events)
    return "one rise" if count == 1 else f"about {count} independent rises"


def detectors(case: ExplanationInput) -> Iterator[str]:
    """Yield what each detector says."""
    signals = {one.detector: one for one in (case.finding.signals if case.finding else ())}
    evidence = case.measured
    asked = dict(evidence.signals) if evidence is not None else {}
    for name, nothing in NOT_SEEN.items():
        signal = signals.get(name) or asked.get(name)
        if signal is not None:
            swing = name == "trend" and _is_swing(
                signal, signals.get("cycle") or asked.get("cycle")
            )
            part = "; that is the present swing" if swing else ""
            yield f"{name}: {signal_words(signal, now_s=case.now_s)}{part}"
        elif evidence is not None:
            yield f"{name}: {nothing}"
    if evidence is None and not signals:
        yield "none of them has anything to show; without the recorded series they cannot be asked"


def _is_swing(trend: Signal, cycle: Signal | None) -> bool:
    """Say whether a rise is no more than the present one of many swings."""
    if cycle is None or "period_s" not in cycle.facts or "growth_bytes" not in trend.facts:
        return False
    return trend.facts["growth_bytes"] <= 1.5 * cycle.facts["swing_bytes"]


def signal_words(signal: Signal, *, now_s: float) -> str:
    """Return what one detector says, in words with its numbers."""
    facts = signal.facts
    try:
        text = _SAID[signal.detector](signal, facts, now_s)
    except (KeyError, ValueError, OverflowError):
        text = f"{signal.pattern}, {verdict_text.growth(signal.rate_bytes_per_s)}"
    return f"{text}; {units.percent(signal.confidence)} sure of that shape"


def _trend(signal: Signal, facts: dict[str, float], now_s: float) -> str:
    p = facts["p_value"]
    chance = f"chance < {_SMALL_P}" if p < _SMALL_P else f"chance {p:.2g}"
    if p >= 1.0:  # what the test answers where it has too little to go by
        chance = "too few samples for significance"
    return (
        f"a straight rise of {units.size(facts['growth_bytes'])} since "
        f"{units.clock(signal.since_s, now_s=now_s)}, "
        f"{verdict_text.growth(signal.rate_bytes_per_s)}, "
        f"R² {facts['r_squared']:.3f}, {chance}; its second half brought "
        f"{units.percent(facts['second_half_share'])}"
    )


def _step(signal: Signal, facts: dict[str, float], _: float) -> str:
    return (
        f"{signal.n} stairs of {units.size(facts['riser_bytes'])}, one every "
        f"{units.duration(facts['pause_s'])}, {units.percent(facts['share'])} of the growth"
    )


def _cycle(signal: Signal, facts: dict[str, float], _: float) -> str:
    slope = facts["slope_bytes_per_s"]
    rises = f"what is kept after each creeps up by {units.rate(slope)}"
    calm = "what is kept after each does not rise"
    return (
        f"{signal.n} swings of {units.size(facts['swing_bytes'])}, one every "
        f"{units.duration(facts['period_s'])}; {rises if signal.pattern == 'cyclic' else calm}"
    )


def _spike(_: Signal, facts: dict[str, float], __: float) -> str:
    return (
        f"one jump by {units.size(facts['jump_bytes'])} {units.duration(facts['age_s'])} ago, "
        f"{units.percent(min(max(facts['kept'], 0.0), 1.0))} of it still held"
    )


def _plateau(_: Signal, facts: dict[str, float], __: float) -> str:
    rose = f"rose by {units.size(facts['growth_bytes'])} in {units.duration(facts['rise_s'])}"
    level = units.size(facts["level_bytes"])
    return (
        f"{rose}, then stood at {level}" if facts["ended"] else f"{rose}, slowing towards {level}"
    )


_SAID = {"trend": _trend, "step": _step, "cycle": _cycle, "spike": _spike, "plateau": _plateau}


def pattern(case: ExplanationInput) -> Iterator[str]:
    """Yield why it is this pattern; of one that is harmless, why it is no leak."""
    finding, evidence = case.finding, case.measured
    if finding is None:
        yield verdict_text.verdict(None, samples=case.item.samples)[0]
        return
    if finding.reason:
        yield finding.reason
    if finding.pattern not in LEAK_PATTERNS and evidence is not None:
        yield from _no_leak(finding, evidence)


def against(case: ExplanationInput) -> Iterator[str]:
    """Yield what speaks against each harmless reading of a growth."""
    finding, evidence = case.finding, case.measured
    if finding is None or finding.pattern not in LEAK_PATTERNS or evidence is None:
        return
    grown = evidence.growth
    if grown is not None:
        windows, k = grown.found, grown.best
        if evidence.pace is not None:
            ratio = math.exp(min(max(evidence.pace.half, -3.0), 3.0))
            yield (
                f"not a warm-up that ends: the second half of the growth went at {ratio:.2f} times "
                "the pace of the whole; a warm-up gets slower"
            )
        yield (
            f"not a plateau: it last rose {units.duration(-float(windows.end_s[k]))} ago, "
            f"{'after' if windows.stall[k] > 1.0 else 'within'} its longest pause so far"
            f"{'; it does slow down' if slows(evidence) else ''}"
        )
    since_s = finding.onset_at_s if finding.onset_at_s is not None else evidence.view.now_s
    before, now, fall = kept(evidence, since_s)
    of = f"of {units.size(max(now - before, finding.growth_bytes or 0.0))} grown"
    if finding.pattern == "cyclic":
        yield f"no harmless sawtooth: it gives back {units.size(fall)} each time, but never all"
    else:
        yield f"not a sawtooth: {of}, at most {units.size(fall)} was ever released"
    if grown is not None:
        events = float(grown.found.events[grown.best])
        yield f"not one jump: {_rises(events)}; one or two are no proof"


def _no_leak(finding: Finding, evidence: Evidence) -> Iterator[str]:
    """Yield why it is no leak, or not yet."""
    grown = evidence.growth
    least = units.size(evidence.least_bytes)
    if finding.pattern == "preallocated":
        yield "a preallocated pool does not show what happens inside it"
        return
    if grown is None:
        span_s = evidence.view.span_s
        back = f" from 30 s to {units.duration(span_s)}" if span_s > _SHORTEST_S else ""
        yield f"no look-back{back} shows {least} or more that was allocated and not released"
        return
    windows, k = grown.found, grown.best
    yield (
        f"what comes closest to a leak, {units.size(float(windows.growth[k]))} in "
        f"{units.duration(float(windows.age_s[k]))}, gets {units.percent(grown.confidence)}; "
        f"a watch needs {units.percent(WATCH_CONFIDENCE)}, or growth that is plain to see"
    )
    if grown.expected and grown.bounds is None:
        yield f"earlier runs of this program did the same: {grown.compared()}"
    if slows(evidence):
        yield "it provably slows down before the limit"


def confidence_lines(case: ExplanationInput) -> Iterator[str]:
    """Yield how sure it is, against the levels and conditions in force."""
    finding, section = case.finding, case.config.detection
    if finding is None:
        return
    raw = case.measured.finding if case.measured is not None else finding
    level = units.percent(section.confidence_threshold)
    watch = units.percent(min(WATCH_CONFIDENCE, section.confidence_threshold))
    if finding.pattern in LEAK_PATTERNS or finding.tier != "none":
        sure_of = f"{units.percent(finding.confidence)}, {units.strength(finding.confidence)}"
        yield f"{sure_of}; watched from {watch}, alerted from {level} (confidence-threshold)"
    else:
        yield f"watched from {watch}, alerted from {level} (confidence-threshold)"
    grown_s = None
    if finding.onset_at_s is not None and finding.pattern in LEAK_PATTERNS:
        grown_s = finding.judged_at_s - finding.onset_at_s
    least = units.duration(section.minimum_duration)
    horizon = units.duration(section.eta_horizon)
    unmet = [
        text
        for met, text in (
            (
                finding.samples >= section.minimum_samples,
                f"{section.minimum_samples} samples (minimum-samples; it has {finding.samples})",
            ),
            (
                grown_s is None or grown_s >= section.minimum_duration,
                f"{least} of growth (minimum-duration; it has {units.duration(grown_s)})",
            ),
            (
                finding.eta is None or finding.eta.mid_s <= section.eta_horizon,
                f"to be full within {horizon} (eta-horizon)",
            ),
        )
        if not met
    ]
    for text in unmet:
        yield f"an alert also needs {text}"
    if not unmet and finding.pattern in LEAK_PATTERNS:
        yield (
            f"met: {finding.samples} samples (minimum-samples {section.minimum_samples}), "
            f"{units.duration(grown_s)} of growth (minimum-duration {least}), full within "
            f"{horizon} (eta-horizon)"
        )
    if finding.r_squared is not None:
        gate = section.min_r_squared
        needs = f"gradual ones need {gate:g}" if gate > 0 else "it is not used (min-r-squared 0)"
        yield f"R² {finding.r_squared:.3f} ({verdict_text.fit(finding.r_squared)}): {needs}"
    if section.min_slope_mb_per_sec > 0:
        floor = units.rate(section.min_slope_mb_per_sec * 1e6)
        yield f"growth slower than {floor} is hidden (min-slope-mb-per-sec)"
    if raw.tier != finding.tier:
        yield (
            f"the recorded series alone supports {_TIER[raw.tier]} now; what is shown is "
            f"{_TIER[finding.tier]}: opening and closing take time, see below"
        )


_TIER = {"none": "nothing", "watch": "a watch", "alert": "an alert"}
