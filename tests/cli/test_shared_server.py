"""One service for the machine: its group reads it, nobody else does, and root writes as its user.

Everything here is done by other users, real ones (:mod:`tests.others`).
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.store import live
from tests.children import Child
from tests.others import READER, ROOT, SERVICE, STRANGER, Others
from tests.test_daemon import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

NOTE = "from the service of this machine (gpuwatchd of the system)"


HOLDING = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=10)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def service(
    others: Others, *, user: int = SERVICE, readers: str = "group", **environ: str
) -> Iterator[subprocess.Popen[str]]:
    """Run the service, with a leak that raises an alert within seconds."""
    settings = {
        "GPUWATCHD_STATE_DIR": str(others.state),
        "GPUWATCHD_RUNTIME_DIR": str(others.run_dir),
        "GPUWATCHD_DAEMON_READERS": readers,
        "GPUWATCHD_SOURCES_SIMULATE_SPEED": "100",
        "GPUWATCHD_POLICY_CHANNELS": "",
        "GPUWATCHD_STORE_FLUSH": "1s",
        **environ,
    }
    argv = [sys.executable, "-m", "gpuwatchd", "--source", "simulate:one-leak", "--interval", "0.2"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            others.words(user, argv, **settings), stderr=log, text=True, cwd=Path(__file__).parent
        )
        try:
            wait_for(
                lambda: (
                    (seen := live.read(Path(settings["GPUWATCHD_RUNTIME_DIR"]))) is not None
                    and seen.pid == process.pid
                    and seen.ticks > 2
                )
            )
            yield process
        finally:
            process.kill()
            process.wait(10)


@contextmanager
def holding(argv: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a program that holds something, from the moment when it does."""
    with Child(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder


def rows_in(history: Path) -> int:
    with closing(sqlite3.connect(f"file:{history}?mode=ro", uri=True)) as connection:
        found: int = connection.execute("SELECT count(*) FROM gpu_raw").fetchone()[0]
    return found


@pytest.fixture(scope="module")
def others() -> Iterator[Others]:
    """A machine with a service, its state and three homes; below a directory that all may enter."""
    with tempfile.TemporaryDirectory() as directory:
        yield Others(Path(directory))


@pytest.fixture(scope="module")
def running(others: Others) -> Iterator[Others]:
    with service(others):
        wait_for(lambda: (seen := live.read(others.run_dir)) is not None and seen.alerts)
        wait_for(lambda: rows_in(others.state / "history.db"))
        yield others


VERBS = [
    "status", "watch -n 1", "predict", "explain", "history --since 1h", "alerts", "cost",
    "zombies", "backtest --since 1h", "snooze list", "feedback list",
]  # fmt: skip


@pytest.mark.parametrize("line", VERBS)
def test_a_member_of_the_group_reads_all_of_it(running: Others, line: str) -> None:
    done = running.ctl(READER, *line.split())
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "cannot be used" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "line", ["status", "predict", "alerts", "cost", "zombies", "history --since 1h", "snooze list"]
)
def test_it_is_said_whose_it_is(running: Others, line: str) -> None:
    assert running.ctl(READER, *line.split()).stdout.count(NOTE) == 1


def test_scripts_are_told_whose_it_is(running: Others) -> None:
    answer = json.loads(running.ctl(READER, "status", "--json").stdout)
    assert answer["daemon"]["scope"] == "system"
    assert answer["daemon"]["running"] is True
    assert [one["code"] for one in answer["warnings"]] == ["system"]
    own = json.loads(
        running.ctl(READER, "--json", "status", GPUWATCHD_STATE_DIR="/nonexistent").stdout
    )
    assert "daemon" not in own or own["daemon"]["scope"] == "user"


def test_doctor_finds_nothing_wrong_with_what_a_member_only_reads(running: Others) -> None:
    found = json.loads(running.ctl(READER, "doctor", "--json").stdout)["data"]
    mine = [one for one in found if one["name"] in {"history directory", "live directory"}]
    assert [one["level"] for one in mine] == ["ok", "ok"]
    assert all("its group reads it" in one["text"] for one in mine)
    told = [one for one in found if one["name"] in {"daemon", "history"}]
    assert {one["level"] for one in told} == {"ok"}
    denied = json.loads(running.ctl(STRANGER, "doctor", "--json").stdout)["data"]
    hints = [one["hint"] for one in denied if one["id"] == "daemon-denied"]
    assert hints == [f"sudo usermod -aG gpuwatchd {STRANGER}, then log in again"]


def test_the_plugin_answers_a_member_of_the_group(running: Others) -> None:
    done = running.ctl(READER, "check", "--mode", "daemon")
    assert (done.returncode, done.stdout.split(" - ")[0]) == (0, "GPUWATCHD OK")


def test_the_history_is_read_while_the_daemon_is_in_the_middle_of_writing(running: Others) -> None:
    argv = [sys.executable, "-c", HOLDING, str(running.state / "history.db")]
    with holding(running.words(SERVICE, argv)) as holder:
        done = running.ctl(READER, "history", "--since", "1h", "--json")
        holder.communicate("")
    assert done.returncode == 0
    assert json.loads(done.stdout)["data"][0]["rows"]


LOCKING = """
import fcntl, sys
file = open(sys.argv[1], "rb")
fcntl.lockf(file, fcntl.LOCK_SH)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_reader_of_ill_will_stops_no_more_than_the_history() -> None:
    with tempfile.TemporaryDirectory() as directory:
        others = Others(Path(directory))
        history = others.state / "history.db"
        argv = [sys.executable, "-c", LOCKING, f"{history}-shm"]
        with service(others):
            wait_for(lambda: rows_in(history))
            with holding(others.words(READER, argv, SERVICE)) as holder:
                held = rows_in(history)
                wait_for(lambda: "holds it locked" in others.ctl(READER, "status").stdout)
                wait_for(lambda: (seen := live.read(others.run_dir)) is not None and seen.alerts)
                find = f"sudo fuser -v {history} {history}-shm"
                assert find in " ".join(others.ctl(READER, "status").stdout.split())
                at_the_end = rows_in(history)
                holder.communicate("")
            wait_for(lambda: rows_in(history) > held + 20)
            assert at_the_end == held
            seen = live.read(others.run_dir)
            assert seen is not None
            wait_for(lambda: "locked" not in others.ctl(READER, "status").stdout)


CLOSED = ["alerts", "history", "cost", "predict", "check", "release", "snooze latest 1h"]


@pytest.mark.parametrize("line", CLOSED)
def test_others_are_told_how_to_become_a_member(running: Others, line: str) -> None:
    done = running.ctl(STRANGER, *line.split())
    assert done.returncode == (3 if line == "check" else 1)
    said = done.stdout + done.stderr
    assert f"sudo usermod -aG gpuwatchd {STRANGER}" in said
    assert "alice" not in said


def test_where_he_sees_the_gpus_himself_it_is_said_beside_them(running: Others) -> None:
    seen = running.ctl(STRANGER, "status", GPUWATCHD_SOURCES_ENABLED="simulate:quiet")
    assert seen.returncode == 0
    assert seen.stdout.count(f"sudo usermod -aG gpuwatchd {STRANGER}, then log in again") == 1


def test_one_user_of_many_is_shown_alone(running: Others) -> None:
    assert "of alice" in running.ctl(READER, "status", "--user", "alice").stdout
    mine = running.ctl(READER, "status", "--user", "me").stdout
    assert "no process of me; others hold " in mine
    assert "alice" not in mine


def test_root_writes_as_the_user_of_the_service(running: Others) -> None:
    lines = ("snooze latest 2h", "feedback latest leak", "feedback undo latest",
             "release --no-wait", "release --end")  # fmt: skip
    for user in (0, SERVICE):
        for line in lines:
            done = running.ctl(user, *line.split())
            assert done.returncode == 0, (user, line, done.stderr)
    owners = {
        path.lstat().st_uid
        for directory in (running.state, running.run_dir)
        for path in directory.iterdir()
    }
    assert owners == {SERVICE}
    kept = json.loads(running.ctl(READER, "snooze", "list", "--json").stdout)["data"]
    assert kept[0]["state"] == "in-force"
    seen = live.read(running.run_dir)
    assert seen is not None
    wait_for(lambda: (now := live.read(running.run_dir)) is not None and now.silences)
    assert not [problem for problem in seen.problems if "written" in problem]


def test_root_without_the_rights_of_root_is_told_so(running: Others) -> None:
    program = "import sys; from gpuwatchd.cli import main; sys.exit(main())"
    argv = running.words(0, [sys.executable, "-c", program, "release", "--no-wait"],
                         GPUWATCHD_STATE_DIR=str(running.state),
                         GPUWATCHD_RUNTIME_DIR=str(running.run_dir))  # fmt: skip
    at = argv.index("setpriv") + 1
    argv[at:at] = ["--bounding-set=-setuid,-setgid"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1
    assert "root may not act as that user here" in done.stderr
    assert f"hint: run it as {SERVICE}" in done.stderr


def test_a_daemon_of_ones_own_comes_first(running: Others) -> None:
    home = running.home(READER)
    own = home / ".local" / "state" / "gpuwatchd"
    dirs = {"GPUWATCHD_STATE_DIR": str(own), "GPUWATCHD_RUNTIME_DIR": str(own / "run")}
    with service(running, user=READER, readers="user", **dirs):
        answer = json.loads(running.ctl(READER, "status", "--json").stdout)
        assert (answer["daemon"]["scope"], answer["daemon"]["running"]) == ("user", True)
        assert "2 daemons watch the same GPUs" in running.ctl(READER, "doctor", "--json").stdout
    assert json.loads(running.ctl(READER, "status", "--json").stdout)["daemon"]["scope"] == "system"


AFTERWARDS = ["status", "history --since 1h", "alerts --all", "cost", "backtest --since 1h"]


@pytest.mark.parametrize("end", ["stopped", "killed", "killed, index lost", "then read by root"])
def test_what_it_left_is_read_without_any_right_to_write(end: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        others = Others(Path(directory))
        with service(others) as process:
            wait_for(lambda: rows_in(others.state / "history.db"))
            if end.startswith("killed"):
                process.kill()
            else:
                process.terminate()
            process.wait(20)
        sides = {path.name for path in others.state.glob("history.db-*")}
        assert bool(sides) == end.startswith("killed")
        if end == "killed, index lost":
            (others.state / "history.db-shm").unlink()
        if end == "then read by root":
            assert others.ctl(0, "history", "--since", "1h").returncode == 0
            assert {path.stat().st_uid for path in others.state.iterdir()} == {SERVICE}
        for line in AFTERWARDS:
            done = others.ctl(READER, *line.split())
            assert done.returncode == 0, (line, done.stderr)
            assert "cannot be used" not in done.stdout + done.stderr
        with service(others):  # and the daemon takes it up again
            seen = live.read(others.run_dir)
        assert seen is not None
        assert not [one for one in seen.problems if "history" in one]
