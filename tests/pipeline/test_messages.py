"""What people are told, word for word; every case is a file of ``snapshots``."""

from __future__ import annotations

import shlex
import unicodedata
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatchd import alerts
from gpuwatchd.alerts import Rules, wording
from gpuwatchd.analysis.frameworks.advice import of_holder
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.model import AlertSubject, Blame, EtaRange, Message, NoticeKind, Subject
from gpuwatchd.notify import plain_text
from gpuwatchd.pipeline import messages
from tests import making
from tests.making import KEY, alert, finding
from tests.pipeline import message_snapshots

NOW_S = 10_000.0
NOTICES: tuple[NoticeKind, ...] = ("firing", "escalated", "repeat", "resolved")
TEXTS = message_snapshots.texts()
HOSTILE = st.one_of(
    st.text(max_size=300),
    st.sampled_from([
        "GPU 0 (a): b", "\x1b[2J\x1b]0;owned\x07", "a\nSubject: b\r\n\r\nc",
        "<b>&amp;</b>",
        "[link=x]y[/]", "\u202etxt.exe", "x" * 256, "日本語" * 90, "a\u0300" * 100, "", " ",
        "\ud800",
    ]),
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_a_message_reads_as_its_snapshot(name: str) -> None:
    """After an intended change: ``python -m tests.pipeline.message_snapshots``, and read it."""
    assert TEXTS[name] == (message_snapshots.FOLDER / f"{name}.txt").read_text()


def test_the_first_page_shows_a_message_as_it_reads() -> None:
    page = message_snapshots.PAGE.read_text()
    assert message_snapshots.first_page(page) == page
    assert page.count("```\nSubject: GPU 0: python train.py[4711] of alice probably leaks") == 1


def test_there_is_no_snapshot_without_a_case() -> None:
    assert {file.stem for file in message_snapshots.FOLDER.glob("*.txt")} == set(TEXTS)


@pytest.mark.parametrize(
    ("name", "message"), message_snapshots.in_zone(lambda: list(message_snapshots.cases()))
)
def test_a_mail_fits_on_one_screen(name: str, message: Message) -> None:
    mail = plain_text.plain(message).splitlines()
    assert len(mail) <= message_snapshots.HEIGHT, name
    assert max(map(len, mail)) <= message_snapshots.WIDTH
    assert len(plain_text.popup(message, markup=False).splitlines()) <= 6


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_a_message_fits_on_one_screen_and_says_each_thing_once(name: str) -> None:
    lines = TEXTS[name].splitlines()
    assert len(lines) <= message_snapshots.HEIGHT
    assert max(map(len, lines[1:])) <= message_snapshots.WIDTH
    assert len(lines[0].partition("] ")[2]) <= messages.SUBJECT_CHARS
    # The subject stands alone; below it no sentence comes twice.
    sentences = [line for line in lines[1:] if len(line) > 20 and not name.startswith("digest")]
    assert len(sentences) == len(set(sentences))
    for figure in ("MB/min", "so far", "% sure"):
        assert "\n".join(lines[1:]).count(figure) <= (2 if figure == "so far" else 1)
    assert "None" not in TEXTS[name]
    assert "nan" not in TEXTS[name].replace("resonance", "").lower().split()


def test_of_several_the_name_is_cut_last() -> None:
    title = "GPU 3 (H100): python worker5_of_the_long_name.py[4203392] of bob"
    one = alert(title=title, severity="critical")
    told = messages.compose(one, "firing", now_s=NOW_S, also=(alert(title=title),), host="h" * 16)
    assert "worker5_of_" in told.subject
    assert len(told.subject) <= messages.SUBJECT_CHARS


def test_the_same_notice_has_the_same_id_and_the_next_another() -> None:
    one = messages.compose(alert(notices=1), "firing", now_s=NOW_S)
    again = messages.compose(alert(notices=1), "firing", now_s=NOW_S + 60)
    later = messages.compose(alert(notices=2), "repeat", now_s=NOW_S + 60)
    assert one.id == again.id
    assert len({one.id, later.id}) == 2
    assert later.thread == one.id


def test_the_time_left_is_that_of_now_not_of_the_judgement() -> None:
    told = messages.compose(alert(notices=1), "firing", now_s=NOW_S + 601.0)
    assert "Full in 37 min (29 to 52 min), at " in told.body
    assert told.facts["Host"]  # that of this machine, where none is given
    late = messages.compose(alert(notices=1), "firing", now_s=NOW_S + 2_900.0)
    assert late.subject.partition(" (")[0].endswith("no new data for 48 min")
    assert "Full at any moment: " in late.body


def test_what_is_learned_after_the_first_message_is_in_the_next() -> None:
    cure = of_holder(making.HOLDER.kind, graph=False)
    prepared = finding(allocator=making.ALLOCATOR)
    known = finding(allocator=making.ALLOCATOR, holder=making.HOLDER, advice=(cure,))
    now, before = alert(notices=1), messages.compose(alert(notices=1), "firing", now_s=NOW_S)
    assert not {"Kept by", "Allocator", "Inspect"} & set(before.facts)
    for judged in (prepared, known):
        now = making.present(alerts.evaluate(judged, now, Rules(), now_s=NOW_S, title="").alert)
        for notice in NOTICES[1:3]:
            told = messages.compose(now, notice, now_s=NOW_S).facts
            assert wording.inside(judged).items() <= told.items()
            assert ("Inspect" in told) is (judged is prepared)
            assert (told.get("Advice") == cure) is (judged is known)
    over = alerts.ended(now, Ending.ENDED_NEAR_LIMIT, Rules(), now_s=NOW_S).alert
    assert "Kept by" in messages.compose(making.present(over), "resolved", now_s=NOW_S).facts


def test_a_rude_job_is_no_command_of_a_shell() -> None:
    job = "x'; rm -rf ~; echo *"
    one = alert(notices=1, about=AlertSubject(job=job, gpu="0"))
    told = messages.compose(one, "firing", now_s=NOW_S, also=(one,))
    words = shlex.split(told.facts["Silence"])
    assert words == ["gpuwatchctl", "snooze", "--job", job.replace("*", "[*]"), "1h"]
    none = alert(notices=1, about=AlertSubject(gpu="0:1"))
    other = messages.compose(none, "firing", now_s=NOW_S, also=(none,))
    assert other.facts["Silence"] == "gpuwatchctl snooze --gpu 0:1 1h"
    # No rule is as narrow as a program: its alert alone is offered, not what else runs there.
    of_root = AlertSubject(gpu="0", user="root", process="python")
    for group, uids in (("program:x", "11"), ("", "12")):
        each = [alert(notices=1, about=of_root, group=group, subject=Subject(
            device_uid=f"GPU-{uid}", process=one.subject.process)) for uid in uids]  # fmt: skip
        told = messages.compose(each[0], "firing", now_s=NOW_S, also=each[1:])
        assert told.facts["Silence"] == "gpuwatchctl snooze 4711 1h"


def test_a_code_is_short_stable_and_no_pid() -> None:
    codes = [alert(key=f"leak:GPU-1/{n}@1.0").code for n in range(2000)]
    assert alert(key="leak:x", opened_at_s=1.0).code == alert(key="leak:x").code
    assert all(len(code) == 6 and code[0] in "abcdef" for code in codes)
    assert len(set(codes)) > 1990


_ANY_TEXT = st.fixed_dictionaries({
    "title": HOSTILE, "reason": HOSTILE, "framework": HOSTILE, "ended": HOSTILE,
    "advice": HOSTILE, "blame": HOSTILE, "host": HOSTILE, "job": HOSTILE, "key": HOSTILE,
})  # fmt: skip
_ANY_ETA = st.one_of(
    st.none(),
    st.tuples(st.floats(0, 1e7), st.floats(0, 1e7), st.none() | st.floats(0, 1e9)).map(
        lambda found: EtaRange(low_s=found[0], mid_s=found[1], high_s=found[2])
    ),
)


def rude(words: dict[str, str], kind: str, state: Any, flaps: int, eta: EtaRange | None) -> Any:
    judged = finding(
        reason=words["reason"],
        framework=words["framework"],
        advice=(words["advice"], words["advice"]),
        blame=(
            Blame(process=KEY, name=words["blame"], share=0.5, rate_bytes_per_s=1.0),
            Blame(process=None, name=words["blame"], share=0.5, rate_bytes_per_s=1.0),
        ),
        eta=eta,
    )
    about = AlertSubject(framework=words["framework"], job=words["job"], container=words["job"],
                  unit=words["job"], model=words["job"])  # fmt: skip
    return alert(key=words["key"], kind=kind, state=state, flaps=flaps, about=about, finding=judged,
                 title=words["title"], ended=words["ended"], notices=2)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=150)
@given(
    _ANY_TEXT,
    st.sampled_from(["leak", "gpu", "held"]),
    st.sampled_from(["firing", "resolved"]),
    st.sampled_from(NOTICES),
    st.integers(0, 9),
    _ANY_ETA,
    st.floats(-1e6, 1e9),
)
def test_no_text_changes_the_lines_of_a_message(
    words: dict[str, str],
    kind: str,
    state: str,
    notice: NoticeKind,
    flaps: int,
    eta: EtaRange | None,
    later_s: float,
) -> None:
    one = rude(words, kind, state, flaps, eta)
    told = messages.compose(one, notice, now_s=NOW_S + later_s, also=(one,), host=words["host"])
    assert len(told.subject) <= messages.SUBJECT_CHARS
    assert told.body.count("\n") <= 4
    for line in (told.subject, *told.body.split("\n"), *told.facts, *told.facts.values()):
        # Categories: control, format (bidi), surrogate, line and paragraph separators.
        assert not {unicodedata.category(c) for c in line} & {"Cc", "Cs", "Zl", "Zp"}
        assert not any(c in line for c in "\u202e\u2066\u200f")
        assert len(line) <= 600
    assert len(message_snapshots.shown(told).splitlines()) <= message_snapshots.HEIGHT + 4
    assert len(plain_text.plain(told).splitlines()) >= 3
    # The judgement and the key are handed on as they are: their text was cleaned at its source.
    msgspec.json.encode(msgspec.structs.replace(told, finding=None, alert_key="", also=()))


@given(HOSTILE, HOSTILE)
def test_no_text_changes_the_lines_of_a_digest(title: str, ended: str) -> None:
    some = [
        alert(key=f"leak:{n}", title=title, ended=ended, state="resolved" if n % 2 else "firing")
        for n in range(12)
    ]
    told = messages.digest(some, number=title, why=ended, from_s=0.0, now_s=NOW_S)
    assert len(told.subject) <= messages.SUBJECT_CHARS
    assert len(told.facts) == 8
    assert told.facts["..."].startswith("5 more")
    assert len(message_snapshots.shown(told).splitlines()) <= message_snapshots.HEIGHT + 4
    msgspec.json.encode(told)


def test_a_digest_names_an_alert_that_came_again_once() -> None:
    twice = [alert(opened_at_s=1.0, state="resolved", ended="x"), alert(opened_at_s=2.0)]
    told = messages.digest(twice, number="1", why="of the day", from_s=0.0, now_s=NOW_S)
    (entry,) = told.facts.values()
    assert entry.endswith("(2 times)")
    assert told.subject.startswith("1 alert since ")
    assert told.alert_key == "leak:x"
    assert told.also == ()
