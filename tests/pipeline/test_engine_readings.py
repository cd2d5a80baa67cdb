"""Who is asked, how often, and what becomes of the answers."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest

from gpuwatchd.analysis.frameworks.engine_addresses import Launch
from gpuwatchd.core.config import Config
from gpuwatchd.core.config.schema import EndpointsSection, Seconds
from gpuwatchd.core.model import ProcessInfo, ProcessKey, ServedModel
from gpuwatchd.pipeline import engine_readings
from gpuwatchd.pipeline.engine_readings import FIND_AGAIN_S, GONE_S, MOST, Ask, Asker, Serving
from gpuwatchd.pipeline.state import Settings, State
from gpuwatchd.store import live
from tests.children import Child
from tests.endpoints.serve import Page, serving
from tests.host.world import Clock
from tests.making import GIB, present, sample
from tests.pipeline.play import Script
from tests.pipelines import make_pipeline
from tests.test_daemon import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.endpoints.serve import Site

    Served = tuple[Site, ProcessKey]

METRICS = (
    b'vllm:num_requests_running{model_name="m"} 0\nvllm:num_requests_waiting{model_name="m"} 0\n'
    b'vllm:kv_cache_usage_perc{model_name="m"} 0.125\n'
)
TWO = b'{"models":[{"name":"a"},{"name":"b"}]}'


def config(*urls: str, **changes: object) -> Config:
    section = EndpointsSection(urls=urls, every=Seconds(15), timeout=Seconds(2))
    return Config(endpoints=msgspec.structs.replace(section, **changes))


def stepped(one: Serving, *who: ProcessInfo, answers: int = 1) -> None:
    """Step until a server has answered (or failed to) so many times more."""
    had = sum(len(one.engines.recent(reading.url)) for reading in one.engines.readings)

    def enough() -> bool:
        one.step(who)
        return (
            sum(len(one.engines.recent(reading.url)) for reading in one.engines.readings)
            >= had + answers
        )

    wait_for(enough)


@contextmanager
def started(tmp_path: Path, program: str, *arguments: str) -> Iterator[ProcessKey]:
    """Run a program of this name that does nothing, and return its identity."""
    script = tmp_path / program
    script.write_text("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    with Child([sys.executable, str(script), *arguments], stdout=subprocess.PIPE) as process:
        try:
            present(process.stdout).readline()
            born_s = psutil.Process(process.pid).create_time()
            yield ProcessKey(pid=process.pid, started_at_s=born_s)
        finally:
            process.kill()


def vllm(key: ProcessKey, **changes: object) -> ProcessInfo:
    info = ProcessInfo(key=key, name="python", framework="vLLM")
    return msgspec.structs.replace(info, **changes)


def port(site: Site) -> str:
    return site.url.rpartition(":")[2]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Return a server, and the process whose command line names its port."""
    with (
        serving({"/metrics": METRICS}) as site,
        started(tmp_path, "vllm", "serve", "m", "--port", port(site)) as key,
    ):
        yield site, key


def test_a_server_of_the_configuration_is_asked_no_more_than_once_per_interval(
    clock: Clock,
) -> None:
    with serving({"/metrics": METRICS}) as site:
        one = Serving(State(config(f"vLLM={site.url}")), mono=clock)
        stepped(one)
        clock.now_s += 14.9
        for _ in range(50):
            one.step(())
        time.sleep(0.05)
        assert site.asked == ["/metrics"]
        clock.now_s += 0.2
        stepped(one)
        assert site.asked == ["/metrics"] * 2
        (reading,) = one.engines.readings
        assert (reading.kind, reading.ok, reading.kv_share) == ("vLLM", True, 0.125)
        assert len(one.engines.recent(site.url)) == 2
        assert one.problems == ()
        one.close()


def test_an_answer_that_took_two_questions_pays_for_both(clock: Clock) -> None:
    with serving({"/api/version": b'{"version":"1"}', "/api/ps": TWO}) as site:
        one = Serving(State(config(f"Ollama={site.url}")), mono=clock)
        stepped(one)
        clock.now_s += 20.0
        one.step(())
        time.sleep(0.05)
        assert site.asked == ["/api/version", "/api/ps"]
        clock.now_s += 10.5
        stepped(one)
        assert site.asked == ["/api/version", "/api/ps", "/api/ps"]
        one.close()


def test_the_server_of_a_gpu_process_is_found_by_its_command_line(
    served: Served, clock: Clock
) -> None:
    site, key = served
    one = Serving(State(config()), mono=clock)
    who = vllm(key)
    stepped(one, who)
    (reading,) = one.engines.readings
    assert (reading.url, reading.pid) == (site.url, key.pid)
    assert one.engines.members(site.url) == (key,)
    assert one.engines.named == {key: "m"}
    assert one.engines.with_models({key: who})[key].model == "m"
    one.close()


def test_a_server_is_forgotten_some_time_after_its_process_has_left_the_gpu(
    served: Served, clock: Clock
) -> None:
    site, key = served
    one = Serving(State(config()), mono=clock)
    stepped(one, vllm(key))
    clock.now_s += GONE_S - 1.0
    one.step(())
    assert len(one.engines.readings) == 1
    clock.now_s += 2.0
    one.step(())
    assert not one.engines.readings
    assert one.engines.recent(site.url) == ()
    one.close()


def test_a_discovered_server_that_does_not_answer_is_no_problem(
    tmp_path: Path, clock: Clock
) -> None:
    with serving({}) as gone:
        number = port(gone)
    with started(tmp_path, "vllm", "serve", "--port", number) as key:
        one = Serving(State(config()), mono=clock)
        stepped(one, vllm(key))
        (reading,) = one.engines.readings
        assert (reading.ok, reading.why) == (False, "nothing listens there")
        assert one.problems == ()
        assert one.engines.named == {}
        one.close()


def test_a_configured_server_that_does_not_answer_is_one_quiet_line(clock: Clock) -> None:
    with serving({"/metrics": Page(b"", 503)}) as site:
        one = Serving(State(config(f"vLLM={site.url}")), mono=clock)
        stepped(one)
        assert one.problems == (f"vLLM at {site.url}: it answers 503 Service Unavailable",)
        site.pages["/metrics"] = METRICS
        clock.now_s += 15.1
        stepped(one)
        assert not one.problems
        one.close()


def test_who_does_not_answer_is_asked_ever_more_rarely(clock: Clock) -> None:
    with serving({}) as site:
        one = Serving(State(config(f"vLLM={site.url}")), mono=clock)
        for _ in range(6):
            stepped(one)
            clock.now_s += 120.1
        clock.now_s -= 120.1
        clock.now_s += 100.0
        one.step(())
        time.sleep(0.05)
        assert len(site.asked) == 6
        one.close()


@pytest.mark.slow
def test_a_slow_server_delays_no_step(clock: Clock) -> None:
    with serving({"/metrics": Page(METRICS, wait=threading.Event())}) as site:
        one = Serving(State(config(f"vLLM={site.url}")), mono=clock)
        began_s = time.monotonic()
        for _ in range(100):
            one.step(())
        assert time.monotonic() - began_s < 1.0
        stepped(one)
        assert one.engines.readings[0].why == "no answer within 2 s"
        one.close()


def test_a_process_of_a_log_or_a_simulation_is_never_asked_for(clock: Clock) -> None:
    one = Serving(State(config()), mono=clock)
    me = psutil.Process()
    imagined = [
        vllm(ProcessKey(pid=me.pid, started_at_s=1000.0)),
        vllm(ProcessKey(pid=me.pid, started_at_s=None)),
        vllm(ProcessKey(pid=me.pid, started_at_s=me.create_time()), foreign=True),
        vllm(ProcessKey(pid=4_000_000, started_at_s=1000.0)),
    ]
    for _ in range(20):
        one.step(tuple(imagined))
        time.sleep(0.01)
    clock.now_s += FIND_AGAIN_S + 1.0
    one.step(tuple(imagined))
    time.sleep(0.1)
    one.step(tuple(imagined))
    assert one.engines.readings == ()
    one.close()


def test_in_a_container_the_answer_is_told_without_a_process(served: Served, clock: Clock) -> None:
    site, key = served
    one = Serving(State(config()), mono=clock)
    stepped(one, vllm(key, container="docker 0123456789ab"))
    assert [reading.pid for reading in one.engines.readings] == [None]
    assert one.engines.members(site.url) == ()
    assert one.engines.named == {}
    clock.now_s += GONE_S + 1.0
    one.step(())
    assert one.engines.readings == ()
    one.close()


def test_a_model_is_named_only_when_it_is_the_only_one(tmp_path: Path, clock: Clock) -> None:
    with (
        serving({"/api/version": b'{"version":"1"}', "/api/ps": TWO}) as site,
        started(tmp_path, "ollama", "serve") as key,
    ):
        one = Serving(State(config(f"Ollama={site.url}")), mono=clock)
        one.step(())
        server = one._servers[site.url]
        server.members[key] = clock.now_s
        stepped(one)
        assert one.engines.readings[0].models == (ServedModel(name="a"), ServedModel(name="b"))
        assert one.engines.named == {}
        server.runs[key] = "sha256-0123456789ab"
        clock.now_s += 31.0
        stepped(one)
        assert one.engines.named == {key: "sha256-0123456789ab"}
        site.pages["/api/ps"] = b'{"models":[{"name":"a"}]}'
        clock.now_s += 31.0
        stepped(one)
        assert one.engines.named == {key: "a"}
        forgotten = ProcessKey(pid=key.pid + 1, started_at_s=1.0)
        server.members[forgotten] = clock.now_s
        clock.now_s += 16.0
        stepped(one)
        assert one.engines.named == {key: "sha256-0123456789ab"}
        one.close()


def test_somebody_elses_machine_is_not_asked(clock: Clock) -> None:
    one = Serving(State(config("vLLM=http://192.0.2.1:8000")), mono=clock)
    stepped(one)
    assert "loopback" in one.problems[0]
    one.close()


def test_nobody_is_asked_when_it_is_switched_off(served: Served, clock: Clock) -> None:
    site, key = served
    one = Serving(State(config(f"vLLM={site.url}", enabled=False)), mono=clock)
    for _ in range(10):
        one.step((vllm(key),))
        time.sleep(0.01)
    assert site.asked == []
    one._state.settings = Settings(config(f"vLLM={site.url}"))
    stepped(one)
    one._state.settings = Settings(config(enabled=False))
    one.step(())
    assert one.engines.readings == ()
    one.close()


def test_no_more_servers_are_asked_than_a_machine_can_have(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "gpuwatchd.pipeline.engine_readings.program.launches",
        lambda key, _booted: (Launch(key.pid, ("vllm", "serve", "--port", str(key.pid))),),
    )
    one = Serving(State(config(enabled=True, every=Seconds(3600))), mono=clock)
    crowd = [vllm(ProcessKey(pid=pid, started_at_s=1.0)) for pid in range(10_000, 10_200)]
    stepped(one, *crowd, answers=MOST)
    one.step(tuple(crowd))
    assert len(one.engines.readings) == MOST
    one.close()


def test_the_answers_reach_the_live_state(served: Served, tmp_path: Path) -> None:
    _, key = served
    who = vllm(key)
    source = Script(lambda tick: sample(1000.0 + 5.0 * tick, [(who, 20 * GIB)]))
    runtime = tmp_path / "live"
    runtime.mkdir()
    pipeline = make_pipeline(config=config(), sources=[source], runtime_dir=runtime)

    def seen() -> bool:
        pipeline.tick()
        return bool(pipeline.state.engines.readings)

    wait_for(seen)
    state = live.read(runtime)
    pipeline.close()
    assert state is not None
    (reading,) = state.servers
    assert (reading.pid, reading.kv_share, reading.running) == (key.pid, 0.125, 0)
    assert [p.info.model for p in present(state.devices[0].processes)] == ["m"]


def test_what_is_kept_of_servers_is_bounded_and_the_one_in_use_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_readings, "MOST_ENGINES", 3)
    asker = Asker()
    used = Ask("Ollama", "http://127.0.0.1:11434", 1.0)
    engine = asker._engine(used)
    for number in range(20):
        asker._engine(Ask("vLLM", f"http://127.0.0.1:{8000 + number}", 1.0))
        assert asker._engine(used) is engine
    assert len(asker._engines) == 3
