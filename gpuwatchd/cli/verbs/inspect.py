"""``inspect``: ask a prepared process which variable keeps what grows."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuwatchd.cli import options, output
from gpuwatchd.collect import mailboxes
from gpuwatchd.core import text, units
from gpuwatchd.core.codes import MailboxFault
from gpuwatchd.core.errors import FINDINGS, OK, GpuwatchdError
from gpuwatchd.view.answers.base import fill
from gpuwatchd.view.answers.inspection import (
    GrowingGroup,
    HolderShape,
    Inspect,
    InspectionData,
)
from gpuwatchd.view.text import inspection

if TYPE_CHECKING:
    from gpuwatchd.collect.mailboxes import Census, Mailbox

_MARGIN_S = 60.0
"""Beside the pauses between censuses: a tick of the probe, and its children."""
_WARM_UP_S = 60.0
"""After a framework's import, before the first census."""


@click.command("inspect", epilog=options.examples("inspect 4711", "inspect train.py --every 5s"))
@options.pid_argument
@click.option(
    "--censuses",
    type=click.IntRange(4, 16),
    default=4,
    show_default=True,
    metavar="N",
    help="How often tensors are counted.",
)
@click.option(
    "--every",
    "every_s",
    type=options.SPAN,
    default=10.0,
    metavar="DURATION",
    help="The time between two counts (10s).",
)
@click.option(
    "--pause",
    "pause_s",
    type=options.SPAN,
    default=0.3,
    metavar="DURATION",
    help="The longest that each copy may stop the process for (0.3s).",
)
@options.exit_code_option
def command(
    pid: int,
    censuses: int,
    every_s: float,
    pause_s: float,
    exit_code: bool,  # noqa: FBT001
) -> int:
    """Show which variable of a process keeps the tensors that become more.

    For processes that were started with `gpuwatchctl run`, or that import gpuwatchd.probe; only
    of your own. A copy of the process counts its tensors a few times and looks who holds those
    that become more; the process stands still for as long as the copy takes to make.
    """
    flags = options.current()
    uid = _owner(pid)
    place = mailboxes.folder_of(pid, uid)
    mailbox = mailboxes.read(place, pid, uid)
    if isinstance(mailbox, MailboxFault):
        raise _fault(pid, mailbox)
    if sys.stderr.isatty() and not flags.json and not flags.quiet:
        wait = units.duration(every_s * (censuses - 1))
        sys.stderr.write(f"counting tensors {censuses} times, about {wait}\n")
    limit_s = every_s * (censuses - 1) + _MARGIN_S + _WARM_UP_S
    request = mailboxes.ask(
        place,
        mailbox,
        "census",
        limit_s=limit_s,
        censuses=censuses,
        every_s=every_s,
        pause_s=pause_s,
        warmup_s=_WARM_UP_S,
    )
    census = mailboxes.answer(place, pid, uid, request, limit_s=limit_s, wait=time.sleep)
    if isinstance(census, MailboxFault):
        raise _fault(pid, census)
    data = _data(mailbox, census)
    if flags.json:
        output.emit_answer(Inspect, data, source="process")
    else:
        out = output.Out(flags)
        for line in inspection.lines(data):
            out.line(line)
    return FINDINGS if exit_code and data.growing else OK


def _owner(pid: int) -> int:
    try:
        uid = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        raise GpuwatchdError(
            f"no process {pid} on this machine",
            hint="gpuwatchctl status",
            page="errors#no-such-process",
        ) from None
    if os.geteuid() not in (0, uid):
        raise GpuwatchdError(
            f"process {pid} is not yours: only its owner or root may look into it",
            hint=f"sudo gpuwatchctl inspect {pid}",
            page="errors#not-yours",
        )
    return uid


def _fault(pid: int, fault: MailboxFault) -> GpuwatchdError:
    hint = "start it with: gpuwatchctl run -- COMMAND"
    if fault is MailboxFault.NONE and _isolated(pid):
        hint = "it was started with -I or -E, which switch the probe off"
    return GpuwatchdError(
        f"process {pid} {inspection.FAULTS[fault]}", hint=hint, page="errors#not-prepared"
    )


def _isolated(pid: int) -> bool:
    """Say whether Python was told to ignore its environment."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:]
    except OSError:
        return False
    flags = []
    for word in words:
        if not word.startswith(b"-") or word in (b"-c", b"-m"):
            break
        flags.append(word)
    return any(letter in word for word in flags for letter in (b"I", b"E"))


def _data(mailbox: Mailbox, census: Census) -> InspectionData:
    growing = []
    for group in census.groups:
        holder = fill(HolderShape, group.holder)
        advice = inspection.advice(holder, group.bounded_at_bytes, graph=group.sure == "graph")
        growing.append(fill(GrowingGroup, group, holder=holder, advice=advice))
    return fill(
        InspectionData,
        mailbox,
        framework=mailbox.framework.name,
        framework_version=mailbox.framework.version,
        censuses=census.censuses,
        growing=growing,
        error=census.error and text.clean(census.error, limit=40),
    )
