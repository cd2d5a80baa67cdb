"""``inspect``: ask a prepared process which variable keeps what grows."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuwatchd.alerts import wording
from gpuwatchd.cli import options, output
from gpuwatchd.collect import mailboxes
from gpuwatchd.collect.mailboxes import outside
from gpuwatchd.core import text, units
from gpuwatchd.core.codes import MailboxFault, OutsideFault
from gpuwatchd.core.errors import FINDINGS, OK, GpuwatchdError
from gpuwatchd.core.model import ProcessKey
from gpuwatchd.store.private_files import private_directory
from gpuwatchd.view.answers import inspection as answers
from gpuwatchd.view.answers.base import fill
from gpuwatchd.view.queries import user_filter
from gpuwatchd.view.text import inspection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.mailboxes import Census, Functions, Kind, Mailbox, Oom

_MARGIN_S, _CENSUS_S = 60.0, 25.0
"""How long the first answer may take, and each census."""
_WARM_UP_S = 60.0
"""After a framework's import, before the first census."""
_PREPARE = "start it with: gpuwatchctl run -- COMMAND"


def _pid(ctx: click.Context, param: click.Parameter, word: str) -> int:
    try:
        return options.one_pid(ctx, param, word)
    except GpuwatchdError:  # no daemon is needed to find what was prepared
        uid = os.getuid()
        prepared = [
            pid
            for pid in mailboxes.pids(uid)
            if word in _names(pid)
            and isinstance(mailboxes.read(mailboxes.folder(uid), pid, uid), mailboxes.Mailbox)
        ]
        if len(prepared) != 1:
            raise
        return prepared[0]


def _names(pid: int) -> set[str]:
    with suppress(OSError):
        argv = os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")
        return {name for arg in argv if arg for name in (arg, Path(arg).name, Path(arg).stem)}
    return set()


@click.command(
    "inspect",
    epilog=options.examples(
        "inspect 4711", "inspect train.py --every 5s", "inspect 4711 --functions"
    ),
)
@click.argument("pid", metavar="PID", callback=_pid, shell_complete=options.complete_process)
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
@click.option(
    "--functions",
    "of_functions",
    is_flag=True,
    help="Show what its functions add instead: those that it marks itself.",
)
@click.option(
    "--attach",
    is_flag=True,
    help="Put the probe into a process that was not prepared (Python 3.14; not run so far).",
)
@click.option("--yes", is_flag=True, help="Do so without a question.")
@options.exit_code_option
def command(  # noqa: PLR0913, PLR0917 - one argument per flag
    pid: int,
    censuses: int,
    every_s: float,
    pause_s: float,
    of_functions: bool,  # noqa: FBT001
    attach: bool,  # noqa: FBT001
    yes: bool,  # noqa: FBT001
    exit_code: bool,  # noqa: FBT001
) -> int:
    """Show which variable of a process keeps the tensors that become more.

    For processes that were started with `gpuwatchctl run`, or that import gpuwatchd.probe; only
    of your own. A copy of the process counts its tensors a few times and looks who holds those
    that become more; the process stands still for as long as the copy takes to make. With
    --functions nothing is copied: the job says what its marked functions add, and each is judged.

    Of any other Python process: where it is now, by py-spy where that is installed. Of one that
    has ended: the exception, and what `run --record` wrote down when its memory ran out.
    """
    flags = options.current()
    uid = _owner(pid)
    if uid is None:
        return _answer(_ended(pid))
    place = mailboxes.folder_of(pid, uid)
    mailbox, doubts = mailboxes.read(place, pid, uid), []
    if attach and isinstance(mailbox, MailboxFault):
        doubts = _attach(pid, uid, place, yes=yes)
        mailbox = mailboxes.read(place, pid, uid)
        if mailbox is MailboxFault.NONE:
            words = f"the probe is in process {pid}, and waits for a framework to be imported"
            raise GpuwatchdError(
                words, hint=f"gpuwatchctl inspect {pid}", page="errors#not-attached"
            )
    if isinstance(mailbox, MailboxFault):
        return _from_outside(pid, uid, mailbox)
    oom = mailboxes.last_oom(place, pid, uid)
    if of_functions:
        asked = _ask(place, uid, mailbox, mailboxes.Functions, _MARGIN_S)
        data = _data(mailbox, oom, error=asked.error, functions=_functions(asked))
    else:
        if not (flags.json or flags.quiet or mailbox.counters_only):
            wait = units.duration(every_s * (censuses - 1))
            sys.stderr.write(f"counting tensors {censuses} times, about {wait}")
            sys.stderr.write(", after the first minute of the job\n")
        warmup_s = 0.0 if attach else _WARM_UP_S  # of an attached process nobody knows its age
        limit_s = (every_s + _CENSUS_S) * censuses + _MARGIN_S + warmup_s
        how = {"censuses": censuses, "every_s": every_s, "pause_s": pause_s, "warmup_s": warmup_s}
        data = _data(mailbox, oom, _ask(place, uid, mailbox, mailboxes.Census, limit_s, **how))
    _answer(data, doubts)
    functions = data.functions.functions if data.functions is not None else ()
    named = any(one.holder and one.bounded_at_bytes is None for one in data.growing)
    named = named or any(one.verdict == "leak" for one in functions)
    if data.error is not None:
        return 1
    return FINDINGS if exit_code and named else OK


def _answer(data: answers.InspectionData, doubts: Sequence[tuple[str, str]] = ()) -> int:
    flags = options.current()
    if flags.json:
        output.emit_answer(answers.Inspect, data, source="process", warnings=doubts)
        return OK
    out = output.Out(flags)
    for line in (*(words for _, words in doubts), *inspection.lines(data)):
        out.line(line)
    return OK


def _owner(pid: int) -> int | None:
    try:
        uid = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None
    if os.geteuid() not in (0, uid):
        raise GpuwatchdError(
            f"process {pid} is not yours: only its owner or root may look into it",
            hint=f"sudo gpuwatchctl inspect {pid}",
            page="errors#not-yours",
        )
    return uid


def _ended(pid: int) -> answers.InspectionData:
    """Return what a process of this user left behind; GpuwatchdError where that is nothing."""
    place, uid = mailboxes.folder(os.getuid()), os.getuid()
    last, oom = mailboxes.last_words(place, pid, uid), mailboxes.last_oom(place, pid, uid)
    nothing = isinstance(last, MailboxFault) or (last.failure or last.census) is None
    if oom is None and nothing:
        words, page = f"no process {pid} on this machine", "errors#no-such-process"
        raise GpuwatchdError(words, hint="gpuwatchctl status", page=page)
    if isinstance(last, MailboxFault):
        return _data(None, oom, pid=pid, ended=True)
    return _data(last, oom, last.census, ended=True)


def _fault(pid: int, fault: MailboxFault, more: str = "") -> GpuwatchdError:
    hint = _PREPARE
    if fault is MailboxFault.NONE and mailboxes.is_prepared(pid):
        hint = "it is prepared: ask 10 s after its framework was imported"
        with suppress(OSError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
            for child in mailboxes.pids(Path(f"/proc/{pid}").stat().st_uid):
                if str(child) in children.split():
                    hint = f"it is its child that can be: gpuwatchctl inspect {child}"
    if fault is MailboxFault.NONE and mailboxes.is_isolated(pid):
        hint = "it was started with -I, -E or -S, which switch the probe off"
    words = f"process {pid} {inspection.FAULTS[fault]}"
    return GpuwatchdError(words, hint=hint + more, page="errors#not-prepared")


def _from_outside(pid: int, uid: int, fault: MailboxFault) -> int:
    """Show where a process is now and why no more is known; GpuwatchdError where not even that."""
    stack, version = outside.stack(pid, uid), outside.python_of(pid)
    if isinstance(stack, OutsideFault):
        raise _fault(pid, fault, f" (where it is now: {inspection.OUTSIDE[stack]})")
    error = _fault(pid, fault)
    data = _data(None, None, pid=pid, stack=stack, python=version and "{}.{}".format(*version))
    _answer(data, [("not-prepared", f"{error.message}; {error.hint}")])
    return 1


def _ask(
    place: Path, uid: int, mailbox: Mailbox, kind: type[Kind], limit_s: float, **words: float
) -> Kind:
    verb = "functions" if kind is mailboxes.Functions else "census"
    words["patience_s"] = 3.0  # it looks every second
    try:
        request = mailboxes.ask(place, mailbox, verb, uid=uid, limit_s=limit_s, **words)
    except OSError as error:  # a link, another's, read-only, full
        raise _fault(mailbox.pid, MailboxFault.NOT_TRUSTED, f" ({error.strerror})") from error
    try:
        answer = mailboxes.answer(place, mailbox.pid, uid, request, kind, limit_s=limit_s)
    except KeyboardInterrupt:
        with suppress(OSError):
            mailboxes.ask(place, mailbox, "cancel", uid=uid, limit_s=limit_s, of=request)
        raise
    if isinstance(answer, MailboxFault):
        raise _fault(mailbox.pid, answer)
    return answer


def _functions(asked: Functions) -> answers.FunctionsData:
    from gpuwatchd.analysis import functions  # noqa: PLC0415 - numpy: 1 s while others work

    config = options.current().load_config().config
    judgement = functions.judge(asked.functions, config.probe, config.detection)
    texts = wording.function_text
    return fill(
        answers.FunctionsData,
        judgement,
        findings=[fill(answers.FunctionFinding, one, **texts(one)) for one in judgement.findings],
        insights=[fill(answers.FunctionInsight, one, **texts(one)) for one in judgement.insights],
    )


def _attach(pid: int, uid: int, place: Path, *, yes: bool) -> list[tuple[str, str]]:
    """Put the probe into a process, with its owner's consent; return what is doubtful."""
    if (fault := outside.unfit(pid)) is not None:
        raise _not_attached(pid, fault)
    if not yes and sys.stdin.isatty() and not options.current().json:
        yes = click.confirm(f"run code of gpuwatchd in process {pid}?", err=True)
    if not yes:
        raise click.UsageError("--attach runs code in the process: say --yes")
    from gpuwatchd.collect.host import by_psutil  # noqa: PLC0415 - only here

    key = ProcessKey(pid=pid, started_at_s=by_psutil.started_at_s(pid))
    doubts = user_filter.write_action("attach", key, "asked", "by gpuwatchctl")
    if uid == os.geteuid():
        private_directory(place)
    fault = outside.attach(pid, uid, place)
    user_filter.write_action("attach", key, "refused" if fault else "done", fault or "")
    if fault is not None:
        raise _not_attached(pid, fault)
    return doubts


def _not_attached(pid: int, fault: OutsideFault) -> GpuwatchdError:
    words = f"the probe was not put into process {pid}: {inspection.OUTSIDE[fault]}"
    return GpuwatchdError(words, hint=_PREPARE, page="errors#not-attached")


def _data(
    mailbox: Mailbox | None, oom: Oom | None, census: Census | None = None, **given: Any
) -> answers.InspectionData:
    growing = []
    for group in census.groups if census is not None else ():
        holder = fill(answers.HolderShape, group.holder)
        graph = group.graph or group.sure == "graph"
        advice = inspection.advice(holder, group.bounded_at_bytes, graph=graph)
        growing.append(fill(answers.GrowingGroup, group, holder=holder, advice=advice))
    error = given.pop("error", None if census is None else census.error)
    known = {
        "prepared": mailbox is not None or oom is not None,
        "ended": False,
        "framework": mailbox and mailbox.framework.name,
        "framework_version": mailbox and mailbox.framework.version,
        "stack": (),
        "functions": None,
        "oom": oom,
        "censuses": 0 if census is None else census.censuses,
        "growing": growing,
        "error": error and text.clean(error, limit=40),
    }
    if mailbox is None:
        empty = {"devices": (), "python": None, "at": None, "failure": None, "recording": False}
        return fill(answers.InspectionData, (), **{**known, **empty, **given})
    return fill(answers.InspectionData, mailbox, **{**known, **given})
