"""The state files of ``gpuwatchd fleet``: what each worker saw in its last round.

A worker replaces its file after each round; it stays when the worker dies, which is when it is
needed. A worker is taken for dead by the clock, and at once where its process can be looked for:
its pid may be of another machine or container.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from collections import Counter
from fnmatch import translate
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from gpuwatchd.core import decoding, directories, text
from gpuwatchd.core.errors import Ambiguous, GpuwatchdError
from gpuwatchd.core.model import Alert, Finding
from gpuwatchd.core.model.base import Value
from gpuwatchd.core.units import is_number
from gpuwatchd.view.query import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

FORMAT: Final = 1
MAX_BYTES: Final = 64 * 2**20
"""No state is larger: 100,000 GPUs take 8 MiB."""
MOST_VERDICTS: Final = 2000
"""GPUs with a verdict in a file, and..."""
MOST_CALM: Final = 200_000
"""those without."""
SYSTEM_DIRECTORIES: Final = (Path("/var/lib/gpuwatchd-fleet"), Path("/run/gpuwatchd-fleet"))
"""StateDirectory and RuntimeDirectory of the packaged unit."""
_GRACE_S: Final = 180.0
"""A round may take so long after it was due."""
_PAGE: Final = "errors#fleet-state"
_WORST_FIRST: Final = ("firing", "watch", "pending", "none", "resolved")
Data = Literal["fresh", "late", "none"]


class FleetGpu(Value, frozen=True, kw_only=True):
    """A GPU whose judgement is more than nothing, or whose alert is open."""

    id: str
    uuid: str
    host: str
    gpu: str = ""
    instance: str = ""
    job: str = ""
    namespace: str = ""
    data: Data
    used_bytes: float | None = None
    limit_bytes: float | None = None
    finding: Finding
    alert: Alert | None = None

    @property
    def state(self) -> str:
        """Of its alert."""
        return "none" if self.alert is None else self.alert.state


def urgency(gpu: FleetGpu) -> tuple[int, bool, float, float, str]:
    """Order GPUs: what fires, is critical, and is full first comes first."""
    finding = gpu.finding
    left_s = float("inf") if finding.eta is None else finding.eta.mid_s
    state = _WORST_FIRST.index(gpu.state)
    return state, finding.severity != "critical", left_s, -finding.confidence, gpu.id


class CalmGpu(Value, frozen=True, kw_only=True, array_like=True):
    """A GPU of which there is nothing to say; a list, as there are many."""

    id: str
    host: str
    gpu: str
    data: Data
    since_at_s: int
    """The first round from which it is calm without a break."""


class FleetRoundState(Value, frozen=True, kw_only=True):
    """What a round has come to."""

    at_s: float | None = None
    """The instant of the values; None before any."""
    gpus: int = 0
    no_data: int = 0
    late: int = 0
    """GPUs without a value in the last round alone."""
    judged: int = 0
    failed: int = 0
    resolved: int = 0
    dropped: dict[str, int] = msgspec.field(default_factory=dict)
    failures: dict[str, int] = msgspec.field(default_factory=dict)
    doubts: dict[str, int] = msgspec.field(default_factory=dict)
    """Code of a warning on the map -> GPUs that it is about."""
    verdicts: tuple[FleetGpu, ...] = ()
    """The worst first."""


class FailingMember(Value, frozen=True, kw_only=True):
    """A member of Alertmanager that does not take alerts."""

    name: str
    error: str
    since_s: float


class FleetState(Value, frozen=True, kw_only=True):
    """The whole file."""

    format: int = FORMAT
    pid: int
    process: str = ""
    """As :func:`process_mark` gives it."""
    host: str
    version: str
    server: str
    shard: str
    started_at_s: float
    written_at_s: float
    due_at_s: float
    """When the next round begins."""
    step_s: float
    stopped: bool = False
    """True in the file that a worker leaves behind when it stops in order."""
    rounds: int = 0
    round_s: float | None = None
    """How long the last round took, and..."""
    round_at_s: float | None = None
    """when it ended."""
    dry_run: bool = False
    """No alerts are sent."""
    error: str = ""
    """Why there was no round, where the server failed since the last one."""
    failed_at_s: float | None = None
    """When a question, or sending alerts, failed last; None: never since the start."""
    failing_members: tuple[FailingMember, ...] = ()
    confirm: int = 3
    alert_confidence: float | None = None
    """What the mean confidence must come to before an alert fires; None: of an older worker."""
    left_out: int = 0
    """GPUs for which there was no room."""
    round: FleetRoundState = FleetRoundState()
    calm: tuple[CalmGpu, ...] = ()


class Worker(NamedTuple):
    """A state, the file that it is from, and whether its process runs; None: not known."""

    file: Path
    state: FleetState
    process_runs: bool | None = None

    def failing(self, now_s: float) -> bool:
        """Say whether it has had no round, or a member has taken no alerts, for three steps.

        Of a single failure that the next try mends nobody is to be woken.
        """
        state, since_s = self.state, []
        if state.error or not state.rounds:
            since_s = [state.started_at_s if state.round_at_s is None else state.round_at_s]
        since_s += [member.since_s for member in state.failing_members]
        return any(now_s - at_s > _PATIENCE_STEPS * state.step_s for at_s in since_s)

    @property
    def blind(self) -> bool:
        """Say whether no GPU has had a value for five minutes: then nothing is judged."""
        return self.state.round.gpus == self.state.round.no_data

    def running(self, now_s: float) -> bool:
        """Say whether it is there, as far as its process and the time tell."""
        state = self.state
        if state.stopped or self.process_runs is False:
            return False
        return now_s <= state.due_at_s + max(_GRACE_S, 2 * state.step_s)


_NOBODY: Final = "no GPU has a fresh value: do map, matchers and backend fit what the server has?"
_NO_VALUES: Final = "no GPU has had a value for five minutes, so none is judged: do exporters run?"
_NOBODY_HERE: Final = (
    "no GPU of shard {} has a fresh value: few hosts leave shards without one; "
    "else, do map, matchers and backend fit what the server has?"
)
_PATIENCE_STEPS: Final = 3
_TWO_HOSTS: Final = (
    "two hosts have GPUs of one UUID: a clone, or a host that was renamed; they are judged apart"
)
_DOUBTS: Final = {
    "no-total": "{} no total, so no alert says when memory is full: does the server have "
    "total, or free, of the map?",
    "implausible-total": "{} a total that is no card's, so it is not used: below 256 MiB, "
    "above 4 TiB, below what is used, or just that; do unit and total of the map fit?",
}


def warnings(found: FleetRoundState, shard: str) -> list[tuple[str, str]]:
    """Return codes and words of what may be wrong with a map, or at the site, by a round."""
    out = []
    if "uuid-on-two-hosts" in found.dropped:
        out.append(("uuid-on-two-hosts", _TWO_HOSTS))
    for code, count in found.doubts.items():
        many = f"{count} of {found.gpus} GPUs have" if found.gpus > 1 else "the GPU has"
        out.append((code, _DOUBTS.get(code, "{}").format(many)))
    if not found.gpus:
        out.append(("no-series", _NOBODY if shard.endswith("/1") else _NOBODY_HERE.format(shard)))
    elif found.no_data >= found.gpus:
        out.append(("no-series", _NO_VALUES))
    return out


def process_mark(pid: int) -> str:
    """Return what tells a process from a later one of its pid; "" where there is none to be seen.

    On Linux that is the namespace of the pid, and its start since boot; containers have their own.
    """
    if sys.platform != "linux":
        import psutil  # noqa: PLC0415 - 47 ms, and never on Linux

        with contextlib.suppress(psutil.Error, OSError):
            return f"host {psutil.Process(pid).create_time()}"
        return ""
    try:
        namespace = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - it is no path
        raw = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ""
    # The name before the last bracket may hold anything. A zombie has ended.
    state, *fields = raw[raw.rfind(b")") + 1 :].split()
    return "" if state == b"Z" else f"{namespace} {int(fields[18])}"


def _process_runs(state: FleetState) -> bool | None:
    here = process_mark(os.getpid()).partition(" ")[0]
    same = state.process.partition(" ")[0] == here and state.host == text.clean(os.uname().nodename)
    if not state.process or not same:
        return None
    found = process_mark(state.pid)
    if found:
        return found == state.process
    try:
        os.kill(state.pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # of another user, whose processes are hidden
        return None
    return False  # a zombie


def default_file(name: str) -> Path:
    """Return where a worker's file is unless its configuration says: systemd's, else the user's."""
    for key in ("STATE_DIRECTORY", "RUNTIME_DIRECTORY"):
        handed = os.environ.get(key, "").partition(":")[0]
        if handed:
            return Path(handed) / f"{name}.json"
    return directories.state_dir() / "fleet" / f"{name}.json"


def load(files: Sequence[Path]) -> tuple[list[Worker], list[tuple[str, str]]]:
    """Return the states of all workers of this machine, or of some files, and what is wrong.

    Raises
    ------
    GpuwatchdError
        When there is none that can be read.
    """
    workers, wrong = [], list[GpuwatchdError]()
    for file in files or _files(wrong):
        try:
            state = read(file)
            workers.append(Worker(file, state, _process_runs(state)))
        except GpuwatchdError as error:
            wrong.append(error)
    if not workers and wrong:
        raise wrong[0]
    if not workers:
        hint = "gpuwatchd fleet writes one each round; --state FILE names it"
        raise GpuwatchdError("no worker of a fleet has left a state here", hint=hint, page=_PAGE)
    return workers, [("fleet-state", error.message) for error in wrong]


def _files(wrong: list[GpuwatchdError]) -> Iterator[Path]:
    for folder in (directories.state_dir() / "fleet", *SYSTEM_DIRECTORIES):
        try:
            yield from sorted(file for file in folder.iterdir() if file.suffix == ".json")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            wrong.append(_unreadable(folder, error.strerror or "", hint="who may read it: root"))


def read(file: Path) -> FleetState:
    """Return the state in a file.

    Raises
    ------
    GpuwatchdError
        When there is none, or it is damaged, of something else or of a later version.
    """
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as opened:  # noqa: PTH123 - a descriptor
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise _unreadable(file, "is no file")
            content = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise _unreadable(file, error.strerror or "cannot be read") from error
    if len(content) > MAX_BYTES:
        raise _unreadable(file, f"is larger than {MAX_BYTES >> 20} MiB")
    found = 0
    try:
        found = decoding.decode(content, _Head).format
        if found == FORMAT:
            return decoding.decode(content, FleetState)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        found = min(found, FORMAT)
    if found > FORMAT:
        raise _unreadable(file, "is of a later version of gpuwatchd", hint="update gpuwatchd here")
    hint = "a worker that runs replaces it within a minute"
    raise _unreadable(file, "is damaged, or no state of a fleet", hint=hint)


class _Head(msgspec.Struct):
    format: int


def _unreadable(file: Path, why: str, *, hint: str = "") -> GpuwatchdError:
    return GpuwatchdError(f"{text.clean(str(file), limit=400)}: {why}", hint=hint, page=_PAGE)


def only(workers: Sequence[Worker], wishes: Sequence[str]) -> list[Worker]:
    """Return the workers with those GPUs alone that ``--gpu`` names; all where it names none.

    A wish is an index ("0", on every host), HOST/INDEX, a host's name with "/*", a UUID or the
    beginning of it; all of them may be globs.

    Raises
    ------
    GpuwatchdError
        When a worker has none of them.
    """
    if not wishes:
        return list(workers)
    wanted = _wanted(wishes)
    out = [_with(worker, wanted) for worker in workers]
    if any(worker.state.round.verdicts or worker.state.calm for worker in out):
        return out
    shown = text.clean(", ".join(wishes), limit=200)
    hint = "a UUID or its beginning, HOST/INDEX, or a glob such as 'node-1/*'"
    raise GpuwatchdError(f"no GPU matches {shown}", hint=hint, page="errors#no-such-gpu")


def one(worker: Worker, gpu: FleetGpu | CalmGpu) -> Worker:
    """Return a worker with one GPU alone."""
    return _with(worker, lambda other: other is gpu)


def _with(worker: Worker, wanted: Callable[[FleetGpu | CalmGpu], bool]) -> Worker:
    """Return a worker with some of its GPUs; what is counted of GPUs is of these."""
    found = worker.state.round
    verdicts = tuple(gpu for gpu in found.verdicts if wanted(gpu))
    calm = tuple(gpu for gpu in worker.state.calm if wanted(gpu))
    data = Counter(gpu.data for gpu in verdicts) + Counter(gpu.data for gpu in calm)
    found = replace(
        found, verdicts=verdicts, gpus=data.total(), no_data=data["none"], late=data["late"]
    )
    return worker._replace(state=replace(worker.state, round=found, calm=calm, left_out=0))


def _wanted(wishes: Sequence[str]) -> Callable[[FleetGpu | CalmGpu], bool]:
    # Of up to 200,000 GPUs: what is said of a wish is worked out once.
    forms = {form for wish in wishes for form in (wish.lower(), plain(wish))}
    matches = [re.compile(translate(form)).match for form in sorted(forms)]
    starts = tuple(wish.lower() for wish in wishes if wish and not is_number(plain(wish)))

    def wanted(gpu: FleetGpu | CalmGpu) -> bool:
        uid, place = gpu.id.lower(), f"{gpu.host}/{gpu.gpu}".lower()
        words = (uid, place, gpu.gpu.lower())
        return uid.startswith(starts) or any(match(word) for match in matches for word in words)

    return wanted


def find(workers: Sequence[Worker], word: str) -> tuple[Worker, FleetGpu | CalmGpu]:
    """Return a GPU by its id or HOST/INDEX, or by a beginning of its id that fits no other.

    Raises
    ------
    Ambiguous
        When it fits several.
    GpuwatchdError
        When it is of none.
    """
    asked = word.lower().removeprefix("gpu-")
    begin: list[tuple[Worker, FleetGpu | CalmGpu]] = []
    for worker in workers:
        gpus: tuple[FleetGpu | CalmGpu, ...] = (*worker.state.round.verdicts, *worker.state.calm)
        begin += [
            (worker, gpu)
            for gpu in gpus
            if gpu.id.lower().removeprefix("gpu-").startswith(asked)
            or f"{gpu.host}/{gpu.gpu}".lower() == word.lower()
        ]
    exact = [pair for pair in begin if pair[1].id.lower() == word.lower()]
    found = exact or begin
    # Two workers of one shard know the same GPUs: the newer one is asked.
    if len({gpu.id for _, gpu in found}) == 1:
        return max(found, key=lambda pair: pair[0].state.written_at_s)
    shown = text.clean(word, limit=80)
    if not found:
        left = sum(worker.state.left_out for worker in workers)
        more = f"; {left} more were left out of the state" if left else ""
        raise GpuwatchdError(
            f"no worker has a GPU {shown!r}{more}",
            hint="gpuwatchctl fleet status lists those with a verdict; a UUID may be cut",
            page=_PAGE,
        )
    ids = sorted({gpu.id for _, gpu in found})
    more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
    hint = f"one of {', '.join(ids[:5])}{more}"
    raise Ambiguous(f"{shown!r} fits {len(ids)} GPUs", hint=hint)
