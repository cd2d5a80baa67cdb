"""The installed program, from outside: arguments in; exit code, stdout and stderr out."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.cli import COMMANDS, command_line, status_fast_path, status_output
from gpuwatchd.cli.global_flags import Globals
from gpuwatchd.store.live import LiveDevice
from gpuwatchd.view.blocks import width_of
from gpuwatchd.view.queries import user_filter
from gpuwatchd.view.query import Query
from tests import making
from tests.children import Child
from tests.cli import world
from tests.cli.calls import on_a_terminal
from tests.conftest import ON_LINUX

if TYPE_CHECKING:
    from tests.cli.calls import Ctl

pytestmark = pytest.mark.slow

NO_GPU_HERE = ("GPUWATCHD_SOURCES_ENABLED", "")


WITH_STATE = [
    ("", 0),
    ("--ascii --gpu 1", 0),
    ("--gpu 1 status", 0),
    ("status --gpu GPU-2", 0),
    ("status --exit-code", 3),
    ("status --exit-code --gpu 1", 0),
    ("status --exit-code --pid 99", 0),
    ("status --ascii", 0),
    ("predict --pid 4711 --exit-code", 3),
    ("predict --pid 12345", 1),
    ("status --gpu 1 --pid 4711", 1),
    ("alerts --since 99999999999999d", 2),
    ("policy", 2),
    ("--json notify", 2),
    ("status --watch 0", 2),
]
WITHOUT_ANYTHING = [
    ("watch -n 2", 1),
    ("config print --origin", 0),
    ("config validate", 0),
    ("--ascii --version", 0),
    ("--ascii", 1),
    ("service logs --json", 2),
]


def asked(line: str, code: int, ctl: Ctl) -> None:
    """Ask as people do, and as programs do: the shape of every JSON is looked at (conftest)."""
    done = ctl.both(line, code=code)
    assert "Traceback" not in done.err
    assert done.out if code in {0, 3} else done.err
    if "--version" not in line:
        answer = json.loads(ctl(line, "--json", code=code))
        assert ("error" not in answer) or answer["error"]["exit_code"] == code


@pytest.mark.parametrize(("line", "code"), WITH_STATE, ids=[line for line, _ in WITH_STATE])
def test_with_a_running_daemon(line: str, code: int, ctl: Ctl) -> None:
    world.write()
    asked(line, code, ctl)


@pytest.mark.parametrize(("line", "code"), WITHOUT_ANYTHING)
def test_without_daemon_database_and_gpu(
    line: str, code: int, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*NO_GPU_HERE)
    asked(line, code, ctl)


INNER = [
    "alerts show", "config path", "config print", "config init", "config validate",
    "notify list", "notify test", "service install", "service uninstall", "service start",
    "service stop", "service restart", "service status", "service logs", "service print",
]  # fmt: skip


@pytest.mark.parametrize("words", [*COMMANDS, *INNER])
def test_help_fits_80_columns_and_ends_with_examples(
    words: str, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = ctl(words, "--help" if words in COMMANDS else "-h")
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.partition("Examples:")[2].count("gpuwatchctl ") >= 2
    assert "--json" in shown or words in INNER


CLOSED = [
    "status", "status --json", "watch", "config print", "completion bash", "bogus --json",
    "--help", "predict -h", "--version", "explain",
]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "unbuffered"),
    [*((line, "") for line in CLOSED), ("status", "1"), ("predict -h", "1"), ("--version", "1")],
)
def test_a_closed_pipe_is_silent_and_141(line: str, unbuffered: str) -> None:
    world.write()
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [world.PROGRAM, *line.split()],
        stdout=writer,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        check=False,
        timeout=60,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_no_stdout_at_all_is_no_accident() -> None:
    world.write()
    done = subprocess.run(
        ["/bin/sh", "-c", f"{world.PROGRAM} status >&-"], stderr=subprocess.PIPE, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


@ON_LINUX
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_one_line_and_1(unbuffered: str) -> None:
    world.write()
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [world.PROGRAM, "status"],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert "no space left" in done.stderr
    assert done.stderr.splitlines()[1:] == [
        "hint: free some space and run it again",
        "see: gpuwatchctl docs errors#no-space",
    ]


def test_ctrl_c_is_130_without_a_word() -> None:
    world.write()
    with Child[bytes](
        [world.PROGRAM, "watch", "-i", "30s"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as watching:
        assert watching.stdout is not None
        watching.stdout.readline()  # it runs
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=20)
    assert (watching.returncode, errors.strip()) == (130, b"")


def _on_a_terminal(*arguments: str, columns: int, env: dict[str, str] | None = None) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "TERM"}}
    environment |= {"COLUMNS": str(columns), "TERM": "xterm", **(env or {})}
    return on_a_terminal([world.PROGRAM, *arguments], environment)[1]


@pytest.mark.parametrize(
    "verb",
    ["status", "predict", "alerts", "alerts show 4711", "status -v", "status --wide", "explain"],
)
def test_a_terminal_line_is_never_wider_than_the_terminal(verb: str) -> None:
    world.write()
    columns = 40
    shown = _on_a_terminal(*verb.split(), "--color", "never", columns=columns)
    widest = max(shown.splitlines(), key=width_of)
    assert width_of(widest) <= columns, widest


def test_a_pipe_is_never_truncated() -> None:
    name = "a" * 200
    world.write(devices=(LiveDevice(
        device=making.CARD, reading=world.reading("GPU-1", 5),
        processes=(world.process(7, name),),
    ),))  # fmt: skip
    done = world.run("status", env={"COLUMNS": "40"})
    assert f"{name}[7] of alice" in done.stdout
    assert name not in _on_a_terminal("status", columns=40)


def test_colour_follows_the_rules() -> None:
    world.write()
    assert "\x1b[" in _on_a_terminal("status", columns=80)
    assert "\x1b" not in world.run("--color", "never", "status", env={"FORCE_COLOR": "1"}).stdout


def test_another_encoding_means_plain_characters() -> None:
    world.write()
    done = world.run("status", env={"PYTHONIOENCODING": "latin-1"})
    assert done.returncode == 0
    assert done.stdout.isascii()


HEAVY = (
    "numpy rich platformdirs sqlite_utils sqlite3 importlib.metadata click tomllib psutil textual"
    " desktop_notifier apprise jinja2"
)
VERB_MODULES = " ".join(path.partition(":")[0] for path in COMMANDS.values())
CALL = "from gpuwatchd.cli import main; main({})"


@pytest.mark.parametrize(
    ("code", "forbidden"),
    [
        (CALL.format(["status"]), f"{HEAVY} gpuwatchd.alerts typing_extensions inspect"),
        (CALL.format(["--version"]), HEAVY),
        (
            CALL.format(["--help"]),
            f"numpy rich msgspec sqlite3 psutil jinja2 shutil {VERB_MODULES}",
        ),
        (CALL.format(["status", "--json", "--gpu", "0"]), f"{HEAVY} answers"),
        (CALL.format(["check"]), "numpy rich sqlite3 apprise psutil"),
        (
            "import gpuwatchd.view.queries.cost_entries, gpuwatchd.cli.verbs.cost",
            "numpy rich psutil gpuwatchd.pipeline.tick",
        ),
    ],
)
def test_what_is_quick_loads_no_heavy_module(code: str, forbidden: str) -> None:
    world.write()
    script = f"{code}\nimport sys; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = done.stderr.split()
    assert [
        one for one in forbidden.split() if one in loaded or f"gpuwatchd.cli.{one}" in loaded
    ] == []


def test_who_has_no_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_filter.user() == pwd.getpwuid(os.getuid()).pw_name

    def nobody(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert user_filter.user() == str(os.getuid())


WORDS = [
    "status", "--json", "--ascii", "-q", "--quiet", "-v", "--debug", "--gpu", "0", "GPU-*",
    "--color", "never", "always", "pink", "--pid", "4711", "-1", "0x1", "--exit-code",
    "--watch", "--wide", "--all", "--user", "me", "--config", "/dev/null", "--help", "watch", "--",
    "",
]  # fmt: skip
SLOTS = ("json", "color", "ascii", "gpu", "quiet", "verbose", "debug", "verb", "config", "wide",
         "every", "user")  # fmt: skip


def _parsed(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any] | None:
    """Return what the parser hands to the verb; None when it does not come to that."""
    seen: dict[str, Any] = {}

    def run(flags: Globals, pids: Any, *, exit_code: bool) -> int:
        seen.update({name: getattr(flags, name) for name in SLOTS})
        seen.update(pids=list(pids), exit_code=exit_code)
        return 0

    monkeypatch.setattr(status_output, "run", run)
    command_line.call(arguments)
    return seen or None


@given(st.lists(st.sampled_from(WORDS), max_size=7))
def test_what_is_read_here_is_what_the_parser_reads(arguments: list[str]) -> None:
    wish = status_fast_path.read(arguments)
    if wish is None:
        return
    with pytest.MonkeyPatch.context() as patch:
        parsed = _parsed(arguments, patch)
    assert parsed is not None
    mine = {name: getattr(wish.flags, name) for name in SLOTS}
    assert parsed == {**mine, "pids": wish.pids, "exit_code": wish.exit_code}


@pytest.mark.parametrize(
    "line",
    ["status", "status --json", "--gpu 0 status -v", "status --pid 4 --pid 5 --exit-code",
     "status --wide --all --json",
     "--color never status --gpu 1 --gpu 2"],
)  # fmt: skip
def test_plain_lines_take_the_short_way(line: str) -> None:
    assert status_fast_path.read(line.split()) is not None


@pytest.mark.parametrize(
    "line",
    ["", "predict", "status --help", "status -h", "status status", "status --gpu", "status --pid x",
     "status --color pink", "status --watch 2", "status --config x", "--exit-code status",
     "--wide status", "alerts show status", "status --pid 0", f"status --pid {'9' * 5000}"],
)  # fmt: skip
def test_everything_else_goes_the_long_way(line: str) -> None:
    assert status_fast_path.read(line.split()) is None


def test_every_slot_of_the_flags_is_compared() -> None:
    assert set(SLOTS) == {*Globals.__slots__, *Query.__slots__}
