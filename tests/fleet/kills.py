"""A fleet's worker, killed again and again between a real Prometheus and a real Alertmanager.

What is looked at is what people get: the messages of Alertmanager, and whether one of its alerts
was ever missing in between.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tests.children import Child
from tests.conftest import need, ran
from tests.fleet.fake import running
from tests.fleet.servers import healthy
from tests.real.mailserver import free_port
from tests.real.stage import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.core.model import FloatArray

_WINDOW_S: Final = 5400
_TOTAL_MIB, _IDLE_MIB = 81920, 4
_JOB: Final = 4
"""GPUs of a job."""
_PROGRAM: Final = """
import sys
from gpuwatchd.daemon.main import main
from gpuwatchd.fleet import main as fleet, worker
fleet.LAG_S = worker.LAG_S = 1.0  # nobody writes late here
sys.exit(main(["fleet", "--config", sys.argv[1]]))
"""
_MAP: Final = """
used = "vram_used"
total = "vram_total"
unit = "MiB"
uuid = "uuid"
host = ["node"]
gpu = ["gpu"]
job = ["pod"]
namespace = ["team"]
"""
_MANAGER: Final = """
route:
  receiver: hook
  group_by: [alertname, cluster, namespace, job]
  group_wait: 200ms
  group_interval: 1s
  repeat_interval: 4h
receivers:
  - name: hook
    webhook_configs:
      - {{url: "http://127.0.0.1:{port}/hook", send_resolved: true, max_alerts: 0}}
"""


class Exporter:
    """Memory of many GPUs; every 25th job leaks until it is ended. It takes the messages, too."""

    def __init__(self, gpus: int, step_s: int) -> None:
        self.gpus, self.step_s, self.ended = gpus, step_s, False
        self.begun_s = time.time() - _WINDOW_S
        rng = np.random.default_rng(23)
        numbers = np.arange(gpus)
        self.leaks = (numbers // _JOB) % 25 == 0
        self._base = rng.integers(20_000, 40_000, gpus).astype(float)
        self._kind = numbers % 3
        self.labels = [
            f'uuid="GPU-{k:05}",node="n{k // 8}",gpu="{k % 8}",pod="train-{k // _JOB}",team="lab"'
            for k in range(gpus)
        ]
        self.messages: list[dict[str, Any]] = []

    def jobs(self) -> set[str]:
        """Return the jobs that leak."""
        return {f"train-{k // _JOB}" for k in np.flatnonzero(self.leaks)}

    def used(self, at_s: float) -> FloatArray:
        """Return MiB (gpus,)."""
        age_s = at_s - self.begun_s
        noise = (np.arange(self.gpus) * 7919 + int(at_s)) % 9
        wave = 3000.0 * ((age_s // 300 + np.arange(self.gpus)) % 2)
        out = self._base + np.choose(self._kind, [noise, noise + wave, np.zeros(self.gpus)])
        leak = self._base + noise + age_s / 60.0 * 200.0
        out = np.where(self.leaks, _IDLE_MIB if self.ended else leak, out)
        return np.asarray(np.rint(out))

    def lines(self, metric: str, values: FloatArray, at_s: float | None = None) -> Iterator[str]:
        """Return lines of one metric."""
        scraped = "" if at_s is None else ',instance="here",job="gpus"'
        when = "" if at_s is None else f" {at_s:.0f}"
        for labels, value in zip(self.labels, values.tolist(), strict=True):
            yield f"{metric}{{{labels}{scraped}}} {value:.0f}{when}\n"

    def page(self) -> bytes:
        """Return what is scraped."""
        totals = np.full(self.gpus, float(_TOTAL_MIB))
        lines = [
            *self.lines("vram_used", self.used(time.time())),
            *self.lines("vram_total", totals),
        ]
        return "".join(lines).encode()

    def past(self, file: Path) -> None:
        """Write what would have been scraped."""
        at = np.arange(self.begun_s, time.time(), self.step_s)
        with file.open("w") as out:
            for metric, shown in (("vram_used", at), ("vram_total", at[-2:])):
                out.write(f"# TYPE {metric} gauge\n")
                for at_s in shown:
                    full = np.full(self.gpus, float(_TOTAL_MIB))
                    values = full if metric == "vram_total" else self.used(at_s)
                    out.writelines(self.lines(metric, values, at_s))
            out.write("# EOF\n")


class Watch(threading.Thread):
    """Looks all the time which alerts Alertmanager has."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.stop, self.url = threading.Event(), url
        self.now: set[str] = set()
        self.ever: set[str] = set()
        self.missing = 0
        """How often one that had been there was not."""

    def run(self) -> None:
        """Look until told to stop."""
        while not self.stop.wait(0.1):
            try:
                with urllib.request.urlopen(f"{self.url}/api/v2/alerts", timeout=30) as answer:
                    alerts = json.load(answer)
            except OSError:  # of a machine that is busy: nothing was seen
                continue
            self.now = {json.dumps(alert["labels"], sort_keys=True) for alert in alerts}
            self.missing += len(self.ever - self.now)
            self.ever |= self.now


class _Server(ThreadingHTTPServer):
    # Alertmanager sends the messages of all groups at once. What is not let in waits for seconds,
    # and after ten of them it is sent again: two messages of what is one.
    request_queue_size = 1024


@contextmanager
def _served(exporter: Exporter) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(exporter.page())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            exporter.messages.append(json.loads(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with running(_Server(("127.0.0.1", 0), Handler), threading.Event()) as port:
        yield port


def _scraped(url: str) -> bool:
    with urllib.request.urlopen(f"{url}/api/v1/query?query=up%3D%3D1", timeout=10) as answer:
        return bool(json.load(answer)["data"]["result"])


@contextmanager
def _site(exporter: Exporter, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the addresses of a Prometheus that scrapes, with the past in it, and its manager."""
    exporter.past(folder / "past.om")
    data, words = folder / "data", ("promtool", "tsdb", "create-blocks-from", "openmetrics")
    ran((*words, folder / "past.om", data), check=True, timeout=600)
    with ExitStack() as stack:
        port = stack.enter_context(_served(exporter))
        log = stack.enter_context((folder / "log").open("wb"))
        (folder / "manager.yml").write_text(_MANAGER.format(port=port))
        scrape = {
            "job_name": "gpus",
            "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
            "relabel_configs": [{"target_label": "instance", "replacement": "here"}],
        }
        config = {"global": {"scrape_interval": "2s"}, "scrape_configs": [scrape]}
        (folder / "prometheus.yml").write_text(json.dumps(config))
        urls = []
        for program, file, store, more in (
            ("prometheus", "prometheus.yml", f"--storage.tsdb.path={data}", ()),
            ("prometheus-alertmanager", "manager.yml", f"--storage.path={folder}/am",
             ("--cluster.listen-address=",)),
        ):  # fmt: skip
            at = f"127.0.0.1:{free_port()}"
            words = (program, f"--config.file={folder}/{file}", store, *more)
            stack.enter_context(
                Child((*words, f"--web.listen-address={at}"), stdout=log, stderr=log)
            )
            urls.append(f"http://{at}")
        for url in urls:
            assert until(partial(healthy, url)), (folder / "log").read_text()
        # What was written before is no longer fresh.
        assert until(lambda: _scraped(urls[0])), (folder / "log").read_text()
        yield urls[0], urls[1]


def _worker(folder: Path, log: Any) -> Child[bytes]:
    return Child((sys.executable, "-c", _PROGRAM, folder / "fleet.toml"), stdout=log, stderr=log)


def kills(count: int, seed: int, *, gpus: int, step_s: int) -> dict[str, float]:
    """Kill a worker so often, at any moment; then end the jobs that leak. Return what came of it.

    ``missing``: looks at which an alert was not there; ``early``: messages that something is over
    before it was; ``again``: messages beyond one per job.
    """
    need(
        all(map(shutil.which, ("prometheus", "promtool", "prometheus-alertmanager"))),
        "prometheus or prometheus-alertmanager is not installed",
    )
    chance, exporter = random.Random(seed), Exporter(gpus, step_s)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        url, manager = stack.enter_context(_site(exporter, folder))
        (folder / "map.toml").write_text(_MAP)
        (folder / "fleet.toml").write_text(
            f'[fleet]\nurl = "{url}"\nmap = "map.toml"\nstep = "{step_s}s"\ncluster = "a"\n'
            f'window = "{_WINDOW_S}s"\nalertmanagers = ["{manager}"]\n'
            f'state = "{folder}/state.json"\n'
        )
        log = stack.enter_context((folder / "worker.log").open("ab"))

        def said() -> str:
            return (folder / "worker.log").read_text()[-3000:]

        watch, begun_s = Watch(manager), time.monotonic()
        watch.start()
        stack.callback(watch.stop.set)
        with _worker(folder, log) as worker:
            opened = until(lambda: len(watch.now) >= len(exporter.jobs()), 300)
            assert opened, f"{len(watch.now)} of {len(exporter.jobs())} alerts; {said()}"
            first_s = time.monotonic() - begun_s
            worker.send_signal(signal.SIGKILL)
        for _ in range(count - 1):
            with _worker(folder, log) as worker:
                # A start takes about as long, and the first round of all GPUs.
                time.sleep(chance.uniform(0.2, 1.5 * first_s))
                worker.send_signal(signal.SIGKILL)
        early = sum(_over(message) for message in exporter.messages)
        again = len(exporter.messages) - len(exporter.jobs())
        missing = watch.missing
        with _worker(folder, log) as worker:
            watch.stop.set()
            exporter.ended = True
            over = until(lambda: _ended(exporter) >= exporter.jobs(), 300)
            assert over, f"{len(_ended(exporter))} are over; {said()}"
            worker.terminate()
            assert worker.wait(30) == 0, said()
        assert "Traceback" not in said()
    return {
        "gpus": gpus,
        "kills": count,
        "jobs": len(exporter.jobs()),
        "alerts": len(watch.ever),
        "missing": missing,
        "early": early,
        "again": again,
        "over": len(_ended(exporter)),
        "first_s": round(first_s, 1),
    }


def _over(message: dict[str, Any]) -> bool:
    return any(alert["status"] == "resolved" for alert in message["alerts"])


def _ended(exporter: Exporter) -> set[str]:
    return {
        message["groupLabels"]["job"]
        for message in exporter.messages
        if message["status"] == "resolved"
    }
