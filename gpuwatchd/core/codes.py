"""What decides: one enum of codes for each thing that sentences tell people.

Nobody compares, splits or searches text that is meant for people.
"""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """Parts of processes that something depends on; the others are only shown."""

    NOTEBOOK = "notebook kernel"


class Reason(StrEnum):
    """What the reason of a finding comes to, where something depends on it."""

    OTHER = ""
    COLLECTING = "collecting"
    """Too little has been seen."""
    NORMAL = "normal"
    """The user said that it is."""
    STOPPED = "stopped"
    """It does not grow now, and its alert is open."""
    RANK = "rank"
    """The alert of another rank of its job stands for it."""
    JOB = "job"
    """It stands for several ranks of a job, which leak together."""


class NameKind(StrEnum):
    """What the name of a process is."""

    OWN = "own"
    """What it calls itself, without its pid."""
    GONE = "gone"
    """It has ended; what it was called may still be known."""
    STAND_IN = "stand-in"
    """Its pid, and why it has no name."""


class TitleRole(StrEnum):
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


class ProblemCode(StrEnum):
    """What a problem of the daemon is about, where something depends on it."""

    OTHER = ""
    NO_GPU = "no-gpu"
    """No source has found one."""
    CHANNEL = "channel"
    """A channel does not deliver."""


class TypedFact(StrEnum):
    """Labels of a message's facts whose value is there to be typed."""

    SILENCE = "Silence"
    IF_NORMAL = "If normal"
