"""``gpuwatchctl web``: one line, what it says when it cannot, and how it ends."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import pty
import re
import signal
import socket
import sqlite3
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.cli import main
from gpuwatchd.core import config
from gpuwatchd.web import auth
from tests.children import Child
from tests.cli import recorded, shaped, world
from tests.test_daemon import wait_for
from tests.web import serving

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.slow


def started(*words: str) -> Child[str]:
    """Start a server."""
    argv = [str(world.PROGRAM), "web", *words]
    return Child(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_one_line_and_the_end_by_a_signal(signum: int, code: int) -> None:
    with started("--port", "0") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+ \(gpuwatchctl web --token .*\)\n", line)
        process.send_signal(signum)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (code, "", "")


@pytest.mark.parametrize("words", [(), ("--json",), ("-v", "--debug")], ids=" ".join)
def test_the_token_is_in_no_file_and_no_journal(tmp_path: Path, words: Sequence[str]) -> None:
    """What a service prints is kept, and may be read by others."""
    world.write()
    token = auth.kept(config.state_dir() / auth.FILE_NAME)
    out = tmp_path / "out"
    with out.open("wb") as file:
        process = subprocess.Popen(
            [str(world.PROGRAM), *words, "web", "--port", "0"], stdout=file, stderr=file
        )
    try:
        wait_for(lambda: b"http://" in out.read_bytes() or process.poll() is not None)
        found = re.search(rb"http://127\.0\.0\.1:(\d+)", out.read_bytes())
        assert found is not None, out.read_text()
        served = serving.Served(int(found[1]), token, None)
        referer = f"http://{served.host}/?token={token}"
        assert served.ask("/api/v1/status", Referer=referer).status == 200
        assert served.ask(f"/api/v1/status?token={token}").status in {200, 400}
        assert served.ask(f"/{token}", Authorization=f"Basic {token}").status in {401, 404}
    finally:
        process.terminate()
        assert process.wait(60) == 0
    said = out.read_text()
    assert token not in said
    if words == ("--json",):
        data = json.loads(said)["data"]
        assert (data["url"], data["token"]) == (None, None)
        assert auth.read(Path(data["token_file"])) == token


@pytest.mark.parametrize("words", [(), ("--json",)], ids=" ".join)
def test_who_sits_before_it_is_given_the_address_with_the_token(words: Sequence[str]) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [str(world.PROGRAM), *words, "web", "--port", "0"], stdout=slave, stderr=slave
    )
    os.close(slave)
    said = b""
    try:
        while not (found := re.search(rb"#token=([\w-]{43})", said)):
            said += os.read(master, 4096)  # fails where the program ends
        assert found[1].decode() == auth.read(config.state_dir() / auth.FILE_NAME)
    finally:
        process.terminate()
        assert process.wait(60) == 0
        os.close(master)


def test_a_writer_that_waits_does_not_hold_up_the_end() -> None:
    recorded.record("gradual")
    world.write()
    link = sqlite3.connect(config.state_dir() / "history.db", isolation_level=None)
    link.execute("BEGIN EXCLUSIVE")  # a snooze waits five seconds for it
    with serving.serve() as served, ThreadPoolExecutor(1) as pool:
        assert served.process is not None
        wish = {"gpu": "0", "for": "1h"}
        writing = pool.submit(served.ask, "/api/v1/snoozes", "POST", wish)
        assert served.ask("/api/v1/zombies").status in {200, 503}
        assert not writing.done()
        began = time.monotonic()
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(20) == 130
        assert time.monotonic() - began < 4.0  # sooner than the writer would have given up
    link.execute("ROLLBACK")
    assert link.execute("SELECT count(*) FROM silence").fetchone() == (0,)
    link.close()


def test_a_port_that_is_taken_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["web", "--port", str(port)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[0].endswith("is taken: perhaps gpuwatchctl web runs already")
    assert "--port 0" in said.err


def test_without_the_extra_it_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec",
        lambda name, *rest: None if name == "uvicorn" else find(name, *rest),
    )  # fmt: skip
    assert main(["web"]) == 1
    said = capsys.readouterr().err
    assert "uvicorn" in said
    assert "gpuwatchd[web]" in said


@pytest.mark.parametrize(
    ("words", "code"),
    [(["--listen", "unix:/x", "--port", "1"], 2), (["--listen", "unix:x"], 1)],
)
def test_what_cannot_be_listened_at(
    capsys: pytest.CaptureFixture[str], words: Sequence[str], code: int
) -> None:
    assert main(["web", *words]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    assert len(said.err.splitlines()) <= 3


def test_the_token_is_printed_and_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["web", "--token"]) == 0
    first = capsys.readouterr().out
    assert main(["web", "--token", "--json"]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    shaped.must_fit(said)
    assert said["data"] == {
        "url": None, "listens": None, "token": first.strip(),
        "token_file": str(config.state_dir() / "web-token"),
    }  # fmt: skip
    assert main(["web", "--new-token", "--token"]) == 0
    assert capsys.readouterr().out != first


def test_a_server_that_runs_takes_the_new_token_at_once() -> None:
    world.write()
    with serving.serve() as served:
        assert served.ask("/api/v1/status").status == 200
        new = world.run("web", "--new-token", "--token").stdout.strip()
        assert served.ask("/api/v1/status").status == 401
        assert served._replace(token=new).ask("/api/v1/status").status == 200


def test_a_unix_socket_answers_its_owner_and_goes_with_its_server() -> None:
    world.write()
    with tempfile.TemporaryDirectory(prefix="gw") as folder:
        path = Path(folder) / "s"
        with started("--listen", f"unix:{path}") as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith(f"unix:{path} ")
            assert "#token" not in line
            token = world.run("web", "--token").stdout.strip()
            link = http.client.HTTPConnection("localhost")
            link.sock = socket.socket(socket.AF_UNIX)
            link.sock.connect(str(path))
            link.request("GET", "/api/v1/status", headers={"Authorization": f"Bearer {token}"})
            assert link.getresponse().status == 200
            link.close()
            process.send_signal(signal.SIGTERM)
            assert process.communicate(timeout=60) == ("", "")
            assert not path.exists()


def test_the_browser_is_opened_without_the_token_in_a_command(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {seen}.new; mv {seen}.new {seen}\n')
    browser.chmod(0o755)
    with serving.serve("--open", BROWSER=f"{browser} %s") as served:
        wait_for(seen.exists)
        opened = seen.read_text()
        assert served.token not in opened
        door = Path(opened.removeprefix("file://"))
        assert door.stat().st_mode & 0o777 == 0o600
        assert f"http://127.0.0.1:{served.port}/#token={served.token}" in door.read_text()
    assert not door.exists()


def test_a_browser_that_stays_in_the_foreground_is_answered(tmp_path: Path) -> None:
    seen, left = tmp_path / "seen", tmp_path / "left"
    browser = tmp_path / "lynx"
    browser.write_text(f"#!/bin/sh\nexec >{seen} 2>&1\nwhile [ ! -e {left} ]; do sleep 0.1; done\n")
    browser.chmod(0o755)
    with serving.serve("--open", BROWSER=str(browser)) as served:
        wait_for(seen.exists)
        try:
            assert served.ask("/healthz").status == 200
        finally:
            left.touch()


def test_a_name_of_the_configuration_is_let_in(tmp_path: Path) -> None:
    world.write()
    file = tmp_path / "c.toml"
    file.write_text('[web]\nhosts = ["gpu.example.org"]\ntoken-file = "FILE"\n'.replace(
        "FILE", str(tmp_path / "own")))  # fmt: skip
    with serving.serve("--config", str(file)) as served:
        assert served.ask("/api/v1/status", Host="gpu.example.org").status == 200
        assert served.ask("/api/v1/status", Host="other.example.org").status == 421
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o600
    assert not os.path.lexists(config.state_dir() / "web-token")
