"""Which earlier runs count for a subject, and whose word holds for which of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core.model import ProcessKey
from gpuwatchd.pipeline.run_baselines import chosen
from tests.store.runs import profile, run, word

if TYPE_CHECKING:
    from gpuwatchd.store.profiles import Run
    from gpuwatchd.store.tables import UserLabel

ME = ProcessKey(pid=1, started_at_s=1.0)


def made(
    begun_s: float, pid: int, top: float = 10.0, device: str = "a", row: int | None = None
) -> Run:
    process = ProcessKey(pid=pid, started_at_s=begun_s)
    did = profile(begun_s + 1000, run_s=1000.0, base_bytes=2.0, proven_bytes=top, top_bytes=top)
    return run(device_uid=device, process=process, begun_at_s=begun_s, profile=did, word=row)


def spoken(about: Run, said: str, at_s: float) -> UserLabel:
    return word(about, said, row=9, given_at_s=at_s)


def test_the_newest_five_launches_count_newest_last() -> None:
    runs = [made(1000.0 * n, n, top=float(n)) for n in range(2, 10)]
    known = chosen(runs, [], device_uid="a", process=ME)
    assert [one.top_bytes for one in known] == [5.0, 6.0, 7.0, 8.0, 9.0]


def test_the_rank_of_the_same_device_stands_for_its_launch() -> None:
    runs = [made(1000.0, 5, 10.0, "a"), made(1001.0, 6, 20.0, "b"), made(1002.0, 7, 30.0, "c")]
    assert [p.top_bytes for p in chosen(runs, [], device_uid="b", process=ME)] == [20.0]
    assert [p.top_bytes for p in chosen(runs, [], device_uid="z", process=ME)] == [30.0]


def test_another_rank_of_the_same_launch_is_no_earlier_run() -> None:
    runs = [made(1000.0, 5, 10.0), made(9000.0, 6, 20.0)]
    me = ProcessKey(pid=7, started_at_s=9060.0)
    assert [p.top_bytes for p in chosen(runs, [], device_uid="a", process=me)] == [10.0]


def test_of_itself_a_subject_knows_only_what_the_user_said() -> None:
    mine = made(1000.0, 5)
    then = msgspec.structs.replace(made(1000.0, 5, 4.0, row=9))
    known = chosen([mine, then], [], device_uid="a", process=mine.process)
    assert [one.top_bytes for one in known] == [4.0]


def test_a_word_holds_for_a_run_that_went_no_further() -> None:
    whole = made(1000.0, 5, 8.0, row=9)
    by_then = msgspec.structs.replace(whole.profile, ended_at_s=1500.0, word="normal")
    then = msgspec.structs.replace(whole, profile=by_then)
    said = [spoken(then, "normal", 1500.0)]
    near = chosen([then, made(1000.0, 5, 9.0)], said, device_uid="a", process=ME)
    assert [(one.top_bytes, one.word) for one in near] == [(9.0, "normal")]
    far = chosen([then, made(1000.0, 5, 40.0)], said, device_uid="a", process=ME)
    assert [(one.top_bytes, one.word) for one in far] == [(8.0, "normal"), (40.0, None)]
    late = chosen([made(1000.0, 5, 40.0)], [spoken(then, "normal", 2500.0)], device_uid="a",
                  process=ME)  # fmt: skip
    assert [(one.top_bytes, one.word) for one in late] == [(40.0, "normal")]
    leak = chosen([then, made(1000.0, 5, 40.0)], [spoken(then, "leak", 1500.0)], device_uid="a",
                  process=ME)  # fmt: skip
    assert [(one.top_bytes, one.word) for one in leak] == [(40.0, "leak")]
