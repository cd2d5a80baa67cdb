"""What TAB offers, asked by the shells themselves and as each of them asks."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import termios
import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.cli import COMMANDS, completion_answers
from gpuwatchd.cli.verbs.completion import FILES
from tests.children import Child
from tests.cli import world
from tests.conftest import ROOT, need

if TYPE_CHECKING:
    from pathlib import Path

STATIC = ROOT / "gpuwatchd" / "cli" / "completions"
KEY = "leak:GPU-1/4711@1000.0"


def _shell(argv: list[str]) -> str:
    need(shutil.which(argv[0]), f"the shell {argv[0]}")
    path = f"{world.PROGRAM.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        argv, env={**os.environ, "PATH": path, "TERM": "dumb"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stderr == "", done.stderr
    return done.stdout


def _bash(line: str) -> list[str]:
    """Return what bash would put in place of the last word of a line."""
    drive = (
        'source "$1"; compopt() { :; }; COMP_LINE=$2; COMP_POINT=${#2};'
        ' _gpuwatchctl_completion gpuwatchctl; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return _shell(["bash", "-c", drive, "bash", str(STATIC / FILES["bash"]), line]).split()


def _fish(line: str) -> list[str]:
    drive = f"source {STATIC / FILES['fish']}; complete -C {line!r}"
    return _shell(["fish", "--no-config", "-c", drive]).splitlines()


def _typed(argv: list[str], setup: str, line: str, awaited: str, folder: Path) -> str:
    """Return what a shell on a terminal shows after a line and TAB, once it has what is awaited."""
    need(shutil.which(argv[0]), f"the shell {argv[0]}")
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (50, 200))
    environment = {
        **os.environ, "PATH": f"{world.PROGRAM.parent}:{os.environ['PATH']}", "TERM": "xterm",
        "ZDOTDIR": str(folder),
    }  # fmt: skip
    with Child(
        argv, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    ) as shell:
        os.close(slave)
        try:
            os.write(master, f"{setup}; echo RE''ADY\n".encode())
            _until(master, "READY")
            os.write(master, f"{line}\t".encode())
            shown = _until(master, awaited)
        finally:
            shell.kill()
            os.close(master)
    return shown


def _until(master: int, awaited: str) -> str:
    seen, shown, ends_s = b"", "", time.monotonic() + 30
    while awaited not in shown and time.monotonic() < ends_s:
        if select.select([master], [], [], 0.2)[0]:
            seen += os.read(master, 65536)
            shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode(errors="replace"))
    return shown


@pytest.mark.parametrize("shell", list(FILES))
def test_the_files_for_packages_are_what_the_verb_prints(shell: str) -> None:
    script = (STATIC / FILES[shell]).read_text(encoding="utf-8")
    assert world.run("completion", shell).stdout == script


@pytest.mark.slow
def test_bash_completes_verbs_flags_gpus_and_keys_with_colons() -> None:
    world.write()
    assert set(COMMANDS) == set(_bash("gpuwatchctl "))
    assert _bash("gpuwatchctl st") == ["status"]
    assert "--wide" in _bash("gpuwatchctl status --w")
    assert _bash("gpuwatchctl status --gpu ") == ["0", "1"]
    assert _bash("gpuwatchctl --json status --pid 47") == ["4711"]
    # bash replaces only what follows the last colon.
    assert _bash("gpuwatchctl alerts show leak:GPU-1/") == [KEY.removeprefix("leak:")]
    assert "email" in _bash("gpuwatchctl notify test ")
    assert _bash("gpuwatchctl backtest --set confidence") == ["confidence-threshold="]
    assert "detection.minimum-samples=" in _bash("gpuwatchctl backtest --set detection.min")


def test_bash_puts_it_into_the_line(tmp_path: Path) -> None:
    world.write()
    shown = _typed(
        ["bash", "--norc", "--noprofile", "-i"], f"source {STATIC / FILES['bash']}",
        "gpuwatchctl alerts show leak:GPU-1/4", KEY, tmp_path,
    )  # fmt: skip
    assert KEY in shown
    assert "leak:leak:" not in shown


@pytest.mark.parametrize(
    ("line", "awaited"),
    [("stat", "status "), ("backtest --set detection.conf", "confidence-threshold="),
     ("alerts show leak:", KEY), ("status --gpu ", "NVIDIA")],
)  # fmt: skip
def test_zsh_puts_it_into_the_line(line: str, awaited: str, tmp_path: Path) -> None:
    world.write()
    setup = f"fpath=({STATIC} $fpath); autoload -Uz compinit; compinit -u -d {tmp_path}/dump"
    assert awaited in _typed(["zsh", "-i"], setup, f"gpuwatchctl {line}", awaited, tmp_path)


def test_fish_completes_with_the_meaning() -> None:
    world.write()
    assert any(one.startswith("status\t") for one in _fish("gpuwatchctl st"))
    assert _fish("gpuwatchctl status --gpu ")[0].startswith("0\tNVIDIA")
    assert KEY in _fish("gpuwatchctl alerts show leak:")[0]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_name_that_is_a_command_stays_a_name(shell: str, tmp_path: Path) -> None:
    """TAB and Enter on the name of a user, as foreign directories or recordings may have it."""
    one = world.process()
    info = msgspec.structs.replace(one.info, user="a$(touch planted)`touch planted`; touch planted")
    card, _ = world.state().devices
    process = msgspec.structs.replace(one, info=info)
    world.write(devices=(msgspec.structs.replace(card, processes=(process,)),))
    source = f"source {STATIC / FILES[shell]}"
    argv, setup = {
        "bash": (["bash", "--norc", "--noprofile", "-i"], source),
        "zsh": (["zsh", "-i"], f"autoload -Uz compinit; compinit -u -d {tmp_path}/dump; {source}"),
    }[shell]
    line = "gpuwatchctl status --user a\t; pwd | tr / _\n"
    awaited = str(tmp_path).replace("/", "_")
    _typed(argv, f"cd {tmp_path}; {setup}", line, awaited, tmp_path)
    assert not (tmp_path / "planted").exists()
    assert "planted" in "".join(_bash("gpuwatchctl status --user a"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["words", "fish", "zsh", "bash"])
@pytest.mark.parametrize(
    "line",
    ["gpuwatchctl bogus ", "gpuwatchctl status --pid x ", "gpuwatchctl 'open ",
     "gpuwatchctl --config /nowhere status --gpu ", "gpuwatchctl history --since never "],
)  # fmt: skip
def test_a_wrong_line_is_completed_in_silence(kind: str, line: str) -> None:
    word = "" if kind in {"words", "fish"} else str(line.count(" "))
    done = world.run(
        env={
            completion_answers.VARIABLE: f"{kind}_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": word,
        }
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_broken_state_is_completed_in_silence() -> None:
    world.write_raw(b"{ broken")
    assert _bash("gpuwatchctl status --gpu ") == []


def test_users_are_those_on_the_gpus() -> None:
    world.write()
    assert [item.value for item in completion_answers.users("")] == ["me", "alice"]
    assert [item.value for item in completion_answers.users("al")] == ["alice"]


def test_completing_opens_no_driver(tmp_path: Path) -> None:
    world.write()
    (tmp_path / "pynvml.py").write_text("raise SystemExit('the driver was opened')\n")
    env = {
        "PYTHONPATH": str(tmp_path), completion_answers.VARIABLE: completion_answers.NAMES_ONLY,
        "COMP_WORDS": "gpuwatchctl status --gpu ", "COMP_CWORD": "",
    }  # fmt: skip
    assert world.run(env=env).stdout.split() == ["plain,0", "plain,1"]
