"""What every channel owes: laws over the table, so that a new one is held to them by its line."""

from __future__ import annotations

import inspect
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.core import config
from gpuwatchd.core.errors import NotifyError
from gpuwatchd.core.model import Message
from gpuwatchd.core.registry import load
from gpuwatchd.notify import NOTIFIERS
from gpuwatchd.notify.outbox import dispatcher

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.core.ports import Notifier

SECTION = config.NotifySection()
MESSAGE = Message(id="m", notice="test", severity="info", subject="s", body="b")


@pytest.fixture(params=NOTIFIERS)
def name(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return one channel's name, on a machine without desktop."""
    for variable in ("DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return str(request.param)


@pytest.fixture
def unusable(name: str) -> Notifier:
    """Return the channel as it is without any settings."""
    return dispatcher.build(SECTION, [name])[name]


def test_its_section_is_its_call(name: str) -> None:
    section = getattr(SECTION, name)
    parameters = inspect.signature(load(NOTIFIERS, name)).parameters
    assert set(parameters) == set(section.__struct_fields__)
    for parameter in parameters.values():
        assert parameter.default == getattr(section, parameter.name)


def test_it_knows_its_name(name: str, unusable: Notifier) -> None:
    assert unusable.name == name
    assert not isinstance(unusable, dispatcher.BrokenChannel)


def test_building_it_starts_nothing(name: str) -> None:
    before = threading.active_count()
    dispatcher.build(SECTION, [name])
    assert threading.active_count() == before


def test_a_probe_says_what_is_missing_and_what_to_do(unusable: Notifier) -> None:
    available = unusable.probe()
    assert not available.ok
    assert available.reason
    assert available.hint
    assert "\n" not in available.reason + available.hint


def test_what_cannot_be_sent_is_a_notify_error_with_a_hint(unusable: Notifier) -> None:
    began = time.monotonic()
    with pytest.raises(NotifyError) as caught:
        unusable.send(MESSAGE)
    assert time.monotonic() - began < 10
    assert caught.value.hint
    assert "\n" not in caught.value.message


def test_secrets_and_arguments_are_not_shown(name: str, tmp_path: Path) -> None:
    planted = "hunter2-hunter2"
    secret = tmp_path / "secret"
    secret.write_text(planted)
    secret.chmod(0o600)
    values: dict[str, Any] = {
        "password_file": str(secret),
        "username": "u",
        "host": "h.example.org",
        "to": ("a@example.org",),
        "argv": ("/bin/true", planted),
    }
    section = getattr(SECTION, name)
    known = {key: value for key, value in values.items() if key in section.__struct_fields__}
    changed = msgspec.structs.replace(SECTION, **{name: msgspec.structs.replace(section, **known)})
    channel = dispatcher.build(changed, [name])[name]
    assert planted not in repr(channel) + str(channel.probe())
