"""The struct of everything that ``--json`` answers: what is built, and the source of its schema."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gpuwatchd.core.model import Finding, Message
from gpuwatchd.view.answers import (
    alerts,
    charts,
    costs,
    current,
    explanation,
    history,
    idle_memory,
    program,
    report,
)
from gpuwatchd.view.answers.base import Failure, Shape


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
    "status": (current.Status,),
    "watch": (current.Watch,),
    "predict": (current.Predict,),
    "explain": (explanation.Explain,),
    "zombies": (idle_memory.IdleMemory,),
    "plot": (charts.Plot,),
    "history": (history.History, history.HistoryOfProcesses, history.HistoryQueries),
    "report": (report.Report,),
    "alerts": (alerts.Alerts, alerts.AlertShown),
    "snooze": (alerts.Snooze,),
    "feedback": (alerts.Feedback,),
    "cost": (costs.Cost,),
    "checkpointed": (program.Checkpointed,),
    "analyze": (history.Analyze,),
    "backtest": (history.Backtest,),
    "web": (program.Web,),
    "doctor": (program.Doctor,),
    "ask-checkpoint": (program.AskCheckpoint,),
    "release": (program.DriverRelease,),
    "config": (program.ConfigPath, program.ConfigPrint, program.ConfigInit, program.ConfigValidate),
    "policy": (alerts.PolicyShown, alerts.PolicyTested),
    "notify": (alerts.Notify, alerts.NotifyDigest),
    "check": (program.Check,),
    "service": (program.ServiceStatus, program.ServicePrint, program.ServiceDone),
    "demo": (program.DemoBegins, program.DemoGoesOn, program.DemoEnds),
    "completion": (program.Completion,),
    "docs": (program.PageShown, program.Pages, program.PagesFound),
    "schema": (program.Schemas,),
}
"""Verb -> what it may answer; besides, any of them may fail (``Failure``)."""
OTHERS: Final[dict[str, tuple[type[msgspec.Struct], ...]]] = {
    "error": (Failure,),
    "history-ndjson": (history.DeviceRow, history.ProcessRow, history.EventRow),
    "command": (CommandInput,),
    "ask": (AskInput,),
}
"""What is JSON and no answer: the failure of any verb, lines without a head, what hooks read."""
