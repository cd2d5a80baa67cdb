"""When a message is tried again, and how channels are made of the configuration."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.core import config
from gpuwatchd.core.errors import NotifyError
from gpuwatchd.notify import NOTIFIERS, dispatcher
from gpuwatchd.notify.dispatcher import GIVE_UP_S, retry_at

if TYPE_CHECKING:
    from gpuwatchd.core.model import Message


@given(st.floats(0, 2e9), st.floats(-1e9, 1e9))
def test_retries_end_after_two_days_whatever_the_clock_does(created_s: float, ago_s: float) -> None:
    now_s = created_s + ago_s
    times = [retry_at(attempts, created_s, now_s) for attempts in range(1, 10)]
    for at_s in times:
        if at_s is None:
            assert ago_s > GIVE_UP_S - 3600.0
        else:
            assert 29.9 <= at_s - now_s <= 3600.1
            assert at_s <= max(created_s, now_s if ago_s < 0 else created_s) + GIVE_UP_S + 1
    assert all(a is not None or b is None for a, b in pairwise(times))


def test_a_message_is_tried_for_two_days() -> None:
    now_s, attempts, tries = 0.0, 0, 0
    while True:
        tries += 1
        attempts += 1
        again = retry_at(attempts, 0.0, now_s)
        if again is None:
            break
        now_s = again
    assert 47 * 3600 < now_s <= 48 * 3600
    assert 50 <= tries <= 60


def test_build_uses_the_configuration() -> None:
    section = config.NotifySection(
        email=config.EmailSection(host="mail.example.org", to=("a@example.org",)),
        command=config.CommandSection(argv=("/bin/true",)),
    )
    built = dispatcher.build(section, ("email", "command", "pigeon"))
    assert list(built) == ["email", "command", "pigeon"]
    assert "mail.example.org:587" in repr(built["email"])
    assert built["command"].probe().ok
    assert not built["pigeon"].probe().ok


def test_one_channel_that_cannot_be_built_hurts_no_other(
    message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NOTIFIERS, "desktop", "gpuwatchd.no_such_module:Nothing")
    built = dispatcher.build(
        config.NotifySection(command=config.CommandSection(argv=("/bin/true",))),
        ("desktop", "command"),
    )
    assert built["command"].probe().ok
    broken = built["desktop"].probe()
    assert not broken.ok
    assert "no_such_module" in broken.reason
    with pytest.raises(NotifyError) as caught:
        built["desktop"].send(message)
    assert caught.value.permanent
