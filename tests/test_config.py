"""TOML text -> Config: layers, spellings, mistakes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gpuwatchd.core import config
from gpuwatchd.core.config import loading
from gpuwatchd.core.errors import ConfigError, NotifyError
from gpuwatchd.notify import credentials
from gpuwatchd.notify.channels import chat
from gpuwatchd.notify.channels.command import CommandNotifier

GPULSE = """
[detection]
min-r-squared = 0.8
min-slope-mb-per-sec = 1.0
confidence-threshold = 0.8
minimum-samples = 20
analysis-window-hours = 1.0
"""


def load(tmp_path: Path, written: str, **environ: str) -> config.Loaded:
    file = tmp_path / "config.toml"
    file.write_text(written)
    return config.load(file, environ=environ)


def test_without_any_file_the_defaults_hold(tmp_path: Path) -> None:
    loaded = config.load(environ={"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)})
    assert loaded.config.daemon.interval == 5.0
    assert loaded.config.detection.min_slope_mb_per_sec == 0.0
    assert set(loaded.origin.values()) == {"default"}


def test_what_a_job_is_started_with_is_no_setting(tmp_path: Path) -> None:
    names = ("ACT", "CHECKPOINT_SIGNAL", "PROBE", "PROBE_DIR", "PROBE_RECORD")
    assert load(tmp_path, "", **{f"GPUWATCHD_{name}": "1" for name in names}).warnings == []


@pytest.mark.requirement("G28")
def test_a_section_of_gpulse_is_taken_verbatim(tmp_path: Path) -> None:
    loaded = load(tmp_path, GPULSE)
    detection = loaded.config.detection
    assert (detection.min_r_squared, detection.min_slope_mb_per_sec) == (0.8, 1.0)
    assert (detection.confidence_threshold, detection.minimum_samples) == (0.8, 20)
    assert detection.analysis_window_hours == 1.0
    assert loaded.warnings == []


def test_snake_case_is_the_same_key(tmp_path: Path) -> None:
    assert load(tmp_path, "[detection]\nmin_r_squared = 0.5").config.detection.min_r_squared == 0.5


def test_layers_are_merged_key_by_key(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[daemon]\ninterval = '7s'\nlog-level = 'debug'\n")
    loaded = config.load(
        file,
        environ={"GPUWATCHD_DAEMON_INTERVAL": "8s"},
        overrides={"daemon": {"source-deadline": "1s"}},
    )
    daemon = loaded.config.daemon
    assert (daemon.interval, daemon.log_level, daemon.source_deadline) == (8.0, "debug", 1.0)
    assert loaded.origin["daemon.interval"] == "environment"
    assert loaded.origin["daemon.log-level"] == str(file)
    assert loaded.origin["daemon.source-deadline"] == "command line"


def test_every_key_can_be_set_from_the_environment(tmp_path: Path) -> None:
    written = {str: "x", bool: "false", int: "30", float: "0.5", tuple: "desktop,email"}
    special = {
        "daemon.log-level": "error", "notify.email.security": "tls", "notify.email.port": "30",
        "daemon.readers": "group",
        "policy.repeat": "1h,2h", "cost.usd-per-gpu-hour": "2.5", "cost.per-usd": "0.9",
        "detection.sensitivity": "quiet", "policy.preset": "shared", "zombies.preset": "strict",
        "policy.digest": "daily", "policy.tell-held": "ghost,idle",
        "policy.severity": '{ email = "critical" }', "cost.mode": "owned", "cost.offer": "spot",
        "policy.quiet-hours": '{ all = ["22:00-07:00"] }', "cost.prices": '{ "A100*" = 1.8 }',
        "cost.purchase": "9000", "cost.electricity-per-kwh": "0.3", "act.signal": "USR2",
        "cost.engineer-per-hour": "80", "act.checkpoint": "command",
        "policy.digest-at": "07:30", "cost.currency": "EUR",
        "act.mode": "auto", "act.notices": "3", "act.notice-gap": "90s",
        "act.leak-steps": "restart,end", "act.idle-steps": "restart,end",
        "web.listen": "[::1]:8080", "web.token-file": "~/token",
        "metrics.listen": "[::1]:8080", "metrics.file": "/x.prom", "metrics.compat": "dcgm,nvitop",
        "metrics.token-file": "~/token", "act.runner": "/opt/evict,now",
    }  # fmt: skip
    for key, default in list(config.keys()):  # a function, not a dict
        name = "GPUWATCHD_" + key.upper().replace(".", "_").replace("-", "_")
        value = special.get(key) or (
            "30s" if isinstance(default, config.Seconds) else written[type(default)]
        )
        loaded = config.load(
            environ={name: value, "XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}
        )
        assert loaded.origin[key] == "environment", key
        assert loaded.warnings == []


def test_a_bad_flag_is_not_blamed_on_a_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("")
    with pytest.raises(ConfigError, match=r"^command line: "):
        config.load(file, environ={}, overrides={"daemon": {"interval": "5x"}})


def test_a_file_that_is_not_text_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        config.load(file, environ={})


def test_directories_follow_xdg_and_our_own_variables() -> None:
    environ = {"XDG_STATE_HOME": "/s", "XDG_RUNTIME_DIR": "/r", "XDG_CONFIG_HOME": "/c"}
    assert config.state_dir(environ) == Path("/s/gpuwatchd")
    assert config.runtime_dir(environ) == Path("/r/gpuwatchd")
    assert config.user_file(environ) == Path("/c/gpuwatchd/config.toml")
    usual = Path(f"/run/user/{os.getuid()}")
    expected = usual / "gpuwatchd" if usual.is_dir() else Path("/s/gpuwatchd/run")
    assert config.runtime_dir({"XDG_STATE_HOME": "/s"}) == expected
    assert config.state_dir({"GPUWATCHD_STATE_DIR": "/x"}) == Path("/x")


REFUSED = [
    ("x = " + "[" * 100_000, "nested too deeply"),
    ("#" * 1_100_000, "larger than"),
    ("[daemon]\ninterval = 0", "[daemon] interval: shorter than"),
    ("[daemon]\nsource-deadline = '0s'", "[daemon] source-deadline: shorter than"),
    ("[daemon]\ninterval = inf", "[daemon] interval: longer than"),
    ("[daemon]\ninterval = 1e308", "[daemon] interval: longer than"),
    (f"[store]\nflush = {10**400}", "longer than"),
    ("[notify.email]\ntimeout = 0", "[notify.email] timeout: shorter than"),
    ("[endpoints]\nevery = 0", "[endpoints] every: shorter than"),
    ("[endpoints]\ntimeout = '0s'", "[endpoints] timeout: shorter than"),
    ("[endpoints]\ntimeout = '1h'", "[endpoints] timeout: longer than 60 s"),
    ("[cost]\nusd-per-gpu-hour = inf", "[cost] usd-per-gpu-hour: expected a number"),
    ("[cost]\nusd-per-gpu-hour = 'x'", "expected a number, got a text"),
    ("[cost]\nper-usd = 1e-300", "[cost] per-usd: expected a number >="),
    ("[cost]\npurchase = inf", "[cost] purchase: expected a number <="),
    ("[cost]\nlifetime = 0", "[cost] lifetime: shorter than"),
    ('[cost.prices]\n"A\\u0000" = 1', "[cost] prices: has a NUL character in it"),
    ('[notify.chat]\nurls-file = "a\\u0000"', "[notify.chat] urls-file: has a NUL character"),
    ('[policy.quiet-hours]\nall = ["\\u0000"]', "[policy] quiet-hours: has a NUL character"),
    ('[[override]]\n[[override]]\nwhy = "\\u0000"', "[[override]] 2 why: has a NUL character"),
    (f'[[override]]\ngpu = "{"[" * 501}"', "[[override]] 1 gpu: longer than 500 characters"),
    (f'[cost.prices]\n"{"[" * 501}" = 1', "[cost] prices: a name is longer than 500"),
    (f'[checkpoints]\npaths = ["/{"a/" * 2500}"]', "[checkpoints] paths: longer than 4096"),
    ('[policy]\nquiet-hours = { all = ["22-7"] }', "quiet-hours: all: '22-7' is not like"),
    ('[policy]\nquiet-hours = { email = ["xyz 01:00-02:00"] }', "'xyz' is no day"),
    ('[policy]\nquiet-hours = { all = ["24:00-00:00"] }', "starts when the day is over"),
    ('[policy]\nquiet-hours = { all = ["mon 24:00-01:00"] }', "starts when the day is over"),
    ("[override]\nmute = true", "expected tables: [[override]]"),
    (
        '[[override]]\n[[override]]\nseverity = "fatal"',
        "[[override]] 2 severity: 'fatal' is not",
    ),
    ('[[override]]\nact = "auto"\ncommand = "*x*"', "[[override]] 1 act:"),
    ('[[override]]\nact = "auto"\ncommand = "*x*"\nuser = "?*"', "[[override]] 1 act:"),
    ('[cost.prices]\n"*" = -1', "[cost] prices: expected a number >= 0"),
    ('[web]\nlisten = "127.0.0.1:70000"', "'127.0.0.1:70000': no port is above 65535"),
    (f'[web]\nlisten = "127.0.0.1:{"9" * 4000}"', "no port is above 65535"),
    ('[web]\nlisten = "0.0.0.0:80"', "[web] listen: 0.0.0.0 can be reached from elsewhere"),
    ('[web]\nlisten = "unix:web.sock"', "[web] listen: unix:web.sock: not a whole path"),
    ('[web]\nhosts = ["*"]', '[web] hosts: "*" is no name of a server'),
    ('[web]\nhosts = ["a:70000"]', '[web] hosts: "a:70000" is no name of a server'),
    ('[web]\nhosts = [""]', '[web] hosts: "" is no name of a server'),
    ('[web]\nremote = "yes"', "[web] remote: expected"),
]


@pytest.mark.parametrize(("written", "why"), REFUSED)
def test_what_would_hang_or_overflow_later_or_cannot_be_meant_is_refused(
    tmp_path: Path, written: str, why: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, written)
    assert why in caught.value.message


def test_a_fifo_is_no_configuration(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.toml")
    with pytest.raises(ConfigError, match="is a FIFO"):
        config.load(tmp_path / "config.toml", environ={})


def test_what_a_shell_pipes_in_is_a_configuration() -> None:
    hears, says = os.pipe()
    os.write(says, b"[daemon]\ninterval = 7\n")
    os.close(says)
    try:
        assert config.load(Path(f"/dev/fd/{hears}"), environ={}).config.daemon.interval == 7.0
    finally:
        os.close(hears)


def test_directories_on_macos_are_those_of_the_library_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gpuwatchd.core import directories

    monkeypatch.setattr(directories, "_on_macos", lambda: True)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    home = Path.home()
    support = home / "Library" / "Application Support" / "gpuwatchd"
    assert config.user_file({}) == support / "config.toml"
    assert config.state_dir({}) == support
    assert config.runtime_dir({}) == home / "Library/Caches/TemporaryItems/gpuwatchd"


def test_a_preset_lies_below_the_files(tmp_path: Path) -> None:
    loaded = load(
        tmp_path, '[policy]\npreset = "shared"\nrepeat = ["2h"]\nseverity = { chat = "critical" }'
    )
    policy = loaded.config.policy
    assert (policy.channels, policy.digest) == (("email",), "daily")
    assert policy.repeat == (7200.0,)
    assert policy.severity == {"chat": "critical"}
    assert loaded.origin["policy.channels"] == "preset shared"
    assert loaded.origin["policy.repeat"] == str(tmp_path / "config.toml")
    assert loaded.origin["policy.confirm"] == "default"


def test_the_highest_layer_names_the_preset(tmp_path: Path) -> None:
    loaded = load(tmp_path, '[policy]\npreset = "shared"', GPUWATCHD_POLICY_PRESET="ci")
    assert loaded.config.policy.channels == ()
    assert loaded.config.policy.digest == "off"
    assert loaded.origin["policy.repeat"] == "preset ci"


@pytest.mark.parametrize("name", list(loading.PRESETS))
def test_every_preset_is_valid_and_changes_only_what_is_told(tmp_path: Path, name: str) -> None:
    loaded = load(tmp_path, f'[policy]\npreset = "{name}"')
    before = config.Config()
    changed = {key for key, source in loaded.origin.items() if source == f"preset {name}"}
    assert bool(changed) == (name != "workstation")
    assert all(key.startswith("policy.") for key in changed)
    assert not changed & {"policy.confirm", "policy.clear-after"}
    assert loaded.config.detection == before.detection
    loading.preset_layer(name).clear()
    assert config.load(tmp_path / "config.toml", environ={}).config == loaded.config


@pytest.mark.requirement("W9")
def test_an_idle_preset_lies_below_the_files(tmp_path: Path) -> None:
    loaded = load(tmp_path, '[zombies]\npreset = "shared"\n[act]\nnotices = 2')
    assert loaded.config.zombies.idle_after == 900.0
    assert (loaded.config.act.notices, loaded.config.act.notice_gap) == (2, 3000.0)
    assert loaded.origin["act.notice-gap"] == "idle preset shared"
    for name in loading.IDLE_PRESETS:
        act = load(tmp_path, f'[zombies]\npreset = "{name}"').config.act
        assert 2 <= act.notices <= 3, name


def test_where_the_live_page_may_listen(tmp_path: Path) -> None:
    section = load(
        tmp_path,
        '[web]\nlisten = "0.0.0.0:80"\nremote = true\ntoken-file = "~/t"\n'
        'hosts = ["GPU.example.org", "localhost:9800", "[::1]", "my_box"]',
    ).config.web
    assert section.listen == "0.0.0.0:80"
    for listen in ("unix", "unix:/run/x", "unix:~/x", "9753", "localhost:0"):
        assert load(tmp_path, f'[web]\nlisten = "{listen}"').config.web.listen == listen


def test_an_environment_that_is_no_text_is_refused() -> None:
    odd = os.fsdecode(b"desktop,\xff")
    with pytest.raises(ConfigError, match=r"\[policy\] channels: is not UTF-8 text"):
        config.load(environ={"GPUWATCHD_POLICY_CHANNELS": odd})


def test_tables_from_the_environment(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        "",
        GPUWATCHD_POLICY_SEVERITY="email=critical; desktop = warning",
        GPUWATCHD_POLICY_QUIET_HOURS="all=22:00-07:00, sun 00:00-24:00; chat=12:00-13:00",
        GPUWATCHD_COST_PRICES="NVIDIA A100*=1.8",
    )
    assert loaded.config.policy.severity == {"email": "critical", "desktop": "warning"}
    assert loaded.config.policy.quiet_hours == {
        "all": ("22:00-07:00", "sun 00:00-24:00"),
        "chat": ("12:00-13:00",),
    }
    assert loaded.config.cost.prices == {"NVIDIA A100*": 1.8}
    with pytest.raises(ConfigError, match="environment"):
        load(tmp_path, "", GPUWATCHD_COST_PRICES="A100=cheap")


def test_overrides_of_a_higher_layer_replace_those_below(tmp_path: Path) -> None:
    loaded = load(
        tmp_path, '[[override]]\nuser = "a*"\ngrows-to = "24GiB"\n[[override]]\nmute = true'
    )
    first, second = loaded.config.override
    assert (first.user, first.grows_to, second.mute) == ("a*", 24 * 2**30, True)
    assert loaded.origin["override"] == str(tmp_path / "config.toml")


def test_a_home_that_nobody_has_is_a_file_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    nobody = "~nobody-has-this-name/x"
    assert config.expanded("~/x") == tmp_path / "x"
    assert config.expanded(nobody) == Path(nobody)
    assert "no such program" in CommandNotifier([nobody]).probe().reason
    for read in (
        lambda: chat.load(nobody),
        lambda: credentials.read(credential="x", file=nobody),
    ):
        with pytest.raises(NotifyError, match="No such file or directory"):
            read()


def test_what_the_system_does_not_let_us_read_is_told_once_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config" / "gpuwatchd" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("[daemon]\ninterval = '1s'\n")

    def denied(path: str, flags: int) -> int:
        if path == str(file):
            raise PermissionError(errno.EACCES, "Permission denied")
        return os.open(path, flags)

    monkeypatch.setattr(loading, "_opener", denied)
    loaded = config.load()
    assert loaded.warnings == [f"{file}: not readable by this user, so it is ignored"]
    assert loaded.files == []
    with pytest.raises(ConfigError, match="Permission denied"):
        config.load(file)


def test_a_file_that_is_not_there_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file") as caught:
        config.load(tmp_path / "nowhere.toml")
    assert "config init" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[act]\nleak-steps = ["checkpoint"]', "[act] leak-steps"),
        ('[act]\nidle-steps = ["end", "end"]', "[act] idle-steps"),
        ('[act]\nnotice-gap = "5s"', "[act] notice-gap"),
        ("[act]\nnotices = 1", "[act] notices"),
        ('[act]\nrunner = ["evict"]', "[act] runner"),
        ('[act]\nrunner = ["bin/evict"]', "[act] runner"),
        ('[[override]]\nact = "auto"\ncommand = "*train.py*"', "[[override]] 1 act"),
        ('[[override]]\nact = "auto"\ncommand = "*"\nuser = "alice"', "[[override]] 1 act"),
    ],
)
def test_steps_that_are_not_said_in_full_are_refused(tmp_path: Path, text: str, key: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        config.load(file, environ={})
    assert f"{file}: {key}" in caught.value.message
    assert caught.value.hint


def test_a_program_is_named_in_full_from_home_or_by_its_name(tmp_path: Path) -> None:
    text = '[act]\nrunner = ["~/evict"]\nargv = ["save"]\n[notify.command]\nargv = ["/opt/tell"]\n'
    assert load(tmp_path, text).config.act.runner == ("~/evict",)
