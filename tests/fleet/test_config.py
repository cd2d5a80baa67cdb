"""fleet.toml: what is refused, and which maps there are."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwatchd.cli import main as gpuwatchctl
from gpuwatchd.core.errors import ConfigError
from gpuwatchd.core.state_log import StateLog
from gpuwatchd.daemon.main import main
from gpuwatchd.fleet import config
from tests.conftest import not_here

LOCAL = 'url = "http://127.0.0.1:9090"\n'


def write(folder: Path, words: str) -> Path:
    file = folder / "fleet.toml"
    file.write_text(words)
    return file


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("[fleet]\nurl = 'http://a'\nurll = 1", "urll"),
        ("[fleet]\nurl = 'ftp://a'", "url"),
        ("[fleet]\nurl = 'https://me:secret-word@a'", "url"),
        ("[fleet]\nurl = 'http://far.example:9090'\ntoken-file = 'token'", "token-file"),
        ("[fleet]\nurl = 'http://far.example:9090'\nheaders-file = 'token'", "headers-file"),
        ("[fleet]\nurl = 'https://far.example'\ntoken-file = 'open'", "token-file"),
        ("[fleet]\nurl = 'https://far.example'\ntoken-file = 'lines'", "token-file"),
        (f"[fleet]\n{LOCAL}alertmanagers = ['am:9093']", "alertmanagers"),
        (f"[fleet]\n{LOCAL}alertmanagers = ['http://a/api/v2/alerts']", "alertmanagers"),
        (f"[fleet]\n{LOCAL}alertmanagers = ['http://a', 'http://a/']", "alertmanagers"),
        (f"[fleet]\n{LOCAL}alertmanagers = ['http://me:secret-word@a']", "alertmanagers"),
        (f"[fleet]\n{LOCAL}alertmanagers = ['http://a b']", "alertmanagers"),
        (f"[fleet]\n{LOCAL}alertmanagers = ['http://a:x']", "alertmanagers"),
        (
            f"[fleet]\n{LOCAL}alertmanagers = ['http://far']\nalertmanager-token-file = 'token'",
            "alertmanager-token-file",
        ),
        (f"[fleet]\n{LOCAL}alertmanager-headers-file = 'open'", "alertmanager-headers-file"),
        (f'[fleet]\n{LOCAL}cluster = "a\\u0007"', "cluster"),
        (f"[fleet]\n{LOCAL}step = '1s'", "step"),
        (f"[fleet]\n{LOCAL}budget = {{answer = '10'}}", "answer"),
        (f"[fleet]\n{LOCAL}window = '10m'", "window"),
        (f"[fleet]\n{LOCAL}budget = {{timeout = '1h'}}", "timeout"),
        (f"[fleet]\n{LOCAL}[policy]\nconfirm = 99999", "confirm"),
        (f"[fleet]\n{LOCAL}[policy]\nclear-after = 99999", "clear-after"),
        ("[fleet]\nurl = 'http://a/api/v1/'", "url"),
        (f"[fleet]\n{LOCAL}state = '/'", "state"),
        (f"[fleet]\n{LOCAL}state = '/tmp'", "state"),
        (f"[fleet]\n{LOCAL}ca-file = 'token'", "ca-file"),
        ("[fleet]\nurl = 'https://a'\nca-file = 'token'", "ca-file"),
        ("[fleet]\nurl = 'https://a'\nca-file = 'none'", "ca-file"),
        (f"[fleet]\n{LOCAL}shard = '1/100000'", "1024"),
        (f"[fleet]\n{LOCAL}map = 'dcmg'", "map"),
        *((f"[fleet]\n{LOCAL}state = {path}", "state") for path in ("'a'", "'/'", '"/a\\u0000"')),
        (f"[fleet]\n{LOCAL}matchers = ['a=\"b\"}} or up{{']", "matchers"),
        (f"[fleet]\n{LOCAL}[policy]\nchannels = []", "channels"),
        ("[detection]\nmin-slope = 1", "min-slope"),
        ("", "[fleet]: "),
        ("# all of it\n # comments\n", "docs fleet has one to copy"),
        ("[fleet]\nmap = 'dcgm'", "[fleet] url: "),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_key(
    tmp_path: Path, words: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, mode, text in (
        ("token", 0o600, "s3cret"), ("open", 0o644, "s3cret"), ("lines", 0o600, "s3\ncret"),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    assert main(["fleet", "--config", str(write(tmp_path, words)), "--once"]) == 78
    shown = capsys.readouterr()
    assert key in shown.err
    assert "`" not in shown.err  # as the decoder names types and fields
    assert not {"s3cret", "cret", "secret-word"} & set(shown.err.replace(":", " ").split())


def test_a_check_says_what_is_in_force_and_all_that_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "token").chmod(0o600)
    words = f"[fleet]\n{LOCAL}token-file = 'token'\nalertmanagers = ['http://127.0.0.1:9093']\n"
    check = ["fleet", "--config", str(write(tmp_path, words)), "--check"]
    assert main([*check, "--shard", "2/4"]) == 0
    shown = capsys.readouterr()
    assert ("2/4" in shown.out, "s3cret" in shown.out, shown.err) == (True, False, "")
    assert main([*check, "--shard", "5/4"]) == 2
    assert re.findall("(?m)^[a-z]+(?=:)", capsys.readouterr().err) == ["gpuwatchd", "hint"]
    write(tmp_path, f"{words}step = '1s'\nmap = 'dcmg'\nshard = '0/1'\nheaders-file = 'none'\n")
    assert main(check) == 78
    lines = [line for line in capsys.readouterr().err.splitlines() if line[:10] == "gpuwatchd:"]
    assert len(lines) == 4
    # What is unknown hides nothing else.
    write(tmp_path, f"[fleet]\n{LOCAL}matcher = 1\nstepp = 1\nshard = '2/1'\ntoken-file = 'none'\n")
    assert main(check) == 78
    said = capsys.readouterr().err
    for key in ("matcher", "stepp", "shard", "none: no such file", "alertmanagers"):
        assert key in said, key
    write(tmp_path, f"[fleet]\n{LOCAL}matcher = 1\nbackend = 'x'\n")
    assert main(check) == 78
    said = capsys.readouterr().err
    assert ("[fleet] matcher" in said, "[fleet] backend" in said) == (True, True)
    write(tmp_path, f"[fleet]\n{LOCAL}")
    assert (main(check), main([*check, "--dry-run"])) == (78, 0)


def test_a_check_finds_that_metrics_cannot_be_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, f"[fleet]\n{LOCAL}[metrics]\nlisten = '127.0.0.1:9752'\n")
    check = ["fleet", "--config", str(file), "--check", "--once"]
    for there, code in ((object(), 0), (None, 78)):
        monkeypatch.setattr(importlib.util, "find_spec", lambda _, there=there: there)
        assert main(check) == code
    assert "[metrics] listen" in capsys.readouterr().err


def test_an_internal_error_is_shown_whole_at_the_level_that_its_hint_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")  # and back to what it was, at the end
    caplog.handler.setLevel("DEBUG")

    def broken(*_: object, **__: object) -> None:
        raise KeyError("broken")

    monkeypatch.setattr(config, "load", broken)
    given = ["fleet", "--config", str(tmp_path / "fleet.toml"), "--once"]
    for more, whole in ((), False), (("--log-level", "debug"), True):
        assert main([*given, *more]) == 1
        assert any(record.exc_info for record in caplog.records) is whole


def test_other_verbs_say_what_fleet_toml_is_and_where_one_comes_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpuwatchctl(["config", "validate", str(write(tmp_path, f"[fleet]\n{LOCAL}"))]) == 5
    assert "--check" in capsys.readouterr().err
    assert main(["fleet", "--config", str(tmp_path / "none.toml")]) == 78
    hint = capsys.readouterr().err.splitlines()[1]
    assert ("docs fleet" in hint, "config init" in hint) == (True, False)


def test_a_private_token_goes_with_https_or_to_this_machine(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "token").chmod(0o600)
    for url in ("https://far.example/prometheus", "http://localhost:9090"):
        file = write(tmp_path, f"[fleet]\nurl = '{url}'\ntoken-file = 'token'")
        assert config.load(file).headers == {"Authorization": "Bearer s3cret"}
        more = f"alertmanagers = ['{url}']\nalertmanager-token-file = 'token'"
        file = write(tmp_path, f"[fleet]\n{LOCAL}{more}")
        # Each is sent its own alone.
        found = config.load(file)
        assert (found.headers, found.alertmanager_headers) == (
            {},
            {"Authorization": "Bearer s3cret"},
        )


def test_a_token_that_was_renewed_is_taken_over_and_one_that_cannot_be_read_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    token.chmod(0o600)
    loaded = config.load(write(tmp_path, f"[fleet]\n{LOCAL}token-file = 'token'\n"))
    token.write_text("second\n")
    changes = StateLog()
    config.reread(loaded, changes)
    assert loaded.headers == {"Authorization": "Bearer second"}
    token.unlink()
    for _ in range(3):
        config.reread(loaded, changes)
    assert loaded.headers == {"Authorization": "Bearer second"}
    assert ("second" in caplog.text, len(caplog.records)) == (False, 1)


def test_the_window_is_the_look_back_and_sensitivity_the_threshold(tmp_path: Path) -> None:
    words = f"[fleet]\n{LOCAL}window = '4h'\n[detection]\nsensitivity = 'quiet'"
    found = config.load(write(tmp_path, words)).detection
    assert (found.analysis_window_hours, found.confidence_threshold) == (4.0, 0.8)


@pytest.mark.parametrize("name", ["dcgm", "nvidia-gpu-exporter", "gpuwatchd", "amd"])
def test_maps_that_come_with_it(name: str) -> None:
    found = config.metric_map(name, "fleet.toml")
    assert found.used
    assert found.total or found.free


def test_a_map_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        "used = 'vram_used'\ntotal = 'vram_total'\nunit = 'MB'\nuuid = 'card'\n"
    )
    file = str(tmp_path / "fleet.toml")
    assert config.metric_map("mine.toml", file).bytes_each == 1e6
    for line in ("used = 'a b'\nuuid = 'u'", "used = 'a'\nuuid = 'u'", "used = 'a'\nuid = 'u'"):
        (tmp_path / "mine.toml").write_text(line)
        with pytest.raises(ConfigError):
            config.metric_map("mine.toml", file)


def test_without_a_member_to_send_to_it_runs_only_where_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fleet", "--config", str(write(tmp_path, f"[fleet]\n{LOCAL}"))]) == 78
    assert {"alertmanagers:", "--dry-run"} <= set(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "ends", "code"),
    [
        ("none.toml", "2>&-", 78), ("none.toml", "2>/dev/full", 78), ("a\x1b[2J\nb", "", 78),
        ("fleet.toml --check --dry-run", ">&-", 0),
        ("fleet.toml --check --dry-run", ">/dev/full", 1),
    ],
)  # fmt: skip
def test_codes_are_the_same_where_nobody_reads(
    words: str, ends: str, code: int, tmp_path: Path
) -> None:
    if "full" in ends and not Path("/dev/full").exists():
        not_here("Linux has it")
    write(tmp_path, f"[fleet]\n{LOCAL}")
    program = "import sys; from gpuwatchd.daemon.main import main; sys.exit(main())"
    file, *options = [words] if "\n" in words else words.split()
    argv = [sys.executable, "-c", program, "fleet", "--config", str(tmp_path / file), *options]
    run = ["sh", "-c", f'exec "$@" {ends}', "sh", *argv]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    assert "\x1b" not in done.stderr
    assert len(done.stderr.splitlines()) == (0 if "2>" in ends or not code else 3)
