"""The checker of shared data: what it lets through, what it refuses, and the example beside it."""

from __future__ import annotations

import gzip
import json
import sys
from typing import TYPE_CHECKING, Any, get_args

import pytest

from gpuwatchd.collect.logs.formats import corpus as form
from gpuwatchd.collect.replay import read_log
from gpuwatchd.core.codes import Ending, FactName
from gpuwatchd.core.config import Config
from gpuwatchd.core.model import Pattern, Tier
from gpuwatchd.pipeline import backtest, corpus, replay
from tests.conftest import ran
from tests.contrib.corpus_check import FOLDER, check
from tests.contrib.make_corpus import EXAMPLE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LINES = [json.loads(line) for line in EXAMPLE.read_text().splitlines()]


def written(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def changed(at: int, field: str, value: object) -> list[Any]:
    """Return the example with one field of one line changed."""
    lines = [dict(line) for line in LINES]
    lines[at][field] = value
    return lines


def test_the_example_is_in_order_and_judged_as_its_verdict_says() -> None:
    assert ran([sys.executable, FOLDER / "check.py", EXAMPLE]).returncode == 0
    log = read_log(EXAMPLE)
    assert (log.error, log.bad_rows, log.epoch) == (None, 0, False)
    (leak,) = [one for one in replay.analyze(log, Config()) if one.alerts]
    (verdict,) = LINES[2]["verdicts"]
    firing = next(event for event in leak.alerts if event.state == "firing")
    assert firing.at_s == verdict["alert_ds"] / 10.0
    finding = leak.alerts[-1].alert.finding
    assert (finding.pattern, finding.tier) == (verdict["pattern"], verdict["tier"])
    assert finding.rate_bytes_per_s == pytest.approx(verdict["rate_bytes_per_s"], rel=0.01)
    assert verdict["outcome"] == "filled"


def test_its_vocabulary_is_the_programs() -> None:
    assert corpus.FRAMEWORKS | {corpus.OTHER} == check.FRAMEWORKS
    assert check.CARD_WORD == corpus.CARD_WORD
    assert {*Ending} == check.ENDINGS
    assert {*FactName} == check.FACTS
    assert {*get_args(Pattern)} == check.PATTERNS
    assert {*get_args(Tier)} == check.TIERS
    assert {*get_args(backtest.Came)} == check.OUTCOMES
    assert {*get_args(form.Licence)} == check.LICENCES
    assert {*get_args(form.Kind)} == check.KINDS
    assert (check.NAME, check.VERSION) == (form.NAME, form.VERSION)
    for ours, theirs in (
        (form.Header, check.HEADER), (form.SubjectLine, check.SUBJECT),
        (form.Episode, check.VERDICT), (form.DeclaredFact, check.FACT),
    ):  # fmt: skip
        assert theirs.keys() == {*ours.__struct_fields__}


def test_the_readme_names_every_field() -> None:
    text = (FOLDER / "README.md").read_text()
    fields = {**check.HEADER, **check.SUBJECT, **check.FACT, **check.VERDICT}
    assert [field for field in fields if f"`{field}`" not in text] == []


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (changed(1, "card", "Zed's box"), 1),
        (changed(1, "host", "gpu17"), 1),
        (changed(1, "t_ds", [0, -5]), 1),
        (changed(1, "t_ds", [0, 1.5]), 1),
        (changed(1, "used_mib", [5]), 1),
        (changed(1, "used_mib", [True, *LINES[1]["used_mib"][1:]]), 1),
        (changed(1, "used_mib", [10**9, *LINES[1]["used_mib"][1:]]), 1),
        (changed(1, "process", "p1"), 1),
        (changed(1, "breaks", [10**6]), 1),
        (changed(1, "facts", [{"name": "declared-share"}]), 1),
        (changed(2, "framework", "OurOwnThing"), 1),
        (changed(2, "full_at_end_ds", float("nan")), 1),
        (changed(0, "licence", None), 1),
        (changed(0, "subjects", 4), 1),
        ([*LINES, LINES[1]], 1),
        (LINES[1:], 1),
        ([], 1),
        ([[LINES]], 1),
        (changed(1, "card", "alice@example.org"), 3),
        (changed(1, "card", "10.20.30.40"), 3),
        (changed(1, "card", "GPU-0a0b0c0d-1111-2222-3333-444455556666"), 3),
        (changed(2, "program", "/home/zed/train.py"), 3),
        (changed(2, "program", "C:\\Users\\zed"), 3),
        (changed(2, "framework", "gpu17.cluster.local"), 3),
        (changed(2, "/srv/models/zed/", 1), 3),
    ],
)
def test_what_is_wrong_has_its_code(tmp_path: Path, lines: list[Any], code: int) -> None:
    assert check.main([str(written(tmp_path / "x.jsonl", lines))]) == code


@pytest.mark.parametrize("whose", ["gethostname", "getuser"])
def test_names_of_this_machine_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    module: Any = check.socket if whose == "gethostname" else check.getpass
    monkeypatch.setattr(module, whose, lambda: "Zedbox.example")
    file = written(tmp_path / "x.jsonl", changed(1, "card", "zedbox"))
    assert check.main([str(file)]) == 3


def test_the_name_that_gzip_keeps_is_found(tmp_path: Path) -> None:
    content = EXAMPLE.read_bytes()
    named, plain = tmp_path / "zed.jsonl.gz", tmp_path / "plain.jsonl.gz"
    with gzip.open(named, "wb") as stream:
        stream.write(content)
    plain.write_bytes(gzip.compress(content, mtime=0))
    assert [check.main([str(file)]) for file in (named, plain)] == [3, 0]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: None,
        lambda path: path.mkdir(),
        lambda path: path.write_bytes(gzip.compress(EXAMPLE.read_bytes(), mtime=0)[:200]),
        lambda path: path.write_bytes(b"\x1f\x8bnonsense"),
    ],
)
def test_what_cannot_be_read_has_its_code(
    tmp_path: Path, spoil: Callable[[Path], object], capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(tmp_path / "x.gz")
    assert check.main([str(tmp_path / "x.gz"), str(EXAMPLE)]) == 5
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_reader_takes_no_nonsense(tmp_path: Path) -> None:
    for at, (lines, reason) in enumerate(
        [
            (changed(2, "t_ds", [0, -5]), "bad time"),
            (changed(2, "used_mib", [1 << 37, *LINES[2]["used_mib"][1:]]), "bad number"),
            (changed(2, "t_ds", [2**70]), "torn"),
            (changed(2, "process", None), "torn"),
            ([*LINES, LINES[2]], "torn"),
            (
                [{k: v for k, v in LINES[0].items() if k not in {"points", "span_s"}}, *LINES[1:]],
                "header without points, span_s",
            ),
        ]
    ):
        log = read_log(written(tmp_path / f"{at}.jsonl", lines))
        assert log.error is None
        assert log.skipped == {reason: 1}


def test_a_later_version_says_so(tmp_path: Path) -> None:
    log = read_log(written(tmp_path / "x.jsonl", changed(0, "version", 2)))
    assert log.series == []
    assert log.error == "this gpuwatchd-corpus is of a later version than 1"
