"""What the tests of serving engines share: a clock, a configuration, and waiting for answers."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import psutil

from gpuwatchd.core.config import Config
from gpuwatchd.core.config.schema import EndpointsSection, Seconds
from gpuwatchd.core.model import ProcessInfo, ProcessKey
from tests.children import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gpuwatchd.pipeline.engine_readings import Serving
    from tests.endpoints.serve import Site

METRICS = (
    b'vllm:num_requests_running{model_name="m"} 0\nvllm:num_requests_waiting{model_name="m"} 0\n'
    b'vllm:kv_cache_usage_perc{model_name="m"} 0.125\n'
)
TWO = b'{"models":[{"name":"a"},{"name":"b"}]}'


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def config(*urls: str, **changes: object) -> Config:
    section = EndpointsSection(urls=urls, every=Seconds(15), timeout=Seconds(2))
    return Config(endpoints=msgspec.structs.replace(section, **changes))


def until(what: Callable[[], object], seconds: float = 60.0) -> None:
    end_s = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.01)


def stepped(one: Serving, *who: ProcessInfo, answers: int = 1) -> None:
    """Step until a server has answered (or failed to) so many times more."""
    had = sum(len(one.recent(reading.url)) for reading in one.readings)

    def enough() -> bool:
        one.step(who, 0.0)
        return sum(len(one.recent(reading.url)) for reading in one.readings) >= had + answers

    until(enough)


@contextmanager
def started(tmp_path: Path, program: str, *arguments: str) -> Iterator[ProcessKey]:
    """Run a program of this name that does nothing, and return its identity."""
    script = tmp_path / program
    script.write_text("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    with Child([sys.executable, str(script), *arguments], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            born_s = psutil.Process(process.pid).create_time()
            yield ProcessKey(pid=process.pid, started_at_s=born_s)
        finally:
            process.kill()


def vllm(key: ProcessKey, **changes: object) -> ProcessInfo:
    info = ProcessInfo(key=key, name="python", framework="vLLM")
    return msgspec.structs.replace(info, **changes)


def port(site: Site) -> str:
    return site.url.rpartition(":")[2]
