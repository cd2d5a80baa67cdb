"""The channel for everything else: a program of the user's gets the message as JSON.

Contract with the program
-------------------------
* It runs as ``argv``, never through a shell, in a session of its own, in ``/``.
* Standard input is one JSON object: ``{"schema_version": 1, "message": {...}, "finding": {...}}``.
* The essentials are also in ``GPUWATCHD_ALERT_*`` variables, for one-line shell scripts.
* Exit 0: delivered. 64-68, 70, 72, 73, 76-78 (sysexits: wrong usage, no permission, bad
  configuration ...): permanent, not tried again. Everything else, 75 (EX_TEMPFAIL) and the
  unavailable or I/O codes 69, 71 and 74 among it: tried again later.
* What has not ended in time is ended, together with everything it started.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gpuwatchd.core import run_program, text
from gpuwatchd.core.config import expanded
from gpuwatchd.core.errors import NotifyError
from gpuwatchd.core.model import Availability
from gpuwatchd.notify import credentials, plain_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatchd.core.model import Message

SCHEMA_VERSION = 1
ENV_PREFIX = "GPUWATCHD_ALERT_"
PERMANENT_CODES = frozenset({64, 65, 66, 67, 68, 70, 72, 73, 76, 77, 78})


def _failure(why: str, *, permanent: bool = False, hint: str = "") -> NotifyError:
    """Return the error for a message that the program did not take."""
    return NotifyError(why, permanent=permanent, hint=hint, page="errors#command-channel")


class CommandNotifier:
    """Run the user's program once per message; ``[notify.command]`` is the call of this class."""

    name = "command"

    def __init__(self, argv: Sequence[str] = (), timeout: float = 20.0) -> None:
        self._argv = tuple(argv)
        self.timeout_s = float(timeout)

    def __repr__(self) -> str:
        # Arguments may hold a token; the program's name is enough to recognise the channel.
        return f"CommandNotifier({self._program!r})"

    @property
    def _program(self) -> str:
        return text.clean(Path(self._argv[0]).name) if self._argv else ""

    def _executable(self) -> str | None:
        return shutil.which(str(expanded(self._argv[0]))) if self._argv else None

    def probe(self) -> Availability:
        """Say whether there is a program to run. Runs nothing."""
        if not self._argv:
            return Availability(
                ok=False,
                reason="no program is configured",
                hint='set [notify.command] argv = ["/path/to/program"]',
            )
        if self._executable() is None:
            return Availability(
                ok=False,
                reason=f"{text.clean(self._argv[0])}: no such program, or not executable",
                hint="give an absolute path and chmod +x",
            )
        return Availability(ok=True, reason=f"runs {self._program}")

    def send(self, message: Message) -> str:
        """Run the program and return how it ended.

        Raises
        ------
        NotifyError
            When it could not be started, took too long or did not exit with 0.
        """
        available = self.probe()
        executable = self._executable()
        if executable is None:
            raise _failure(available.reason, permanent=True, hint=available.hint)
        try:
            code, value = run_program.run(
                [executable, *self._argv[1:]],
                payload(message),
                environ=environment(message, os.environ),
                timeout_s=self.timeout_s,
            )
        except (OSError, ValueError) as error:
            why = (error.strerror or "cannot be run") if isinstance(error, OSError) else str(error)
            permanent = isinstance(error, (FileNotFoundError, PermissionError, ValueError)) or (
                error.errno == errno.ENOEXEC
            )
            hint = "the file needs a #! line and chmod +x" if permanent else ""
            why = f"{self._program}: {text.clean(why)}"
            raise _failure(why, permanent=permanent, hint=hint) from error
        return self._judge(code, value)

    def _judge(self, code: int | None, value: str) -> str:
        detail = f": {value}" if value else ""
        if code == 0:
            return f"{self._program} exited with 0"
        if code is None:
            raise _failure(
                f"{self._program} did not end within {self.timeout_s:g} s and was ended{detail}",
                hint="let it answer faster, or raise [notify.command] timeout",
            )
        if code < 0:
            raise _failure(f"{self._program} was ended by signal {-code}{detail}")
        raise _failure(
            f"{self._program} exited with {code}{detail}", permanent=code in PERMANENT_CODES
        )


def payload(message: Message) -> bytes:
    """Return what the program reads on standard input: one JSON object and a line feed."""
    content: dict[str, Any] = _encodable(msgspec.to_builtins(message))
    finding = content.pop("finding", None)
    content.pop("lead", None)
    return (
        msgspec.json.encode(
            {"schema_version": SCHEMA_VERSION, "message": content, "finding": finding}
        )
        + b"\n"
    )


def _encodable(value: Any) -> Any:
    """Return the value with lone surrogates replaced: UTF-8, and so JSON, cannot carry them."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(held) for key, held in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encodable(held) for held in value]
    return value


def environment(message: Message, base: Mapping[str, str]) -> dict[str, str]:
    """Return the program's environment: ours, without what is ours alone, with the message.

    Unknown values are absent, never empty or 0.
    """
    out = {
        key: value
        for key, value in credentials.for_children(base).items()
        if not key.startswith(ENV_PREFIX)
    }
    values: dict[str, object] = {
        "ID": message.id,
        "THREAD": message.thread,
        "NOTICE": message.notice,
        "SEVERITY": message.severity,
        "SUBJECT": plain_text.subject(message),
        "COMMAND": message.command or None,
        "COST": message.cost or None,
        "KEY": message.alert_key or None,
    }
    finding = message.finding
    if finding is not None:
        process = finding.subject.process
        values |= {
            "FINDING": finding.id,
            "PATTERN": finding.pattern,
            "CONFIDENCE": f"{finding.confidence:.4f}",
            "GPU": finding.subject.device_uid,
            "PID": process.pid if process is not None else None,
            "STARTED_AT_S": process.started_at_s if process is not None else None,
            "RATE_BYTES_PER_S": finding.rate_bytes_per_s,
            "ETA_S": finding.eta.mid_s if finding.eta is not None else None,
            "FRAMEWORK": finding.framework,
        }
    for key, value in values.items():
        if value is not None:
            out[ENV_PREFIX + key] = text.clean(str(value), limit=4096)
    if message.also:
        out[ENV_PREFIX + "ALSO"] = "\n".join(text.clean(key) for key in message.also)
    out[ENV_PREFIX + "BODY"] = "\n".join(plain_text.lines(message.body))
    return out
