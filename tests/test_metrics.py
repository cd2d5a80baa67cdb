"""``[metrics]`` of the daemon: who is answered, what is bounded, and that nobody is waited for."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.core import config
from gpuwatchd.core.codes import ProblemCode
from gpuwatchd.core.config import MetricsSection, listening
from gpuwatchd.daemon import metrics
from gpuwatchd.daemon.metrics import MetricsPublisher
from gpuwatchd.store.private_files import private_directory
from tests.children import Child
from tests.cli import world
from tests.cli.test_metrics import read, the
from tests.making import present
from tests.test_daemon import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gpuwatchd.store.private_files import Readers

WITHIN_S = 30.0


@pytest.fixture
def published() -> Iterator[Callable[..., MetricsPublisher]]:
    """Return what starts a publisher; all of them end with the test."""
    made: list[MetricsPublisher] = []

    def start(**settings: Any) -> MetricsPublisher:
        made.append(MetricsPublisher(MetricsSection(**settings)))
        made[-1].publish(world.state())
        return made[-1]

    yield start
    for each in made:
        each.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def ask(port: int, path: str = "/metrics", **headers: str) -> tuple[int, str]:
    """Return status and body of an answer."""

    def once() -> tuple[int, str] | None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN_S)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except ConnectionRefusedError:  # not yet
            return None
        finally:
            connection.close()

    return present(wait_for(once))


def test_the_page_is_served_on_loopback_and_nothing_else_is(
    published: Callable[..., MetricsPublisher],
) -> None:
    port = free_port()
    publisher = published(listen=f"127.0.0.1:{port}")
    status, page = ask(port)
    assert status == 200
    assert the(read(page), "gpuwatchd_gpu_memory_used_bytes", gpu="0")
    assert ask(port, "/")[0] == ask(port, "/metrics/x")[0] == 404
    assert ask(port, Host="gpu.example.org")[0] == 421  # a name of a web page's own
    assert ask(port, Host=f"localhost:{port}")[0] == 200
    publisher.publish(world.state(devices=world.state().devices[:1]))
    assert len(read(ask(port)[1])["gpuwatchd_gpu_info"]) == 1
    assert publisher.problems == ()
    publisher.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)


def test_a_token_is_asked_for_where_there_is_one(
    published: Callable[..., MetricsPublisher], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("open sesame\n")
    token.chmod(0o600)
    port = free_port()
    published(listen=f"127.0.0.1:{port}", token_file=str(token))
    assert ask(port)[0] == 401
    assert ask(port, Authorization="Bearer open")[0] == 401
    assert ask(port, Authorization="Bearer open sesame", Host="gpu.example.org")[0] == 200
    token.chmod(0o644)
    publisher = published(listen=f"127.0.0.1:{free_port()}", token_file=str(token))
    ((_, code),) = wait_for(lambda: publisher.problems)  # others can read it
    assert code is ProblemCode.METRICS_LISTEN


def test_beyond_loopback_nothing_is_served_without_a_token(
    published: Callable[..., MetricsPublisher],
) -> None:
    port = free_port()
    publisher = published(listen=f"0.0.0.0:{port}", remote=True)
    assert wait_for(lambda: publisher.problems)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)


def test_a_port_that_is_taken_is_a_problem_until_it_is_free(
    published: Callable[..., MetricsPublisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "_EVERY_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        publisher = published(listen=f"127.0.0.1:{port}")
        assert wait_for(lambda: publisher.problems)
    wait_for(lambda: not publisher.problems)
    assert ask(port)[0] == 200


def test_who_holds_connections_or_sends_no_end_keeps_nobody_out(
    published: Callable[..., MetricsPublisher],
) -> None:
    port = free_port()
    published(listen=f"127.0.0.1:{port}")
    assert ask(port)[0] == 200
    silent = [socket.create_connection(("127.0.0.1", port), WITHIN_S) for _ in range(80)]
    try:
        assert ask(port)[0] == 200
        silent[-1].sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 100_000)
        assert ask(port)[0] == 200
    finally:
        for each in silent:
            each.close()


@pytest.mark.parametrize(("readers", "mode"), [("user", 0o600), ("group", 0o660)])
def test_a_socket_is_for_those_who_may_read_the_state(
    published: Callable[..., MetricsPublisher], readers: Readers, mode: int
) -> None:
    private_directory(config.runtime_dir(), readers)
    published(listen="unix")
    path = config.runtime_dir() / listening.METRICS_SOCKET
    with socket.socket(socket.AF_UNIX) as asking:
        # It exists before it listens.
        wait_for(lambda: asking.connect_ex(str(path)) == 0)
        assert stat.S_IMODE(path.stat().st_mode) == mode
        asking.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert asking.recv(100).startswith(b"HTTP/1.0 200")


def test_the_file_is_whole_for_everybody_and_written_at_the_end(
    published: Callable[..., MetricsPublisher], tmp_path: Path
) -> None:
    file = tmp_path / "gpuwatchd.prom"
    before = os.umask(0o077)
    publisher = published(file=str(file))
    wait_for(file.exists)
    os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert len(read(file.read_text())["gpuwatchd_gpu_info"]) == 2
    publisher.publish(world.state(devices=world.state().devices[:1]))
    publisher.close()
    assert len(read(file.read_text())["gpuwatchd_gpu_info"]) == 1
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize("place", ["missing/x.prom", "taken.prom"])
def test_a_file_that_cannot_be_written_is_a_problem(
    published: Callable[..., MetricsPublisher], tmp_path: Path, place: str
) -> None:
    (tmp_path / "taken.prom").mkdir()
    publisher = published(file=str(tmp_path / place))
    ((_, code),) = wait_for(lambda: publisher.problems)
    assert code is ProblemCode.METRICS_FILE


def test_a_tick_waits_for_no_scrape_and_no_disk(tmp_path: Path) -> None:
    fifo = tmp_path / "x.prom.new"
    os.mkfifo(fifo)
    publisher = MetricsPublisher(MetricsSection(file=str(tmp_path / "x.prom")))
    with publisher._rendering:  # as while a page is being made
        begun_s = time.monotonic()
        for _ in range(100):
            publisher.publish(world.state())
        assert time.monotonic() - begun_s < 5.0
    publisher.close()


def test_a_daemon_serves_what_it_sees_and_takes_over_new_settings(tmp_path: Path) -> None:
    port, other = free_port(), free_port()
    file, settings = tmp_path / "gpuwatchd.prom", tmp_path / "config.toml"
    settings.write_text(f'[metrics]\nlisten = "127.0.0.1:{port}"\n')
    words = [sys.executable, "-m", "gpuwatchd", "--config", str(settings), "--interval", "0.2s"]
    with Child([*words, "--source", "simulate:quiet"], stderr=subprocess.PIPE) as daemon:
        page = read(ask(port)[1])
        assert the(page, "gpuwatchd_build_info") == 1.0
        name = "gpuwatchd_last_sample_timestamp_seconds"
        begun_s = the(page, name, gpu="0")
        wait_for(lambda: the(read(ask(port)[1]), name, gpu="0") > begun_s)
        settings.write_text(f'[metrics]\nlisten = "127.0.0.1:{other}"\nfile = "{file}"\n')
        daemon.send_signal(signal.SIGHUP)
        assert ask(other)[0] == 200
        wait_for(file.exists)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)
        daemon.terminate()
        assert daemon.wait(WITHIN_S) == 0
