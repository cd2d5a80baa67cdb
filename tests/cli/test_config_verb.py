"""``config``: the file it writes, what it prints, and what it says about settings."""

from __future__ import annotations

import re
import stat
from typing import TYPE_CHECKING, Literal, get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.cli import config_text, main, rules_text
from gpuwatchd.core import config
from gpuwatchd.core.config import Config, validation
from gpuwatchd.view.queries import operating_points
from gpuwatchd.view.queries.operating_points import Measured

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calls import Ctl


EMAIL = '[policy]\nchannels = ["email"]\n[notify.email]\nto = ["a@example.org"]\n'
KEYS = tuple(config.keys())
GPULSE = """
[detection]
min-r-squared = 0.7
min-slope-mb-per-sec = 1.0
confidence-threshold = 0.8
minimum-samples = 10
analysis-window-hours = 24
"""


OVERRIDES = """
[[override]]
user = "ali*"
grows-to = "24GiB"
why = "it is \\"ok\\""
[[override]]
command = "x --token s3cret-value-of-mine"
mute = true
repeat = ["2h"]
"""


def saved(folder: Path, text: str) -> Path:
    """Return a file of settings with this in it."""
    file = folder / "config.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_init_writes_every_key_switched_off(tmp_path: Path) -> None:
    file = tmp_path / "new" / "config.toml"
    assert main(["config", "init", "--config", str(file), "-q"]) == 0
    content = file.read_text(encoding="utf-8")
    assert config.load(file, environ={}).config == Config()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    named = set(re.findall(r"^#([a-z-]+) =", content, flags=re.MULTILINE))
    assert named == {key.rpartition(".")[2] for key, _ in KEYS}


def test_init_switched_on_is_the_defaults(tmp_path: Path) -> None:
    on = re.sub(r"^#([a-z-]+ = .+)$", r"\1", config_text.default_file(), flags=re.MULTILINE)
    file = saved(tmp_path, on)
    loaded = config.load(file, environ={})
    assert loaded.config == Config()
    at_defaults = {key for key, origin in loaded.origin.items() if origin == "default"}
    assert at_defaults == {key for key, default in KEYS if default is None}


def _words(kind: object) -> list[str]:
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [word for part in get_args(kind) for word in _words(part)]


def test_init_names_every_word_that_a_key_may_have() -> None:
    content = config_text.default_file()
    asked = 0
    for path, section in config_text.sections():
        begin = content.index(f"\n[{path}]")
        body = content[begin : content.find("\n\n[", begin + 1)]
        for field in msgspec.structs.fields(section):
            if words := _words(field.type):
                found = re.search(rf"((?:^# .*\n)+)#{field.encode_name} =", body, re.MULTILINE)
                assert found, field.encode_name
                assert [word for word in words if word not in found[1]] == []
                asked += 1
    assert asked >= 10


def test_init_replaces_nothing_unless_told(tmp_path: Path, ctl: Ctl) -> None:
    file = saved(tmp_path, "# mine\n")
    assert "--force" in ctl.err("--config", str(file), "config", "init")
    assert file.read_text(encoding="utf-8") == "# mine\n"
    assert main(["config", "init", "--force", "--config", str(file)]) == 0
    assert "[detection]" in file.read_text(encoding="utf-8")


def test_print_shows_the_layer_of_each_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ctl: Ctl
) -> None:
    file = saved(tmp_path, "[detection]\nminimum_samples = 30\n")
    monkeypatch.setenv("GPUWATCHD_DAEMON_INTERVAL", "10s")
    shown = ctl("config print --origin --config", str(file))
    assert f"minimum-samples = 30  # {file}" in shown
    assert 'interval = "10s"  # environment variable' in shown
    assert 'minimum-duration = "5m"  # default' in shown


def test_print_is_a_file_that_means_the_same(tmp_path: Path, ctl: Ctl) -> None:
    file = tmp_path / "copy.toml"
    file.write_text(ctl("config print"), encoding="utf-8")
    assert config.load(file, environ={}).config == Config()


@pytest.mark.parametrize("flags", [[], ["--json"]])
@pytest.mark.parametrize(
    "written",
    [
        '[notify.command]\nargv = ["curl", "--token", "s3cret-value", "https://me:s3cret@host/"]\n',
        OVERRIDES,
    ],
)
def test_print_masks_secrets(written: str, flags: list[str], tmp_path: Path, ctl: Ctl) -> None:
    shown = ctl("config print", *flags, "--config", str(saved(tmp_path, written)))
    assert "****" in shown
    assert "s3cret" not in shown


def test_a_gpulse_block_is_accepted_and_its_price_is_said(tmp_path: Path, ctl: Ctl) -> None:
    file = saved(tmp_path, GPULSE)
    shown = ctl.both("config validate", str(file))
    assert "this slope floor hides leaks below 60.0 MB/min" in shown.out
    assert "min-r-squared" in shown.out
    assert "unknown" not in shown.out + shown.err


def test_defaults_have_no_hidden_price() -> None:
    assert config_text.consequences(Config()) == []
    assert config_text.problems(Config()) == []


def test_print_shows_overrides_as_a_file_that_means_the_same(tmp_path: Path, ctl: Ctl) -> None:
    file = saved(tmp_path, OVERRIDES.replace("--token s3cret-value-of-mine", "--fast"))
    shown = ctl("config print --origin --config", str(file))
    assert f'[[override]]  # {file}\nuser = "ali*"\ngrows-to = "24GiB"\n' in shown
    copy = tmp_path / "copy.toml"
    copy.write_text(shown, encoding="utf-8")
    assert config.load(copy, environ={}).config.override == config.load(file).config.override


def test_the_example_of_init_is_valid(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    example = "\n".join(line.removeprefix("# ") for line in config_text.EXAMPLES.splitlines())
    file.write_text(example, encoding="utf-8")
    first, second = config.load(file, environ={}).config.override
    assert (first.process, second.channels) == ("vllm*", ("chat",))
    assert example.splitlines()[0] in config_text.default_file().replace("# ", "")


def of(tmp_path: Path, written: str) -> config.Config:
    return config.load(saved(tmp_path, written), environ={}).config


@pytest.mark.parametrize(
    ("written", "note"),
    [
        ("[detection]\nconfidence-threshold = 0.3", "false alarms"),
        ("[detection]\nminimum-samples = 500", "no alert before 42 min"),
        ("[detection]\nminimum-growth-mib = 1024", "below 1.0 GiB"),
        ("[detection]\nanalysis-window-hours = 0.5", "leaks slower than 0.6 MB/min"),
        ("[detection]\nanalysis-window-hours = 0.01", "there will be none"),
        ('[detection]\neta-horizon = "10m"', "no alert earlier than 10 min"),
        ('[detection]\nspike-window = "5s"', "shorter than 3 samples; 15 s"),
        ("[policy]\nrepeat = []", "never again"),
        ("[sources]\nenabled = []", "nothing is monitored"),
        ('[daemon]\ninterval = "5m"', "seen late"),
        ('[policy]\nseverity = { desktop = "critical" }', "only critical alerts are sent"),
        ('[policy]\nseverity = { chat = "critical" }', "chat is not in use, so its limit"),
        ('[policy]\nquiet-hours = { all = ["07:00-22:00"], desktop = ["22:00-07:00"] }', "always"),
        ('[policy]\nquiet-hours = { chat = ["22:00-07:00"] }', "chat is not in use, so its hours"),
        ('[policy]\nchannels = []\nfallback = ["desktop"]', "there is none"),
        ('[policy]\ndigest = "daily"\ndigest-channels = []', "summary is not sent"),
        ('[policy]\nchannels = ["chat"]', "chat needs the credential chat-urls"),
        ("[[override]]\nmute = true", "no message is sent"),
        ('[[override]]\nseverity = "info"', "use [policy]"),
        ('[[override]]\nuser = "x"', "override 1: has no setting"),
        ('[[override]]\nkind = "gpu"\nuser = "x"\nmute = true', "so it matches nothing"),
        ('[[override]]\nuser = "x"\ngrows = true\ngrows-to = 5', "grows has no effect"),
        (
            (
                '[[override]]\nuser = "x"\nmute = true\n[[override]]\nmute = false\nuser = "x"\n'
                '[[override]]\nuser = "x"\nmute = true'
            ),
            "override 1: override 3 fits all of the same",
        ),
        ('[cost]\nmode = "owned"', "an owned device costs is unknown"),
        ('[cost]\ncurrency = "EUR"', "no money is shown in EUR"),
        ('[act]\nmode = "auto"\nidle-steps = []', "idle-steps: empty"),
        ('[act]\nmode = "auto"\nrunner = ["/none/drain", "-x"]', "runner: /none/drain is no"),
        ('[act]\nrunner = ["/etc"]', "runner: /etc is no"),
    ],
)
def test_what_is_never_told_is_said(tmp_path: Path, written: str, note: str) -> None:
    assert note in "\n".join(config_text.consequences(of(tmp_path, written)))


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ('[sources]\nenabled = ["replay"]', "[sources.replay] file: not set"),
        ('[policy]\nchannels = ["command"]', "[notify.command] argv: empty"),
        (
            f'{EMAIL}host = "mail.example.org"\nsecurity = "none"',
            "refused for mail.example.org",
        ),
        (
            f'{EMAIL}host = "localhost"\npassword-file = "PASSWORD"',
            "others can read",
        ),
        (
            '[endpoints]\nurls = ["vLLM=http://127.0.0.1:1", "http://127.0.0.1:8001"]',
            "[endpoints] urls: 'http://127.0.0.1:8001' is not understood; write it as",
        ),
        ("[detection]\nminimum-samples = 'x'", "minimum-samples"),
        ('[policy]\nseverity = { pigeon = "info" }', '[policy] severity: no channel is called "pi'),
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
    secret = tmp_path / "password"
    secret.write_text("x", encoding="utf-8")
    secret.chmod(0o644)
    file = str(saved(tmp_path, written.replace("PASSWORD", str(secret))))
    assert problem in ctl.err("config validate", file, code=5)
    answer = ctl.json("config validate", file, code=5)
    said = [answer["error"]["message"]] if "error" in answer else answer["data"]["problems"]
    assert problem in "\n".join(said)


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
    assert config_text.problems(found) == []
    assert [note for note in rules_text.notes(found) if "quiet" in note or "override" in note] == []


@pytest.mark.parametrize(
    ("written", "lines", "notes"),
    [
        ("", 1, 0),
        ('[act]\nmode = "auto"', 2, 0),
        ('[act]\nmode = "auto"\nidle-steps = []', 1, 0),
        ('[policy]\npreset = "ci"\n[[override]]\ncommand = "x"\nuser = "a"\nact = "auto"', 2, 1),
    ],
)
def test_what_is_done_without_being_asked_is_said(
    tmp_path: Path, written: str, lines: int, notes: int
) -> None:
    found = of(tmp_path, written)
    assert len([*rules_text._steps(found)]) == lines
    assert sum(note.startswith("act: ") for note in rules_text.notes(found)) == notes


def test_secrets_of_a_command_stay_masked(tmp_path: Path) -> None:
    found = of(tmp_path, '[[override]]\ncommand = "x --token s3cret-of-mine-1234"\nmute = true')
    assert "s3cret" not in "\n".join([*rules_text.explain(found), *rules_text.notes(found)])


def test_validate_explains(tmp_path: Path, ctl: Ctl) -> None:
    of(tmp_path, '[policy]\npreset = "ci"')
    file = str(tmp_path / "config.toml")
    assert "No alerts are sent" in ctl("config validate", file)
    assert ctl.data("config validate", file)["rules"][0].startswith("No alerts are sent")


def known(*levels: float) -> Measured:
    """Figures of these thresholds."""
    row = operating_points.measured().thresholds[0]
    rows = tuple(msgspec.structs.replace(row, alert_confidence=level) for level in levels)
    return Measured(measured_on="a set", command="a command", thresholds=rows)


def test_figures_of_every_sensitivity_come_with_the_program() -> None:
    rows = {row.alert_confidence: row for row in operating_points.measured().thresholds}
    assert set(config.SENSITIVITY.values()) <= set(rows), "python -m tests.scenarios.bench --docs"
    assert list(rows) == sorted(rows)
    for mix in (mix for row in rows.values() for mix in (row.field, row.hard)):
        assert mix.false_alerts_low_per_day <= mix.false_alerts_high_per_day


@pytest.mark.parametrize(
    ("threshold", "nearest", "measured"),
    [
        (config.SENSITIVITY["early"], set(), True),
        (0.9, set(), True),
        (0.87, {config.SENSITIVITY["quiet"], 0.9}, False),
        (0.95, set(), False),
        (0.5, set(), False),
    ],
)
def test_a_threshold_that_was_not_measured_lies_between_two_that_were(
    threshold: float, nearest: set[float], measured: bool
) -> None:
    levels = tuple(config.SENSITIVITY.values())
    points = operating_points.operating_points(threshold, known(*levels, 0.9))
    assert [point.alert_confidence for point in points] == sorted({*levels, *nearest, threshold})
    (in_force,) = (point for point in points if point.in_force)
    assert in_force.alert_confidence == threshold
    assert (in_force.figures is not None) == measured
    assert {point.alert_confidence for point in points if point.nearest} == nearest
    assert [p.sensitivity for p in points if p.sensitivity] == list(config.SENSITIVITY)


def test_a_sensitivity_without_figures_has_none() -> None:
    early, *others = config.SENSITIVITY.values()
    points = operating_points.operating_points(early, known(*others))
    assert [point.figures is None for point in points] == [True, False, False]
    assert not any(point.nearest for point in points)


@pytest.mark.parametrize(
    ("written", "threshold", "names"),
    [
        ("", config.SENSITIVITY["balanced"], ["balanced"]),
        ('[detection]\nsensitivity = "quiet"', config.SENSITIVITY["quiet"], ["quiet"]),
        ("[detection]\nconfidence-threshold = 0.99", 0.99, [None]),
    ],
)
def test_validate_shows_each_sensitivity_and_marks_what_is_in_force(
    written: str, threshold: float, names: list[str | None], tmp_path: Path, ctl: Ctl
) -> None:
    file = str(saved(tmp_path, written))
    data = ctl.data("config validate", file)
    points = data["operating_points"]
    assert [one["sensitivity"] for one in points if one["in_force"]] == names
    assert [one["alert_confidence"] for one in points if one["in_force"]] == [threshold]
    assert {one["sensitivity"] for one in points} >= set(config.SENSITIVITY)
    shown = ctl("config validate", file)
    for one in points:
        assert f"{one['alert_confidence']:g}" in shown
        if one["figures"] is not None:
            assert f"{one['figures']['field']['f1']:.2f}" in shown
    assert "0." not in ctl("config validate", file, "-q").replace("0.99", "")


@given(
    st.sets(st.sampled_from(validation.DAYS), min_size=1),
    st.integers(0, 1439),
    st.integers(0, 1439),
)
def test_minutes_of_the_week_are_those_of_the_hours(days: set[str], begin: int, end: int) -> None:
    if begin == end:
        return
    words = f"{','.join(days)} {begin // 60:02d}:{begin % 60:02d}-{end // 60:02d}:{end % 60:02d}"
    length = (end - begin) % 1440
    found = rules_text._minutes([words])
    assert len(found) == length * len(days)
    day = validation.DAYS.index(next(iter(days)))
    assert (1440 * day + begin) in found
    assert (1440 * day + begin + length - 1) % (7 * 1440) in found
