"""Names of users, and that nobody waits for them."""

from __future__ import annotations

import os
import pwd
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

from gpuwatchd.collect.host.identity import Users

if TYPE_CHECKING:
    import pytest


def test_a_user_has_a_name_and_nobody_a_number() -> None:
    users = Users()
    assert users.name(os.getuid()) == pwd.getpwuid(os.getuid()).pw_name
    assert users.name(3_999_999_999) == "3999999999"


def test_a_directory_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, asked = threading.Event(), []

    def slow(uid: int) -> SimpleNamespace:
        asked.append(uid)
        gate.wait()
        return SimpleNamespace(pw_name="alice")

    monkeypatch.setattr(pwd, "getpwuid", slow)
    users = Users()
    began_s = time.monotonic()
    assert [users.name(7) for _ in range(100)] == ["7"] * 100
    assert time.monotonic() - began_s < 5.0
    assert asked == [7]
    gate.set()
    until_s = time.monotonic() + 60.0
    while users.name(7) != "alice":
        assert time.monotonic() < until_s
    assert asked == [7]
