"""Taking one step on a process through whoever manages it, and looking at what came of it.

Slurm and systemd act on a job or a unit by its name, so the process is held by the kernel's
descriptor, and each is asked first whether that name is still the one that the process belongs to.
Between that and the step lies one call of a program: nothing of theirs takes a descriptor.

A job is one target: of an array the one task, never the whole; of a step of ``srun`` its job. A job
of several components (``HetJobId``) is left alone, since a command for one of them ends all.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from gpuwatchd.act import reap
from gpuwatchd.act.managers import Manager, command_for, manager_of
from gpuwatchd.act.target import Target, handles, read
from gpuwatchd.core import run_program, text
from gpuwatchd.core.codes import ActResult, ReapResult
from gpuwatchd.core.config import SECRET_VARIABLES, expanded
from gpuwatchd.core.errors import NotAllowed, ServiceError, TargetChanged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuwatchd.act.checkpoint import Checkpoint
    from gpuwatchd.core.model import HoldingKind, ProcessInfo, ProcessKey
    from gpuwatchd.core.model.base import ActStep

    _Prepared = tuple[list[str], Callable[[], bool]]

__all__ = ["Manager", "Outcome", "Request", "command_for", "manager_of", "opted_in", "take"]

SCHEMA_VERSION: Final = 1
RUNNER_S: Final = 30.0
"""A program of the site's that has not ended by then is ended."""
CONFIRM_S: Final = 45.0
"""So long the end is waited for; Slurm kills what ignores TERM after 30 s."""
_LIMIT_S: Final = 10.0
_LIMIT_BYTES: Final = 1 << 20
_AGAIN_S: Final = 0.5
_SKEW_S: Final = 5.0
"""The clock of Slurm's controller may differ so much from ours."""
_MOST_RESTARTS: Final = 2
_OPTED: Final = b"GPUWATCHD_ACT=1"
_OPTED_KEY: Final = re.compile(r"\s*X-GpuWatchd\s*=\s*(.*?)\s*")
_NAME: Final = re.compile(r"(\d{1,10})(?:_(\d{1,10}))?", re.ASCII)
_TIME: Final = "%Y-%m-%dT%H:%M:%S"
_LISTED: Final = re.compile(r"^(\d+) +(\d+) +(\S+) +(\S+) +\S+ *$", re.MULTILINE | re.ASCII)
"""A row of ``scontrol listpids``: pid, job, step and which of its tasks, "-" for none."""
_TELL_OTHERWISE: Final = ("SCONTROL_", "SCANCEL_", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")
"""Variables that change what Slurm's programs do, or the form of what they say."""


class Outcome(NamedTuple):
    """What came of a step."""

    result: ActResult
    text: str
    """One cleaned line."""


class Request(NamedTuple):
    """A step that is to be taken."""

    step: ActStep
    key: ProcessKey
    manager: Manager
    """As it was announced; another one by now refuses the step."""
    command: str = ""
    """As it was announced, for a program of the site's."""
    kinds: frozenset[HoldingKind] = frozenset()
    """As what idle memory it is listed; () for a leak."""
    evidence: dict[str, Any] | None = None
    """For a program of the site's: what is known, as JSON can say it."""
    has_checkpoint: bool = False
    """Whether a checkpoint of the job is known; without one it is not requeued."""
    knows_ranks: bool = False
    """Whether it is one of several ranks: of another process nobody knows what other nodes do."""
    by_consent: bool = False
    """It is taken because the process opted in, so that is looked at once more."""


def opted_in(info: ProcessInfo, manager: Manager, *, proc: Path = Path("/proc")) -> bool:
    """Return whether a process may be acted on without being asked; blocks for up to 40 s.

    By ``GPUWATCHD_ACT=1`` in its environment at its start. A unit ends as a whole, so there the
    environment of its main process counts, not of one that a shell in it has started; or
    ``X-GpuWatchd=act`` in the unit. Never raises.
    """
    if manager.kind != "user-unit":
        return not info.foreign and _OPTED in read(proc, info.key.pid, "environ").split(b"\0")
    with contextlib.suppress(ServiceError, NotAllowed):
        if _OPTED in read(proc, _main_pid(manager.name), "environ").split(b"\0"):
            return True
        # Not the file of FragmentPath: drop-ins count too, and only systemd knows which.
        return _says_act(_run(["systemctl", "--user", "cat", "--", manager.name]))
    return False


def _says_act(unit: str) -> bool:
    values = [""]
    # What goes on after a line that ends with a backslash is no key of its own.
    for line in unit.replace("\\\n", " ").splitlines():
        values += [found[1]] if (found := _OPTED_KEY.fullmatch(line)) else []
    return values[-1] == "act"


def take(
    request: Request,
    *,
    runner: Sequence[str],
    checkpoint: Checkpoint,
    grace_s: float,
    booted_at_s: float | None,
    look: Callable[[], reap.Subject],
    proc: Path = Path("/proc"),
) -> Outcome:
    """Take a step, and look at what came of it; blocks for up to some minutes.

    Parameters
    ----------
    runner
        Program of the site's that takes every step instead of us; () for none.
    grace_s
        How long each signal is given, to a process that nobody manages.
    look
        Says who it is and as what it is listed now. Called once the kernel holds the process.

    Raises
    ------
    NotAllowed
        The step is not to be taken: ``page`` says why. Nothing was sent.
    TargetGone, TargetChanged
        The process has ended, or the pid, the job or the unit is another one's. Nothing was sent.
    """
    manager, step = request.manager, request.step
    if manager.kind == "bare" and step == "end" and not runner:
        return _reaped(request, grace_s, booted_at_s, look, proc)
    of_anyone = bool(runner)
    with Target(request.key, booted_at_s=booted_at_s, proc=proc, of_anyone=of_anyone) as target:
        target.claim()
        subject = look()
        reap.require_no_part_of_the_system(target, subject.info, proc)
        if request.kinds:
            reap.require_idle(target, subject)
        if manager_of(subject.info, proc=proc)[:2] != manager[:2]:
            why = f"{target.name} does not belong to {manager.name or manager.kind} any more"
            raise TargetChanged(why, page="errors#manager-changed")
        _require_consent(request, target, subject.info, proc)
        target.check()
        if runner:
            return _handed_over(request, target, runner)
        if manager.kind == "other":
            why = f"{target.name} has a manager that gpuwatchd does not act through"
            raise NotAllowed(why, hint=manager.command, page="errors#managed")
        # With [act] checkpoint = "command" a program is asked, whoever manages the process.
        name = checkpoint.signal_of(target) if step == "checkpoint" else ""
        if step == "checkpoint" and (manager.kind == "bare" or not name):
            facts = {"finding": request.evidence}
            return Outcome(ActResult.ASKED, checkpoint.ask(request.key, facts, dry_run=False))
        if manager.kind == "bare":
            why = f"no manager has started {target.name}, so none can start it again"
            raise NotAllowed(why, page="errors#no-step")
        return _through_manager(request, target, proc, name)


def _require_consent(request: Request, target: Target, info: ProcessInfo, proc: Path) -> None:
    """Raise NotAllowed where a process or its unit does not opt in any more, as after an exec."""
    if request.by_consent and not opted_in(info, request.manager, proc=proc):
        why = f"{target.name} does not opt in any more"
        raise NotAllowed(why, page="errors#not-opted-in")


def _reaped(
    request: Request,
    grace_s: float,
    booted_at_s: float | None,
    look: Callable[[], reap.Subject],
    proc: Path,
) -> Outcome:
    sent: list[str] = []
    with reap.hold(request.key, look, booted_at_s=booted_at_s, proc=proc) as (target, signals):
        _require_consent(request, target, look().info, proc)
        ended = reap.end(target, signals, grace_s, lambda: False, sent) is ReapResult.ENDED
        how = f"{target.name} {'ended' if ended else 'still runs'} after {', '.join(sent)}"
    return Outcome(ActResult.ENDED if ended else ActResult.UNCONFIRMED, how)


def _handed_over(request: Request, target: Target, runner: Sequence[str]) -> Outcome:
    """Run the program of the site's to its end."""
    key, manager = request.key, request.manager
    content = {
        "schema_version": SCHEMA_VERSION,
        "ask": request.step,
        "process": {"pid": key.pid, "started_at_s": key.started_at_s, "name": target.name},
        "manager": {"kind": manager.kind, "name": manager.name},
        "command": request.command,
        "evidence": request.evidence or {},
    }
    program = text.clean(Path(runner[0]).name)
    executable = shutil.which(str(expanded(runner[0]))) or runner[0]
    data = msgspec.json.encode(content) + b"\n"
    try:
        code, line = run_program.run(
            [executable, *runner[1:]], data, environ=_environ(), timeout_s=RUNNER_S
        )
    except (OSError, ValueError) as error:
        why = text.clean(getattr(error, "strerror", None) or str(error))
        raise NotAllowed(f"{program} could not be run: {why}", page="errors#runner") from error
    if code == 0:
        return Outcome(ActResult.HANDED_OVER, f"{program} took {request.step} of {target.name}")
    how = f"{program} failed with {code}"
    if code is None:
        how = f"{program} did not end within {RUNNER_S:g} s and was ended"
    line = text.mask_title(line)
    return Outcome(ActResult.FAILED, f"{how}: {line}" if line else how)


def _through_manager(request: Request, target: Target, proc: Path, signal_name: str) -> Outcome:
    """Check the step, take it, and look at what came of it; the process is held."""
    step, name, slurm = request.step, target.name, request.manager.kind == "slurm"
    manager, sent = "Slurm" if slurm else "systemd", False
    try:
        prepare = _of_slurm if slurm else _of_user_unit
        argv, starts_again = prepare(request, target, proc, signal_name)
        target.check()
        sent = True
        # Of one that hangs and has done it all the same a second call would hit what came after.
        _run(argv, is_over=lambda: target.wait(0.0))
    except ServiceError as error:
        ended = f"; {name} has ended all the same" if sent and target.wait(0.0) else ""
        return Outcome(ActResult.FAILED, text.clean(f"{error.message}{ended}"))
    if step == "checkpoint":
        return Outcome(ActResult.ASKED, f"asked {name} to save by SIG{signal_name}, not confirmed")
    until_s = time.monotonic() + CONFIRM_S
    if not target.wait(CONFIRM_S):
        how = f"{manager} took the step, and {name} still runs after {CONFIRM_S:g} s"
        return Outcome(ActResult.UNCONFIRMED, how)
    if step == "end":
        return Outcome(ActResult.ENDED, f"{name} ended by {manager}")
    while True:
        with contextlib.suppress(ServiceError, NotAllowed):
            if starts_again():
                result = ActResult.REQUEUED if slurm else ActResult.RESTARTED
                return Outcome(result, f"{name} ended by {manager}, which starts it again")
        if time.monotonic() >= until_s:
            return Outcome(ActResult.FAILED, f"{name} ended, and {manager} does not start it again")
        time.sleep(_AGAIN_S)


def _of_slurm(request: Request, target: Target, proc: Path, signal_name: str) -> _Prepared:
    """Return what is to be run, and what says afterwards that the job starts again."""
    job = _job(request.manager.name)
    if job.fact("UserId", r"\S*\(\d{1,10}\)").rpartition("(")[2] != f"{os.getuid()})":
        raise NotAllowed(f"job {job.name} is another user's", page="errors#not-yours")
    if job.fact("JobState", r"[A-Z_]+") != "RUNNING":
        raise TargetChanged(f"job {job.name} does not run", page="errors#manager-changed")
    began_s = _since_s(job.fact("StartTime", r"[\d:T-]+"))
    latest_s = (target.key.started_at_s or 0.0) + _SKEW_S
    rows = _LISTED.findall(_run(["scontrol", "listpids", job.number]))
    mine = {pid: (step, task) for pid, number, step, task in rows if number == job.number}
    if f"{target.key.pid}" not in mine or not began_s <= latest_s:
        why = f"{target.name} is not of job {job.name} as it runs now"
        raise TargetChanged(why, page="errors#manager-changed")
    restarts = int(job.fact("Restarts", r"\d{1,9}"))
    if request.step == "checkpoint":
        # scancel -b signals the shell of the batch script, on the first node of the job alone.
        shells = [int(pid) for pid, at in mine.items() if at == ("batch", "0")]
        if len(shells) != 1:
            why = f"the batch script of job {job.name} does not run on this machine"
            raise NotAllowed(why, page="errors#no-handler")
        _require_handler(proc, shells[0], signal_name)
    elif request.kinds and not request.knows_ranks and job.fact("NumNodes", r"[\w.-]+") != "1":
        why = f"job {job.name} runs on other nodes too, and what it does there is not known"
        raise NotAllowed(why, hint=request.command, page="errors#managed")
    elif request.step != "end":
        _require_requeue(job, restarts, has_checkpoint=request.has_checkpoint)
        # What somebody else has written there is not overwritten.
        if " Comment=" not in job.line or " Comment=gpuwatchd" in job.line:
            comment = f"Comment=gpuwatchd: requeued because of {target.name}"
            _run(["scontrol", "update", f"JobId={job.name}", comment])

    def starts_again() -> bool:
        return int(_job(job.name).fact("Restarts", r"\d{1,9}")) > restarts

    return _argv(request, job.name, signal_name), starts_again


def _require_requeue(job: _Job, restarts: int, *, has_checkpoint: bool) -> None:
    why = f"job {job.name} is not requeued"
    if (job.fact("Requeue", r"[01]"), job.fact("BatchFlag", r"[01]")) != ("1", "1"):
        raise NotAllowed(f"{why}: --no-requeue, or no batch job", page="errors#no-requeue")
    if restarts >= _MOST_RESTARTS:
        raise NotAllowed(f"{why}: it was {restarts} times before", page="errors#restarts")
    if not has_checkpoint:
        raise NotAllowed(f"{why}: it never saved", page="errors#no-checkpoint")


def _of_user_unit(request: Request, _: Target, proc: Path, signal_name: str) -> _Prepared:
    """Return the same of a unit; that it is this one's has been read of its control group."""
    unit = request.manager.name
    argv = _argv(request, unit, signal_name)
    if request.step == "checkpoint":
        _require_handler(proc, _main_pid(unit), signal_name)
    else:
        # It would wait for as long as the unit is given to end, 90 s by default.
        argv.insert(2, "--no-block")

    def starts_again() -> bool:
        said = _run(["systemctl", "--user", "show", "--property=ActiveState", "--", unit])
        return said.strip() in {"ActiveState=active", "ActiveState=activating"}

    return argv, starts_again


def _argv(request: Request, name: str, signal_name: str) -> list[str]:
    """Return the command that people are told, as words."""
    manager = Manager(request.manager.kind, name)
    return shlex.split(command_for(request.step, manager, request.key, signal_name or "USR1"))


def _require_handler(proc: Path, pid: int, signal_name: str) -> None:
    """Raise NotAllowed unless the process that gets the signal has a handler for it."""
    if not handles(proc, pid, signal.Signals[f"SIG{signal_name}"]):
        why = f"pid {pid}, which gets it, has no handler for SIG{signal_name}"
        raise NotAllowed(f"{why} and would be ended by it", page="errors#no-handler")


class _Job(NamedTuple):
    """What Slurm says of one job."""

    number: str
    """Its own, as ``listpids`` takes it."""
    name: str
    """What means this one alone to every other command."""
    line: str

    def fact(self, key: str, form: str) -> str:
        """Return a value of this form; raise NotAllowed where Slurm does not say it just once.

        Who names a job ``x UserId=me(1000)`` would else say whose it is.
        """
        values = re.findall(rf"(?:^| ){key}=(\S*)(?= |$)", self.line)
        if len(values) != 1 or not re.fullmatch(form, values[0], re.ASCII):
            why = f"what Slurm says of job {self.name} is not to be relied on: {key}"
            raise NotAllowed(why, page="errors#manager-answer")
        return str(values[0])


def _job(name: str) -> _Job:
    """Return what Slurm says of the one job, or of the one task of an array."""
    number, task = named.groups() if (named := _NAME.fullmatch(name)) else ("", "")
    # The number of an array stands for all of its tasks, and for one of them besides.
    form = rf"JobId=({number})(?: ArrayJobId=(\d+) ArrayTaskId=(\d+))? JobName="
    if task:
        form = rf"JobId=(\d+) ArrayJobId=({number}) ArrayTaskId=({task}) JobName="
    lines = _run(["scontrol", "show", "job", "-o", name]).splitlines() if number else []
    these = [found for line in lines if (found := re.match(form, line, re.ASCII))]
    if len(these) != 1:
        why = f"Slurm does not name one job as {text.clean(name)}"
        raise NotAllowed(why, page="errors#manager-answer")
    own, array, index = these[0].groups()
    return _Job(own, f"{array}_{index}" if array else own, these[0].string)


def _since_s(began: str) -> float:
    """Return when a job began, by the clock of this machine, as Slurm's programs write it."""
    try:
        return time.mktime(time.strptime(began, _TIME))
    except (ValueError, OverflowError):
        return float("nan")


def _main_pid(unit: str) -> int:
    said = _run(["systemctl", "--user", "show", "--property=MainPID", "--", unit])
    found = re.fullmatch(r"MainPID=(\d{1,10})\s*", said, re.ASCII)
    if found is None or int(found[1]) < 2:
        raise NotAllowed(f"{unit} has no main process", page="errors#no-handler")
    return int(found[1])


def _environ() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name not in SECRET_VARIABLES and not name.startswith(_TELL_OTHERWISE)
    }


def _run(argv: list[str], *, is_over: Callable[[], bool] = lambda: False) -> str:
    """Return what a program of the manager writes; ask one that hangs once more, unless over.

    Raises
    ------
    ServiceError
        It could not be run, failed, hung twice, or wrote more than is ever needed.
    """
    answer = run_program.Answer(None, b"", b"")
    for _ in range(2):
        try:
            answer = run_program.ask(
                argv, b"", environ=_environ(), timeout_s=_LIMIT_S, limit_bytes=_LIMIT_BYTES
            )
        except (OSError, ValueError) as error:
            raise ServiceError(argv[0], argv[1], str(error)) from None
        if answer.code is not None or is_over():
            break
    if answer.code != 0:
        lines = answer.said.decode(errors="replace").splitlines()
        why = f"no usable answer within {_LIMIT_S:.0f} s"
        if answer.code is not None:
            why = text.mask_title(lines[-1]) if lines else f"exit code {answer.code}"
        raise ServiceError(argv[0], argv[1], why)
    return answer.out.decode(errors="replace")
