"""Messages to send."""

from __future__ import annotations

import pytest

from gpuwatchd.core.model import EtaRange, Message, ProcessKey, Subject
from tests import making
from tests.making import finding

HOSTILE = 'python\x1b[2J\x00<b>bold</b>\u202e[/tag]\ud800 & "quoted"\r\nBcc: victim@example.org'


@pytest.fixture
def message() -> Message:
    judged = finding(
        subject=Subject(device_uid="GPU-1", process=ProcessKey(pid=4711, started_at_s=5.0)),
        eta=EtaRange(low_s=2340.0, mid_s=2820.0, high_s=None),
    )
    return making.message(
        id="a1b2c3",
        subject="GPU 0: python[4711] of alice leaks 12.4 MB/min",
        body="GPU 0 (A100 80GB): python[4711] of alice grows.\nFull in 47 min.",
        facts={"GPU": "0 (A100 80GB)", "Rate": "12.4 MB/min", "Full in": "47 min"},
        finding=judged,
    )
