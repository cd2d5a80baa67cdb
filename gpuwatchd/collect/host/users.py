"""Names of users; a directory service (LDAP) that does not answer keeps nobody waiting."""

from __future__ import annotations

import pwd
import threading
from typing import Final

from gpuwatchd.core.text import clean

PATIENCE_S: Final = 0.3
"""So long a name is waited for, once per user; until it comes the number stands for it."""


class Users:
    """User id -> name, each asked for once, in a thread of its own."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._asked: set[int] = set()

    def name(self, uid: int) -> str:
        """Return a user's name; the number where there is none, or none has come yet."""
        text = self._names.get(uid)
        if text is None and uid not in self._asked:
            self._asked.add(uid)
            asks = threading.Thread(target=self._ask, args=(uid,), name="user", daemon=True)
            asks.start()
            asks.join(PATIENCE_S)
            text = self._names.get(uid)
        return str(uid) if text is None else text

    def _ask(self, uid: int) -> None:
        try:
            self._names[uid] = clean(pwd.getpwuid(uid).pw_name)
        except (KeyError, OSError):
            self._names[uid] = str(uid)
