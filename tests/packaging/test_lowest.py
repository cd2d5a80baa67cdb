"""The oldest versions that pyproject.toml allows: what uses each of them is tested with it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import pins
import project
from tests.conftest import ROOT
from tests.packaging import built

if TYPE_CHECKING:
    from pathlib import Path

    from packaging.utils import NormalizedName

pytestmark = [pytest.mark.real_packages, pytest.mark.timeout(400)]

TOOLS = "pytest pytest-timeout hypothesis aiosmtpd jsonschema packaging"
TRIED = (
    "tests/cli/test_output.py",
    "tests/detect/test_trend.py",
    "tests/notify/test_chat.py",
    "tests/notify/test_desktop.py",
    "tests/sources/test_nvml.py",
    "tests/store/test_database.py",
    "tests/store/test_migration.py",
    "tests/test_config.py",
    "tests/test_robust.py",
    "tests/cli/test_completion.py::test_zsh_puts_it_into_the_line",
    "tests/web/test_attacks.py",
    "tests/web/test_web_verb.py",
    "tests/tui/test_chart.py",
    "tests/tui/test_polling.py",
    "tests/tui/test_strips.py",
    "tests/tui/test_views.py",
    "tests/cli/test_program.py::test_with_a_running_daemon[policy]",
    "tests/notify/test_chart.py::test_every_shape_can_be_drawn",
)
"""Between them they use every dependency and every extra that the program has today."""


def lower_bounds() -> dict[NormalizedName, Version]:
    """Return the oldest allowed version of each dependency and of what the extras need."""
    table = project.pyproject()["project"]
    words = list(table["dependencies"])
    for name, more in table["optional-dependencies"].items():
        if name not in pins.EXTRAS_NOT_SHIPPED:
            words += [word for word in more if not word.startswith(project.NAME)]
    found: dict[NormalizedName, Version] = {}
    for word in words:
        wanted = Requirement(word)
        (bound,) = (one.version for one in wanted.specifier if one.operator == ">=")
        found[canonicalize_name(wanted.name)] = Version(bound)
    return found


@pytest.fixture(scope="module")
def oldest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = built.needed(pins.PYTHONS[0])
    return built.environment(
        found,
        tmp_path_factory.mktemp("lowest") / "venv",
        f"--resolution lowest-direct -r {ROOT / 'pyproject.toml'} --extra full",
        f"--no-deps {built.wheel()}",
        TOOLS,
    )


def test_it_is_the_oldest_that_is_tried(oldest: Path) -> None:
    listed = built.uv("pip", "list", "--quiet", "--format", "freeze", "--python", oldest)
    there = {
        canonicalize_name(name): Version(number)
        for name, number in re.findall(r"^([^=\s]+)==(\S+)$", listed, re.MULTILINE)
    }
    for name, bound in lower_bounds().items():
        assert there[name].release[: len(bound.release)] == bound.release, f"{name} {there[name]}"


def test_what_uses_them_works(oldest: Path, tmp_path: Path) -> None:
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", *TRIED]
    env = built.bare(tmp_path, CI="")
    done = built.call([oldest, *words], cwd=ROOT, env=env, timeout=380)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) > 100
