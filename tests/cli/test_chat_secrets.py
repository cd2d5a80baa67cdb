"""Addresses of chat services are secrets: whatever is asked, no answer has them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.cli import world

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "T0kenThatNobodyMaySee1234567890abcd"
URLS = f"""
# ours
slack://{SECRET}/{SECRET}/{SECRET}
ntfy://{SECRET.lower()}
json://me:{SECRET}@127.0.0.1:9/{SECRET}?{SECRET}={SECRET}
discord://{SECRET}/{SECRET}
{SECRET}
"""
NOWHERE = {
    "GPUWATCHD_SOURCES_ENABLED": "",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "HTTP_PROXY": "http://127.0.0.1:9",
}
"""Nothing leaves this machine."""
ASKED = [
    "notify list",
    "notify list --json",
    "notify test chat --json",
    "notify test chat --debug",
    "notify test chat --dry-run",
    "config print --origin",
    "config print --json",
    "config validate",
    "config validate --json",
    "policy show --json",
    "policy test --json",
    "doctor -v",
    "doctor --json",
    "check --json",
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    urls = tmp_path / "urls"
    urls.write_text(URLS)
    urls.chmod(0o600)
    found = tmp_path / "config.toml"
    found.write_text(
        f'[policy]\nchannels = ["chat"]\n[notify.chat]\nurls-file = "{urls}"\ntimeout = "3s"\n'
    )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("asked", ASKED)
def test_no_answer_has_an_address(asked: str, file: Path) -> None:
    done = world.run(*asked.split(), "--config", str(file), env=NOWHERE)
    said = (done.stdout + done.stderr).lower()
    assert said
    assert SECRET.lower() not in said


@pytest.mark.slow
def test_nor_has_one_with_addresses_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[policy]\nchannels = ["chat"]\n[notify.chat]\ntimeout = "3s"\n')
    env = {"GPUWATCHD_CHAT_URLS": " ".join(URLS.split("\n")[2:]), **NOWHERE}
    for asked in ("notify list --json", "notify test chat", "config print", "config validate"):
        done = world.run(*asked.split(), "--config", str(file), env=env)
        assert SECRET.lower() not in (done.stdout + done.stderr).lower()
        assert "unknown environment variable" not in done.stderr


def test_a_refusal_names_each_address_by_its_service(file: Path) -> None:
    done = world.run("notify", "test", "chat", "--json", "--config", str(file), env=NOWHERE)
    assert done.returncode == 1
    (row,) = json.loads(done.stdout)["data"]
    assert row["result"] == "failed"
    for name in ("slack (address 1)", "json at 127.0.0.1", "discord (address 4)", "address 5"):
        assert name in row["detail"], row["detail"]
