"""Every error that gpuwatchd raises on purpose: one line and one hint, never a traceback.

::

    GpuwatchdError
    ├─ ConfigError             a key, a value or a file of the configuration
    ├─ SourceError             a GPU could not be read
    │  └─ SourceUnavailable    this machine has no such thing: quiet
    ├─ StoreError              the history
    │  ├─ StoreBusy            another writer holds it
    │  ├─ StoreNewer           written by a later version
    │  └─ StoreDamaged         not a database any more
    ├─ EndpointError           a serving engine did not answer, or not as it should
    ├─ MetricsServerError      a Prometheus did not answer, or not as it should
    ├─ NotifyError             a message did not arrive
    ├─ ActionError             something was not done to a process
    │  ├─ TargetGone           it has ended
    │  ├─ TargetChanged        the pid belongs to another process now
    │  └─ NotAllowed           policy or rights forbid it
    ├─ ServiceError            systemd or launchd refused
    ├─ LogFormatError          a log that cannot be read
    └─ Ambiguous               a name that fits several
"""

from __future__ import annotations

from typing import ClassVar

OK, FAILED, USAGE, FINDINGS, BAD_INPUT = 0, 1, 2, 3, 5
"""Exit codes of ``gpuwatchctl``."""
INTERRUPTED, PIPE_CLOSED = 130, 141


class GpuwatchdError(Exception):
    """Root of the tree.

    ``page`` is the page of the documentation and its section, such as "errors#no-gpu"; by default
    the one of the class. ``gpuwatchctl docs errors#no-gpu`` shows it.
    """

    exit_code: ClassVar[int] = 1
    default_page: ClassVar[str] = "errors#other"

    def __init__(self, message: str, *, hint: str = "", page: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.page = page or self.default_page


class Ambiguous(GpuwatchdError):
    """A name fits several GPUs, processes or alerts; the hint has what to type for each."""

    exit_code = USAGE
    default_page = "errors#ambiguous"


class ConfigError(GpuwatchdError):
    """A configuration key or value that cannot be used."""

    exit_code = 5
    default_page = "errors#configuration"

    def __init__(self, file: str, key: str, why: str, *, hint: str = "", page: str = "") -> None:
        where = f"{file}: " if file else ""
        what = f"{key}: " if key else ""
        super().__init__(f"{where}{what}{why}", hint=hint, page=page)


class SourceError(GpuwatchdError):
    """A GPU could not be read."""

    default_page = "errors#gpu-unreadable"


class SourceUnavailable(SourceError):
    """No such thing on this machine (no driver, no library): quiet, retried now and then."""

    default_page = "errors#no-gpu"

    def __init__(self, message: str, *, hint: str = "", page: str = "", brief: str = "") -> None:
        super().__init__(message, hint=hint, page=page)
        self.brief = brief
        """The message in few words, where that is longer."""


class StoreError(GpuwatchdError):
    """The history cannot be read or written."""

    default_page = "errors#history"


class StoreBusy(StoreError):
    """Another writer holds the database."""

    default_page = "errors#history-busy"


class StoreNewer(StoreError):
    """The database was written by a later version of gpuwatchd."""

    default_page = "errors#history-newer"


class StoreDamaged(StoreError):
    """The file is not a usable database any more."""

    default_page = "errors#history-damaged"


class EndpointError(GpuwatchdError):
    """A serving engine did not answer, or not as such an engine does.

    Parameters
    ----------
    status
        The status of an answer that was no success; None where there was no answer.
    """

    default_page = "errors#serving-engine"

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class MetricsServerError(GpuwatchdError):
    """A Prometheus did not answer, or not as it should.

    Parameters
    ----------
    status
        The status of an answer that was no success; None where there was no whole answer.
    wait_s
        How long it wants to be left alone; None where it does not say.
    """

    default_page = "errors#prometheus"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        wait_s: float | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.status, self.wait_s = status, wait_s

    @property
    def denied(self) -> bool:
        """Whether the server knows us and refuses: asking again cannot help soon."""
        return self.status in {401, 403}

    @property
    def busy(self) -> bool:
        """Whether less, or the same later, may be answered."""
        return self.status is None or self.status in {422, 429} or self.status >= 500


class NotifyError(GpuwatchdError):
    """A message did not arrive.

    Parameters
    ----------
    permanent
        True when trying again cannot help (wrong password, refused recipient).
    """

    default_page = "errors#delivery"

    def __init__(
        self, message: str, *, permanent: bool = False, hint: str = "", page: str = ""
    ) -> None:
        super().__init__(message, hint=hint, page=page)
        self.permanent = permanent


class ActionError(GpuwatchdError):
    """Something was not done to a process."""

    default_page = "errors#action"


class TargetGone(ActionError):
    """The process has ended."""

    default_page = "errors#process-gone"


class TargetChanged(ActionError):
    """The pid belongs to another process now."""

    default_page = "errors#process-changed"


class NotAllowed(ActionError):
    """Policy or rights forbid it."""

    default_page = "errors#not-allowed"


class ServiceError(GpuwatchdError):
    """The service manager refused."""

    default_page = "errors#service-manager"

    def __init__(
        self, manager: str, command: str, output: str, *, hint: str = "", page: str = ""
    ) -> None:
        super().__init__(f"{manager}: {command} failed: {output}", hint=hint, page=page)


class LogFormatError(GpuwatchdError):
    """A log that cannot be read, with the first line that shows it."""

    exit_code = 5
    default_page = "errors#log-format"

    def __init__(self, file: str, line: int | None, why: str, *, hint: str = "") -> None:
        where = f"{file}:{line}" if line is not None else file
        super().__init__(f"{where}: {why}", hint=hint)
