"""Every plug-in surface of gpuwatchd, on one screen.

A class that fits a protocol and has a line in its table (``SOURCES``, ``DETECTORS``, ``NOTIFIERS``,
``ENDPOINTS``, ``ACTIONS``, ``COMMANDS``, ``MANAGERS``) is part of the program. Settings arrive as
keyword arguments, so a section such as ``[notify.email]`` *is* the call of the class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuwatchd.core.model import (
        Availability,
        Device,
        Message,
        Sample,
        Series,
        ServerReading,
        ServiceState,
        Signal,
    )


class Source(Protocol):
    """Something that has GPUs."""

    name: str

    def probe(self) -> Availability:
        """Say whether this source can work here. Never raises."""

    def devices(self) -> Sequence[Device]:
        """Return the devices known now; cheap, called after every read."""

    def read(self) -> Sample:
        """Take one sample. Raises only SourceError; a part that fails is a fault in the sample."""

    def close(self) -> None:
        """Let go of the driver. May be called twice."""


@runtime_checkable
class OwnClock(Protocol):
    """A part that a source may have: its time is not the machine's, as of a world at speed."""

    @property
    def now_s(self) -> float:
        """Return the time of its newest sample, epoch seconds."""


class Detector(Protocol):
    """One pattern: a stateless function of a window."""

    name: str

    def detect(self, series: Series) -> Signal | None:
        """Say what is seen in the series, or None. Pure: same series, same answer."""


class Notifier(Protocol):
    """One channel."""

    name: str

    def probe(self) -> Availability:
        """Say whether this channel can work here. Never raises; sends nothing."""

    def send(self, message: Message) -> str:
        """Send, and return in a few words what is known about its arrival.

        Raises
        ------
        NotifyError
            When it did not arrive; ``permanent`` says whether a retry can help.
        """


class Endpoint(Protocol):
    """One kind of serving engine; one object per server that is asked."""

    name: str

    def ask(self, get: Callable[[str], bytes], url: str, at_s: float) -> ServerReading:
        """Ask by ``get(path)`` and return what the server says of itself.

        Raises
        ------
        EndpointError
            When it does not answer, or not as such an engine does.
        """


class Manager(Protocol):
    """One service manager (systemd, launchd)."""

    name: str

    def probe(self) -> Availability:
        """Say whether this manager runs here."""

    def render(self, packaged: str = "") -> str:
        """Return the unit or property list; for a package with this daemon where one is named."""

    def install(
        self,
        *,
        dry_run: bool,
        linger: bool = False,
        anyway: bool = False,
        credentials: Sequence[tuple[str, str]] = (),
    ) -> list[str]:
        """Write, enable and start; return what was done, one line each. Idempotent.

        A second instance is refused; with ``anyway`` only where both cannot run at all.
        Credentials are (name, file).
        """

    def uninstall(self, *, dry_run: bool, purge: bool = False) -> list[str]:
        """Stop, disable and remove; history and configuration go only with a purge. Idempotent."""

    def start(self) -> None:
        """Start the service."""

    def stop(self) -> None:
        """Stop the service."""

    def restart(self) -> None:
        """Restart the service."""

    def status(self) -> ServiceState:
        """Return how it is."""

    def logs(
        self, *, lines: int, follow: bool, since_at_s: float | None = None, level: str = "debug"
    ) -> int:
        """Show the log from an instant (epoch seconds) and level on; return the viewer's code."""
