"""Who said something is written down by name, or by number."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

from gpuwatchd.cli import user_filter

if TYPE_CHECKING:
    import pytest


def test_who_has_no_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_filter.user() == pwd.getpwuid(os.getuid()).pw_name

    def nobody(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert user_filter.user() == str(os.getuid())
