"""Why things are so, as codes: what decides, is stored and is compared; texts are only shown.

The values are part of the history and of the live state: they do not change. A value of a later
version reads as ``LEGACY``, or as the value that says nothing.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, TypeAlias

Facts: TypeAlias = dict[str, Any]
"""The numbers and names beside a code: what its text is made of."""


class _Code(StrEnum):
    @classmethod
    def _missing_(cls, _: object) -> _Code | None:
        names = ("LEGACY", "OTHER", "NONE", "OWN")
        return next((cls.__members__[name] for name in names if name in cls.__members__), None)


class Ending(_Code):
    """Why an alert is over."""

    PROCESS_ENDED = "process-ended"
    ENDED_NEAR_LIMIT = "ended-near-limit"
    """Its process ended when memory was nearly full: probably out of memory."""
    FELL_NEAR_LIMIT = "fell-near-limit"
    """Memory was given back after it had been nearly full: probably out of memory."""
    RAN_OUT = "ran-out-of-memory"
    """Its process wrote down that it ended for want of memory."""
    ENDED_UNOBSERVED = "ended-unobserved"
    """Its process ended while no daemon ran."""
    STOPPED_GROWING = "stopped-growing"
    OTHER_RANK = "other-rank"
    """The alert goes on with another rank of its job."""
    PART_OF_JOB = "part-of-job"
    """One alert stands for all ranks of its job."""
    HOLDER_KNOWN = "holder-known"
    """Of a whole device: its processes are known and judged one by one now."""
    HOLDER_UNKNOWN = "holder-unknown"
    PAGES_KEPT = "pages-kept"
    """The kernel keeps pages of processes that have ended: a device says nothing as a whole."""
    LEFT_DEVICE = "left-device"
    """The process goes on with another GPU, where its host memory is watched."""
    INSTANCES_JUDGED = "instances-judged"
    """Of a whole card: its MIG instances are judged now."""
    LABELLED_NORMAL = "labelled-normal"
    """The user said that it is meant to be so."""
    NOT_SEEN = "not-seen"
    """Nothing has been known of its subject for a day."""
    DEVICE_GONE = "device-gone"
    DEVICE_ANSWERS = "device-answers"
    MEMORY_RELEASED = "memory-released"
    MEMORY_OWNED = "memory-owned"
    """No memory is left that nobody owns."""
    AT_WORK = "at-work"
    NOT_LISTED = "not-listed"
    BELOW_LIMIT = "below-limit"
    """Its control group is not near its limit any more, or has none."""
    TURNED_OFF = "turned-off"
    """The setting that it was sent for was turned off."""
    LEGACY = "legacy"
    """Written by an earlier version in words that nobody knows any more, or by a later one."""


DIED: Final = frozenset({Ending.ENDED_NEAR_LIMIT, Ending.RAN_OUT})
OUT_OF_MEMORY: Final = DIED | {Ending.FELL_NEAR_LIMIT}


class Hold(_Code):
    """Why a notice that is due does not leave, or not yet."""

    NO_DATA = "no-data"
    RATE_LIMIT = "rate-limit"
    """As many messages as may leave within an hour have left."""
    GROUP_PAUSE = "group-pause"
    MUTED = "muted"
    MAY_GROW = "may-grow"
    INHIBITED = "inhibited"
    """Another alert says it all."""
    SILENCED = "silenced"
    BEGINNING_NOT_SENT = "beginning-not-sent"
    """That it is over interests nobody on a channel that did not tell of its beginning."""
    BEGINNING_UNDELIVERED = "beginning-undelivered"
    """The same where every channel has failed."""
    BELOW_SEVERITY = "below-severity"
    QUIET_HOURS = "quiet-hours"
    QUIET_ALWAYS = "quiet-always"
    PART_OF_JOB = "part-of-job"
    REOPENED = "reopened"
    """It was open again before its end was sent."""
    LEGACY = "legacy"


class Failure(_Code):
    """Why a message was not delivered."""

    OVERTAKEN = "overtaken"
    """A later message of the same incident says more."""
    OVER_BEFORE_SENT = "over-before-sent"
    FALLBACK_SENT = "fallback-sent"
    """Another channel has delivered it."""
    CHANNEL_SENT = "channel-sent"
    """Of a fallback: the channel that it was meant for has delivered it after all."""
    NOT_CONFIGURED = "not-configured"
    """Its channel was taken out of the settings."""
    GIVEN_UP = "given-up"
    """Two days of attempts were in vain."""
    REFUSED = "refused"
    """The channel said no; attempts may go on."""
    LEGACY = "legacy"


class Role(_Code):
    """Parts of processes that something depends on; the others are only shown."""

    NOTEBOOK = "notebook kernel"


class FactName(_Code):
    """What is known beside the curve of a growth."""

    DECLARED_SHARE = "declared-share"
    """Told to take so much of the device: a framework's or a server's fraction."""
    DECLARED_SIZE = "declared-size"
    """A buffer, cache or pool of a size that was configured."""
    ENGINE_POOL = "engine-pool"
    """What a model server says of its pool or of its models."""
    EARLIER_RUNS = "earlier-runs"
    EARLIER_STAGES = "earlier-stages"
    """Steps that earlier runs of the program took as well."""
    WARM_UP = "warm-up"
    """The process is as young as its framework takes to warm up."""
    PERIOD = "period"
    """Epochs of the job, by its utilisation or power."""
    PROBE_BOUND = "probe-bound"
    """A bound that was seen inside the process."""
    JOINED_OR_LEFT = "joined-or-left"
    """Processes came or went."""
    OTHER = "other"


EARLIER: Final = frozenset({FactName.EARLIER_RUNS, FactName.EARLIER_STAGES})


class Reason(_Code):
    """What the reason of a finding comes to, where something depends on it."""

    OTHER = ""
    COLLECTING = "collecting"
    """Too little has been seen."""
    UNCONFIRMED = "unconfirmed"
    """It grows, and too few samples have been seen for an alert."""
    NORMAL = "normal"
    """The user said that it is."""
    STOPPED = "stopped"
    """It does not grow now, and its alert is open."""
    RANK = "rank"
    """The alert of another rank of its job stands for it."""
    JOB = "job"
    """It stands for several ranks of a job, which leak together."""
    PAGES_KEPT = "pages-kept"
    """Of a device as a whole: the kernel keeps pages of processes that have ended."""
    PARTS = "parts"
    """Of a device as a whole: what is judged of its parts accounts for its growth."""
    BOUNDED = "bounded"
    """What keeps the memory has a bound that is reached before the limit."""
    FREE_CACHE = "free-cache"
    """Only what the allocator of the framework holds ready grows."""


class LimitKind(_Code):
    """What keeps a process from taking the whole device."""

    DRIVER = "driver"
    """Set in the driver for its control group."""
    DMEM = "dmem"
    """Set in the kernel for its control group, or for one above."""
    MPS = "mps"
    """Of each client of MPS."""
    FRAMEWORK = "framework"
    """Its allocator takes no more."""
    OTHER = ""


class AllocatorVerdict(_Code):
    """What the allocator of a framework says of the growth of its process."""

    NONE = ""
    """Too little has been seen of it."""
    FLAT = "flat"
    """Nothing grows."""
    TENSORS = "tensors"
    FRAGMENTATION = "fragmentation"
    """What it holds grows, tensors do not, and its free memory lies in pieces."""
    OUTSIDE = "outside"
    """The process grows, what the allocator holds does not."""
    FREE_CACHE = "free-cache"
    """What it holds ready grows, tensors do not; it gives that back when memory is short."""


class NameKind(_Code):
    """What the name of a process is."""

    OWN = "own"
    """What it calls itself, without its pid."""
    GONE = "gone"
    """It has ended; what it was called may still be known."""
    STAND_IN = "stand-in"
    """Its pid, and why it has no name."""


class TitleRole(_Code):
    """What a part of a title says; in a short line some are left out."""

    NONE = ""
    DEVICE = "device"
    MODEL = "model"
    """What kind of device it is, or what ranks run: first to go."""
    OWNER = "owner"
    INTERPRETER = "interpreter"
    PID = "pid"
    """The last to go."""
    RANKS = "ranks"
    """Several ranks of one job."""


class ProblemCode(_Code):
    """What a problem of the daemon is about, where something depends on it."""

    OTHER = ""
    NO_GPU = "no-gpu"
    """No source has found one."""
    CHANNEL = "channel"
    """A channel does not deliver."""
    METRICS_LISTEN = "metrics-listen"
    """The page of [metrics] is not served."""
    METRICS_FILE = "metrics-file"
    """The file of [metrics] is not written."""


class TypedFact(_Code):
    """Labels of a message's facts whose value is there to be typed."""

    SILENCE = "Silence"
    IF_NORMAL = "If normal"
    INSPECT = "Inspect"


class MailboxFault(_Code):
    """Why nothing is known from inside a process."""

    NONE = "none"
    NOT_TRUSTED = "not-trusted"
    """A link, another user's, open to others, or too large."""
    NO_MAILBOX = "no-mailbox"
    OTHER_PROCESS = "other-process"
    """Of an earlier process with this pid, or of another boot."""
    GONE = "gone"
    NO_ANSWER = "no-answer"


class OutsideFault(_Code):
    """Why a process that was not prepared is not seen, or the probe was not put into it."""

    NO_TOOL = "no-tool"
    """No py-spy, and its Python cannot do it itself."""
    TIMEOUT = "timeout"
    REFUSED = "refused"
    FAILED = "failed"
    OLD_PYTHON = "old-python"
    """Before 3.14, or no Python."""
    ELSEWHERE = "elsewhere"


class SiteKind(_Code):
    """What a place is that live memory was allocated at."""

    LINE = "line"
    """Of the user's own code."""
    LIBRARY = "library"
    """No frame of the user's is on the stack."""
    BACKWARD = "backward"
    """No frame of Python at all: a thread of the framework, as in a backward pass."""
    BEFORE_RECORDING = "before-recording"
    """No event is known: allocated before the recording, or before what it still holds."""
    NO_STACK = "no-stack"
    """Stacks were not recorded."""


class CensusError(_Code):
    """Why a process that was asked has not looked into its heap."""

    COUNTERS_ONLY = "counters-only"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    FREE_THREADED = "free-threaded"
    NO_FORK = "no-fork"
    DIED = "died"
    PAUSE = "pause"
    STOPPED = "stopped"
    UNKNOWN_VERB = "unknown-verb"
    TOO_LONG = "too-long"
    TOO_SOON = "too-soon"
    RUNNING = "running"
    DEVICE_MEMORY = "device-memory"
    COMPILING = "compiling"


class ReapResult(_Code):
    """What came of ending a process."""

    ENDED = "ended"
    STILL_HELD = "still-held"
    """It ended, and its memory is still held, by nobody; in the history alone."""
    RUNS = "still-running"
    WAITS = "waits-in-kernel"
    """It takes no signal."""
    INTERRUPTED = "interrupted"
    """Whoever asked did not wait; what was sent stays sent."""
    UNDER_WAY = "under-way"
    """The API: it is still waited for."""


class ActHold(_Code):
    """Why a step is only proposed, or not even that."""

    OBSERVE = "observe"
    PROPOSE = "propose"
    LEAK = "leak"
    """Steps on a leak are proposed in every mode."""
    NO_STEP = "no-step"
    """None of the steps that are set is left for it."""
    NOT_OPTED_IN = "not-opted-in"
    NEW_RULE = "new-rule"
    """The rule has not been in force for seven days."""
    MACHINE = "machine"
    """The daemon of the machine (root) acts through a runner only."""
    NOT_OWN = "not-own"
    MANAGED = "managed"
    """By a container, a pod or a unit of the system."""
    RANK = "rank"
    """One of several processes of a job, and it is not known who decides for all."""
    NOT_LISTED = "not-listed"
    """It is not listed as idle memory now."""
    USE_UNKNOWN = "use-unknown"
    """Nothing tells how busy its GPU is, as on a MIG instance: that it uses no CPU is no proof."""
    FEW_JUDGEMENTS = "few-judgements"
    BEYOND_HORIZON = "beyond-horizon"
    STALE = "stale"
    LIMIT_UNKNOWN = "limit-unknown"
    HARDWARE = "hardware"
    SILENCED = "silenced"
    NORMAL = "normal"
    """The user has said that its growth is normal."""
    HELD = "held"
    """By `gpuwatchctl hold`."""
    BUDGET_TARGET = "budget-target"
    BUDGET_HOST = "budget-host"
    NOTICES = "notices"
    """Not all notices have been delivered, or the minute that the last one named has not come."""
    NOT_DELIVERED = "not-delivered"
    CLOCK = "clock"
    """The clock jumped, or the machine slept, in the countdown."""
    RELOADED = "reloaded"
    """The settings were read anew in the countdown."""
    NOT_WRITTEN = "not-written"
    """Nothing is done that cannot be written down first."""
    NO_CHECKPOINT = "no-checkpoint"
    """A job that never saved is not requeued."""
    RESTARTS = "restarts"
    """It was requeued twice already: a restart that leaks again is a bug report."""
    NO_REQUEUE = "no-requeue"
    OTHER = "other"


class ActResult(_Code):
    """What came of a step."""

    ASKED = "asked"
    """To save; not confirmed."""
    ENDED = "ended"
    RESTARTED = "restarted"
    REQUEUED = "requeued"
    HANDED_OVER = "handed-over"
    """The site's runner took it."""
    UNCONFIRMED = "unconfirmed"
    """The manager said yes, and the process still runs."""
    FAILED = "failed"
