"""Codes of what earlier versions wrote as text alone: whole sentences, as version 5 had them.

What is not in these tables becomes ``legacy`` and is shown as it stands.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import msgspec

from gpuwatchd.core.codes import Ending, Failure, Hold

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.core.model import Alert

_Code = TypeVar("_Code", Ending, Failure, Hold)

_ENDINGS: dict[str, Ending] = {
    "its process has ended": Ending.PROCESS_ENDED,
    "it ended near the limit: probably out of memory": Ending.ENDED_NEAR_LIMIT,
    "memory came back after it had come near the limit: probably out of memory": (
        Ending.FELL_NEAR_LIMIT
    ),
    "its process ended while nobody watched": Ending.ENDED_UNOBSERVED,
    "it stopped growing": Ending.STOPPED_GROWING,
    "the alert goes on with another rank of its job": Ending.OTHER_RANK,
    "told as one: .*": Ending.PART_OF_JOB,
    r"(you|\S+) said that this is normal.*": Ending.LABELLED_NORMAL,
    "who holds the memory is known now": Ending.HOLDER_KNOWN,
    "who holds the memory is not known any more": Ending.HOLDER_UNKNOWN,
    "the kernel keeps pages of processes that have ended: judged per process": Ending.PAGES_KEPT,
    "its process has left that GPU, and is watched with another": Ending.LEFT_DEVICE,
    "its MIG instances are judged": Ending.INSTANCES_JUDGED,
    "it could not be seen for a day": Ending.NOT_SEEN,
    "its device has not been seen for a day": Ending.NOT_SEEN,
    "nothing has been seen of it for a day": Ending.NOT_SEEN,
    "its device is gone": Ending.DEVICE_GONE,
    "the GPU answers again": Ending.DEVICE_ANSWERS,
    "the process has ended or has let go of the GPU": Ending.MEMORY_RELEASED,
    "no memory is held by nobody any more": Ending.MEMORY_OWNED,
    "it is at work again, or has given the memory back": Ending.AT_WORK,
    "it is not listed any more": Ending.NOT_LISTED,
    r"\[policy\] (tell-hardware was turned off|tell-held was emptied)": Ending.TURNED_OFF,
}
_HOLDS: dict[str, Hold] = {
    "nothing has been heard of it for 10 minutes": Hold.NO_DATA,
    r"\d+ messages went out within the hour": Hold.RATE_LIMIT,
    "its group was told of lately; new alerts of it after .+": Hold.GROUP_PAUSE,
    "muted by .+": Hold.MUTED,
    "it may grow .+": Hold.MAY_GROW,
    "the alert on .+ says it all": Hold.INHIBITED,
    ".*: (the GPU|a call to its driver|nothing can be read) .+": Hold.INHIBITED,
    "silenced( by .+)? until .+": Hold.SILENCED,
    "it was not told of its beginning": Hold.BEGINNING_NOT_SENT,
    "that it began has reached nobody": Hold.BEGINNING_UNDELIVERED,
    r"\S+ is for (critical alerts only|(info|warning) and above)": Hold.BELOW_SEVERITY,
    "quiet hours until .+": Hold.QUIET_HOURS,
    "quiet hours that do not end": Hold.QUIET_ALWAYS,
    "told as one: .*": Hold.PART_OF_JOB,
    "it was back before that could be told": Hold.REOPENED,
}
_FAILURES: dict[str, Failure] = {
    "not sent: overtaken by a later message of the same incident": Failure.OVERTAKEN,
    "not sent: over before it could be told": Failure.OVER_BEFORE_SENT,
    "not sent: told by .+ instead": Failure.FALLBACK_SENT,
    "not sent: told by .+ after all": Failure.CHANNEL_SENT,
    "channel .+ is not configured": Failure.NOT_CONFIGURED,
    "given up after two days: .*": Failure.GIVEN_UP,
}
_SAVED = "has saved.*"


def with_codes(alert: Alert) -> Alert:
    """Return an alert with the codes of its texts, where it was written without."""
    if alert.ended and alert.ended_code is None:
        alert = msgspec.structs.replace(alert, ended_code=_code(alert.ended, _ENDINGS, Ending))
    if alert.held_back and alert.held_code is None:
        alert = msgspec.structs.replace(alert, held_code=hold(alert.held_back))
    return alert


def hold(text: str) -> Hold:
    """Return why a notice was held back or waits."""
    return _code(text, _HOLDS, Hold)


def failure(text: str | None) -> Failure | None:
    """Return why a message was not delivered; None without a text.

    What no table has is what a channel or its server said.
    """
    if not text:
        return None
    code = _code(text, _FAILURES, Failure)
    return Failure.REFUSED if code is Failure.LEGACY else code


def is_saved(result: str) -> bool:
    """Say whether the result of an action is that the job has saved its work."""
    return re.fullmatch(_SAVED, result, re.DOTALL) is not None


def _code(text: str, sentences: Mapping[str, _Code], kind: type[_Code]) -> _Code:
    found = sentences.get(text)
    if found is None:
        found = next((c for p, c in sentences.items() if _pattern(p).fullmatch(text)), None)
    return kind("legacy") if found is None else found


@cache
def _pattern(sentence: str) -> re.Pattern[str]:
    return re.compile(sentence, re.DOTALL)
