"""``explain`` from the live state: whom it means, and what it says beside the curve."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.alerts import wording
from gpuwatchd.cli.global_flags import Globals
from gpuwatchd.collect.host.procfs import Headroom
from gpuwatchd.core.codes import Ending, FactName, LimitKind
from gpuwatchd.core.model import Event, GrowthFact, MemoryLimit, ProcessKey, Subject
from gpuwatchd.view.blocks import Page
from gpuwatchd.view.queries import history_query
from gpuwatchd.view.text import explanation, explanation_page, subject_facts
from gpuwatchd.view.text.explanation_parts import Section, Step
from tests import making
from tests.cli import world
from tests.cli.recorded import POINTS, SHAPES, explained, record
from tests.conftest import present

if TYPE_CHECKING:
    from tests.cli.calls import Ctl

GIB, MIB = making.GIB, making.MIB


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("", "no GPU, process, program, user, job or alert ''"),
        ("\x1b[2Jx", "no GPU, process, program, user, job or alert"),
        ("9" * 5000, "no GPU, process, program, user, job or alert"),
    ],
    ids=["nothing", "escape", "digits"],
)
def test_what_means_nothing_is_one_line(target: str, why: str, ctl: Ctl) -> None:
    world.write()
    first, hint, *_, page = ctl.err("explain", target, code=None).splitlines()
    assert page.startswith("see: gpuwatchctl docs errors#")
    assert why in first
    assert hint.startswith("hint: ")
    assert first.isprintable()


@pytest.mark.requirement("W18")
def test_the_hardware_comes_first_when_it_speaks(ctl: Ctl) -> None:
    now_s = time.time()
    event = Event(at_s=now_s - 60, kind="xid", text="XID 79: off the bus", code=79, hardware=True)
    first, second = world.state().devices
    world.write(devices=(msgspec.structs.replace(first, events=(event,)), second))
    assert ctl.data("explain")["hardware"]["look_first"] is True
    assert first.reading is not None
    sound = msgspec.structs.replace(first.reading, ecc_errors=0, retired_pages=0, throttle=())
    world.write(devices=(msgspec.structs.replace(first, reading=sound), second))
    assert ctl.data("explain")["hardware"]["word"] == "clean"
    assert "rule the hardware out" not in explained(ctl)


def test_an_alert_that_no_curve_is_judged_for(ctl: Ctl) -> None:
    lost = world.firing(
        key="gpu:GPU-1", kind="gpu", severity="critical", title="GPU 0 (A100)",
        subject=Subject(device_uid="GPU-1"),
        finding=making.finding(
            subject=Subject(device_uid="GPU-1"), pattern="unknown", rate_bytes_per_s=None, eta=None,
            reason="the GPU no longer answers; it fell off",
            advice=("the log says more: sudo dmesg | grep xid", "start it again elsewhere"),
        ),
    )  # fmt: skip
    world.write(alerts=(world.firing(), lost))
    out = ctl("explain gpu:GPU-1")
    assert "GPU 0  NVIDIA A100  CRITICAL" in out
    assert "grow" not in out
    assert "does not answer any more" not in ctl("explain 0")


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.requirement("M21")
def test_every_pattern_is_reasoned_from_the_recorded_series(shape: str, ctl: Ctl) -> None:
    record(shape)
    answer = ctl.json("explain", "4711")
    assert answer["source"] == "database"
    assert answer["data"]["verdict"]["pattern"] == shape
    told = explained(ctl, "4711")
    assert ("full in" in told) is (shape in {"gradual", "step", "cyclic"})
    assert f"Why {shape}" in [section["title"] for section in answer["data"]["sections"]]


@pytest.mark.parametrize("shape", list(SHAPES))
def test_it_leads_with_the_answer_in_forty_lines_and_all_has_the_rest(shape: str, ctl: Ctl) -> None:
    record(shape)
    short, whole = ctl("explain 4711").splitlines(), explained(ctl, "4711")
    assert len(short) <= explanation_page.MOST_LINES
    answered = " ".join(" ".join(short[: short.index("What to do")]).split())
    data = ctl.data("explain 4711")
    for number, section in enumerate(data["sections"]):
        for line in section["lines"]:
            assert " ".join(line.split()) in whole
            assert number > 2 or " ".join(line.split()) in answered
    assert all(step["command"] is None or step["command"] in whole for step in data["next_steps"])


def test_the_most_that_can_be_said_leaves_the_first_steps(ctl: Ctl) -> None:
    world.write()
    case, _ = explanation.case_of(Globals(), None)
    lines = tuple(f"line {number}: {'word ' * 30}" for number in range(20))
    parts = [Section(f"part {n}", lines, answer=n < 3) for n in range(5)]
    steps = [Step(f"step {n} {'word ' * 40}", f"command {n}") for n in range(9)]
    page = Page(80)
    explanation_page.write_explanation(
        page, case, parts, steps, warnings=["word " * 300, "short"], everything=False
    )
    shown = ["".join(words for words, _ in row) for row in page.rows()]
    assert len(shown) <= explanation_page.MOST_LINES
    assert {f"command {n}" for n in range(3)} <= {line.strip() for line in shown}
    assert "! short" in shown
    whole = Page(80)
    explanation_page.write_explanation(whole, case, parts, steps)
    assert len(whole.rows()) > 200


def test_when_an_alert_was_over_is_counted_from_now(ctl: Ctl) -> None:
    now_s = time.time()
    over = {"state": "resolved", "resolved_at_s": now_s - 7200, "ended": "gone"}
    world.remember(world.firing(**over))
    world.write(taken_at_s=now_s - 7200, alerts=(), stopped=True)
    assert "(2 h ago)" in ctl.data("explain", world.firing().code)["sections"][0]["lines"][0]


def test_its_numbers_are_those_of_predict(ctl: Ctl) -> None:
    record("gradual")
    predicted = ctl.data("predict --pid 4711", code=None)[0]["processes"][0]["verdict"]
    data = ctl.data("explain")
    for name in ("pattern", "confidence", "rate_bytes_per_s", "eta", "onset_at", "reason"):
        assert data["verdict"][name] == predicted[name]
    assert data["measured"]["samples"] == POINTS
    assert data["measured"]["confidence"] == pytest.approx(predicted["confidence"])
    assert data["measured"]["growth_bytes"] == pytest.approx(4 * MIB * 3585, rel=0.05)
    assert [one["detector"] for one in data["signals"]] == ["trend"]
    assert data["signals"][0]["facts"]["r_squared"] > 0.99
    assert data["levels"]["alert_confidence"] == 0.68
    assert data["held_bytes"] == pytest.approx(4 * GIB + 4 * MIB * 3585, rel=0.01)
    assert data["sections"][0]["title"] == "Data"
    commands = [step["command"] for step in data["next_steps"]]
    assert "py-spy dump --pid 4711" in commands
    assert any("_record_memory_history" in (command or "") for command in commands)


@pytest.mark.requirement("G12", "G13", "G14", "G15", "G35")
def test_people_read_rate_fit_confidence_and_a_range_of_times(ctl: Ctl) -> None:
    record("gradual")
    text = ctl("predict --pid 4711", code=None)
    assert re.search(r"growth rate +\+252 MB/min", text)
    assert re.search(r"R² +(0\.99\d|1\.000) \(strong\)", text)
    assert re.search(r"confidence +\d+ % \(", text)
    assert re.search(r"full in +\d.* \(.+ to .+\)", text)


def test_a_past_alert_is_explained_as_it_was(ctl: Ctl) -> None:
    end_s = record("gradual")
    was = world.leak(judged_at_s=end_s - 1200)
    world.remember(
        world.firing(
            state="resolved", resolved_at_s=end_s - 600, finding=was, ended="out of memory",
            ended_code=Ending.ENDED_NEAR_LIMIT,
        )
    )  # fmt: skip
    device = msgspec.structs.replace(world.state().devices[0], finding=None, processes=())
    world.write(devices=(device,), alerts=())
    data = ctl.data("explain", "leak:GPU-1/4711")
    assert data["measured"]["samples"] in {160, 161}
    assert "10 min ago" in data["sections"][0]["lines"][0]
    # What was foreseen has come, and nobody holds the memory any more.
    assert "When it is full" not in [part["title"] for part in data["sections"] if part["lines"]]
    commands = [step["command"] for step in data["next_steps"] if step["command"]]
    assert [command.split()[1] for command in commands] == ["history", "run"]


def test_where_the_notices_went_is_told(ctl: Ctl) -> None:
    end_s = record("gradual")
    alert = world.firing(opened_at_s=end_s - 900)
    sent = world.delivery(
        alert.key, "email", end_s - 500, state="failed", attempts=4, sent_at_s=None,
        error="550 no such\x1b[2J user",
    )  # fmt: skip
    old = msgspec.structs.replace(sent, channel="desktop", created_at_s=end_s - 5000)
    world.remember(alert, deliveries=[old, sent])
    world.write(alerts=(alert,))
    told = explained(ctl, "4711")
    assert "1 notice not delivered: 550 no such user" in told
    assert "notice so far" not in told
    (one,) = ctl.data("explain", "4711")["alert"]["deliveries"]
    assert (one["channel"], one["state"]) == ("email", "failed")
    waits = msgspec.structs.replace(sent, state="pending", created_at_s=end_s - 400)
    world.remember(alert, deliveries=[waits])
    assert "notice so far" not in explained(ctl, "4711")
    done = msgspec.structs.replace(waits, state="sent", sent_at_s=end_s - 300)
    world.remember(alert, deliveries=[done])
    assert "1 notice so far, to email" in explained(ctl, "4711")


def test_a_leak_on_the_host_is_found_in_the_history_too(
    monkeypatch: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    room = Headroom(64 * GIB, 40 * GIB)
    monkeypatch.setattr("gpuwatchd.collect.host.procfs.headroom", lambda: room)
    record("stable", host=lambda t: 2 * GIB + t * MIB)
    answer = ctl.json("explain")
    assert answer["source"] == "database"
    data = answer["data"]
    assert (data["on_host"], data["verdict"]["pattern"]) == (True, "gradual")
    assert data["verdict"]["rate_bytes_per_s"] == pytest.approx(MIB, rel=0.05)
    assert data["verdict"]["reason"].startswith("host memory grows")
    assert data["measured"]["samples"] == POINTS
    assert data["process"]["verdict"]["pattern"] == "stable"


@pytest.mark.parametrize(
    ("kind", "said", "word"),
    [
        ("xid", "XID 79: the GPU has fallen off the bus", "hardware"),
        ("xid", "XID 31: a program used memory that is not its own", "application"),
        ("gpu-lost", "does not answer", "hardware"),
        ("throttle", "too hot", "unreadable"),
        ("of another version", "who knows", "unreadable"),
    ],
)
def test_the_history_tells_what_broke(kind: str, said: str, word: str, ctl: Ctl) -> None:
    record("stable")
    with world.history() as history:
        history.event(kind, said, making.CARD.uid)
    found = ctl.data("explain", "4711")["hardware"]
    assert found["word"] == word
    assert (said in found["sentence"]) is (word != "unreadable")
    assert "clean" not in explained(ctl, "4711")


def test_what_keeps_the_memory_is_shown_wherever_its_verdict_is(ctl: Ctl) -> None:
    inside = world.leak(holder=making.HOLDER, allocator=making.ALLOCATOR)
    first, second = world.state().devices
    live = world.process(finding=inside)
    first = msgspec.structs.replace(first, finding=inside, processes=(live,))
    alert = world.firing(finding=inside)
    world.write(devices=(first, second), alerts=(alert,))
    world.remember(alert)
    data = ctl.data("explain 4711")
    for verdict in (
        data["verdict"],
        ctl.data("status")[0]["processes"][0]["verdict"],
        ctl.data("alerts")[0]["verdict"],
        ctl.data("report")["findings"][0]["alert"]["verdict"],
    ):
        held = verdict["holder"]
        assert (held["name"], held["line"], held["length"]) == ("losses in train()", 22, 426)
        assert (held["bounded_at_bytes"], held["held_bytes"]) == (None, 3 * GIB)
        assert verdict["allocator"]["verdict"] == "tensors"
        assert verdict["allocator"]["reserved_bytes"] == round(3.6 * GIB)
    assert ctl.data("report")["summary"]["by_allocator"] == {"tensors": 1}
    for verb in ("explain --all", "predict", f"alerts show {alert.code}", "report"):
        whole = " ".join(ctl(verb, code=None).split())
        for line in wording.inside(inside).values():
            assert line in whole, verb
    assert ctl.data("status --gpu 1")[0]["verdict"]["holder"] is None
    assert _gpuwatchctl(data) == ["history", "analyze", "inspect", "feedback"]


@pytest.mark.parametrize(
    ("name", "framework", "host", "last"),
    [
        ("python", None, False, "run"), ("train", "PyTorch", False, "run"),
        ("python", None, True, "feedback"), ("ollama", "Ollama", False, "feedback"),
    ],
)  # fmt: skip
@pytest.mark.requirement("M36")
def test_how_to_learn_which_variable_it_is_comes_last(
    name: str, framework: str | None, host: bool, last: str, ctl: Ctl
) -> None:
    subject = Subject(device_uid="GPU-1", process=making.KEY, host=host)
    found = world.leak(subject=subject)
    live = world.process(finding=None if host else found)
    info = msgspec.structs.replace(live.info, name=name, framework=framework)
    live = msgspec.structs.replace(live, info=info, host_finding=found if host else None)
    first = world.state().devices[0]
    alert = world.firing(key=f"leak:{subject.id}", subject=subject, finding=found)
    device = msgspec.structs.replace(first, finding=None, processes=(live,))
    world.write(devices=(device,), alerts=(alert,))
    assert _gpuwatchctl(ctl.data("explain", alert.code))[-1] == last


def _gpuwatchctl(data: Any) -> list[str]:
    commands = [step["command"] or "" for step in data["next_steps"]]
    return [line.split()[1] for line in commands if line.startswith("gpuwatchctl ")]


def test_what_was_known_beside_the_curve_is_listed_with_its_weight(ctl: Ctl) -> None:
    facts = (
        GrowthFact(name=FactName.WARM_UP, source="PyTorch", weight=0.25, text="warms \x1b[2Jup"),
        GrowthFact(
            name=FactName.DECLARED_SHARE,
            source="command line",
            weight=0.8,
            level_bytes=36.0 * GIB,
            text="takes 0.9 of the card",
        ),
        GrowthFact(name=FactName.DECLARED_SIZE, source="t.yaml", weight=0.5, part_bytes=2.0 * GIB),
    )
    record("gradual")
    first, second = world.state().devices
    process, *others = present(first.processes)
    world.write()
    assert ctl.data("explain 4711")["facts"] == []
    judged = msgspec.structs.replace(present(process.finding), facts=facts)
    process = msgspec.structs.replace(process, finding=judged)
    alert = world.firing()
    alert = msgspec.structs.replace(alert, finding=judged)
    changed = msgspec.structs.replace(first, processes=(process, *others))
    world.write(devices=(changed, second), alerts=(alert,))
    case, _ = explanation.case_of(Globals(), "4711")
    assert present(case.measured).series.facts == facts
    shown = ctl.data("explain 4711")["facts"]
    assert [(one["name"], one["weight"]) for one in shown] == [
        ("warm-up", 0.25), ("declared-share", 0.8), ("declared-size", 0.5),
    ]  # fmt: skip
    assert [(one["level_bytes"], one["part_bytes"]) for one in shown] == [
        (None, None), (36 * GIB, None), (None, 2 * GIB),
    ]  # fmt: skip
    text = ctl("explain 4711 --all")
    places = [text.index(words) for words in ("80 %", "36.0 GiB", "50 %", "2.0 GiB", "25 %")]
    assert places == sorted(places)
    assert "\x1b" not in text


@pytest.mark.parametrize(("first_s", "base"), [(0.0, 220.0), (300.0, 400.0), (600.0, None)])
def test_what_a_process_held_when_it_had_started_is_measured_again(
    first_s: float, base: float | None
) -> None:
    """Without it a declared size counts for the daemon and not for ``explain``."""
    info = msgspec.structs.replace(making.LEAKER, key=ProcessKey(pid=4711, started_at_s=1000.0))
    points = [(1000.0 + at_s, 100 + int(at_s)) for at_s in range(int(first_s), 3000, 60)]
    subject = Subject(device_uid="GPU-1", process=info.key)
    series = history_query.series_of(subject, history_query.track(points), None, None, info=info)
    assert series.base_bytes == base


@pytest.mark.parametrize(
    ("end_gib", "binds"),
    [(60.0, True), (77.0, True), (79.0, False), (None, False)],
)
def test_the_limit_that_binds_is_named(end_gib: float | None, binds: bool, ctl: Ctl) -> None:
    """The process holds 50 of 80 GiB, 28 are free: beyond 78 GiB the card is full before."""
    end_bytes = None if end_gib is None else end_gib * GIB
    limit = MemoryLimit(
        kind=LimitKind.DMEM, name="/sys/fs/cgroup/job", hard_bytes=79 * GIB, process_bytes=end_bytes
    )
    first, *others = world.state().devices
    found = world.leak(limit_bytes=end_bytes)
    process = msgspec.structs.replace(present(first.processes)[0], limit=limit, finding=found)
    item = msgspec.structs.replace(first, processes=(process,))
    world.write(devices=(item, *others))
    bound = subject_facts.binding(item, process)
    assert (bound is limit) is binds
    words = subject_facts.why_sooner(item, end_bytes, process)
    assert not binds or words in explained(ctl, "4711")
    shown = ctl.data("status")[0]["processes"][0]["limit"]
    assert (shown["kind"], shown["hard_bytes"]) == ("dmem", 79 * GIB)
    assert shown["process_bytes"] == end_bytes
