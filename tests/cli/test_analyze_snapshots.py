"""``analyze`` of memory snapshots: lines of code, and what changed between two of one process."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.collect.logs import snapshot_reader
from tests.cli.test_analyze import leak

if TYPE_CHECKING:
    from tests.cli.calls import Ctl

MIB = 1 << 20
BEGIN_US = 1_750_000_000_000_000
TORCH = "/venv/lib/python3.12/site-packages/torch/nn/modules/module.py"
Frames = list[dict[str, Any]]


def stack(*places: str) -> Frames:
    """Return a stack, innermost first, each frame below what PyTorch has in C++."""
    frames = [{"filename": "CUDACachingAllocator.cpp", "line": 0, "name": "malloc"}]
    for place in places:
        file, line, name = place.split(":")
        frames += [
            {"filename": "??", "line": 0, "name": "_PyEval_EvalFrameDefault"},
            {"filename": file, "line": int(line), "name": name},
        ]
    return frames


LOSS = stack(f"{TORCH}:9:forward", "/home/a/train.py:87:log_loss", "/home/a/train.py:9:main")
CACHE = stack("/home/a/train.py:30:cache", "/home/a/train.py:9:main")


def snapshot(
    *blocks: tuple[int, Frames | None], at_s: float, device: int = 0, base: int = 1 << 40
) -> dict[str, Any]:
    """Return a snapshot of blocks of so many MiB; of those whose stack is None no event is known.

    One block in use and one that is free beside it share a segment.
    """
    segments, trace = [], []
    for number, (mib, frames) in enumerate(blocks):
        address = base + number * (1 << 34)
        used = {"address": address, "size": mib * MIB, "state": "active_allocated"}
        free = {"address": address + mib * MIB, "size": MIB, "state": "inactive", "frames": []}
        segments.append({
            "device": device, "address": address, "total_size": (mib + 1) * MIB,
            "allocated_size": mib * MIB, "blocks": [{**used, "frames": frames or []}, free],
        })  # fmt: skip
        if frames is not None:
            event = {"action": "alloc", "addr": address, "size": mib * MIB, "frames": frames}
            trace.append({**event, "time_us": BEGIN_US + int((at_s - 1) * 1e6)})
    trace.append({"action": "snapshot", "addr": 0, "time_us": BEGIN_US + int(at_s * 1e6)})
    return {"segments": segments, "device_traces": [*([[]] * device), trace]}


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    """Return two snapshots of one process, the later one first."""
    before = snapshot((100, None), (200, LOSS), (50, CACHE), (30, []), at_s=10)
    after = snapshot((100, None), (4092, LOSS), (40, CACHE), (90, []), at_s=70)
    return write(tmp_path / "b.pickle", after), write(tmp_path / "a.pickle", before)


def write(file: Path, content: object) -> str:
    file.write_bytes(pickle.dumps(content))
    return str(file)


@pytest.mark.requirement("M37")
def test_the_line_that_holds_more_is_named_first(pair: tuple[str, str], ctl: Ctl) -> None:
    answer = ctl.json("analyze", *pair)
    change = answer["change"]
    assert (change["after"], change["before"]) == pair
    assert (change["order"], change["elapsed_s"]) == ("time", 60)
    assert (change["same_process"], change["same_device"]) == (True, True)
    assert (change["grown_count"], change["changed_count"]) == (2, 3)
    assert (change["change_bytes"], change["change_blocks"]) == (3942 * MIB, 0)
    assert [
        (one["kind"], one["line"], one["function"], one["change_bytes"] // MIB)
        for one in change["sites"]
    ] == [("line", 87, "log_loss", 3892), ("backward", None, None, 60), ("line", 30, "cache", -10)]
    kinds = {one["kind"] for one in answer["data"][0]["snapshot"]["sites"]}
    assert kinds == {"line", "backward", "before-recording"}
    (device,) = answer["data"][1]["snapshot"]["devices"]
    assert (device["inactive_split_bytes"], device["reserved_bytes"]) == (4 * MIB, 384 * MIB)
    assert device["inactive_split_share"] == pytest.approx(4 / 384)
    assert device["free_cache_bytes"] == 0
    assert "+3.8 GiB train.py:87 log_loss" in ctl("analyze", *pair)


def test_growth_is_a_watch(pair: tuple[str, str], ctl: Ctl) -> None:
    ctl("analyze --fail-on watch", *pair, code=3)
    ctl("analyze --fail-on watch --site cache", *pair)


@pytest.mark.parametrize(
    ("glob", "lines"),
    [
        ("train.py:87", [87]),
        ("train.py:87 log_loss", [87]),
        ("*/train.py", [87, 30]),
        ("log_*", [87]),
        ("before-*", [None]),
        ("main", []),
        ("", []),
    ],
)
@pytest.mark.requirement("M16")
def test_only_the_chosen_lines(
    pair: tuple[str, str], glob: str, lines: list[int | None], ctl: Ctl
) -> None:
    (log,) = ctl.data("analyze", pair[0], "--site", glob)
    assert [site["line"] for site in log["snapshot"]["sites"]] == lines
    assert log["snapshot"]["site_count"] == len(lines)


@pytest.mark.parametrize("device", [0, 1])
def test_two_processes_have_a_difference_and_no_growth(
    pair: tuple[str, str], device: int, tmp_path: Path, ctl: Ctl
) -> None:
    other = snapshot((9000, LOSS), at_s=99, device=device, base=1 << 45)
    files = [pair[0], write(tmp_path / "c.pickle", other)]
    change = ctl.json("analyze --fail-on watch", *files)["change"]
    assert (change["same_process"], change["same_device"]) == (False, device == 0)
    assert change["grown_count"] == 0
    assert change["sites"][0]["change_bytes"] == (9000 - 4092) * MIB
    compared = ctl("analyze", *files).partition("\n\n")[0]
    assert compared.count("note: ") == 1


def test_the_same_file_twice_differs_in_nothing(pair: tuple[str, str], ctl: Ctl) -> None:
    change = ctl.json("analyze", pair[0], pair[0])["change"]
    assert (change["order"], change["changed_count"], change["sites"]) == ("given", 0, [])


class Evil:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("ran",)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({"segments": [{"device": 0}] * 9})[:-9],
        pickle.dumps({"segments": [], "device_traces": Evil()}),
        pickle.dumps({"segments": {}}),
    ],
    ids=["truncated", "runs code", "wrong shape"],
)
def test_half_a_pair_is_exit_5(
    pair: tuple[str, str], content: bytes, tmp_path: Path, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (bad := tmp_path / "bad.pickle").write_bytes(content)
    said = ctl.both("analyze", pair[0], str(bad), code=5)
    ctl.both("analyze", pair[0], str(tmp_path / "missing.pickle"), code=5)
    assert said.err.startswith(f"gpuwatchctl: {bad}: ")
    assert [line.partition(": ")[0] for line in said.err.splitlines()[1:]] == ["hint", "see"]
    answer = ctl.json("analyze", pair[0], str(bad), code=5)
    assert answer["error"]["exit_code"] == 5
    assert "change" not in answer
    assert not Path("/ran").exists()
    assert not (tmp_path / "ran").exists()


def test_beside_a_log_a_snapshot_stands_alone(
    pair: tuple[str, str], tmp_path: Path, ctl: Ctl
) -> None:
    log = str(leak(tmp_path / "gpu.csv", minutes=6))
    answer = ctl.json("analyze --site log_loss", pair[0], log, code=None)
    assert "change" not in answer
    assert [len(one["snapshot"]["sites"]) if "snapshot" in one else None
            for one in answer["data"]] == [1, None]  # fmt: skip
    assert "--site" in ctl.err("analyze --site x", log, code=2)


def test_what_is_shown_is_bounded(tmp_path: Path, ctl: Ctl) -> None:
    blocks = [(1 + line % 7, stack(f"/a/x.py:{line}:f")) for line in range(1200)]
    files = [
        write(tmp_path / "a.pickle", snapshot(*blocks[:1], at_s=1)),
        write(tmp_path / "b.pickle", snapshot(*blocks, at_s=2)),
    ]
    change = ctl.json("analyze", *files)["change"]
    assert (change["changed_count"], len(change["sites"])) == (1199, 1000)
    assert len(ctl("analyze", *files).splitlines()) < 50


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        (stack(f"{TORCH}:1:a", "/x/site-packages/trl/t.py:2:b", "/x/torch/nn/m.py:3:c"),
         ("library", 2)),
        (stack("/usr/lib/python3.11/threading.py:1:run", f"{TORCH}:2:a"), ("library", 1)),
        (stack("<frozen runpy>:1:run", "/home/a/torch/train.py:2:a"), ("line", 2)),
        (stack("<eval_with_key>.0:1:forward", "<stdin>:2:a"), ("line", 2)),
        (stack("/tmp/torchinductor_a/x/y.py:1:call", "/tmp/ipykernel_7/8.py:2:a"), ("line", 2)),
        (stack(r"\x\Lib\site-packages\torch\a.py:1:f", r"\a.py:2:f"), ("line", 2)),
        (stack(), ("no-stack", None)),
    ],
)  # fmt: skip
def test_the_innermost_frame_of_the_user_counts(
    frames: Frames, expected: tuple[str, int | None]
) -> None:
    found = snapshot_reader.summary(snapshot((1, frames), at_s=1))
    assert [(site.kind, site.line) for site in found.sites] == [expected]


@pytest.mark.parametrize("expandable", [False, True])
def test_blocks_of_before_2_1_and_expandable_segments(*, expandable: bool) -> None:
    data = snapshot((5, LOSS), at_s=1)
    blocks = [
        {"size": MIB, "state": "active_allocated",
         "history": [{"addr": 1, "real_size": 9, "frames": LOSS}, {"frames": CACHE}]},
        {"size": 4 * MIB, "state": "active_pending_free", "history": []},
        {"size": MIB, "state": "inactive"},
    ]  # fmt: skip
    data["segments"][0] |= {"blocks": blocks, "is_expandable": expandable}
    found = snapshot_reader.summary(data)
    assert [(site.line, site.live_bytes) for site in found.sites] == [(87, MIB)]
    assert found.devices[0].inactive_split_bytes == (0 if expandable else MIB)
