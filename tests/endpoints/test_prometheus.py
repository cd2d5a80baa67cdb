"""The text that servers show to Prometheus."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.collect.prometheus import Metric, count, metrics, over_engines, share


def test_only_wanted_lines_are_read() -> None:
    raw = b'# TYPE v:a gauge\nv:a 1\nv:a_bucket{le="1"} 9\nv:b 2 1700000000\nother:a 7\n'
    assert metrics(raw, "v", ["a"]) == [Metric("a", {}, 1.0)]
    assert metrics(raw, "v", ["b"]) == [Metric("b", {}, 2.0)]
    assert metrics(b"v_a 3\nvva 4\n", "v", ["a"]) == [Metric("a", {}, 3.0)]


def test_quotes_braces_commas_and_breaks_inside_a_label() -> None:
    raw = rb'v:a{note="a \"quoted\" } value, n=\"1\"",path="C:\\x",two="a\nb",} 3e2'
    (metric,) = metrics(raw, "v", ["a"])
    assert metric.labels == {"note": 'a "quoted" } value, n="1"', "path": "C:\\x", "two": "a b"}
    assert metric.value == 300.0


@pytest.mark.parametrize(
    "rest",
    [b"", b" NaN", b" +Inf", b" -5", b" 1e308", b"{x} 1", b'{x="1} 2', b" one", b'{x="1" 2'],
)
def test_what_is_no_number_is_left_out(rest: bytes) -> None:
    assert metrics(b"v:a" + rest + b"\n", "v", ["a"]) == []


def test_escape_sequences_in_labels_do_not_reach_a_terminal() -> None:
    (metric,) = metrics(b'v:a{m="x\x1b[2Jy"} 1', "v", ["a"])
    assert metric.labels == {"m": "xy"}


def test_ranks_count_once_and_engines_add_up() -> None:
    raw = b"".join(
        b'v:q{dp_rank="%d",tp_rank="%d",priority="%s"} %d\n' % row
        for row in [(0, 0, b"", 2), (0, 1, b"", 2), (0, 0, b"5", 1), (1, 0, b"", 4)]
    )
    found = metrics(raw, "v", ["q"])
    assert over_engines(found, ("q",), sum) == 6.0
    assert over_engines(found, ("q",), max) == 4.0
    assert over_engines(found, ("other",), sum) is None


def test_shares_and_counts_out_of_range_are_unknown() -> None:
    assert (share(0.5), share(1.2), share(-0.1), share(None)) == (0.5, None, None, None)
    assert (count(3.0), count(-1.0), count(None)) == (3, None, None)


def test_a_long_hostile_line_takes_no_time() -> None:
    raw = b"v:a{" + b'x="' + b"\\" * 200_000 + b"\n" + b"v:a{" + b'k="v",' * 50_000
    began_s = time.process_time()
    assert metrics(raw, "v", ["a"]) == []
    assert time.process_time() - began_s < 1.0


@given(st.binary(max_size=300))
def test_any_bytes_are_survived(raw: bytes) -> None:
    for metric in metrics(b"v:a" + raw, "v", ["a"]):
        assert metric.name == "a"
