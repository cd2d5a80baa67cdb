"""What was stored as a sentence alone gets the codes and parts that are made with it today."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from msgspec import UNSET

from gpuwatchd.analysis.attribution import jobs
from gpuwatchd.analysis.verdict import judge
from gpuwatchd.core.codes import NameKind, ProblemCode, Reason
from gpuwatchd.core.config import DetectionSection
from gpuwatchd.core.model import (
    Alert,
    DeviceReading,
    Finding,
    Holding,
    ProcessInfo,
    ProcessKey,
    Series,
    Subject,
)
from gpuwatchd.core.model.alerts import Title, TitlePart
from gpuwatchd.core.model.findings import more_reasoned, waved_off
from gpuwatchd.pipeline import titles
from gpuwatchd.pipeline.messages import sentences
from gpuwatchd.store import legacy_text, live
from gpuwatchd.store.live import LiveDevice, LiveState
from tests.making import CARD, LEAKER, alert, finding

RANKS = [
    msgspec.structs.replace(
        LEAKER, key=ProcessKey(pid=pid, started_at_s=1.0), group="torchrun 7f3a", rank=pid - 1
    )
    for pid in (1, 2)
]


def judged(end_s: float = 3600.0) -> Finding:
    t_s = np.arange(0.0, end_s, 5.0)
    subject = Subject(device_uid="G", process=LEAKER.key)
    series = Series(subject=subject, t_s=t_s, used_bytes=12e9 + t_s * 1e6, limit_bytes=24e9)
    return judge(series, DetectionSection())


def host() -> Finding:
    return titles.of_host(judged())


def ranks() -> Finding:
    mine = [
        jobs.Rank(subject=f"s{info.rank}", info=info, gpu=info.rank, finding=judged())
        for info in RANKS
    ]
    return jobs.joined(mine[0], mine, 2)


def led() -> Finding:
    return more_reasoned(judged(), "one alert for its job: see rank 0", Reason.RANK, "rank 0")


@pytest.mark.parametrize("make", [judged, lambda: judged(60.0), host, ranks, led])
def test_a_reason_is_understood(make: object) -> None:
    new = make()  # type: ignore[operator]
    old = msgspec.json.decode(msgspec.json.encode(new.public), type=Finding)
    assert not old.grounds
    known = legacy_text.finding(old)
    assert (known.code, known.lead, known.blame) == (new.code, new.lead, new.blame)
    assert [(part.whole, part.forecast) for part in known.parts] == [
        (part.whole, part.forecast) for part in new.parts
    ]
    assert sentences.evidence(known) == sentences.evidence(new)


def test_what_was_said_to_be_normal_is_known() -> None:
    new = waved_off(judged(), "alice said that this is normal", Reason.NORMAL)
    assert legacy_text.finding(new.public).code is Reason.NORMAL


def test_what_has_parts_is_returned_as_it_is() -> None:
    new = judged()
    assert legacy_text.finding(new) is new


@pytest.mark.parametrize(
    "title",
    [
        titles.of_device(CARD),
        titles.of_device(CARD, TitlePart(text="memory that no listed process owns",
                                         short="memory that nobody owns")),
        titles.of_process(CARD, LEAKER),
        titles.of_process(CARD, ProcessInfo(key=LEAKER.key, name="vllm", user="bob")),
        titles.host_title(LEAKER),
        jobs.title([jobs.Rank(subject=str(k), info=info, gpu=k) for k, info in enumerate(RANKS)]),
        jobs.title([jobs.Rank(subject="s", info=info) for info in RANKS], host=True),
    ],
    ids=str,
)  # fmt: skip
def test_a_title_is_as_short_as_it_is_made_today(title: Title) -> None:
    made: Alert = msgspec.structs.replace(alert(), **title.fields)
    old = legacy_text.alert(msgspec.structs.replace(made, title_parts=UNSET))
    for room in range(10, 80):
        short = sentences.fitted(sentences.brief(old), room)
        assert short == sentences.fitted(sentences.brief(made), room)
    for notice in ("firing", "repeat"):
        assert sentences.subject(old, notice, now_s=10_000.0) == sentences.subject(
            made, notice, now_s=10_000.0
        )


def test_the_state_of_an_older_daemon_gets_codes() -> None:
    hidden = ProcessInfo(key=LEAKER.key, name="pid 4711 (hidden by system policy)")
    gone = ProcessInfo(key=LEAKER.key, name="gone, was python")
    state = live._with_codes(
        LiveState(
            pid=1, version="0", started_at_s=0.0, taken_at_s=0.0, interval_s=5.0,
            devices=(
                LiveDevice(
                    device=CARD,
                    reading=DeviceReading(
                        device_uid=CARD.uid, used_bytes=1, free_bytes=1, total_bytes=2,
                        uses_reason="memory is read per MIG instance",
                    ),
                    finding=finding(),
                ),
            ),
            holdings=(
                Holding(
                    kind="hung-rank", device_uid=CARD.uid, process=hidden,
                    evidence="1 rank of slurm 42.0 has ended and rank 1 computes nothing",
                ),
                Holding(
                    kind="hung-rank", device_uid=CARD.uid, process=gone, evidence="it waits",
                    advice=("see where it stands: py-spy dump --pid PID",),
                ),
            ),
            problems=("no GPU found: no driver", "channel email does not deliver: refused", "x"),
        )
    )  # fmt: skip
    (device,) = state.devices
    assert device.reading is not None
    assert device.reading.per_instance
    first, second = state.holdings
    assert (first.left, second.left, second.command) == (True, False, "py-spy dump --pid PID")
    assert first.process is not None
    assert second.process is not None
    assert first.process.name_kind is NameKind.STAND_IN
    assert (second.process.name_kind, second.process.was) == (NameKind.GONE, "python")
    assert state.problem_codes == (ProblemCode.NO_GPU, ProblemCode.CHANNEL, ProblemCode.OTHER)
