"""By which names a check may be asked for: its own, what it prints, the id of what it finds."""

from __future__ import annotations

import re
from typing import Final

PRINTED: Final = {
    "program": ("python", "sqlite", "terminal", "extras", "shell"),
    "gpus": ("gpu", "driver", "source"),
    "host": ("device files", "processes", "container", "servers"),
    "service": ("machine's service", "linger"),
    "disk": ("history directory", "live directory"),
    "prices": ("price",),
    "channels": ("channel",),
    "mail": ("mail server",),
    "web": ("live page",),
}
"""What a check is called where it answers, beside its own name."""
FAULTS: Final = {
    "program": ("python-untested", "sqlite-old", "terminal-encoding"),
    "config": (
        "config-consequence", "config-error", "config-problem", "config-readable",
        "config-variable", "config-writable",
    ),
    "gpus": (
        "driver-container", "driver-library", "driver-library-unusable", "driver-mismatch",
        "driver-nodes",
        "driver-not-loaded", "driver-nouveau", "gpu-none", "gpu-unread", "source-empty",
        "source-hangs", "source-unusable",
    ),
    "host": ("device-files", "gpu-unread", "processes-hidden", "server-silent"),
    "daemon": (
        "daemon-absent", "daemon-denied", "daemon-late", "daemon-newer", "daemon-problem",
        "daemon-state", "daemon-version",
    ),
    "instances": (
        "instance-homebrew", "instance-second", "instance-system", "path-differs", "path-several",
    ),
    "service": (
        "linger-missing", "service-broken", "service-disabled", "service-failed",
        "service-memory", "service-none", "service-old", "service-other", "service-reload",
        "service-restarts",
    ),
    "disk": (
        "directory-closed", "directory-foreign", "directory-network", "directory-none",
        "directory-open", "directory-relative", "disk-full", "disk-low", "disk-quota",
        "disk-read-only", "disk-small", "disk-unknown",
    ),
    "history": ("history-damaged", "history-unreadable"),
    "clock": ("clock-behind", "clock-unsynchronised", "clock-zone"),
    "prices": ("price-doubtful",),
    "session": ("session-dead", "session-foreign", "session-none"),
    "channels": (
        "channel-chat", "channel-command", "channel-desktop", "channel-email", "channel-hangs",
    ),
    "mail": (
        "mail-certificate", "mail-login", "mail-name", "mail-refuses", "mail-tls",
        "mail-unreachable",
    ),
    "web": ("web-extra", "web-listen", "web-remote", "web-token"),
}  # fmt: skip
"""The ids of what a check can find."""
ANY: Final = ("check-breaks", "check-hangs")
"""Ids that every check may answer with."""
_ONE_OF: Final = (
    (re.compile(r"source \S+"), ("gpus",)),
    (re.compile(r"(GPU|MIG)( \S+)?"), ("gpus", "host")),
    (re.compile(r"server \S.*"), ("host",)),
    (re.compile(r"channel \S+"), ("channels",)),
)
"""What is called after a thing of this machine."""


def asked_for(name: str, checks: tuple[str, ...]) -> tuple[str, ...]:
    """Return which of the checks a name means; none where it means nothing.

    Examples
    --------
    >>> asked_for("extras", ("program", "gpus")), asked_for("gpu-none", ("program", "gpus"))
    (('program',), ('gpus',))
    """
    if name in checks:
        return (name,)
    if name in ANY:
        return checks
    texts = [
        text for table in (PRINTED, FAULTS) for text, all_of in table.items() if name in all_of
    ]
    for pattern, meant in _ONE_OF:
        if pattern.fullmatch(name):
            texts += meant
    return tuple(check for check in checks if check in texts)


def every(checks: tuple[str, ...]) -> list[str]:
    """Return every name that can be listed: checks first, then what they print, then ids."""
    from gpuwatchd.collect import SOURCES  # noqa: PLC0415
    from gpuwatchd.notify import NOTIFIERS  # noqa: PLC0415 - only to complete a name

    things = [f"source {source}" for source in SOURCES] + [
        f"channel {notifier}" for notifier in NOTIFIERS
    ]
    tables = [text for table in (PRINTED, FAULTS) for all_of in table.values() for text in all_of]
    return list(dict.fromkeys([*checks, *tables, *things, *ANY]))
