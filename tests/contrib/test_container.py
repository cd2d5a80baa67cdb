"""The Containerfile and what is in it: a parser of our own, real shells, and the daemon itself."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core import config, extras
from tests.children import Child
from tests.cli import world
from tests.conftest import ROOT, need, ran
from tests.test_daemon import wait_for

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = ROOT / "contrib" / "container"
FILE = FOLDER / "Containerfile"
SCRIPTS = ("entrypoint", "healthy")
KNOWN = {
    "ARG", "FROM", "LABEL", "RUN", "COPY", "ENV", "VOLUME", "USER", "WORKDIR", "STOPSIGNAL",
    "HEALTHCHECK", "ENTRYPOINT", "CMD",
}  # fmt: skip
BUILT = ("dist/*.whl",)


def instructions() -> list[tuple[str, str]]:
    """Return (instruction, words) of the Containerfile, continued lines joined."""
    lines = [line for line in FILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    found = []
    for line in filter(str.strip, joined.splitlines()):
        name, _, rest = line.partition(" ")
        assert name in KNOWN, f"no such instruction: {line}"
        assert rest.strip(), line
        found.append((name, rest.strip()))
    return found


def _of(name: str) -> list[str]:
    return [rest for one, rest in instructions() if one == name]


def image(target: str = "") -> dict[str, str]:
    """Return the last word of each instruction in an image and what it is made from; ENV joined."""
    stages: dict[str, dict[str, str]] = {"": {}, "${PYTHON}": {}}
    last = ""
    for name, rest in instructions():
        if name == "FROM":
            source, _, last = rest.partition(" AS ")
            stages[last] = dict(stages[source])
        else:
            before = stages[last].get(name, "") if name == "ENV" else ""
            stages[last][name] = f"{before} {rest}".strip()
    return stages[target]


def _copies() -> list[tuple[list[str], str]]:
    """Return (sources, target) of what comes from the source tree."""
    found = []
    for rest in _of("COPY"):
        words = shlex.split(rest)
        options = [word for word in words if word.startswith("--")]
        paths = [word for word in words if not word.startswith("--")]
        if not any(option.startswith("--from=") for option in options):
            found.append(([one.replace("${PINS}", "constraints.txt") for one in paths[:-1]],
                          paths[-1]))  # fmt: skip
    return found


def test_what_it_copies_exists_and_is_not_ignored() -> None:
    ignored = (FOLDER / "Containerfile.containerignore").read_text()
    # Docker reads its own name.
    assert (FOLDER / "Containerfile.dockerignore").read_text() == ignored
    let_in = [line[1:] for line in ignored.splitlines() if line.startswith("!")]
    for sources, _ in _copies():
        for source in sources:
            assert source in BUILT or (ROOT / source).is_file(), source
            assert any(fnmatch.fnmatch(source, one) for one in let_in), source


def test_it_runs_as_nobody_else_and_is_looked_after() -> None:
    names = [name for name, _ in instructions()]
    assert _of("USER") == ["10001:10001"]
    assert names.index("USER") > max(n for n, name in enumerate(names) if name == "COPY")
    daemon = image()
    assert json.loads(daemon["ENTRYPOINT"]) == ["entrypoint"]
    assert json.loads(daemon["CMD"]) == ["gpuwatchd"]
    options, _, command = daemon["HEALTHCHECK"].partition("CMD ")
    assert "--timeout=" in options
    assert json.loads(command) == ["healthy"]
    environment = dict(word.split("=", 1) for word in shlex.split(daemon["ENV"]))
    assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
    assert environment["GPUWATCHD_STATE_DIR"] in json.loads(daemon["VOLUME"])


def test_the_worker_of_a_fleet_is_an_image_of_its_own() -> None:
    worker = image("fleet")
    program, *words = json.loads(worker["ENTRYPOINT"]) + json.loads(worker["CMD"])
    assert [program, *words] == ["gpuwatchd", "fleet", "--config", "/etc/gpuwatchd/fleet.toml"]
    assert worker["USER"] == "10001:10001"
    assert not {"VOLUME", "HEALTHCHECK"} & set(worker)
    assert "NVIDIA" not in worker["ENV"]
    home = re.findall(r"install -d -m 0700 -o 10001 -g 10001 (\S+) (\S+)", worker["RUN"])
    written = dict(word.split("=", 1) for word in shlex.split(worker["ENV"]))
    assert [(written["GPUWATCHD_STATE_DIR"], written["GPUWATCHD_RUNTIME_DIR"])] == home


def test_dependencies_come_by_their_hashes_and_no_pip_stays(tmp_path: Path) -> None:
    (installed,) = [rest for rest in _of("RUN") if "pip install" in rest]
    first, second = re.findall(r"pip install ([^&]*)", installed)
    assert "--require-hashes" in first
    assert "--no-index" in second
    (tmp_path / re.findall(r"touch /opt/gpuwatchd/(\S+)", installed)[0]).touch()
    assert extras.install("charts", str(tmp_path)).endswith("containers#build")
    pins = (ROOT / "packaging/constraints.txt").read_text()
    assert pins.count("--hash=sha256:") >= pins.count("==")


@pytest.mark.parametrize("name", SCRIPTS)
def test_its_scripts_are_clean(name: str) -> None:
    need(shutil.which("shellcheck"), "shellcheck is missing")
    assert os.access(FOLDER / name, os.X_OK)
    subprocess.run(["shellcheck", FOLDER / name], check=True)


@pytest.mark.parametrize("number", range(2))
def test_its_commands_are_shell(number: int) -> None:
    need(shutil.which("shellcheck"), "shellcheck is missing")
    script = f"#!/bin/sh\nset -e\n{_of('RUN')[number]}\n"
    done = ran(["shellcheck", "-"], input=script)
    assert done.returncode == 0, done.stdout


def _environ(folder: Path) -> dict[str, str]:
    programs = os.path.dirname(sys.executable)  # noqa: PTH120
    return {
        **os.environ, "PATH": f"{FOLDER}:{programs}:{os.environ['PATH']}",
        "GPUWATCHD_STATE_DIR": f"{folder}/history/gpuwatchd",
        "GPUWATCHD_RUNTIME_DIR": f"{folder}/live/gpuwatchd",
        "GPUWATCHD_POLICY_CHANNELS": "",
    }  # fmt: skip


def test_the_entrypoint_runs_the_daemon_or_what_is_named(tmp_path: Path) -> None:
    def say(*words: str) -> str:
        return ran(["entrypoint", *words], env=_environ(tmp_path), check=True, timeout=60).stdout

    assert say("--version").startswith("gpuwatchd ")
    assert say("gpuwatchctl", "--version").startswith("gpuwatchctl ")


@pytest.mark.slow
def test_it_is_healthy_once_it_watches_and_not_before_or_after(tmp_path: Path) -> None:
    """As in a pod: the volumes are open to all, the directories in them are the daemon's own."""
    environ = _environ(tmp_path)
    for name in ("history", "live"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o2777)

    def healthy() -> bool:
        done = subprocess.run(["healthy", "5s"], env=environ, capture_output=True, check=False)
        return done.returncode == 0

    assert not healthy()
    with Child(
        ["entrypoint", "--source", "simulate:quiet", "--interval", "0.5"], env=environ,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as daemon:  # fmt: skip
        try:
            wait_for(healthy)
        finally:
            daemon.send_signal(signal.SIGTERM)
            code = daemon.wait(30)
    assert code == 0
    assert not healthy()
    assert (tmp_path / "live/gpuwatchd").stat().st_mode & 0o077 == 0


def test_a_broken_gpu_is_no_reason_to_start_it_again(tmp_path: Path) -> None:
    """The pod would begin anew every few minutes, and watch the other GPUs of the node never."""
    lost = world.firing(key="gpu:GPU-1", kind="gpu", severity="critical", title="GPU 0 is lost")
    world.write(alerts=(lost,))
    environ = {**_environ(tmp_path), "GPUWATCHD_RUNTIME_DIR": str(config.runtime_dir())}

    def asked(*words: str) -> subprocess.CompletedProcess[str]:
        return ran(words, env=environ)

    checked = asked("gpuwatchctl", "check", "--mode", "daemon")
    assert (checked.returncode, "GPU 0 is lost" in checked.stdout) == (2, True)
    assert asked("healthy").returncode == 0
    world.write(alerts=(lost,), taken_at_s=time.time() - 300, stopped=True)
    gone = asked("healthy")
    assert (gone.returncode, "the daemon was stopped" in gone.stdout) == (1, True)
