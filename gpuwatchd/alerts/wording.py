"""What people read of an ending or a hold: codes and numbers in, text out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuwatchd.core import units
from gpuwatchd.core.codes import AllocatorVerdict, Ending, Hold

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.core.codes import Facts
    from gpuwatchd.core.model import Finding, FunctionRemark

_ENDINGS: dict[Ending, str] = {
    Ending.PROCESS_ENDED: "its process ended",
    Ending.ENDED_NEAR_LIMIT: "it ended near the limit: probably out of memory",
    Ending.RAN_OUT: "it ran out of memory",
    Ending.FELL_NEAR_LIMIT: (
        "its memory was released after it came near the limit: probably out of memory"
    ),
    Ending.ENDED_UNOBSERVED: "its process ended while it was not monitored",
    Ending.STOPPED_GROWING: "it stopped growing",
    Ending.OTHER_RANK: "the alert continues with another rank of its job",
    Ending.PART_OF_JOB: "sent as one message: {job}",
    Ending.HOLDER_KNOWN: "the owner of the memory is now known",
    Ending.HOLDER_UNKNOWN: "the owner of the memory is no longer known",
    Ending.PAGES_KEPT: "the kernel keeps pages of ended processes: monitored per process instead",
    Ending.LEFT_DEVICE: "its process left this GPU and is monitored on another one",
    Ending.INSTANCES_JUDGED: "its MIG instances are monitored instead",
    Ending.LABELLED_NORMAL: "{label}",
    Ending.NOT_SEEN: "no data for one day",
    Ending.DEVICE_GONE: "its device is no longer present",
    Ending.DEVICE_ANSWERS: "the GPU answers again",
    Ending.MEMORY_RELEASED: "the process ended or released the GPU",
    Ending.MEMORY_OWNED: "no memory without an owner is left",
    Ending.AT_WORK: "it is active again or released the memory",
    Ending.BELOW_LIMIT: "its control group is below 90 % of its limit",
    Ending.NOT_LISTED: "it is no longer listed",
    Ending.TURNED_OFF: "[policy] {setting}",
}

_HOLDS: dict[Hold, str] = {
    Hold.NO_DATA: "no data for 10 minutes",
    Hold.RATE_LIMIT: "rate limit: {per_hour:.0f} messages were sent within the hour",
    Hold.MUTED: "muted by {rule}",
    Hold.BEGINNING_NOT_SENT: "no message was sent when it fired",
    Hold.BEGINNING_UNDELIVERED: "the message that it fired was not delivered",
    Hold.QUIET_ALWAYS: "quiet hours without an end",
    Hold.QUIET_HOURS: "quiet hours until {clock}",
    Hold.PART_OF_JOB: "sent as one message: {job}",
    Hold.REOPENED: "it fired again before this was sent",
}

_ALLOCATOR: dict[AllocatorVerdict, str] = {
    AllocatorVerdict.NONE: "",
    AllocatorVerdict.FLAT: ", and do not grow",
    AllocatorVerdict.TENSORS: ", and grow",
    AllocatorVerdict.FRAGMENTATION: ", and do not grow: {split} is free in pieces",
    AllocatorVerdict.OUTSIDE: ", and do not grow: what grows is outside",
    AllocatorVerdict.FREE_CACHE: ", and do not grow: free cache does",
}


_FUNCTIONS: dict[str, tuple[str, str]] = {
    "memory_leak": (
        "grew by {growth_bytes} within {span_s}, {rate_bytes_per_s}; {own_share} of it is its own",
        "gpuwatchctl inspect PID names the variable that keeps it",
    ),
    "fragmentation": (
        "{share} of reserved memory is free between tensors",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; tensors of few sizes",
    ),
    "spikes": (
        "{count} above {threshold_bytes}: up to {largest_bytes}, usually {median_bytes}",
        "smaller batches in these calls, or gradient checkpointing",
    ),
    "repeated_allocations": (
        "{call_count} calls add {grown_bytes} in all, which is given back",
        "allocate once and fill it in place: out=, copy_()",
    ),
    "inefficient_allocation": (
        "only {share} of reserved memory is in tensors",
        "nothing, unless other processes need the memory: the rest is free for reuse",
    ),
    "temporal_growth": ("{rate_bytes_per_s} over {span_s}, r {r}, p {p_value}", ""),
    "growth_elsewhere": ("memory grows, but not by these functions: mark others", ""),
}
"""What is said of a finding or an insight, and what to do about it."""
_UNITS: dict[str, Callable[[float], str]] = {
    "_per_s": units.rate,
    "_bytes": units.size,
    "_s": units.duration,
    "share": units.percent,
}


def inside(finding: Finding) -> dict[str, str]:
    """Return what was learned inside the process: label and text; nothing that is unknown."""
    lines = {}
    if holder := finding.holder:
        length = "" if holder.length is None else f" of {holder.length:,}"
        lines["Kept by"] = f"{holder.place}: {holder.kind}{length}"
    if state := finding.allocator:
        held, reserved = units.size(state.allocated_bytes), units.size(state.reserved_bytes)
        grows = _ALLOCATOR[state.verdict].format(split=units.size(state.inactive_split_bytes))
        lines["Allocator"] = f"tensors hold {held} of {reserved} reserved{grows}"
        if state.functions:
            lines["Functions"] = ", ".join(
                f"{one.name} +{units.size(one.growth_bytes)} in {one.call_count:,} calls"
                for one in state.functions
            )
        if state.score is not None:
            lines["Functions' score"] = f"{state.score} of 100"
        for number, remark in enumerate(state.remarks, 1):
            lines[f"Function finding {number}"] = _remark(remark)
    return lines


def _remark(remark: FunctionRemark) -> str:
    kind, names = remark.kind.replace("_", " "), ", ".join(remark.functions)
    texts = "; ".join(function_text(remark).values())
    return f"{remark.weight}: {kind}, {names}: {texts}"


def function_text(remark: FunctionRemark) -> dict[str, str]:
    """Return the texts of a finding or an insight."""
    shown = {name: _fact(name, value) for name, value in remark.facts.items()}
    text, suggestion = _FUNCTIONS.get(remark.kind, ("", ""))  # of a later version
    return {"text": text.format_map(shown)} | ({"suggestion": suggestion} if suggestion else {})


def _fact(name: str, value: float) -> str:
    show = next((show for ending, show in _UNITS.items() if name.endswith(ending)), None)
    return show(value) if show else f"{value:,.3g}" if value < 1 else f"{value:,.0f}"


def ending(code: Ending, /, **facts: float | str) -> dict[str, Any]:
    """Return the fields of an alert that say why it is over."""
    text = _ENDINGS[code].format_map(facts)
    return {"ended": text, "ended_code": code, "ended_facts": facts}


def hold(code: Hold, facts: Facts, *, now_s: float | None = None) -> str:
    """Return why a notice is held back.

    ``now_s``: epoch seconds, for "today" in clock times; None: of no day.
    """
    if code is Hold.GROUP_PAUSE:
        pause = units.duration(float(facts["pause_s"]))
        return f"a message of its group was sent recently; the next one is possible after {pause}"
    if code is Hold.MAY_GROW:
        bound = f" to {units.size(float(facts['bound_bytes']))}" if "bound_bytes" in facts else ""
        return f"allowed to grow{bound} ({facts['rule']})"
    if code is Hold.INHIBITED:
        who, why = facts["alert"], facts.get("why")
        return f"{who}: {why}" if why else f"inhibited by the alert on {who}"
    if code is Hold.BELOW_SEVERITY:
        least = facts["least"]
        above = "critical alerts only" if least == "critical" else f"{least} and above"
        return f"{facts['channel']} is for {above}"
    if code is Hold.SILENCED:
        who = f" by {facts['who']}" if facts.get("who") else ""
        why = f": {facts['why']}" if facts.get("why") else ""
        until_s = facts.get("until_at_s")
        until = "it is resolved" if until_s is None else units.clock(float(until_s), now_s=now_s)
        return f"silenced{who} until {until}{why}"
    return _HOLDS[code].format_map(facts)


NOT_HELD: Final[dict[str, Any]] = {"held_back": "", "held_code": None, "held_facts": {}}
"""The fields of an alert whose notice is not held back."""


def hold_fields(code: Hold, /, **facts: float | str) -> dict[str, Any]:
    """Return the fields of an alert that say why its notice is held back."""
    return {"held_back": hold(code, facts), "held_code": code, "held_facts": facts}
