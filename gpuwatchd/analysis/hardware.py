"""Whether the hardware, the driver or a program is at fault, from what a device reports of itself.

The numbers and their sorting follow NVIDIA's public XID catalogue (docs.nvidia.com/deploy/
xid-errors); they were not verified code by code. Pure: no clock, no files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from gpuwatchd.core import units
from gpuwatchd.core.model import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.core.model import DeviceReading, DeviceState, Event

LookWord = Literal["clean", "unreadable", "hardware", "application"]

RECENT_S: Final = 86_400.0
"""What happened longer ago does not explain what is seen now."""
FIRST: Final = "check the hardware first"
"""How a line of advice begins that is about the hardware."""
BEFORE_S: Final = 600.0
"""So long before a finding's onset an event still counts as its neighbour."""
LATE_S: Final = 60.0
"""A GPU that did not answer and is back within this time was slow, and is not broken."""

_APPLICATION: Final = {
    13: "a program's kernel failed",
    31: "a program used memory that is not its own",
    43: "a program's channel was stopped after its error",
    45: "what a program left was cleaned up, as it ended or after another error",
    66: "an access that is not allowed",
    67: "an access that is not allowed",
    68: "the video decoder failed on its input",
    137: "a program used another GPU's memory that it may not",
}
_HARDWARE: Final = {
    18: "the GPU's access to the bus is switched off",
    38: "the driver's firmware failed",
    46: "the GPU stopped working",
    48: "an uncorrectable memory error",
    54: "auxiliary power is not connected",
    56: "the display engine failed",
    57: "the memory interface could not be set up",
    58: "the memory interface is unstable",
    59: "an internal controller failed",
    61: "an internal controller stopped",
    62: "an internal controller halted",
    63: "memory was marked to be taken out of use",
    64: "memory that failed could not be taken out of use",
    71: "a copy engine failed",
    74: "an NVLink failed",
    79: "the GPU has fallen off the bus",
    81: "the VGA part failed",
    92: "corrected memory errors are frequent",
    94: "a memory error, contained to one program",
    95: "a memory error that could not be contained",
    110: "a security fault",
    119: "the driver's system processor (GSP) does not answer",
    120: "the driver's system processor (GSP) failed",
    122: "the GPU's flash memory could not be accessed",
    123: "the power controller could not be accessed",
    136: "a link could not be trained",
    140: "an uncorrectable memory error that was not recovered from",
    143: "the GPU could not be initialised",
    **dict.fromkeys(range(144, 151), "an NVLink failed"),
    156: "a part of the GPU must be taken out of use",
    157: "a part of the GPU that failed could not be taken out of use",
    158: "the GPU timed out for good",
    160: "a memory channel must be taken out of use",
    161: "a memory channel that failed could not be taken out of use",
}
_EITHER: Final = {
    8: "the GPU stopped processing",
    12: "the driver could not deal with a GPU exception",
    32: "a command stream was damaged",
    44: "a fault while a context was saved",
    69: "the graphics engine received an invalid command",
    80: "data was damaged on its way to the GPU",
    109: "a switch between programs timed out",
    154: "the driver reports how to recover the GPU",
}

_UNREADABLE: Final[dict[DeviceState, str]] = {
    "asleep": "the GPU is asleep",
    "released": "the GPU was released",
    "no-permission": "no permission",
    "unsupported": "the driver does not support it",
}
_BROKEN: Final[dict[DeviceState, str]] = {
    "lost": "the GPU does not answer",
    "hung": "a call to the driver does not return",
    "reset-required": "the GPU has to be reset",
}


class Diagnosis(Value, frozen=True, kw_only=True):
    """Where to look first."""

    word: LookWord
    sentence: str
    event: Event | None = None
    """The newest event that it rests on."""


def application_xid(number: int) -> bool | None:
    """Say whether an XID is a program's doing; False: hardware or driver; None: either, unknown.

    Examples
    --------
    >>> application_xid(31), application_xid(79), application_xid(109), application_xid(4711)
    (True, False, None, None)
    """
    if number in _APPLICATION:
        return True
    return False if number in _HARDWARE else None


def xid_words(number: int) -> str:
    """Return an XID with what it means, as far as that is known.

    Examples
    --------
    >>> xid_words(79), xid_words(4711)
    ('XID 79: the GPU has fallen off the bus', 'XID 4711')
    """
    words = _APPLICATION.get(number) or _HARDWARE.get(number) or _EITHER.get(number)
    return f"XID {number}: {words}" if words else f"XID {number}"


def diagnose(
    events: Iterable[Event],
    reading: DeviceReading | None,
    *,
    now_s: float,
    since_s: float | None = None,
) -> Diagnosis:
    """Return where to look first.

    Events come in any order; those before ``since_s`` (without it, the last day) do not count.

    Notes
    -----
    An event of the hardware outweighs one of a program: a program that dies of broken memory
    leaves the traces of both. A slowdown by heat makes no memory grow: it is only mentioned.
    """
    since_s = now_s - RECENT_S if since_s is None else since_s
    recent = sorted((e for e in events if e.at_s >= since_s), key=lambda e: e.at_s)
    broken = next((e for e in reversed(recent) if _breaks(e) and not _passed(e, recent)), None)
    if broken is not None:
        return Diagnosis(word="hardware", sentence=_first(broken, now_s), event=broken)
    if reading is not None and reading.state in _BROKEN:
        return Diagnosis(word="hardware", sentence=f"{FIRST}: {_BROKEN[reading.state]}")
    if reading is not None and reading.ecc_errors:
        count = reading.ecc_errors
        errors = (
            "1 uncorrected memory error" if count == 1 else f"{count} uncorrected memory errors"
        )
        sentence = f"{FIRST}: {errors} since the driver was loaded"
        return Diagnosis(word="hardware", sentence=sentence)
    program = next((e for e in reversed(recent) if e.hardware is False), None)
    if program is not None:
        when = units.clock(program.at_s, now_s=now_s)
        sentence = f"caused by the application: {program.text}, at {when}"
        return Diagnosis(word="application", sentence=sentence, event=program)
    either = next((e for e in reversed(recent) if e.kind == "xid" and e.hardware is None), None)
    if either is not None:
        when = units.clock(either.at_s, now_s=now_s)
        sentence = f"the hardware or a program, it is unknown which: {either.text}, at {when}"
        return Diagnosis(word="unreadable", sentence=sentence, event=either)
    if reading is None or reading.state in _UNREADABLE:
        why = "no reading" if reading is None else _UNREADABLE[reading.state]
        return Diagnosis(word="unreadable", sentence=f"not readable: {why}")
    slow = next((e for e in reversed(recent) if e.kind == "throttle"), None)
    beside = "" if slow is None else f"; {slow.text}, at {units.clock(slow.at_s, now_s=now_s)}"
    return Diagnosis(word="clean", sentence=_clean(reading) + beside, event=slow)


def _breaks(event: Event) -> bool:
    """Say whether it is a reason to suspect the hardware or the driver."""
    return event.hardware is True and event.kind != "throttle"


def _passed(event: Event, events: Iterable[Event]) -> bool:
    """Say whether a GPU only answered late: that happens to a healthy one that has much to do."""
    return event.kind == "gpu-hung" and any(
        other.kind == "gpu-back" and 0 <= other.at_s - event.at_s <= LATE_S for other in events
    )


def _first(event: Event, now_s: float) -> str:
    return f"{FIRST}: {event.text}, at {units.clock(event.at_s, now_s=now_s)}"


def _clean(reading: DeviceReading) -> str:
    """Say that nothing points at the hardware, and how far that could be seen."""
    if reading.retired_pages:
        parts = "1 part" if reading.retired_pages == 1 else f"{reading.retired_pages} parts"
        return f"not the hardware: no error was reported ({parts} of its memory retired before)"
    if reading.ecc_errors is None:
        return "no hardware error was reported"
    return "not the hardware: no error was reported"


def advice(
    events: Iterable[Event], *, onset_at_s: float | None, judged_at_s: float
) -> tuple[str, float] | None:
    """Return what a finding has to say of the hardware: what broke while memory grew, and when.

    The finding says that memory grows since ``onset_at_s``; it was judged at ``judged_at_s``.
    """
    begun_s = (judged_at_s if onset_at_s is None else onset_at_s) - BEFORE_S
    known = tuple(events)
    broken = [
        e
        for e in known
        if _breaks(e) and not _passed(e, known) and begun_s <= e.at_s <= judged_at_s + BEFORE_S
    ]
    if not broken:
        return None
    newest = max(broken, key=lambda e: e.at_s)
    return _first(newest, judged_at_s), newest.at_s
