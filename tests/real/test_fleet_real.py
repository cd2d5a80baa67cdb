"""A fleet over real servers, filled with the past: the verdicts are those of the daemon."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from gpuwatchd.analysis import verdict
from gpuwatchd.core.model import Series, Subject
from gpuwatchd.daemon.main import main
from gpuwatchd.fleet import config
from gpuwatchd.fleet.client import Client
from gpuwatchd.fleet.judging import Judge, series_of
from gpuwatchd.fleet.worker import LAG_S, Worker
from gpuwatchd.view.queries import fleet_state
from tests.children import Child
from tests.conftest import need, ran
from tests.fleet import servers
from tests.real.stage import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuwatchd.core.model import FloatArray

pytestmark = pytest.mark.real_prometheus
GPUS, MINUTES, TOTAL_MIB, RESERVED_MIB = 50, 420, 81920, 640
_GAPS, _DEAD, _SHIFTED = 47, 48, 49
"""One that was not always measured, one whose exporter has died, one that another job was given."""
_MISSED = (350, 360, 361, 362)


def _curves() -> FloatArray:
    """Return MiB (GPUS, MINUTES): every seventh leaks, the others stand, breathe or are idle."""
    rng = np.random.default_rng(22)
    t = np.arange(MINUTES)
    out = np.empty((GPUS, MINUTES))
    for k in range(GPUS):
        base = rng.integers(20_000, 40_000)
        noise = rng.integers(-8, 9, MINUTES)
        kinds = (
            base + noise + (50 + k) * np.maximum(t - 150, 0) * 0.4,
            np.full(MINUTES, base),
            base + noise,
            base + 4000.0 * ((t // 15) % 2) + noise,
            np.full(MINUTES, 4),
            base + 3000.0 * (t > 200) + noise,
            base + np.minimum(30 * t, 2400) + noise,
        )
        out[k] = kinds[k % 7]
    out[_SHIFTED, :300], out[_SHIFTED, 300:] = 60_000, 12_000
    return np.rint(out)


class Filled:
    """A server with the past in it."""

    def __init__(self, running: servers.Server, end_s: int, curves: FloatArray) -> None:
        self.running, self.end_s, self.curves = running, end_s, curves

    def at_s(self, back: int) -> float:
        """Return when the round is due whose last minute is so far before the last of all."""
        return self.end_s - 60.0 * back + LAG_S


@pytest.fixture(scope="module", params=servers.BINARIES)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Filled]:
    need(shutil.which(servers.BINARIES[request.param]), f"{request.param} is not installed")
    curves, end_s = _curves(), int(time.time()) // 60 * 60
    at_s: FloatArray = np.arange(1.0 - MINUTES, 1.0)
    at_s = at_s * 60.0 + end_s
    with servers.running(request.param, tmp_path_factory.mktemp(request.param)) as running:
        names: list[dict[str, str]] = []
        rows: list[FloatArray] = []
        for metric, values in (
            ("DCGM_FI_DEV_FB_USED", curves),
            ("DCGM_FI_DEV_FB_FREE", TOTAL_MIB - RESERVED_MIB - curves),
            ("DCGM_FI_DEV_FB_RESERVED", curves * 0 + RESERVED_MIB),
        ):
            named = [
                {"__name__": metric, "UUID": f"GPU-{k:04}", "Hostname": f"n{k // 8}"}
                | {"gpu": f"{k % 8}", "pod": "train"}
                for k in range(GPUS)
            ]
            names += [*named, named[_SHIFTED] | {"pod": "later"}]
            present, later = values.copy(), np.full((1, MINUTES), np.nan)
            later[0, 300:] = values[_SHIFTED, 300:]
            present[_GAPS, list(_MISSED)] = np.nan
            present[_DEAD, -20:] = present[_SHIFTED, 300:] = np.nan
            rows += [present, later]
        servers.fill(running, names, at_s, np.concatenate(rows))
        yield Filled(running, end_s, curves)


def _worker(server: Filled, folder: Path) -> tuple[Worker, Judge]:
    file = folder / "fleet.toml"
    place = f"state = '{folder / 'fleet.json'}'"
    file.write_text(f"[fleet]\nurl = '{server.running.url}'\n{place}\nbudget = {{series = 20}}\n")
    fleet = config.load(file)
    return Worker(fleet, Client(fleet)), Judge(fleet.detection, fleet.policy)


def test_verdicts_are_those_of_the_daemon(server: Filled, tmp_path: Path) -> None:
    worker, judge = _worker(server, tmp_path)
    worker.round(server.at_s(5))
    judge.round(worker.rings)
    settings = config.load(tmp_path / "fleet.toml").detection
    slots, expected = worker.rings.slots, {}
    assert len(worker.rings.gpus) == GPUS - 1
    t_s = np.arange(slots, dtype=np.float64)
    t_s = t_s * 60.0 + (server.end_s - 60 * (slots + 4))
    for row, gpu in enumerate(worker.rings.gpus):
        k = int(gpu.uuid[4:])
        if k in {_GAPS, _DEAD, _SHIFTED}:
            continue
        used = server.curves[k, MINUTES - slots - 5 : -5] * 2.0**20
        mine = series_of(worker.rings, row)
        np.testing.assert_array_equal(mine.t_s, t_s)
        np.testing.assert_array_equal(mine.used_bytes, used)
        daemons = Series(
            subject=Subject(device_uid=gpu.uuid),
            t_s=t_s,
            used_bytes=used,
            limit_bytes=(TOTAL_MIB - RESERVED_MIB) * 2.0**20,
            total_bytes=TOTAL_MIB * 2.0**20,
        )
        finding = verdict.judge(daemons, settings)
        if finding.tier != "none":
            expected[row] = finding
    assert {k for k in range(GPUS) if k % 7 == 0} - {_DEAD, _SHIFTED} <= {
        int(worker.rings.gpus[row].uuid[4:]) for row in expected
    }
    judge.findings.pop(_row_of(worker, _GAPS), None)
    assert judge.findings == expected
    assert worker.rings.dropped == {}
    assert worker._client.backend == server.running.backend


def _row_of(worker: Worker, k: int) -> int:
    return next(row for row, gpu in enumerate(worker.rings.gpus) if gpu.uuid == f"GPU-{k:04}")


def test_a_value_counts_for_two_steps_in_each_server(server: Filled, tmp_path: Path) -> None:
    worker, _ = _worker(server, tmp_path)
    worker.round(server.at_s(0))
    t_s, used = worker.rings.series(_row_of(worker, _GAPS))
    minutes = (t_s - server.end_s) / 60 + MINUTES - 1
    expected = server.curves[_GAPS].copy()
    expected[[350, 360, 361]] = expected[[349, 359, 359]]
    assert set(range(MINUTES - minutes.size - 1, MINUTES)) - set(minutes) == {362}
    np.testing.assert_array_equal(used, expected[minutes.astype(int)] * 2.0**20)


def test_the_newest_value_is_had_at_once(server: Filled, tmp_path: Path) -> None:
    """VictoriaMetrics answers with what was known half a minute ago, unless told otherwise."""
    worker, _ = _worker(server, tmp_path)
    worker._client.identify()
    now_s = float(int(time.time()))
    at_s = now_s - np.arange(600.0, -1.0, -1.0)
    servers.fill(server.running, [{"__name__": "clock", "test": tmp_path.name}], at_s, at_s[None])
    query = f'clock{{test="{tmp_path.name}"}}'
    assert [value for _, value in worker._client.query(query, now_s - 5)] == [now_s - 5]
    (found,) = worker._client.query_range(query, now_s - 542, now_s - 2, 60.0)
    np.testing.assert_array_equal(found.values, found.at_s)
    assert found.at_s[-1] == now_s - 2


def test_rounds_open_alerts_and_a_dead_exporter_or_another_job_opens_none(
    server: Filled, tmp_path: Path
) -> None:
    worker, judge = _worker(server, tmp_path)
    for back in range(15, -1, -1):
        worker.round(server.at_s(back))
        judge.round(worker.rings)
    rows = {int(gpu.uuid[4:]): row for row, gpu in enumerate(worker.rings.gpus)}
    # Its exporter was dead when the worker began: nothing is known of it.
    assert _DEAD not in rows
    leaks = {rows[k] for k in range(0, GPUS, 7) if k not in {_DEAD, _SHIFTED}}
    firing = {row for row, alert in judge.alerts.items() if alert.state == "firing"}
    assert leaks <= firing
    shifted = rows[_SHIFTED]
    assert worker.rings.gpus[shifted].job == "later"
    held = series_of(worker.rings, shifted).used_bytes
    np.testing.assert_array_equal(held, np.full(MINUTES - 300, 12_000 * 2.0**20))
    assert shifted not in judge.findings
    assert worker.failures == {}


def test_once_prints_one_answer(
    server: Filled, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _worker(server, tmp_path)
    assert main(["fleet", "--config", str(tmp_path / "fleet.toml"), "--once"]) == 0
    shown: Any = msgspec.json.decode(capsys.readouterr().out)
    assert (shown["verb"], shown["source"], shown["data"]["gpus"]) == ("fleet", "prometheus", 49)
    found = {one["uuid"] for one in shown["data"]["verdicts"] if one["verdict"]["leak"]}
    assert {f"GPU-{k:04}" for k in range(0, GPUS, 7) if k not in {_DEAD, _SHIFTED}} <= found


def test_who_reads_no_further_gets_no_complaint(server: Filled, tmp_path: Path) -> None:
    _worker(server, tmp_path)
    call = f"{sys.executable} -m gpuwatchd fleet --config {tmp_path}/fleet.toml --once"
    done = ran(("bash", "-c", f"{call} | true; exit ${{PIPESTATUS[0]}}"), timeout=60)
    assert (done.returncode, done.stderr) == (141, "")


def test_rounds_go_on_until_it_is_told_to_stop(server: Filled, tmp_path: Path) -> None:
    _worker(server, tmp_path)
    words = (sys.executable, "-m", "gpuwatchd", "fleet", "--config", tmp_path / "fleet.toml")
    log, gpus = tmp_path / "log", 0
    for number in (1, 2):
        shard = ("--dry-run", "--shard", f"{number}/2")
        state = tmp_path / f"fleet-{number}-of-2.json"
        with (
            log.open("ab") as err,
            Child([*words, *shard], stdout=subprocess.PIPE, stderr=err) as one,
        ):
            assert one.stdout is not None
            gpus += msgspec.json.decode(one.stdout.readline())["data"]["gpus"]
            assert until(state.exists)
            assert fleet_state.load([state])[0][0].running(time.time())
            one.send_signal(signal.SIGTERM)
            assert one.wait(30) == 0
        assert fleet_state.read(state).stopped
    assert gpus == GPUS - 1
    lines = [line.split()[2:4] for line in log.read_text().splitlines()]
    assert lines == [["INFO", "start"], ["INFO", "past"], ["INFO", "stopped"]] * 2
