"""Every error that gpuwatchd raises on purpose: one line and one hint, never a traceback.

::

    GpuwatchdError
    ├─ ConfigError             a key, a value or a file of the configuration
    ├─ SourceError             a GPU could not be read
    │  ├─ SourceUnavailable    this machine has no such thing: quiet
    │  ├─ DeviceLost           it answered before and does not now
    │  └─ SourceDenied         not without more rights
    ├─ StoreError              the history
    │  ├─ StoreBusy            another writer holds it
    │  ├─ StoreNewer           written by a later version
    │  └─ StoreDamaged         not a database any more
    ├─ EndpointError           a serving engine did not answer, or not as it should
    ├─ NotifyError             a message did not arrive
    ├─ ActionError             something was not done to a process
    │  ├─ TargetGone           it has ended
    │  ├─ TargetChanged        the pid belongs to another process now
    │  └─ NotAllowed           policy or rights forbid it
    ├─ ServiceError            systemd or launchd refused
    └─ LogFormatError          a log that cannot be read
"""

from __future__ import annotations


class GpuwatchdError(Exception):
    """Root of the tree.

    Parameters
    ----------
    message
        One line: what is wrong.
    hint
        One line: what to do about it; may be empty.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigError(GpuwatchdError):
    """A configuration key or value that cannot be used."""

    exit_code = 5

    def __init__(self, file: str, key: str, why: str, *, hint: str = "") -> None:
        where = f"{file}: " if file else ""
        what = f"{key}: " if key else ""
        super().__init__(f"{where}{what}{why}", hint=hint)
        self.file = file
        self.key = key
        self.why = why


class SourceError(GpuwatchdError):
    """A GPU could not be read."""


class SourceUnavailable(SourceError):
    """No such thing on this machine (no driver, no library): quiet, retried now and then."""


class DeviceLost(SourceError):
    """A device answered before and does not answer now."""


class SourceDenied(SourceError):
    """Reading needs rights that we do not have."""


class StoreError(GpuwatchdError):
    """The history cannot be read or written."""


class StoreBusy(StoreError):
    """Another writer holds the database."""


class StoreNewer(StoreError):
    """The database was written by a later version of gpuwatchd."""


class StoreDamaged(StoreError):
    """The file is not a usable database any more."""


class EndpointError(GpuwatchdError):
    """A serving engine did not answer, or not as such an engine does.

    Parameters
    ----------
    status
        The status of an answer that was no success; None where there was no answer.
    """

    def __init__(self, message: str, *, status: int | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status


class NotifyError(GpuwatchdError):
    """A message did not arrive.

    Parameters
    ----------
    permanent
        True when trying again cannot help (wrong password, refused recipient).
    """

    def __init__(self, message: str, *, permanent: bool, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.permanent = permanent


class ActionError(GpuwatchdError):
    """Something was not done to a process."""


class TargetGone(ActionError):
    """The process has ended."""


class TargetChanged(ActionError):
    """The pid belongs to another process now."""


class NotAllowed(ActionError):
    """Policy or rights forbid it."""


class ServiceError(GpuwatchdError):
    """The service manager refused."""

    def __init__(self, manager: str, command: str, output: str, *, hint: str = "") -> None:
        super().__init__(f"{manager}: {command} failed: {output}", hint=hint)
        self.manager = manager
        self.command = command
        self.output = output


class LogFormatError(GpuwatchdError):
    """A log that cannot be read, with the first line that shows it."""

    exit_code = 5

    def __init__(self, file: str, line: int | None, why: str, *, hint: str = "") -> None:
        where = f"{file}:{line}" if line is not None else file
        super().__init__(f"{where}: {why}", hint=hint)
        self.file = file
        self.line = line
