"""A fleet over a real Prometheus, filled with the past: the verdicts are those of the daemon."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
import urllib.request
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
from tests.real.mailserver import free_port
from tests.real.stage import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuwatchd.core.model import FloatArray

pytestmark = pytest.mark.real_prometheus
GPUS, MINUTES, TOTAL_MIB, RESERVED_MIB = 50, 420, 81920, 640
_DEAD, _SHIFTED = 48, 49
"""One whose exporter has died, and one that another job was given."""


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
    """A Prometheus with the past in it."""

    def __init__(self, port: int, end_s: int, curves: FloatArray) -> None:
        self.url, self.end_s, self.curves = f"http://127.0.0.1:{port}", end_s, curves

    def at_s(self, back: int) -> float:
        """Return when the round is due whose last minute is so far before the last of all."""
        return self.end_s - 60.0 * back + LAG_S


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    need(shutil.which("prometheus") and shutil.which("promtool"), "prometheus is not installed")
    folder = tmp_path_factory.mktemp("prometheus")
    curves, end_s = _curves(), int(time.time()) // 60 * 60
    at = end_s - 60 * np.arange(MINUTES - 1, -1, -1)
    with (folder / "past.om").open("w") as file:
        for metric, values in (
            ("DCGM_FI_DEV_FB_USED", curves),
            ("DCGM_FI_DEV_FB_FREE", TOTAL_MIB - RESERVED_MIB - curves),
            ("DCGM_FI_DEV_FB_RESERVED", np.full_like(curves, RESERVED_MIB)),
        ):
            file.write(f"# TYPE {metric} gauge\n")
            for k in range(GPUS):
                for i in range(MINUTES - (20 if k == _DEAD else 0)):
                    pod = "later" if k == _SHIFTED and i >= 300 else "train"
                    labels = f'UUID="GPU-{k:04}",Hostname="n{k // 8}",gpu="{k % 8}",pod="{pod}"'
                    file.write(f"{metric}{{{labels}}} {values[k, i]:.0f} {at[i]}\n")
        file.write("# EOF\n")
    data = folder / "data"
    ran(
        ("promtool", "tsdb", "create-blocks-from", "openmetrics", folder / "past.om", data),
        check=True,
    )
    (folder / "prometheus.yml").write_text("scrape_configs: []\n")
    port = free_port()
    words = (
        "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={data}",
        f"--web.listen-address=127.0.0.1:{port}",
    )  # fmt: skip
    with (folder / "log").open("wb") as log, Child(words, stdout=log, stderr=log):
        filled = Filled(port, end_s, curves)
        assert until(lambda: _ready(filled.url)), (folder / "log").read_text()
        yield filled


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _worker(server: Filled, folder: Path) -> tuple[Worker, Judge]:
    file = folder / "fleet.toml"
    place = f"state = '{folder / 'fleet.json'}'"
    file.write_text(f"[fleet]\nurl = '{server.url}'\n{place}\nbudget = {{series = 20}}\n")
    fleet = config.load(file)
    return Worker(fleet, Client(fleet)), Judge(fleet.detection, fleet.policy)


def test_verdicts_are_those_of_the_daemon(prometheus: Filled, tmp_path: Path) -> None:
    worker, judge = _worker(prometheus, tmp_path)
    worker.round(prometheus.at_s(5))
    judge.round(worker.rings)
    settings = config.load(tmp_path / "fleet.toml").detection
    slots, expected = worker.rings.slots, {}
    assert len(worker.rings.gpus) == GPUS - 1
    t_s = np.arange(slots, dtype=np.float64)
    t_s = t_s * 60.0 + (prometheus.end_s - 60 * (slots + 4))
    for row, gpu in enumerate(worker.rings.gpus):
        k = int(gpu.uuid[4:])
        if k in {_DEAD, _SHIFTED}:
            continue
        used = prometheus.curves[k, MINUTES - slots - 5 : -5] * 2.0**20
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
    assert judge.findings == expected
    assert worker.rings.dropped == {}


def test_rounds_open_alerts_and_a_dead_exporter_or_another_job_opens_none(
    prometheus: Filled, tmp_path: Path
) -> None:
    worker, judge = _worker(prometheus, tmp_path)
    for back in range(15, -1, -1):
        worker.round(prometheus.at_s(back))
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
    prometheus: Filled, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _worker(prometheus, tmp_path)
    assert main(["fleet", "--config", str(tmp_path / "fleet.toml"), "--once"]) == 0
    shown: Any = msgspec.json.decode(capsys.readouterr().out)
    assert (shown["verb"], shown["source"], shown["data"]["gpus"]) == ("fleet", "prometheus", 49)
    found = {one["uuid"] for one in shown["data"]["verdicts"] if one["verdict"]["leak"]}
    assert {f"GPU-{k:04}" for k in range(0, GPUS, 7) if k not in {_DEAD, _SHIFTED}} <= found


def test_who_reads_no_further_gets_no_complaint(prometheus: Filled, tmp_path: Path) -> None:
    _worker(prometheus, tmp_path)
    call = f"{sys.executable} -m gpuwatchd fleet --config {tmp_path}/fleet.toml --once"
    done = ran(("bash", "-c", f"{call} | true; exit ${{PIPESTATUS[0]}}"), timeout=60)
    assert (done.returncode, done.stderr) == (141, "")


def test_rounds_go_on_until_it_is_told_to_stop(prometheus: Filled, tmp_path: Path) -> None:
    _worker(prometheus, tmp_path)
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
            assert fleet_state.read(state).running(time.time())
            one.send_signal(signal.SIGTERM)
            assert one.wait(30) == 0
        assert fleet_state.read(state).stopped
    assert gpus == GPUS - 1
    assert log.read_text() == ""
