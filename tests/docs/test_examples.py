"""What how-to pages tell people to write is valid; snippets for monitoring call what there is."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.cli import config_text, main
from gpuwatchd.cli.verbs import check
from gpuwatchd.core import config
from gpuwatchd.fleet import config as fleet
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(
        re.findall(
            r"^```toml\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        )
    )
]
_MISSING_HERE = ("No such file", "empty, and the channel")
"""A page shows one section at a time, and files that are the reader's."""


@pytest.mark.parametrize("block", BLOCKS)
def test_every_example_of_a_configuration_is_valid(block: str, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(block, encoding="utf-8")
    if block.startswith("# fleet.toml"):
        # The certificates of one distribution are not everywhere.
        words = re.sub(r"^ca-file = .*$", "", block, flags=re.MULTILINE)
        file.write_text(words.replace("/run/secrets/gpuwatchd/", ""), encoding="utf-8")
        (tmp_path / "prometheus-token").touch(0o600)
        (tmp_path / "prometheus-token").write_text("s3cret")
        assert fleet.load(file).section.map in msgspec.toml.decode(fleet.MAPS.read_bytes())
        return
    if block.startswith("# vram.toml"):
        assert fleet.metric_map(str(file), "fleet.toml").used == "vram_used"
        return
    loaded = config.load(file, environ={})
    found = config_text.problems(loaded.config)
    assert [words for words in found if not any(part in words for part in _MISSING_HERE)] == []


def test_the_table_of_presets_is_what_the_presets_are(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "rules.md").read_text(encoding="utf-8")
    for name in ("shared", "ci"):
        file = tmp_path / f"{name}.toml"
        file.write_text(f'[policy]\npreset = "{name}"\n', encoding="utf-8")
        origin = config.load(file, environ={}).origin
        changed = {key.partition(".")[2] for key, source in origin.items() if "preset " in source}
        for key in changed - {"digest-channels"}:
            assert f"| `{key}` |" in page, key


def _calls() -> list[str]:
    folder = ROOT / "contrib" / "nagios"
    words = (folder / "nrpe.cfg").read_text() + (folder / "sudoers").read_text()
    return re.findall(r"gpuwatchctl (check.*)$", words, re.MULTILINE)


@pytest.mark.parametrize("call", _calls())
def test_monitoring_snippets_use_what_there_is(
    call: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(call)) in {2, 3}  # no daemon runs here
    answer = capsys.readouterr().out
    assert "no daemon has written" in answer, answer


def test_the_icinga_command_names_every_mode_and_flag() -> None:
    words = (ROOT / "contrib" / "nagios" / "icinga2.conf").read_text()
    assert f"{', '.join(list(check.MODES)[:-1])} or {list(check.MODES)[-1]}" in words
    for flag in ("--mode", "-w", "-c", "-t", "--gpu"):
        assert f'"{flag}"' in words
    assert words.count("{") == words.count("}")
