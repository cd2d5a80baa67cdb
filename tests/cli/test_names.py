"""What is shown can be typed: GPUs, programs, users, jobs and alerts, in every verb."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.cli import completion_answers
from gpuwatchd.core.errors import Ambiguous
from gpuwatchd.core.model import AlertSubject, ProcessInfo, ProcessKey, Subject
from gpuwatchd.store.live import LiveProcess
from gpuwatchd.view.queries import subjects
from tests import making
from tests.cli import world

if TYPE_CHECKING:
    from tests.cli.calls import Ctl

CODE = world.firing().code
TITLE = "GPU 0 (A100): python train.py[4711] of alice"


def _job(pid: int) -> LiveProcess:
    info = ProcessInfo(
        key=ProcessKey(pid=pid, started_at_s=5.0), name="python3", argv=("python3", "serve.py"),
        user="bob", job="slurm 42.0", uid=os.getuid(),
    )  # fmt: skip
    return LiveProcess(info=info, used_bytes=making.GIB)


@pytest.fixture(autouse=True)
def _shown() -> None:
    first, second = world.state().devices
    leaker = world.process(finding=first.finding)
    leaker = msgspec.structs.replace(leaker, info=making.LEAKER)
    about = AlertSubject(gpu="0", user="alice", process="python", command="python train.py")
    world.write(
        devices=(
            msgspec.structs.replace(first, processes=(leaker, _job(61))),
            msgspec.structs.replace(second, processes=(_job(62),)),
        ),
        alerts=(world.firing(about=about, title=TITLE),),
    )
    with world.history() as history:
        history.apply([world.firing(about=about, title=TITLE)], [])


@pytest.mark.parametrize(
    "word",
    ["4711", "train.py", "python train.py[4711] of alice", "alice", "TRAIN*", CODE, "pid 4711",
     TITLE],
)  # fmt: skip
def test_a_process_is_named_by_whatever_is_shown_of_it(word: str, ctl: Ctl) -> None:
    assert ctl.data("explain", word)["process"]["pid"] == 4711
    (device,) = ctl.data("status", "--pid", word)
    assert [one["pid"] for one in device["processes"]] == [4711]
    assert ctl.data("alerts", "show", word)["id"] == CODE
    assert subjects.sorted_out([word, "1", "GPU 0"]) == (["1", "GPU 0"], [4711])


@pytest.mark.parametrize("word", ["bob", "serve.py", "42", "slurm 42", "slurm 42.0"])
def test_several_are_listed_with_what_to_type(word: str, ctl: Ctl) -> None:
    for verb in ("explain", "ask-checkpoint"):
        listed = ctl.err(verb, word, code=2).splitlines()[2:4]
        assert [line.split()[0] for line in listed] == ["61", "62"]
        assert all(f"serve.py[{line.split()[0]}] of bob" in line for line in listed)
    if word == "42":  # of a filter a number is always a pid: status must start quickly
        assert "pid 42" in ctl.err("status --pid 42", code=1)
        return
    shown = ctl.data("status", "--pid", word)
    assert [p["pid"] for one in shown for p in one["processes"]] == [61, 62]


def test_cards_of_one_kind_are_told_apart_by_what_is_short(ctl: Ctl) -> None:
    listed = ctl.err("explain A100", code=2).splitlines()[2:4]
    assert [line.split()[0] for line in listed] == ["0", "1"]


def test_two_past_alerts_of_one_name_are_listed() -> None:
    over = [
        world.firing(
            key=f"leak:GPU-1/{pid}@1.0",
            subject=Subject(device_uid="GPU-1", process=ProcessKey(pid=pid, started_at_s=1.0)),
            title=f"GPU 0 (A100): python old.py[{pid}] of alice",
        )
        for pid in (91, 92)
    ]
    with world.history() as history:
        history.apply(over, [])
    with pytest.raises(Ambiguous) as refused:
        subjects.pids("old.py")
    assert all(alert.code in refused.value.hint for alert in over)


@pytest.mark.parametrize("name", ["GPU 1", "gpu1", "A100", "nvidia a100", "GPU-2"])
def test_a_gpu_is_named_by_whatever_is_shown_of_it(name: str, ctl: Ctl) -> None:
    uids = {one["device"]["uid"] for one in ctl.data("status --gpu", name)}
    assert world.SECOND.uid in uids
    assert len(uids) == (2 if "100" in name else 1)


@pytest.mark.parametrize(
    "verb", ["cost", "alerts", "history", "backtest", "web", "zombies", "report"]
)
def test_an_unknown_gpu_is_said_in_every_verb(verb: str, ctl: Ctl) -> None:
    world.watched(2, 5.0, lambda _: [world.reading("GPU-1", 5)], (), end_s=time.time())
    assert ctl.json(verb, "--gpu", "9", code=1)["error"]["page"] == "errors#no-such-gpu"


@pytest.mark.parametrize("verb", ["cost", "alerts", "history", "backtest", "plot", "report"])
def test_a_time_needs_its_unit_and_a_past(verb: str, ctl: Ctl) -> None:
    assert "7d" in ctl.err(verb, "--since", "7", code=2)
    assert "future" in ctl.err(verb, "--since", "2099-01-01", code=2)
    ctl.err(verb, "--since", "\u0663h", code=2)
    if verb in {"history", "plot", "report"}:
        ctl.err(verb, "--pid", "\u0664\u0667\u0661\u0661")


def test_a_process_that_holds_no_gpu_memory_saved_nothing(ctl: Ctl) -> None:
    error = ctl.json("checkpointed", str(os.getpid()), code=None)["error"]
    assert (error["exit_code"], error["page"]) == (1, "errors#no-such-process")


def test_tab_offers_what_resolves() -> None:
    def offered(start: str) -> set[object]:
        return {item.value for item in completion_answers.subjects(start)}

    assert {"0", "1", "4711", "61", CODE} <= offered("")
    assert offered("tr") == {"train.py"}
    assert offered("bo") == {"bob"}
    assert "42.0" in offered("42")


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("config show", "config print"), ("slack", "notify add slack"), ("grafana", "metrics"),
        ("notify ntfy", "notify add ntfy"), ("prometheus", "metrics"),
        ("restart", "service restart"),
    ],
)  # fmt: skip
def test_words_that_people_try_lead_to_the_verb(line: str, meant: str, ctl: Ctl) -> None:
    hint = ctl.json(line, code=2)["error"]["hint"]
    assert hint.startswith(f"gpuwatchctl {meant}")


def test_what_is_no_page_is_searched_for(ctl: Ctl) -> None:
    assert {"chat"} <= {hit["page"] for hit in ctl.data("docs slack")}
    assert ctl.data("docs quiet hours")
    ctl.err("docs xyzzyx", code=2)


def test_a_number_below_zero_is_no_flag(ctl: Ctl) -> None:
    for line in ("snooze latest -1h", "checkpointed -5", "history --since -1h"):
        assert "-" + line.rpartition("-")[2] in ctl.err(line, code=2)
    ctl.err("snooze -- -1 1h")  # nor a part of the key of an alert on GPU-1
