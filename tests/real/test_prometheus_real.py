"""The page, the rules and the dashboard with a real Prometheus and Alertmanager, on loopback."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.view import fleet_metrics, metrics
from gpuwatchd.view.queries.fleet_state import FleetRoundState
from tests.children import Child
from tests.cli import world
from tests.conftest import ROOT, need, ran
from tests.real.mailserver import free_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.real_prometheus
CONTRIB = ROOT / "contrib"
RULES = CONTRIB / "prometheus" / "gpuwatchd.yml"
WORKER = RULES.with_name("fleet.yml")
DASHBOARD = CONTRIB / "grafana" / "gpuwatchd.json"
FLEET = CONTRIB / "alertmanager" / "fleet.yml"
ROUTE = ("amtool", "config", "routes", "test", f"--config.file={FLEET}", "--verify.receivers")
TOOLS = ("prometheus", "promtool", "prometheus-alertmanager", "amtool", "prometheus-node-exporter")
WITHIN_S = 90.0
_NAME = re.compile(r"\bgpuwatchd_\w+")


@pytest.fixture(autouse=True)
def _tools() -> None:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    need(not missing, f"not installed: {', '.join(missing)}")


def asked(port: int, path: str, **query: str) -> Any:
    """Return the data of an answer; None where nobody answers yet."""
    url = f"http://127.0.0.1:{port}{path}?{urllib.parse.urlencode(query)}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)
    except OSError:
        return None


def until(what: Callable[[], Any], why: Path) -> Any:
    end_s = time.monotonic() + WITHIN_S
    while not (found := what()):
        assert time.monotonic() < end_s, why.read_text(errors="replace")[-2000:]
        time.sleep(0.2)
    return found


def expressions() -> list[str]:
    """Return every expression of the dashboard, with any host and GPU."""
    board = json.loads(DASHBOARD.read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert found
    return [expr.replace("$host", ".*").replace("$gpu", ".*") for expr in found]


def test_the_page_is_valid_for_promtool() -> None:
    state = world.odd('a"b\\c\n')
    state = msgspec.structs.replace(state, alerts=(world.firing(),))
    page = metrics.render(state, host="h").decode()
    done = ran(["promtool", "check", "metrics"], input=page)
    assert done.returncode == 0, done.stderr + done.stdout


def test_rules_and_settings_are_valid_and_do_what_they_say() -> None:
    for words in (
        ("promtool", "check", "rules", RULES),
        ("promtool", "test", "rules", RULES.with_name("gpuwatchd_test.yml")),
        ("promtool", "check", "rules", WORKER),
        ("promtool", "test", "rules", WORKER.with_name("fleet_test.yml")),
        ("promtool", "check", "config", RULES.with_name("prometheus.yml")),
        ("amtool", "check-config", CONTRIB / "alertmanager" / "alertmanager.yml"),
        ("amtool", "check-config", FLEET),
        (*ROUTE, "pager", "gpuwatchd=fleet", "severity=critical", "job=train"),
        (*ROUTE, "gpus", "gpuwatchd=fleet", "severity=warning", "hostname=n1", "uuid=GPU-1"),
        (*ROUTE, "nobody", "gpuwatchd=fleet", "severity=critical", "namespace=sandbox"),
    ):
        done = ran(words)
        assert done.returncode == 0, done.stderr + done.stdout


def test_every_expression_of_the_dashboard_is_valid(tmp_path: Path) -> None:
    file = tmp_path / "dashboard.yml"
    rules = [
        {"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(expressions())
    ]
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = ran(["promtool", "check", "rules", file])
    assert done.returncode == 0, done.stderr + done.stdout


def test_every_name_in_rules_and_dashboard_is_in_the_page() -> None:
    state = world.state(holdings=world.odd().holdings)
    known = set(_NAME.findall(metrics.render(state, host="h").decode()))
    known |= set(metrics.DIALECTS[""].gauges) | set(metrics.HELP)
    used = {*_NAME.findall(RULES.read_text()), *_NAME.findall(DASHBOARD.read_text())}
    used -= {"gpuwatchd_test"}
    assert used <= known
    assert used >= set(metrics.HELP) - {"gpuwatchd_build_info"}


def test_every_name_in_the_rules_for_a_fleets_worker_is_in_its_page() -> None:
    found = FleetRoundState(at_s=1.0, failures={"round 503": 1})
    page = fleet_metrics.render(found, shard="1/1", rounds=1, judged=1, round_s=1.0).decode()
    used = set(_NAME.findall(WORKER.read_text())) - {"gpuwatchd_fleet"}
    assert used
    assert used <= set(_NAME.findall(page))


@pytest.mark.slow
def test_a_leak_is_scraped_fires_and_reaches_alertmanager(tmp_path: Path) -> None:
    ours, theirs, managers = free_port(), free_port(), free_port()
    settings = tmp_path / "gpuwatchd.toml"
    settings.write_text(
        f'[metrics]\nlisten = "127.0.0.1:{ours}"\n[policy]\nchannels = []\n'
        '[sources]\nenabled = ["simulate"]\n'
        '[sources.simulate]\nscenario = "one-leak"\nspeed = 120\n'
        '[daemon]\ninterval = "0.1s"\n'
    )
    scrape = {"job_name": "gpuwatchd", "static_configs": [{"targets": [f"127.0.0.1:{ours}"]}]}
    alertmanagers = [{"static_configs": [{"targets": [f"127.0.0.1:{managers}"]}]}]
    (tmp_path / "prometheus.yml").write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "scrape_configs": [scrape],
                "rule_files": [str(RULES)],
                "alerting": {"alertmanagers": alertmanagers},
            }
        )
    )
    shutil.copy(CONTRIB / "alertmanager" / "alertmanager.yml", tmp_path)
    log = tmp_path / "log"
    with (
        log.open("wb") as said,
        Child(
            [sys.executable, "-m", "gpuwatchd", "--config", str(settings)],
            stderr=said,
            stdout=said,
        ),
        Child(
            ["prometheus-alertmanager", f"--config.file={tmp_path}/alertmanager.yml",
             f"--storage.path={tmp_path}/am", f"--web.listen-address=127.0.0.1:{managers}",
             "--cluster.listen-address="],
            stderr=said, stdout=said,
        ),
        Child(
            ["prometheus", f"--config.file={tmp_path}/prometheus.yml",
             f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address=127.0.0.1:{theirs}"],
            stderr=said, stdout=said,
        ),
    ):  # fmt: skip
        until(lambda: asked(managers, "/api/v2/alerts", filter='alertname="GpuMemoryLeak"'), log)
        (alert, *_) = asked(managers, "/api/v2/alerts", filter='alertname="GpuMemoryLeak"')
        assert {"uuid", "gpu", "host", "pid", "user", "severity"} <= alert["labels"].keys()
        assert not {"value", "quantile", "pattern"} & alert["labels"].keys()
        for expr in expressions():
            answer = asked(theirs, "/api/v1/query", query=expr)
            assert answer["status"] == "success"
        for name in ("gpuwatchd_gpu_memory_used_bytes", "gpuwatchd_oom_eta_seconds"):
            assert asked(theirs, "/api/v1/query", query=name)["data"]["result"], name
        targets = asked(theirs, "/api/v1/targets")["data"]["activeTargets"]
        assert [one["health"] for one in targets] == ["up"]


@pytest.mark.slow
def test_node_exporter_shows_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "textfile"
    folder.mkdir()
    (folder / "gpuwatchd.prom").write_bytes(metrics.render(world.state(), host="h"))
    port, log = free_port(), tmp_path / "log"
    words = [
        "prometheus-node-exporter", "--collector.disable-defaults", "--collector.textfile",
        f"--collector.textfile.directory={folder}", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip

    def shown() -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
                return str(page.read().decode())
        except OSError:
            return ""

    with log.open("wb") as said, Child(words, stdout=said, stderr=said):
        page = until(shown, log)
        assert "node_textfile_scrape_error 0" in page
        assert "gpuwatchd_leak_growth_bytes_per_second{" in page
