"""The request to let go of the GPUs: written whole, read with suspicion, bounded."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core.errors import StoreError
from gpuwatchd.store import live

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_000_000.0


def test_what_is_asked_is_read_until_its_time_is_over(tmp_path: Path) -> None:
    live.ask_release(tmp_path, 60.0, NOW)
    found = live.read_release(tmp_path, NOW + 59)
    assert found is not None
    assert found.until_at_s == NOW + 60
    assert live.read_release(tmp_path, NOW + 60) is None
    file = tmp_path / live.RELEASE_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == [live.RELEASE_FILE]


def test_a_second_request_extends_and_never_shortens(tmp_path: Path) -> None:
    live.ask_release(tmp_path, 600.0, NOW)
    assert live.ask_release(tmp_path, 30.0, NOW + 10).until_at_s == NOW + 600
    assert live.ask_release(tmp_path, 600.0, NOW + 10).until_at_s == NOW + 610


@pytest.mark.parametrize(("asked_s", "given_s"), [(1.0, 10.0), (1e9, 86_400.0)])
def test_the_time_is_bounded(tmp_path: Path, asked_s: float, given_s: float) -> None:
    assert live.ask_release(tmp_path, asked_s, NOW).until_at_s == NOW + given_s


@pytest.mark.parametrize("back_s", [3600.0, 1e6])
def test_a_clock_that_was_set_back_makes_none_longer(tmp_path: Path, back_s: float) -> None:
    live.ask_release(tmp_path, 60.0, NOW)
    now_s = NOW - back_s
    found = live.read_release(tmp_path, now_s)
    assert found is not None
    assert (found.duration_s, found.left_s(now_s)) == (60.0, 60.0)
    assert live.ask_release(tmp_path, 30.0, now_s).until_at_s == now_s + 60.0


def test_without_a_request_there_is_nothing_to_read_or_end(tmp_path: Path) -> None:
    assert live.read_release(tmp_path, NOW) is None
    assert live.release_stamp(tmp_path) is None
    assert live.end_release(tmp_path) is False


def test_the_stamp_changes_with_every_request(tmp_path: Path) -> None:
    live.ask_release(tmp_path, 60.0, NOW)
    first = live.release_stamp(tmp_path)
    live.ask_release(tmp_path, 90.0, NOW)
    assert None not in {first, live.release_stamp(tmp_path)}
    assert live.release_stamp(tmp_path) != first
    assert live.end_release(tmp_path) is True
    assert live.release_stamp(tmp_path) is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is not a request"),
        (b"\x00\xff" * 100, "is not a request"),
        (b"[" * 4000, "is not a request"),
        (b'{"until_at_s": "soon", "asked_at_s": 1}', "is not a request"),
        (b'{"until_at_s": 1e300, "asked_at_s": 1}', "asks for more than a day"),
        (b'{"until_at_s": 1090000.0, "asked_at_s": 1}', "asks for more than a day"),
        (b" " * 100_000, "is not a request"),
    ],
)
def test_what_is_no_request_is_one_line(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / live.RELEASE_FILE).write_bytes(content)
    with pytest.raises(StoreError, match=why):
        live.read_release(tmp_path, NOW)
    # And it does not stand in the way of a good one.
    assert live.ask_release(tmp_path, 60.0, NOW).until_at_s == NOW + 60
    assert live.read_release(tmp_path, NOW) is not None


def test_neither_a_link_nor_a_pipe_is_followed(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_text('{"until_at_s": 1000060.0, "asked_at_s": 1000000.0}')
    path = tmp_path / live.RELEASE_FILE
    path.symlink_to(target)
    with pytest.raises(StoreError, match="cannot be read"):
        live.read_release(tmp_path, NOW)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StoreError, match="is not a file of ours"):
        live.read_release(tmp_path, NOW)


def test_a_directory_that_is_gone_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be written"):
        live.ask_release(tmp_path / "gone", 60.0, NOW)


def test_a_directory_in_its_place_is_one_line_and_leaks_no_descriptor(tmp_path: Path) -> None:
    (tmp_path / live.RELEASE_FILE).mkdir()
    before = os.dup(0)
    os.close(before)
    for _ in range(3):
        with pytest.raises(StoreError, match="is not a file of ours"):
            live.read_release(tmp_path, NOW)
    with pytest.raises(StoreError, match="cannot be written"):
        live.ask_release(tmp_path, 60.0, NOW)
    with pytest.raises(StoreError, match="cannot be removed"):
        live.end_release(tmp_path)
    after = os.dup(0)
    os.close(after)
    assert after == before
