"""Which of these tests need a package index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.packaging import built

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def archives() -> tuple[Path, Path]:
    """Return the source distribution and the wheel of the present tree."""
    return built.distributions()


def pytest_itemcollected(item: pytest.Item) -> None:
    # The tools that build them are installed from the index, by their pins.
    if "archives" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.real_packages)
