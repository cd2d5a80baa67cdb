"""What people read of an ending or a hold: codes and numbers in, text out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuwatchd.core import units
from gpuwatchd.core.codes import Ending, Hold

if TYPE_CHECKING:
    from gpuwatchd.core.codes import Facts

_ENDINGS: dict[Ending, str] = {
    Ending.PROCESS_ENDED: "its process has ended",
    Ending.ENDED_NEAR_LIMIT: "it ended near the limit: probably out of memory",
    Ending.FELL_NEAR_LIMIT: (
        "memory came back after it had come near the limit: probably out of memory"
    ),
    Ending.ENDED_UNOBSERVED: "its process ended while nobody watched",
    Ending.STOPPED_GROWING: "it stopped growing",
    Ending.OTHER_RANK: "the alert goes on with another rank of its job",
    Ending.PART_OF_JOB: "told as one: {job}",
    Ending.HOLDER_KNOWN: "who holds the memory is known now",
    Ending.HOLDER_UNKNOWN: "who holds the memory is not known any more",
    Ending.PAGES_KEPT: "the kernel keeps pages of processes that have ended: judged per process",
    Ending.LEFT_DEVICE: "its process has left that GPU, and is watched with another",
    Ending.INSTANCES_JUDGED: "its MIG instances are judged",
    Ending.LABELLED_NORMAL: "{label}",
    Ending.NOT_SEEN: "nothing has been seen of it for a day",
    Ending.DEVICE_GONE: "its device is gone",
    Ending.DEVICE_ANSWERS: "the GPU answers again",
    Ending.MEMORY_RELEASED: "the process has ended or has let go of the GPU",
    Ending.MEMORY_OWNED: "no memory is held by nobody any more",
    Ending.AT_WORK: "it is at work again, or has given the memory back",
    Ending.NOT_LISTED: "it is not listed any more",
    Ending.TURNED_OFF: "[policy] {setting}",
}

_HOLDS: dict[Hold, str] = {
    Hold.NO_DATA: "nothing has been heard of it for 10 minutes",
    Hold.RATE_LIMIT: "{per_hour:.0f} messages went out within the hour",
    Hold.MUTED: "muted by {rule}",
    Hold.BEGINNING_NOT_SENT: "it was not told of its beginning",
    Hold.BEGINNING_UNDELIVERED: "that it began has reached nobody",
    Hold.QUIET_ALWAYS: "quiet hours that do not end",
    Hold.QUIET_HOURS: "quiet hours until {clock}",
    Hold.PART_OF_JOB: "told as one: {job}",
    Hold.REOPENED: "it was back before that could be told",
}


def ending(code: Ending, /, **facts: float | str) -> dict[str, Any]:
    """Return the fields of an alert that say why it is over."""
    text = _ENDINGS[code].format_map(facts)
    return {"ended": text, "ended_code": code, "ended_facts": facts}


def hold(code: Hold, facts: Facts, *, now_s: float | None = None) -> str:
    """Return why a notice is held back.

    Parameters
    ----------
    now_s
        Epoch seconds, for "today" in clock times; None: of no day.
    """
    if code is Hold.GROUP_PAUSE:
        pause = units.duration(float(facts["pause_s"]))
        return f"its group was told of lately; new alerts of it after {pause}"
    if code is Hold.MAY_GROW:
        bound = f" to {units.size(float(facts['bound_bytes']))}" if "bound_bytes" in facts else ""
        return f"it may grow{bound} ({facts['rule']})"
    if code is Hold.INHIBITED:
        who, why = facts["alert"], facts.get("why")
        return f"{who}: {why}" if why else f"the alert on {who} says it all"
    if code is Hold.BELOW_SEVERITY:
        least = facts["least"]
        above = "critical alerts only" if least == "critical" else f"{least} and above"
        return f"{facts['channel']} is for {above}"
    if code is Hold.SILENCED:
        who = f" by {facts['who']}" if facts.get("who") else ""
        why = f": {facts['why']}" if facts.get("why") else ""
        until_s = facts.get("until_at_s")
        until = "it is over" if until_s is None else units.clock(float(until_s), now_s=now_s)
        return f"silenced{who} until {until}{why}"
    return _HOLDS[code].format_map(facts)


def held(code: Hold | None, /, **facts: float | str) -> dict[str, Any]:
    """Return the fields of an alert that say why its notice is held back; None: it is not."""
    text = "" if code is None else hold(code, facts)
    return {"held_back": text, "held_code": code, "held_facts": facts}
