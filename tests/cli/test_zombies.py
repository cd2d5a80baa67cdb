"""``zombies``: rows that fit, what was checked, one look without a daemon, exit codes, JSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.collect.host import procfs
from gpuwatchd.collect.host.procfs import Holder, Holders
from gpuwatchd.core.config import Config
from gpuwatchd.core.model import Holding, ProcessInfo
from gpuwatchd.store.live import LiveDevice
from gpuwatchd.view.queries import direct_holdings
from gpuwatchd.view.queries.current_view import View
from tests import making
from tests.cli import world
from tests.zombies.facts import info

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.calls import Ctl

GIB = making.GIB


def holding(kind: str = "idle", **changes: Any) -> Holding:
    values: dict[str, Any] = {
        "kind": kind,
        "device_uid": making.CARD.uid,
        "process": info(),
        "held_bytes": 24 * GIB,
        "since_s": time.time() - 7500,
        "evidence": "24.0 GiB unchanged, and the GPU did no work for it in any sample",
        "advice": ("ask alice; ending it (SIGTERM first) frees the memory", "a second way"),
        "gib_hours": 50.0,
    }
    return Holding(**{**values, **changes})


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> Callable[[Holders], None]:
    """Let nobody have device files open, or whom a test names."""

    def put(answer: Holders) -> None:
        monkeypatch.setattr(procfs, "scan", lambda: answer)

    put(Holders(looked=10))
    return put


def test_quiet_tells_rows_and_who_alone(ctl: Ctl) -> None:
    world.write(holdings=(holding(),))
    out = ctl("zombies --quiet")
    assert "unchanged" not in out
    assert "python train.py[4711] of alice" in out


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("extra", [(), ("--wide",), ("--ascii",)])
def test_every_line_fits(
    ctl: Ctl,
    monkeypatch: pytest.MonkeyPatch,
    nobody_else: Callable[[Holders], None],
    width: int,
    extra: tuple[str, ...],
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    long = info(name="x" * 20, group="torchrun 7f3a", rank=3, container="docker 0123456789ab")
    nobody_else(
        Holders(
            found=(Holder(pid=1, name="init", nodes=tuple(f"/dev/nvidia{n}" for n in range(16))),),
            looked=1, unreadable=3, whole=False,
        )
    )  # fmt: skip
    world.write(
        holdings=(
            holding(
                "orphaned-runner", since_s=time.time() - 300_000, cost_usd=1234.5, process=long
            ),
            holding("leaked-kv", gib_hours=None, held_bytes=None),
        )
    )
    out = ctl("zombies", *extra)
    assert max(map(len, out.splitlines())) <= width
    assert "orphaned-runner" in out


def test_a_daemon_that_sees_no_gpu_is_believed(ctl: Ctl) -> None:
    world.write(devices=(), problems=("nvml: no driver",))
    assert ctl.err("zombies").startswith("gpuwatchctl: no GPU found: nvml: no driver")


def test_only_the_gpu_that_is_named(ctl: Ctl) -> None:
    world.write(holdings=(holding(), holding("ghost", device_uid=world.SECOND.uid, process=None)))
    out = ctl("zombies --gpu 1")
    assert "ghost" in out
    assert "idle" not in out


def test_who_has_device_files_open_without_being_listed(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch, nobody_else: Callable[[Holders], None]
) -> None:
    people = {
        11: info(11, name="lost"),
        12: info(12, name="Xorg", framework="display"),
        13: info(13, name="nvidia-persistenced"),
        14: info(14, name="nvitop", argv=()),
    }

    class Known:
        def __init__(self, **_: Any) -> None:
            self.closed = False

        def processes(self, pids: list[int]) -> dict[int, ProcessInfo]:
            return {pid: people[pid] for pid in pids if pid in people}

        def close(self) -> None:
            self.closed = True

    monkeypatch.setattr(direct_holdings, "Host", Known)
    nodes = ("/dev/nvidia-uvm", "/dev/nvidia0")
    nobody_else(
        Holders(
            found=(
                *(Holder(pid=pid, name="x", nodes=nodes) for pid in (11, 12, 13, 4711, 99, 15)),
                Holder(pid=14, name="nvitop", nodes=("/dev/nvidia0", "/dev/nvidiactl")),
            ),
            looked=7,
            unreadable=3,
        )
    )
    world.write()
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert "open files of 3 processes of others: could not be inspected" in ctl("zombies")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    out = ctl("zombies")
    listed = [line for line in out.splitlines() if "/dev/nvidia" in line]
    assert [line.split("[")[0].strip() for line in listed] == ["lost", "nvitop"]
    assert "may compute" in listed[0]
    assert "open files of 3 processes of others: not visible without root" in out
    answer = ctl.json("zombies")
    assert [one["pid"] for one in answer["data"]["open_files"]["holders"]] == [11, 14]


@pytest.mark.parametrize("inside", [False, True])
def test_without_a_daemon_a_container_that_sees_nobody_calls_nothing_a_ghost(
    inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_holdings, "inside_container", lambda *_: inside)
    reading = msgspec.structs.replace(world.reading(making.CARD.uid, 30), util_pct=0.0)
    view = View("direct", 0.0, (LiveDevice(device=making.CARD, reading=reading, processes=()),))
    found = direct_holdings.idle_holdings(view, Config(), None)
    assert [one.kind for one in found] == ([] if inside else ["ghost"])


def test_a_dead_daemons_last_words_are_better_than_nothing(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWATCHD_SOURCES_ENABLED", "")
    world.write(stopped=True, holdings=(holding(),))
    out = ctl("zombies")
    assert "! the daemon was stopped" in out
    assert "idle" in out


def test_one_look_at_a_simulated_world_claims_nothing_of_local_pids(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWATCHD_SOURCES_ENABLED", "simulate:mixed-8x8")
    out = ctl("zombies")
    assert "idleness needs a running daemon" in " ".join(out.split())
    assert "checked, once" in out
