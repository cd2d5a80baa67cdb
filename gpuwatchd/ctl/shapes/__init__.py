"""The typed shape of everything that ``--json`` answers: the source of the JSON Schemas.

No verb imports this: answers are built by hand, and tests hold that each of them is of its shape,
with no key too many. ``make docs`` writes the schemas (``gpuwatchd/schemas``) and their page.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gpuwatchd.ctl.shapes import about, drawn, kept, own, seen, served, summed, told
from gpuwatchd.ctl.shapes.base import Failure, Shape
from gpuwatchd.model import Finding, Message

VERSION: Final = 1


class CommandInput(msgspec.Struct, frozen=True, kw_only=True):
    """What a program of ``[notify.command]`` reads on its standard input: one object.

    Names are those of the daemon: instants are epoch seconds (`_at_s`), unknown is null.
    """

    schema_version: int
    message: Message
    """Without its finding, which stands beside it."""
    finding: Finding | None
    """The judgement that the message is about."""


class AskedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The job that is asked to save its work."""

    pid: int
    started_at_s: float | None
    name: str


class AskInput(msgspec.Struct, frozen=True, kw_only=True):
    """What the program of ``[act] argv`` reads on its standard input: one object.

    Names are those of the daemon: instants are epoch seconds (`_at_s`), unknown is null.
    """

    schema_version: int
    ask: Literal["checkpoint"]
    process: AskedProcess
    finding: Finding | UnsetType = UNSET
    """The judgement that is the reason; absent where a person asks without one."""


ANSWERS: Final[dict[str, tuple[type[Shape], ...]]] = {
    "status": (seen.Status,),
    "watch": (seen.Watch,),
    "predict": (seen.Predict,),
    "explain": (seen.Explain,),
    "zombies": (seen.Zombies,),
    "plot": (drawn.Plot,),
    "history": (kept.History, kept.HistoryOfProcesses, kept.HistoryQueries),
    "report": (summed.Report,),
    "alerts": (told.Alerts, told.AlertShown),
    "snooze": (told.Snooze,),
    "feedback": (told.Feedback,),
    "cost": (kept.Cost,),
    "checkpointed": (own.Checkpointed,),
    "analyze": (kept.Analyze,),
    "backtest": (kept.Backtest,),
    "web": (served.Web,),
    "doctor": (own.Doctor,),
    "ask-checkpoint": (own.AskCheckpoint,),
    "release": (own.Release,),
    "config": (own.ConfigPath, own.ConfigPrint, own.ConfigInit, own.ConfigValidate),
    "policy": (told.PolicyShown, told.PolicyTested),
    "notify": (told.Notify, told.NotifyDigest),
    "check": (own.Check,),
    "service": (own.ServiceStatus, own.ServicePrint, own.ServiceDone),
    "demo": (about.DemoBegins, about.DemoGoesOn, about.DemoEnds),
    "completion": (about.Completion,),
    "docs": (about.PageShown, about.Pages, about.PagesFound),
    "schema": (about.Schemas,),
}
"""Verb -> what it may answer; besides, any of them may fail (``Failure``)."""
OTHERS: Final[dict[str, tuple[type[msgspec.Struct], ...]]] = {
    "error": (Failure,),
    "history-ndjson": (kept.DeviceRow, kept.ProcessRow, kept.EventRow),
    "command": (CommandInput,),
    "ask": (AskInput,),
}
"""What is JSON and no answer: the failure of any verb, lines without a head, what hooks read."""
