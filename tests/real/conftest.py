"""What several tests of real parts share."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import need
from tests.real import mailserver
from tests.real.stage import Stage, missing, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.real.machine.world import World


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return mailserver.certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def post(tmp_path: Path, certificates: dict[str, Path]) -> Iterator[mailserver.Post]:
    """Return what starts mail servers; all of them end with the test."""
    need(importlib.util.find_spec("aiosmtpd"), "aiosmtpd is not installed")
    post = mailserver.Post(tmp_path, certificates)
    yield post
    post.close()


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Return a screen on which neither a bus nor a notification server has been started."""
    need(not missing(), f"tools are missing: {', '.join(missing())}")
    folder = tmp_path / "stage"
    folder.mkdir()
    with shown(Stage(folder), monkeypatch) as stage:
        yield stage


@pytest.fixture(scope="module")
def debian(request: pytest.FixtureRequest) -> Iterator[World]:
    """Boot a Debian 12, or the module's SUITE, with what was there BEFORE; tests share it."""
    from tests.packaging import debs
    from tests.real.machine import why_not
    from tests.real.machine.world import world

    need(not why_not(), why_not())
    module = request.module
    yield from world(getattr(module, "SUITE", "bookworm"), getattr(module, "BEFORE", debs.older))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of a booted machine back into the order of their file: they tell a story."""
    here = Path(__file__).parent
    places = [
        n
        for n, item in enumerate(items)
        if item.get_closest_marker("real_machine") and here in item.path.parents
    ]
    told = sorted((items[n] for n in places), key=lambda item: (str(item.path), _line(item)))
    for place, item in zip(places, told, strict=True):
        items[place] = item


def _line(item: pytest.Item) -> int:
    return item.location[1] or 0
