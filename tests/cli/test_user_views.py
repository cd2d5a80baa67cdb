"""``--user``: one user's processes on a GPU that others use too."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.core.model import (
    AlertSubject,
    Blame,
    DeviceReading,
    Holding,
    ProcessInfo,
    ProcessKey,
    ProcessUse,
    ServerReading,
    Subject,
)
from gpuwatchd.core.model.alerts import Matcher
from gpuwatchd.store.live import LiveDevice, LiveProcess
from gpuwatchd.view.queries import user_filter
from gpuwatchd.view.queries.user_filter import People
from tests import making
from tests.cli import world

if TYPE_CHECKING:
    from gpuwatchd.store.live import LiveState
    from tests.cli.calls import Ctl

GIB = making.GIB
ALICE = ProcessInfo(key=making.KEY, name="python", user="alice", uid=7001)
BOB = ProcessInfo(key=ProcessKey(pid=88, started_at_s=5.0), name="bobs", user="bob", uid=7002)
SECRET = "bobs"


def machine(**changes: Any) -> LiveState:
    """Two users on one GPU: alice leaks, bob's is judged calm; on the other only bob, who leaks."""
    leak = world.leak()
    bobs_leak = world.leak(
        subject=Subject(device_uid=world.SECOND.uid, process=BOB.key), reason="bobs grows"
    )
    devices = (
        LiveDevice(
            device=making.CARD, reading=world.reading(making.CARD.uid, 62), finding=leak,
            processes=(
                LiveProcess(info=ALICE, used_bytes=50 * GIB, finding=leak),
                LiveProcess(info=BOB, used_bytes=12 * GIB),
            ),
            samples=500,
        ),
        LiveDevice(
            device=world.SECOND, reading=world.reading(world.SECOND.uid, 10), finding=bobs_leak,
            processes=(LiveProcess(info=BOB, used_bytes=9 * GIB, finding=bobs_leak),), samples=500,
        ),
    )  # fmt: skip
    bobs = world.firing(
        key="leak:GPU-2/88@5.0", finding=bobs_leak, subject=bobs_leak.subject, title="bobs python",
        about=AlertSubject(user="bob"),
    )  # fmt: skip
    held = [
        Holding(kind="idle", device_uid=making.CARD.uid, process=info, held_bytes=GIB,
                since_s=time.time() - 60, evidence=f"idle {info.name}")
        for info in (ALICE, BOB)
    ]  # fmt: skip
    now_s = time.time()
    values: dict[str, Any] = {
        "devices": devices,
        "alerts": (world.firing(), bobs),
        "holdings": (*held, Holding(kind="ghost", device_uid=making.CARD.uid, held_bytes=3)),
        "servers": (ServerReading(kind="vLLM", url=f"http://{SECRET}", at_s=now_s, pid=88),),
        "untold": ("leak:GPU-1/4711@1000.0", bobs.key),
        "silences": (
            world.silence(matcher=Matcher(key=bobs.key)),
            world.silence(matcher=Matcher(user="alice")),
        ),
    }
    return world.state(**{**values, **changes})


@pytest.mark.parametrize("verb", ["status", "predict", "watch -n 1", "zombies", "alerts"])
def test_nothing_of_another_users_work_is_shown(ctl: Ctl, verb: str) -> None:
    world.write(machine())
    for form in ((), ("--json",), ("--wide",) if verb != "alerts" else ("-v",)):
        out = ctl(*verb.split(), "--user", "alice", *form)
        assert SECRET not in out
        assert "4711" in out


def test_programs_get_the_same(ctl: Ctl) -> None:
    world.write(machine())
    answer = ctl.json("status --user alice")
    first, second = answer["data"]
    assert first["others"] == {"processes": 1, "held_bytes": 12 * GIB}
    assert [one["pid"] for one in first["processes"]] == [4711]
    assert first["verdict"]["leak"] is True
    assert (second["verdict"], second["processes"], second["blame"]) == (None, [], [])
    assert second["used_bytes"] == 10 * GIB
    assert answer["untold"] == ["leak:GPU-1/4711@1000.0"]
    assert (answer["servers"], len(answer["silences"]), len(answer["holdings"])) == ([], 1, 1)
    assert ctl.data("status")[0]["others"] is None


def test_a_sum_with_an_unknown_part_is_unknown(ctl: Ctl) -> None:
    first, second = machine().devices
    unknown = msgspec.structs.replace(
        first, processes=(*(first.processes or ()), LiveProcess(info=BOB, used_bytes=None))
    )
    world.write(machine(devices=(unknown, second)))
    assert ctl.data("status --user alice")[0]["others"]["held_bytes"] is None
    assert "others hold at least 12.0 GiB in 2 processes" in ctl("status --user alice")


def test_where_the_list_is_unknown_nothing_is_said_of_others(ctl: Ctl) -> None:
    first, second = machine().devices
    world.write(machine(devices=(first, msgspec.structs.replace(second, processes=None))))
    answer = ctl.data("status --user alice")[1]
    assert (answer["processes"], answer["others"]) == (None, None)


def test_several_users_a_glob_and_a_number(ctl: Ctl) -> None:
    world.write(machine())
    for words in (["--user", "alice", "--user", "bob"], ["--user", "*"], ["--user", "700*",
                  "--user", "7001", "--user", "7002"]):  # fmt: skip
        first = ctl.data("status", *words)[0]
        assert [one["pid"] for one in first["processes"]] == [4711, 88]
        assert first["others"] == {"processes": 0, "held_bytes": 0}


def test_me_is_who_asks() -> None:
    mine = People(["me"])
    assert mine.has(None, os.getuid())
    assert mine.has(user_filter.user())
    assert not mine.has("somebody-else", os.getuid() + 1)
    by_number = People([str(os.getuid())])  # where only the name is known, as in the history
    assert by_number.has(user_filter.user())
    assert not People(["9" * 30]).has("somebody-else", 0)
    assert not mine.has(None)


def test_exit_codes_are_about_these_users_only(ctl: Ctl) -> None:
    world.write(machine())
    for verb in ("status", "predict", "alerts", "zombies"):
        ctl(verb, "--exit-code", "--user", "alice", code=3)
        ctl(verb, "--exit-code", "--user", "nobody-here", code=0)


def test_a_whole_device_is_theirs_who_are_to_blame_for_most(ctl: Ctl) -> None:
    blame = (
        Blame(process=ALICE.key, name="python", share=0.8, rate_bytes_per_s=8.0),
        Blame(process=BOB.key, name="bobs", share=0.2, rate_bytes_per_s=2.0),
    )
    whole = world.leak(subject=Subject(device_uid=making.CARD.uid), blame=blame)
    first, second = machine().devices
    alert = world.firing(key="leak:GPU-1", finding=whole, subject=whole.subject, about=None)
    world.write(
        machine(devices=(msgspec.structs.replace(first, finding=whole), second), alerts=(alert,))
    )
    assert ctl.data("status --user alice")[0]["verdict"]["leak"] is True
    assert ctl.data("status --user bob")[0]["verdict"] is None
    assert len(ctl.data("alerts --user alice")) == 1
    assert ctl.data("alerts --user bob") == []


def test_broken_hardware_concerns_everybody_on_the_gpu(ctl: Ctl) -> None:
    broken = world.firing(
        key="gpu:GPU-1", kind="gpu", subject=Subject(device_uid=making.CARD.uid), about=None
    )
    world.write(machine(alerts=(broken,)))
    for user in ("alice", "bob"):
        assert len(ctl.data("alerts --user", user)) == 1
        assert "gpu:GPU-1" not in ctl("status --user carol")
    assert ctl.data("alerts --user carol") == []


def record() -> None:
    """Write ten minutes of both users into the history."""

    def look(_: int) -> list[DeviceReading]:
        uses = tuple(ProcessUse(key=info.key, used_bytes=GIB) for info in (ALICE, BOB))
        reading = DeviceReading(
            device_uid=making.CARD.uid, used_bytes=3 * GIB, free_bytes=GIB, total_bytes=4 * GIB,
            uses=uses,
        )  # fmt: skip
        return [reading]

    world.watched(120, 5.0, look, (ALICE, BOB), end_s=time.time() // 60 * 60 - 30.0)


def test_the_past_of_one_user(ctl: Ctl) -> None:
    record()
    rows = ctl.data("history --since 1h --user alice")[0]["rows"]
    assert {row["user"] for row in rows} == {"alice"}
    out = ctl("history --since 1h --user alice")
    assert SECRET not in out
    assert SECRET not in ctl("history --since 1h --user alice --format csv")
    both = ctl.data("history --since 1h --user * --pid 88")[0]["rows"]
    assert {row["pid"] for row in both} == {88}


def test_what_one_user_costs(ctl: Ctl) -> None:
    record()
    world.write(machine())
    entries = ctl.data("cost")
    assert {one["user"] for one in entries} >= {"alice", "bob"}
    answer = ctl.json("cost --user bob --by user")
    assert {one["user"] for one in answer["data"]} == {"bob"}
    assert [group["name"] for group in answer["groups"]] == ["bob"]


@pytest.mark.parametrize("who", ["", " "])
def test_nobody_is_no_user(who: str, ctl: Ctl) -> None:
    for verb in ("status", "alerts", "predict"):
        assert "names no user" in ctl.err(verb, "--user", who, code=2)
