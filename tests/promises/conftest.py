"""An office: one daemon's delivery side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.promises.post_office import Channel, Office

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def new_office(tmp_path: Path) -> Iterator[Callable[..., Office]]:
    made: list[Office] = []

    def make(*channels: Channel, **rules: object) -> Office:
        made.append(Office(tmp_path, channels, rules))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def mail() -> Channel:
    return Channel("email")


@pytest.fixture
def office(new_office: Callable[..., Office], mail: Channel) -> Office:
    """Return an office whose only channel is the mail."""
    return new_office(mail)
