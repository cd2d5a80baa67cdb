"""Ask the desktop's keyring for one password: ``python -m gpuwatchd.notify.keyring_ask``.

A process of its own, since keyrings prompt, hang, and load libraries of the desktop. It reads
``[service, user]`` as JSON on standard input and writes ``{"secret": ...}`` or ``{"why": ...}``.
"""

from __future__ import annotations

import contextlib
import sys

import msgspec

from gpuwatchd.notify.credentials import Answer

_MOST_BYTES = 4096


def ask(service: str, user: str) -> Answer:
    """Return what the keyring says; never raises."""
    try:
        import keyring  # noqa: PLC0415 - of this process alone
        import keyring.errors  # noqa: PLC0415

        try:
            return Answer(secret=keyring.get_password(service, user))
        except keyring.errors.NoKeyringError:
            return Answer(why="there is none here")
        except keyring.errors.KeyringLocked:
            return Answer(why="it is locked")
    except Exception as error:  # noqa: BLE001 - any back end; its words may hold what it has
        return Answer(why=f"it failed ({type(error).__name__})")


def main() -> int:
    """Answer one question; return 0."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # noqa: PLC0415 - not everywhere

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    service, user = msgspec.json.decode(sys.stdin.buffer.read(_MOST_BYTES), type=tuple[str, str])
    sys.stdout.buffer.write(msgspec.json.encode(ask(service, user)))
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
