"""Codes of what earlier versions wrote as text alone: whole sentences, as version 5 had them.

What is not in these tables becomes ``legacy`` and is shown as it stands.
"""

from __future__ import annotations

import re
from functools import cache, partial
from typing import TYPE_CHECKING, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from gpuwatchd.core.codes import Ending, Failure, Hold, NameKind, ProblemCode, Reason, TitleRole
from gpuwatchd.core.model.alerts import TitlePart
from gpuwatchd.core.model.findings import Clause, Grounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuwatchd.core.model import (
        Alert,
        Blame,
        DeviceReading,
        Event,
        Finding,
        Holding,
        Message,
        ProcessInfo,
    )

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
    "silenced( by .+)? until .+": Hold.SILENCED,
    "it was not told of its beginning": Hold.BEGINNING_NOT_SENT,
    "that it began has reached nobody": Hold.BEGINNING_UNDELIVERED,
    r"\S+ is for (critical alerts only|(info|warning) and above)": Hold.BELOW_SEVERITY,
    "quiet hours until .+": Hold.QUIET_HOURS,
    "quiet hours that do not end": Hold.QUIET_ALWAYS,
    "told as one: .*": Hold.PART_OF_JOB,
    "it was back before that could be told": Hold.REOPENED,
    ".*: (the GPU|a call to its driver|nothing can be read) .+": Hold.INHIBITED,
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


def hold(text: str) -> Hold:
    """Return why a notice was held back or waits."""
    return _mapped(text, _HOLDS, Hold)


def failure(text: str | None) -> Failure | None:
    """Return why a message was not delivered; None without a text.

    What no table has is what a channel or its server said.
    """
    if not text or not isinstance(text, str):  # damage may make anything of it
        return None
    code = _mapped(text, _FAILURES, Failure)
    return Failure.REFUSED if code is Failure.LEGACY else code


def is_saved(result: str) -> bool:
    """Say whether the result of an action is that the job has saved its work."""
    return re.fullmatch(_SAVED, result, re.DOTALL) is not None


def _mapped(text: str, sentences: Mapping[str, _Code], kind: type[_Code]) -> _Code:
    found = sentences.get(text)
    if found is None:
        found = next((c for p, c in sentences.items() if _pattern(p).fullmatch(text)), None)
    return kind("legacy") if found is None else found


_pattern = cache(partial(re.compile, flags=re.DOTALL))


# Findings, titles, names of processes, and what an older daemon left of its devices.

_NORMAL = "said that this is normal"
_LEAD = "one alert for its job: see "
_COLLECTING = "collecting, "
_TOGETHER = re.compile(r" leak alike, together [\d.,]+ MB/min")
_VERB = re.compile(r"(?:host memory )?(?=grows|rises|is flat)")
_FULL = re.compile(r", full in .*")
_SHORTER = (
    (
        re.compile(
            r"\b(?:grows|rises)( steadily)? by \S+ MB/min for [^,;]+, \S+ [KMGT]iB so far,? ?"
        ),
        lambda found: "steady, " if found[1] else "",
    ),
    (re.compile(r" creeps up by \S+ MB/min"), " creeps up"),
    (_TOGETHER, " leak alike"),
    (re.compile(r"\bup in (\d+) of (\d+) parts"), r"rising in \1 of \2 parts of that time"),
)
"""What stands elsewhere in a message: rate, duration and amount."""
_DEVICE = re.compile(r"((?:GPU|MIG) [\w:]+)( \([^()]*\))?(: )?")
_RANKS = re.compile(
    r"(host memory of )?(\d+ ranks of [^()]+?)( \([^()]*\))?( of \S+)?( on (?:GPU|MIG) .*)?"
)
_PROCESS = re.compile(r"(.*)(\[\d+\])( of \S+)?")
_INTERPRETER = re.compile(r"\bpython[\d.]* (?=\S+$)")
_UNOWNED = "memory that no listed process owns"
_NOBODYS = "memory that nobody owns"
_CHANNEL = re.compile(r"channel \S+ does not deliver: ")
_HARDWARE = "look at the hardware first: "
_PROGRAMS = frozenset({"sudo", "gpuwatchctl", "py-spy"})
_WAS = "gone, was "
_PER_INSTANCE = "memory is read per MIG instance"


def finding(old: Finding, events: Iterable[Event] = ()) -> Finding:
    """Return a judgement with the parts of its reason, and what it comes to.

    ``events`` are those of its device: of one of them a line on the hardware may tell.
    """
    if old.grounds:
        return old
    broken = tuple(
        next((event.at_s for event in events if event.text in line), 0.0)
        for line in old.advice
        if line.startswith(_HARDWARE)
    )
    commands = tuple(map(_command, old.advice))
    grounds = Grounds(
        code=_code(old),
        clauses=tuple(map(_clause, old.reason.split("; "))) if old.reason else (),
        lead=old.reason.partition(_LEAD)[2].partition(";")[0],
    )
    return replace(
        old,
        grounds=grounds if (grounds.code, grounds.clauses) != (Reason.OTHER, old.parts) else UNSET,
        commands=commands if any(commands) else UNSET,
        hardware_at_s=broken or UNSET,
        blame=tuple(map(_blame, old.blame)),
    )


def _code(old: Finding) -> Reason:
    if _NORMAL in old.reason:
        return Reason.NORMAL
    if old.reason.startswith(_COLLECTING):
        return Reason.COLLECTING
    if _LEAD in old.reason:
        return Reason.RANK
    return Reason.JOB if _TOGETHER.search(old.reason) else Reason.OTHER


def _clause(words: str) -> Clause:
    if words.startswith(_COLLECTING):
        return Clause(about=_COLLECTING, text=words.removeprefix(_COLLECTING))
    if _FULL.search(words):
        return Clause(text=words, short=_FULL.sub("", words), forecast=True)
    begins = _VERB.match(words)
    text = words if begins is None else words[begins.end() :]
    short = text
    for pattern, instead in _SHORTER:
        short = pattern.sub(instead, short)
    return Clause(
        text=text,
        about="" if begins is None else begins[0],
        short=None if short == text else short,
        verb=begins is not None,
    )


def _command(line: str) -> str:
    command = line.partition(": ")[2]
    return command if command.split(" ", 1)[0] in _PROGRAMS else ""


def _blame(old: Blame) -> Blame:
    if old.process is None or f"pid {old.process.pid}" in old.name:
        return old
    return replace(old, rank=old.name.partition(" on ")[0])


def alert(old: Alert) -> Alert:
    """Return an alert with the codes of its texts, and what it says in parts."""
    if old.ended and old.ended_code is None:
        old = replace(old, ended_code=_mapped(old.ended, _ENDINGS, Ending))
    if old.held_back and old.held_code is None:
        old = replace(old, held_code=hold(old.held_back))
    return replace(
        old,
        finding=finding(old.finding),
        title_parts=old.title_parts or _title(old.title) or UNSET,
    )


def _title(words: str) -> tuple[TitlePart, ...]:
    ranks = _RANKS.fullmatch(words)
    if ranks is not None:
        host, many, runs, owner, where = (part or "" for part in ranks.groups())
        plain = bool(host) or not where
        roles = (
            (host, TitleRole.NONE),
            (many, TitleRole.RANKS),
            (runs, TitleRole.NONE if host else TitleRole.MODEL),
            (owner, TitleRole.NONE if plain else TitleRole.OWNER),
            (where, TitleRole.NONE),
        )
        return tuple(TitlePart(text=text, role=role) for text, role in roles if text)
    parts = [TitlePart(text=words)] if words else []
    device = _DEVICE.match(words)
    if device is not None:
        label, model, colon = (part or "" for part in device.groups())
        parts = [
            TitlePart(text=label, role=TitleRole.DEVICE),
            TitlePart(text=model, role=TitleRole.MODEL),
            TitlePart(text=colon, role=TitleRole.DEVICE),
        ]
        words = words[device.end() :]
        short = _NOBODYS if words == _UNOWNED else None
        parts.append(TitlePart(text=words, short=short))
    process = _PROCESS.fullmatch(words)
    if process is not None:
        name, pid, owner = process.groups()
        python = _INTERPRETER.search(name)
        begin, end = (0, 0) if python is None else python.span()
        roles = (
            (name[:begin], TitleRole.NONE),
            (name[begin:end], TitleRole.INTERPRETER),
            (name[end:], TitleRole.NONE),
            (pid, TitleRole.PID),
            (owner, TitleRole.OWNER),
        )
        parts[-1:] = [TitlePart(text=text, role=role) for text, role in roles if text]
    return tuple(part for part in parts if part.text)


def severity(message: Message) -> str:
    """Return how the subject of a queued message, or of a pop-up, says that it is critical."""
    for lead in ("Now CRITICAL: ", "CRITICAL: "):
        if message.subject.startswith(lead):
            return lead
    return ""


def is_stand_in(name: str, pid: int) -> bool:
    """Say whether a name is only a pid and why there is none: "pid 7 (hidden by ...)"."""
    return name.startswith(f"pid {pid} (")


def process(old: ProcessInfo) -> ProcessInfo:
    """Return a process with what its name is."""
    if old.name_kind is not NameKind.OWN or not isinstance(old.name, str):
        return old
    if is_stand_in(old.name, old.key.pid):
        return replace(old, name_kind=NameKind.STAND_IN)
    if old.name == "gone" or old.name.startswith(_WAS):
        was = old.name.removeprefix(_WAS) if old.name != "gone" else ""
        return replace(old, name_kind=NameKind.GONE, was=was)
    return old


def xid(words: str) -> int | None:
    """Return the number of an XID: of an event the history keeps the sentence alone."""
    number = "".join(c for c in words.partition("XID ")[2].partition(":")[0] if c.isdigit())
    return int(number) if number else None


def stands_for(title: str, group: str) -> bool:
    """Say whether the title of an alert, all that is kept beside a label, is of several ranks."""
    return f" ranks of {group}" in title


def problem(words: str) -> ProblemCode:
    """Return what a problem of the daemon is about."""
    if words.startswith("no GPU found"):
        return ProblemCode.NO_GPU
    return ProblemCode.CHANNEL if _CHANNEL.match(words) else ProblemCode.OTHER


def reading(old: DeviceReading) -> DeviceReading:
    """Return a reading that knows whether it is of the card of MIG instances."""
    return replace(old, per_instance=old.per_instance or old.uses_reason == _PER_INSTANCE)


def holding(old: Holding) -> Holding:
    """Return idle memory, with what its sentences say."""
    return replace(
        old,
        process=old.process and process(old.process),
        left=old.left or (old.kind == "hung-rank" and "ended" in old.evidence),
        command=old.command or (_command(old.advice[0]) if old.advice else ""),
    )
