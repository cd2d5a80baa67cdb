"""What several tests of real parts share."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import need
from tests.real import mailserver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return mailserver.certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def mailbox() -> mailserver.Mailbox:
    return mailserver.Mailbox()


@pytest.fixture
def start(
    mailbox: mailserver.Mailbox, certificates: dict[str, Path]
) -> Iterator[Callable[..., Any]]:
    """Start servers; all of them end with the test."""
    need(importlib.util.find_spec("aiosmtpd"), "aiosmtpd is not installed")
    running: list[Any] = []

    def go(*, certificate: str = "good", port: int | None = None, **settings: Any) -> Any:
        file = certificates[certificate] if certificate else None
        running.append(mailserver.start(mailbox, file, port=port, **settings))
        return running[-1]

    yield go
    for server in running:
        server.stop(no_assert=True)


@pytest.fixture
def settings(tmp_path: Path, certificates: dict[str, Path]) -> dict[str, Any]:
    """Return those of the channel that fit such a server."""
    secret = tmp_path / "password"
    secret.write_text(mailserver.PASSWORD)
    secret.chmod(0o600)
    return {
        "host": "127.0.0.1",
        "ca_file": str(certificates["good"]),
        "username": "gpu",
        "password_file": str(secret),
        "sender": "gpu@example.org",
        "to": ("a@example.org", "b@example.org"),
        "timeout": 5.0,
    }


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
