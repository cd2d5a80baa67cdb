"""A rule set in plain sentences, and what in it cannot be meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.cli import ruleset, settings
from gpuwatchd.core import config
from gpuwatchd.core.config import hours

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calls import Ctl


def of(tmp_path: Path, written: str) -> config.Config:
    file = tmp_path / "config.toml"
    file.write_text(written, encoding="utf-8")
    return config.load(file, environ={}).config


@pytest.mark.parametrize(
    ("written", "note"),
    [
        ('[policy]\nseverity = { desktop = "critical" }', "only critical alerts are told"),
        ('[policy]\nseverity = { chat = "critical" }', "chat is not in use, so its limit"),
        ('[policy]\nquiet-hours = { all = ["00:00-24:00"] }', "desktop is always quiet"),
        ('[policy]\nquiet-hours = { all = ["07:00-22:00"], desktop = ["22:00-07:00"] }', "always"),
        ('[policy]\nquiet-hours = { chat = ["22:00-07:00"] }', "chat is not in use, so its hours"),
        ('[policy]\nfallback = ["desktop"]', "desktop is one of the channels already"),
        ('[policy]\nchannels = []\nfallback = ["desktop"]', "there is none"),
        ('[policy]\ndigest = "daily"\ndigest-channels = []', "reaches nobody"),
        ('[policy]\nchannels = ["chat"]', "chat needs the credential chat-urls"),
        ("[[override]]\nmute = true", "nobody is told of anything"),
        ('[[override]]\nseverity = "info"', "[policy] is the place"),
        ('[[override]]\nuser = "x"', "override 1: sets nothing"),
        ('[[override]]\nkind = "gpu"\nuser = "x"\nmute = true', "so it fits nothing"),
        ('[[override]]\nuser = "x"\ngrows = true\ngrows-to = 5', "grows adds nothing"),
        (
            (
                '[[override]]\nuser = "x"\nmute = true\n[[override]]\nmute = false\nuser = "x"\n'
                '[[override]]\nuser = "x"\nmute = true'
            ),
            "override 1: override 3 fits all of the same",
        ),
        ('[cost]\nmode = "owned"', "an owned device costs is unknown"),
        ('[cost]\ncurrency = "EUR"', "no money is shown in EUR"),
    ],
)
def test_what_is_never_told_is_said(tmp_path: Path, written: str, note: str) -> None:
    assert note in "\n".join(settings.consequences(of(tmp_path, written)))


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ('[policy]\nseverity = { pigeon = "info" }', '[policy] severity: no channel is called "pi'),
        ('[policy]\nquiet-hours = { pigeon = ["1:00-2:00"] }', "[policy] quiet-hours: no channel"),
        ('[policy]\nfallback = ["pigeon"]', "[policy] fallback: no channel"),
        ('[[override]]\nuser = "x"\nchannels = ["pigeon"]', "[[override]] 1 channels: no channel"),
        ('[[override]]\nkind = "leek"\nmute = true', '[[override]] 1 kind: nothing is "leek"'),
        ('[[override]]\npattern = "plateau"\nmute = true', "[[override]] 1 pattern: nothing is"),
        ('[policy]\ndigest = "daily"', "email is in use ([policy] digest-channels)"),
        ('[policy]\nfallback = ["command"]', "command is in use ([policy] fallback)"),
        ('[act]\ncheckpoint = "command"', "[act] argv: empty"),
        ('[policy]\nchannels = ["chat"]\n[notify.chat]\nurls-file = "/no/such"', "[notify.chat]"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, written: str, problem: str, ctl: Ctl) -> None:
    assert problem in "\n".join(settings.problems(of(tmp_path, written)))
    assert problem in ctl.err("config validate", str(tmp_path / "config.toml"), code=5)


@pytest.mark.parametrize(
    "written",
    [
        '[[override]]\nkind = "*"\npattern = "GRAD*"\nmute = true\nuser = "a"',
        '[[override]]\nuser = "a"\nmute = true\n[[override]]\nuser = "b"\nmute = true',
        '[[override]]\nuser = "a"\nmute = true\n[[override]]\nuser = "a"\nseverity = "info"',
        '[[override]]\nuser = "a"\nmute = true\n[[override]]\nuser = "a"\ngpu = "0"\nmute = true',
        '[policy]\nquiet-hours = { all = ["22:00-21:59"] }',
        '[policy]\npreset = "ci"',
    ],
)
def test_what_is_fine_is_not_blamed(tmp_path: Path, written: str) -> None:
    found = of(tmp_path, written)
    assert settings.problems(found) == []
    assert [note for note in ruleset.notes(found) if "quiet" in note or "override" in note] == []


def test_secrets_of_a_command_stay_masked(tmp_path: Path) -> None:
    found = of(tmp_path, '[[override]]\ncommand = "x --token s3cret-of-mine-1234"\nmute = true')
    assert "s3cret" not in "\n".join([*ruleset.explain(found), *ruleset.notes(found)])


def test_validate_explains(tmp_path: Path, ctl: Ctl) -> None:
    of(tmp_path, '[policy]\npreset = "ci"')
    file = str(tmp_path / "config.toml")
    assert "Nobody is told of alerts" in ctl("config validate", file)
    assert ctl.data("config validate", file)["rules"][0].startswith("Nobody")


@given(st.sets(st.sampled_from(hours.DAYS), min_size=1), st.integers(0, 1439), st.integers(0, 1439))
def test_minutes_of_the_week_are_those_of_the_hours(days: set[str], begin: int, end: int) -> None:
    if begin == end:
        return
    words = f"{','.join(days)} {begin // 60:02d}:{begin % 60:02d}-{end // 60:02d}:{end % 60:02d}"
    length = (end - begin) % 1440
    found = ruleset._minutes([words])
    assert len(found) == length * len(days)
    day = hours.DAYS.index(next(iter(days)))
    assert (1440 * day + begin) in found
    assert (1440 * day + begin + length - 1) % (7 * 1440) in found
