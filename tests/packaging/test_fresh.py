"""The wheel alone, in fresh environments of every Python that is promised, beside no other tool."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import pins
import project
from tests.conftest import ROOT
from tests.packaging import built

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

pytestmark = [pytest.mark.real_packages, pytest.mark.timeout(300)]

EVERY_MODULE = """
import importlib, pkgutil, sys, gpuwatchd
done = 0
for found in pkgutil.walk_packages(gpuwatchd.__path__, "gpuwatchd."):
    if found.name in set(sys.argv[1:]) or found.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(found.name)
    except ModuleNotFoundError as error:
        # The live page alone is built on an extra, which is not here.
        extra = {"starlette", "uvicorn", "h11"}
        if found.name.startswith("gpuwatchd.web.") and error.name in extra:
            continue
        raise
    done += 1
print(done)
"""
WITH_EXTRAS = (
    *("gpuwatchd.charts.matplotlib_renderer", "gpuwatchd.notify.keyring_ask"),
    *("gpuwatchd.view.metrics", "gpuwatchd.view.fleet_metrics"),
    *(f"gpuwatchd.integrations.{name}" for name in ("huggingface", "keras", "lightning")),
)
"""Started as programs of their own, or imported, where the extra or the library is there alone."""


class Installed:
    """A fresh environment with nothing but the wheel and what it needs."""

    def __init__(self, home: Path, python: Path) -> None:
        self.home = home
        self.python = python
        self.bin = python.parent

    def run(self, *words: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        argv: list[object] = [self.python, "-W", "error", self.bin / words[0], *words[1:]]
        return built.call(argv, env=built.bare(self.home), cwd=self.home, timeout=timeout_s)


@pytest.fixture(scope="module", params=pins.PYTHONS)
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    found = built.needed(request.param)
    home = tmp_path_factory.mktemp("fresh")
    requirements = f"--require-hashes -r {ROOT / project.PINS}"
    python = built.environment(found, home / "venv", requirements, f"--no-deps {built.wheel()}")
    return Installed(home, python)


def test_says_its_version(installed: Installed) -> None:
    for program in ("gpuwatchctl", "gpuwatchd"):
        done = installed.run(program, "--version")
        assert (done.returncode, done.stdout.split()) == (0, [program, project.version()])


def test_every_module_can_be_imported(installed: Installed) -> None:
    argv: list[object] = [installed.python, "-W", "error", "-c", EVERY_MODULE, *WITH_EXTRAS]
    done = built.call(argv, env=built.bare(installed.home), cwd=installed.home)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 200


def test_shows_the_demo(installed: Installed) -> None:
    words = "demo --scenario one-leak --speed 1e9 --duration 40m --no-notify --json"
    done = installed.run("gpuwatchctl", *words.split(), timeout_s=120)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events
    assert done.stderr == ""


def test_without_a_gpu_each_verb_says_so_with_its_documented_code(installed: Installed) -> None:
    done = installed.run("gpuwatchctl", "status")
    assert done.returncode == 1
    assert "hint:" in done.stderr
    assert "Traceback" not in done.stderr
    done = installed.run("gpuwatchctl", "doctor", "--json")
    assert done.returncode in {1, 3}
    assert json.loads(done.stdout)["verb"] == "doctor"


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Install it as ``uv tool install`` (and ``pipx install``) do: one program, an own home."""
    home = tmp_path_factory.mktemp("tool")
    found = built.needed(pins.PYTHONS[0])
    places = {"UV_TOOL_DIR": str(home / "tools"), "UV_TOOL_BIN_DIR": str(home / "bin")}
    words = ("tool", "install", "--quiet", "--python", found, "--constraints", ROOT / project.PINS)
    return home, built.uv(*words, built.wheel(), **places)


def test_as_a_tool_of_uv_it_runs_and_brings_its_manual(tool: tuple[Path, str]) -> None:
    home, _ = tool
    done = built.call([home / "bin" / "gpuwatchctl", "--version"], env=built.bare(home))
    assert (done.returncode, done.stdout.strip()) == (0, f"gpuwatchctl {project.version()}")
    share = home / "tools" / "gpuwatchd" / "share"
    assert (share / "man" / "man1" / "gpuwatchctl.1").read_text().startswith(".")
    assert "gpuwatchctl" in (share / "bash-completion/completions/gpuwatchctl").read_text()
    assert (share / "zsh/site-functions/_gpuwatchctl").read_text().startswith("#compdef")
    assert (share / "fish/vendor_completions.d/gpuwatchctl.fish").is_file()
