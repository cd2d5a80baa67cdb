"""What becomes of processes that tests start, and which tests ask for more than this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import psutil
import pytest

import project
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[dict[str, int], str]]

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return what runs a file of tests as ours are run: how many ended how, and what was said."""

    def go(text: str, **changes: str) -> tuple[dict[str, int], str]:
        file = tmp_path / "test_it.py"
        file.write_text("import os, sys, subprocess\n" + textwrap.dedent(text))
        unset = {"PACKAGES", "CI", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"}
        kept = {name: value for name, value in os.environ.items() if name not in unset}
        words = f"-m pytest -q -rA -p tests.conftest -p no:cacheprovider -c {os.devnull}".split()
        argv = [sys.executable, *words, "--rootdir", str(tmp_path), str(file)]
        env = {**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **changes}
        done = subprocess.run(
            argv, env=env, cwd=ROOT, text=True, capture_output=True, timeout=100, check=False
        )
        last = done.stdout.splitlines()[-1]
        return {word: int(n) for n, word in re.findall(r"(\d+) (\w+)", last)}, done.stdout

    return go


def test_what_a_test_leaves_running_is_ended_and_the_test_is_named(
    run: Run, tmp_path: Path
) -> None:
    how, said = run(f"""
        from tests import children
        children.END_S = 0.5
        left = []
        def test_first():
            left.append(subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600 & wait"]))
            open({str(tmp_path / "pid")!r}, "w").write(str(left[0].pid))
            assert False
        def test_second():
            pass
    """)
    assert (how["passed"], how["failed"], how["error"]) == (1, 1, 1)
    pid = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(pid)
    assert re.search(rf"{pid} \(sh .*\) of \S*test_it.py::test_first\n", said)
    assert len(re.findall(r"\(sleep 600\) of this file\n", said)) == 1


@pytest.mark.parametrize(
    ("wanted", "how"),
    [({}, "skipped"), ({"CI": "true"}, "error"), ({"CI": "true", "PACKAGES": "1"}, "passed")],
)
def test_nothing_asks_a_package_index_unless_it_may(
    run: Run, wanted: dict[str, str], how: str
) -> None:
    ended, _ = run(
        """
        import pytest
        @pytest.mark.real_packages
        def test_it():
            pass
        """,
        **wanted,
    )
    assert {word for word in ended if word in {"passed", "failed", "error", "skipped"}} == {how}


@pytest.mark.parametrize(("ci", "failed"), [("", 0), ("true", 1)])
def test_ci_fails_where_a_skip_has_no_name(run: Run, ci: str, failed: int) -> None:
    ended, _ = run(
        """
        import pytest
        from tests import conftest
        def test_raw():
            pytest.skip("x")
        def test_named():
            conftest.not_here("x")
        """,
        CI=ci,
    )
    assert (ended.get("failed", 0), ended["skipped"]) == (failed, 2 - failed)


def test_the_quick_tests_leave_out_every_real_part() -> None:
    options = project.pyproject()["tool"]["pytest"]["ini_options"]["markers"]
    marks = {line.partition(":")[0] for line in options}
    needless = {mark for mark in marks if mark.startswith("real_")} | {"laboratory", "slow"}
    expression = (ROOT / "Makefile").read_text().partition("SMALL := ")[2].partition("\n\n")[0]
    assert set(re.findall(r"not (\w+)", expression)) == needless <= marks
