"""The log of the service in the journal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.service.unit_files import UNIT
from tests.service.conftest import USER, Tools, refused

if TYPE_CHECKING:
    from gpuwatchd.service.systemd import Systemd


def test_logs(manager: Systemd, tools: Tools) -> None:
    viewer = f"journalctl --user-unit={UNIT} --no-pager"
    tools.answer(f"{viewer} --quiet", code=4)
    assert manager.logs(lines=50, follow=True) == 4
    assert tools.calls == [f"{viewer} --lines=1", f"{viewer} --quiet --lines=50 --follow"]
    tools.forget()
    manager.logs(lines=9, follow=False, since_at_s=1_760_000_000.4, level="warning")
    assert tools.calls[1] == f"{viewer} --quiet --lines=9 --since=@1760000000 --priority=4"


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("No journal files were opened due to insufficient permissions.\n", 1),
        (
            (
                "Hint: You are currently not seeing messages from other users and the system.\n"
                "      Users in groups 'adm', 'systemd-journal' can see all messages.\n"
                "-- No entries --\n"
            ),
            0,
        ),
    ],
)
def test_a_journal_that_may_not_be_read(
    manager: Systemd, tools: Tools, said: str, code: int
) -> None:
    tools.answer("journalctl", said, code=code)
    caught = refused("may not read the journal", manager.logs, lines=50, follow=False)
    whole = f"sudo journalctl _SYSTEMD_USER_UNIT={UNIT} _UID={os.getuid()}"
    assert caught.hint == f"{whole}; for good: sudo usermod -aG systemd-journal {USER}"


def test_an_empty_journal_is_no_error(manager: Systemd, tools: Tools) -> None:
    tools.answer("journalctl", "-- No entries --\n")
    assert manager.logs(lines=50, follow=False) == 0
