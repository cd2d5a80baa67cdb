"""Which hosts are whose, what moves when the number of workers changes, and how it is written."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, cast

import pytest
from msgspec.structs import replace

from gpuwatchd.daemon.main import main
from gpuwatchd.fleet import config
from gpuwatchd.fleet.config import Shard
from gpuwatchd.fleet.rings import Rings
from gpuwatchd.fleet.worker import Worker
from tests.fleet.fake import fleet
from tests.fleet.test_config import LOCAL, write
from tests.fleet.test_rounds import START, Played, at, flat

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.fleet.client import Client

HOSTS = [f"node-{k:05}" for k in range(4000)]


def owners(of: int) -> dict[str, int]:
    found = {}
    for host in HOSTS:
        (found[host],) = (k for k in range(1, of + 1) if Shard(k, of).owns(host))
    return found


def test_each_host_has_one_owner_the_same_everywhere_and_few_move() -> None:
    four, five = owners(4), owners(5)
    # Of each of these a change would be a change of owner for whoever updates one worker only.
    assert [four[host] for host in HOSTS[:8]] == [3, 1, 2, 4, 1, 1, 4, 4]
    assert all(800 < many < 1200 for many in Counter(four.values()).values())
    moved = {host for host in HOSTS if four[host] != five[host]}
    assert 600 < len(moved) < 1000  # a fifth
    assert {five[host] for host in moved} == {5}


@pytest.mark.parametrize(
    ("words", "name", "expected"),
    [
        ("1/1", "x", "1/1"), ("4/4", "x", "4/4"), ("hostname/4", "fleet-0", "1/4"),
        ("hostname/4", "gpuwatchd-fleet-3", "4/4"), ("hostname/12", "a-10", "11/12"),
    ],
)  # fmt: skip
def test_an_ordinal_counts_from_0_and_a_shard_from_1(words: str, name: str, expected: str) -> None:
    assert str(config.parse_shard(words, name)) == expected


@pytest.mark.parametrize(
    "words",
    ["", "1", "0/4", "5/4", "1/0", "1/1025", "-1/4", "a/b", "hostname/3", "hostname/0", "1/4/4"],
)
def test_what_is_no_shard_is_refused(words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected|shard|number"):
        config.parse_shard(words, "fleet-3")
    file = write(tmp_path, f"[fleet]\n{LOCAL}")
    argv = ["fleet", "--config", str(file), "--once", "--shard", words]
    assert main(argv) == 2
    write(tmp_path, f"[fleet]\n{LOCAL}shard = '{words}'")
    if words != "hostname/3":  # this machine's name is its own
        assert main(["fleet", "--config", str(file), "--once"]) == 78


def test_the_command_line_wins(tmp_path: Path) -> None:
    file = write(tmp_path, f"[fleet]\n{LOCAL}shard = '2/4'")
    assert config.load(file).shard == Shard(2, 4)
    assert config.load(file, "3/4").shard == Shard(3, 4)


def test_the_shards_share_the_gpus_and_each_host_stays_whole() -> None:
    curves = {
        (f"GPU-{host}-{k}", f"n{host}" if host else "", "p"): flat()
        for host in range(9)
        for k in range(4)
    }
    found: list[set[str]] = []
    for number in (1, 2, 3):
        settings, played = replace(fleet(), shard=Shard(number, 3)), Played(curves, START)
        worker = Worker(settings, cast("Client", played), sleep=lambda _: None)
        worker.round(at(400))
        worker.round(at(401))
        found.append({gpu.uuid for gpu in worker.rings.gpus})
        hosts = Counter(gpu.host for gpu in worker.rings.gpus if gpu.host)
        assert set(hosts.values()) <= {4}
        # What is another's is neither unknown nor dropped.
        assert (worker.rings.unknown, worker.rings.dropped) == (0, {})
        # Of its own alone is the past asked for.
        asked = [query for query in played.asked if "UUID=~" in query]
        assert sum(query.count("GPU-") for query in asked) == len(found[-1])
    assert set.union(*found) == {uuid for uuid, _, _ in curves}
    assert sum(map(len, found)) == len(curves)


def test_instances_of_a_card_stay_with_its_host() -> None:
    for number in (1, 2):
        rings = Rings(fleet().map, 60, 30, Shard(number, 2))
        rows = [
            rings.row_of({"UUID": "GPU-a", "Hostname": "n1", "GPU_I_ID": str(k)}, add=1)
            for k in range(7)
        ]
        assert rows == ([*range(7)] if Shard(number, 2).owns("n1") else [None] * 7)
