"""The history as anonymous data: what is in it, what is not, and that it is judged as before."""

from __future__ import annotations

import base64
import gzip
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwatchd.collect.logs.formats import corpus as form
from gpuwatchd.collect.replay import read_log
from gpuwatchd.core.codes import FactName
from gpuwatchd.core.config import Config
from gpuwatchd.core.model import GrowthFact, Subject
from gpuwatchd.pipeline import corpus, history_log, replay
from gpuwatchd.store.reader import Reader
from gpuwatchd.store.schema import FILE_NAME
from tests import making
from tests.conftest import present
from tests.contrib.corpus_check import check
from tests.pipeline import corpus_world as world
from tests.pipeline import recorded
from tests.pipeline.recorded import Run, ramp

if TYPE_CHECKING:
    from pathlib import Path

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
BEGIN_S = 1_800_000_003.37


def traces(text: str) -> list[bytes]:
    """Return the forms in which a text may be found again, in lower case."""
    forms = []
    for content in (text.encode(), text.encode("utf-16-le"), text.encode("utf-16-be")):
        forms += [content, content[::-1], content.hex().encode()]
        # Whatever stands before it: the signs that all three alignments leave unchanged.
        for before in range(3):
            coded = base64.b64encode(bytes(before) + content)
            forms.append(coded[4 if before else 0 : len(coded) // 4 * 4 - 4])
    return [form.lower() for form in forms]


def test_nothing_names_anybody(tmp_path: Path) -> None:
    begin_s = world.write(tmp_path, BEGIN_S)
    found = world.exported(tmp_path, begin_s)
    packed = found.encoded(packed=True)
    content = found.encoded()
    assert gzip.decompress(packed) == content
    for data in (content.lower(), packed.lower()):
        for trace in traces(world.MARK):
            assert trace not in data
    for number in (world.PID, world.UID, int(begin_s), int(begin_s * 10), int(begin_s) // 1000):
        assert str(number).encode() not in content
    assert [len(line.verdicts) for line in found.lines] == [0, 1, 0]


def test_what_stays_is_the_card_its_memory_and_codes(tmp_path: Path) -> None:
    begin_s = world.write(tmp_path, BEGIN_S)
    found = world.exported(tmp_path, begin_s, licence="CC0-1.0")
    device, process, rest = found.lines
    assert [line.kind for line in found.lines] == ["device", "process", "unattributed"]
    assert (device.card, device.total_bytes) == ("NVIDIA H100 80GB", 80 * world.GIB)
    assert (process.process, process.framework, device.process) == ("p1", "other", None)
    assert len(present(process.program)) == 8
    assert form.values_of(rest.used_mib).tolist() == [1024.0] * 360
    assert form.values_of(process.used_mib)[:3].tolist() == [4096, 4267, 4437]
    assert sum(device.util_pct[:50]) == 49
    (verdict,) = process.verdicts
    assert (verdict.pattern, verdict.tier, verdict.confidence) == ("gradual", "alert", 0.91)
    assert (verdict.eta_s, verdict.rate_bytes_per_s) == ((2340, 2820, 3720), 206_667)
    assert present(verdict.alert_ds) - verdict.opened_ds == 3000
    assert (verdict.ended, verdict.feedback) == ("process-ended", "leak")
    assert verdict.outcome == "open"
    (fact,) = process.facts
    assert (fact.name, fact.weight, fact.level_mib) == ("declared-share", 0.75, 72 * 1024)
    assert (found.header.points, found.header.subjects) == (3 * 360, 3)
    assert found.header.interval_s == (10.0, 10.0, 10.0)


def test_what_keeps_growth_silent_is_a_fact_without_an_alert(tmp_path: Path) -> None:
    info = world.person(BEGIN_S)
    begin_s = world.write(tmp_path, BEGIN_S, infos=(info,))
    subject = Subject(device_uid=world.card().uid, process=info.key)
    size = GrowthFact(name=FactName.DECLARED_SIZE, source=world.MARK, weight=0.5, part_bytes=2e9)
    found = making.finding(subject=subject, tier="none", facts=(size,))
    content = world.exported(tmp_path, begin_s, judged={subject.id: found})
    assert [fact.name for fact in content.lines[1].facts] == ["declared-share", "declared-size"]
    assert world.MARK.encode() not in content.encoded()


def test_time_begins_anew(tmp_path: Path) -> None:
    begin_s = world.write(tmp_path, BEGIN_S)
    assert all(0 <= line.t_ds[0] < 100 for line in world.exported(tmp_path, begin_s).lines)


def test_programs_meet_within_a_file_only(tmp_path: Path) -> None:
    infos = tuple(world.person(BEGIN_S, pid=pid) for pid in (7, 8))
    begin_s = world.write(tmp_path, BEGIN_S, infos=infos)
    files = [world.exported(tmp_path, begin_s).lines for _ in range(2)]
    labels = [{line.program for line in lines if line.kind == "process"} for lines in files]
    assert [len(of_file) for of_file in labels] == [1, 1]
    assert labels[0] != labels[1]
    assert [line.process for line in files[0]] == [None, "p1", "p2", None]


def test_an_empty_history_has_no_lines(tmp_path: Path) -> None:
    recorded.write(tmp_path, [], BEGIN_S, BEGIN_S)
    found = world.exported(tmp_path, BEGIN_S)
    assert (found.lines, found.header.interval_s) == ((), None)


@pytest.mark.parametrize("rolled", [False, True])
def test_it_is_judged_as_the_history_is(tmp_path: Path, rolled: bool) -> None:
    """With a gap and a boot in it, a process that dies and one that levels off."""
    dying = Run(pid=4711, begin_s=BEGIN_S + 300, used=ramp(75, 19.3))
    calm = Run(pid=5, begin_s=BEGIN_S + 6000, used=ramp(5, 1, then_minutes=40))
    recorded.write(tmp_path, [dying, calm], BEGIN_S, BEGIN_S + 9000, rolled=rolled)
    recorded.boot(tmp_path, BEGIN_S, "one")
    recorded.boot(tmp_path, BEGIN_S + 2000, "another")
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as it, it:
        for table in ("gpu_raw", "process_raw"):
            gap_ms = ((BEGIN_S + 3000) * 1000, (BEGIN_S + 3400) * 1000)
            it.execute(f"DELETE FROM {table} WHERE ts_ms BETWEEN ? AND ?", gap_ms)
    file = tmp_path / "corpus.jsonl"
    with closing(Reader.open(tmp_path)) as history:
        (device,) = history.devices()
        span = (BEGIN_S - 10.0, BEGIN_S + 10_000.0)
        log = history_log.load(history, device, *span)
        file.write_bytes(corpus.collect(history, [device], span, None).encoded())
    ours, theirs = (replay.analyze(one, Config()) for one in (log, read_log(file)))
    assert [len(one.watches) for one in ours] == [len(one.watches) for one in theirs]
    assert sum(len(one.alerts) for one in ours) >= 2
    for one, other in zip(ours, theirs, strict=True):
        assert _codes(one) == _codes(other)
        assert _numbers(one) == pytest.approx(_numbers(other), rel=0.01, abs=0.11)
    series = [(each.breaks, each.t_s.size) for each in log.series]
    assert [(each.breaks, each.t_s.size) for each in read_log(file).series] == series
    assert any(breaks for breaks, _ in series)


def _codes(result: replay.SubjectResult) -> list[Any]:
    finding = result.finding
    events = [(event.state, event.alert.ended_code) for event in (*result.watches, *result.alerts)]
    return [*events, finding and (finding.pattern, finding.tier, finding.severity)]


def _numbers(result: replay.SubjectResult) -> list[float]:
    out = [event.at_s - result.started_at_s for event in (*result.watches, *result.alerts)]
    finding = result.finding
    if finding is not None:
        out += [finding.confidence, (finding.rate_bytes_per_s or 0.0) / world.MIB]
        out += [finding.eta.low_s, finding.eta.mid_s] if finding.eta else []
    return out


@PATIENT
@given(st.lists(st.integers(0, 2**37), min_size=1, max_size=50))
def test_differences_give_the_values_again(values: list[int]) -> None:
    assert form.values_of(form.steps_of(np.array(values, dtype=np.int64))).tolist() == values


@PATIENT
@given(st.text(max_size=60))
def test_a_card_has_words_of_models_only(name: str) -> None:
    assert check.is_card(corpus.card_model(name))


@settings(PATIENT, max_examples=12)
@given(mark=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=6, max_size=40))
def test_whatever_people_call_things(tmp_path_factory: pytest.TempPathFactory, mark: str) -> None:
    folder = tmp_path_factory.mktemp("named")
    begin_s = world.write(folder, BEGIN_S, world.growth(10), mark=mark)
    file = folder / "corpus.jsonl"
    file.write_bytes(world.exported(folder, begin_s).encoded())
    assert check.problems_of(file, any_licence=True) == []


@pytest.mark.parametrize("before", [b"", b"a", b"ab", b"abc"])
def test_a_mark_would_be_found(before: bytes) -> None:
    """Also where it is coded, whatever stands around it."""
    content = before + world.MARK.encode() + b"etc"
    for coded in (content, base64.b64encode(content), content.hex().encode()):
        assert any(trace in coded.lower() for trace in traces(world.MARK))
