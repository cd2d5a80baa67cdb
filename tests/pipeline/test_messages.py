"""What people are told, word for word."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.model import EtaRange, Subject
from gpuwatchd.pipeline import messages
from tests.making import alert, finding

NOW_S = 10_000.0


def test_the_first_message_says_who_how_fast_how_sure_and_when() -> None:
    message = messages.compose(alert(notices=1), "firing", now_s=NOW_S)
    assert message.subject == "GPU 0 (A100): python[4711] of alice: memory leak, full in 0h 47m"
    assert message.body == (
        "GPU 0 (A100): python[4711] of alice grows 12.4 MB/min (gradual, likely, 91%). "
        "Full in 0h 47m (0h 39m - 1h 02m).\n"
        "The floor rose in 14 of 16 windows."
    )
    assert message.command == "gpuwatchctl explain 4711"
    assert message.thread is None
    assert message.facts["R²"] == "0.982"
    assert message.facts["Full in"] == "0h 47m (0h 39m - 1h 02m)"


def test_recovery_says_why_and_answers_the_first_message() -> None:
    first = messages.compose(alert(notices=1), "firing", now_s=NOW_S)
    over = alert(notices=2, state="resolved", resolved_at_s=13_500.0, ended="its process has ended")
    message = messages.compose(over, "resolved", now_s=13_500.0)
    assert message.subject == "Over: GPU 0 (A100): python[4711] of alice: recovered"
    assert message.body == (
        "GPU 0 (A100): python[4711] of alice no longer grows: its process has ended "
        "(alert lasted 1h 00m)."
    )
    assert message.severity == "info"
    assert message.thread == first.id
    assert "Full in" not in message.facts


@pytest.mark.parametrize(
    ("notice", "lead"), [("escalated", "Worse: "), ("repeat", "Still: "), ("firing", "GPU 0")]
)
def test_the_subject_says_what_kind_of_notice_it_is(notice: str, lead: str) -> None:
    message = messages.compose(alert(notices=2), notice, now_s=NOW_S)  # type: ignore[arg-type]
    assert message.subject.startswith(lead)


def test_the_same_notice_has_the_same_id_and_the_next_another() -> None:
    one = messages.compose(alert(notices=1), "firing", now_s=NOW_S)
    again = messages.compose(alert(notices=1), "firing", now_s=NOW_S + 60)
    later = messages.compose(alert(notices=2), "repeat", now_s=NOW_S + 60)
    assert one.id == again.id
    assert len({one.id, later.id}) == 2
    assert later.thread == one.id


def test_what_is_unknown_is_left_out_or_said() -> None:
    bare = finding(eta=None, r_squared=None, onset_at_s=None, rate_bytes_per_s=None)
    message = messages.compose(alert(finding=bare, notices=1), "firing", now_s=NOW_S)
    assert "Full in unknown." in message.body
    assert "R²" not in message.facts
    assert "nan" not in message.body.lower()
    assert "None" not in message.body


def test_what_to_check_is_said_while_it_lasts() -> None:
    told = finding(advice=("Check this.", "Or that."))
    firing = messages.compose(alert(finding=told, notices=1), "firing", now_s=NOW_S)
    assert firing.facts["To check"] == "Check this. Or that."
    over = alert(finding=told, notices=2, state="resolved", resolved_at_s=NOW_S, ended="it is over")
    assert "To check" not in messages.compose(over, "resolved", now_s=NOW_S).facts
    bare = alert(finding=finding(advice=()), notices=1)
    assert "To check" not in messages.compose(bare, "firing", now_s=NOW_S).facts


def test_an_open_end_is_said() -> None:
    assert messages.eta_words(EtaRange(low_s=60, mid_s=3600, high_s=None)) == "1h 00m (60s - open)"


@given(st.text(min_size=1, max_size=300), st.floats(1, 1e6))
def test_a_subject_never_exceeds_its_width(title: str, mid_s: float) -> None:
    eta = EtaRange(low_s=mid_s / 2, mid_s=mid_s, high_s=None)
    rude = alert(title=title, finding=finding(eta=eta), notices=1)
    for notice in ("firing", "escalated", "resolved"):
        message = messages.compose(rude, notice, now_s=NOW_S)
        assert len(message.subject) <= messages.SUBJECT_CHARS
        msgspec.json.encode(message)


def test_the_next_command_explains_what_the_message_is_about() -> None:
    whole = Subject(device_uid="GPU-1")
    told = alert(notices=1, finding=finding(subject=whole), subject=whole)
    assert messages.compose(told, "firing", now_s=NOW_S).command == "gpuwatchctl explain GPU-1"
    over = alert(notices=2, state="resolved", resolved_at_s=NOW_S)
    assert messages.compose(over, "resolved", now_s=NOW_S).command == "gpuwatchctl alerts --all"
