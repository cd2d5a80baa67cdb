"""Jobs, mailboxes and file names that nobody would wish for: nothing of ours breaks or prints."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from _gpuwatchd_probe import agent, counters, mailbox

from gpuwatchd.cli.verbs import inspect
from gpuwatchd.collect import mailboxes
from gpuwatchd.collect.mailboxes import Census, Framework, Group, Holder, Mailbox
from gpuwatchd.core.codes import MailboxFault
from gpuwatchd.core.decoding import decode
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.pipeline import allocator
from gpuwatchd.pipeline.prepared_processes import counters_of
from tests.conftest import ON_LINUX
from tests.making import CARD
from tests.probe.test_start import ran

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = ON_LINUX
KNOWN: dict[str, Any] = {"started_ticks": 1, "boot_id": "b", "seq": 1, "at_s": 1.0, "python": "3"}
BOX = Mailbox(v=1, pid=7, framework=Framework(name="torch"), **KNOWN)
ASKED_FIRST = """
import importlib.util, threading
assert importlib.util.find_spec("cupy") and importlib.util.find_spec("cupy")
import cupy
print(threading.active_count())
"""
NO_THREADS = """
import os, threading
def refuse(*_, **__):
    raise RuntimeError("can't start new thread")
threading._start_new_thread = threading._start_joinable_thread = refuse
import cupy
os.waitpid(os.fork() or os._exit(0), 0)
print(1)
"""
FORK_AT_EXIT = """
import atexit, os, threading
def late():
    os.waitpid(os.fork() or os._exit(0), 0)
    print(threading.active_count())
atexit.register(late)
import cupy
"""


def _refuse(_: object) -> Any:
    raise SystemExit


Nameless = type("Nameless", (type,), dict.fromkeys(("__name__", "__module__"), property(_refuse)))


def test_what_ends_the_job_is_named_without_asking_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    ending = agent.Agent(str(tmp_path), 0.0)
    ending.frameworks.append("cupy")
    ending.failed(Nameless("Ended", (Exception,), {"__module__": "job"}))
    found = mailboxes.last_words(tmp_path, os.getpid(), os.getuid())
    assert isinstance(found, mailboxes.Mailbox)
    assert found.failure == "job.Ended"


@pytest.mark.parametrize(("number", "alike", "known"), [(0, True, 5), (1, True, 0), (0, False, 0)])
def test_counters_without_a_uuid_are_those_of_the_devices_number(
    number: int, alike: bool, known: int
) -> None:
    box = msgspec.structs.replace(BOX, devices=(mailboxes.Counters(number=number, allocated=5),))
    found = counters_of(CARD, box, alone=False, alike=alike)
    assert (found.allocated if found else 0) == known


@pytest.mark.parametrize(
    ("visible", "index", "placed"),
    [
        (None, 1, {"number": 1}),
        ("3, 5", 1, {"number": 5}),
        ("GPU-ab,GPU-cd", 1, {"uid": "GPU-cd"}),
        ("3", 1, {"uid": None}),
    ],
)
def test_a_row_without_a_uuid_says_which_device_it_is(
    visible: str | None, index: int, placed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert counters._placed({"index": index}) == {"index": index, **placed}
    assert counters._placed({"uid": "GPU-ef"}) == {"uid": "GPU-ef"}


@pytest.mark.parametrize(
    ("code", "threads"),
    [(ASKED_FIRST, b"2\n"), (NO_THREADS, b"1\n"), (FORK_AT_EXIT, b"1\n")],
    ids=["asked-first", "no-threads", "fork-at-exit"],
)
def test_the_thread_starts_where_it_may(code: str, threads: bytes, tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text("__version__ = '9'")
    (tmp_path / "job.py").write_text(code)
    done = ran(sys.executable, "-W", "error", tmp_path / "job.py")
    assert (done.stdout, done.stderr) == (threads, b"")


def test_a_command_gets_its_signals_and_a_place_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = ran("sh", "-c", "yes | head -1; echo $GPUWATCHD_PROBE_DIR", GPUWATCHD_RUNTIME_DIR="x")
    assert (done.stdout, done.stderr) == (f"y\n{tmp_path}/x/probe\n".encode(), b"")


@pytest.mark.parametrize(
    "changes",
    [{"counts": []}, {"bytes": 10**400}, {"counts": [1, 10**400]}, {"bounded_at_bytes": 1 << 63}],
    ids=range(4),
)
def test_numbers_without_end_are_no_mailbox(changes: dict[str, Any]) -> None:
    group = {"group": "a", "counts": [1, 2], "bytes": 3}
    decode(json.dumps({"id": "a", "groups": [group]}), Census)
    for content in ({"groups": [group | changes]}, {"every_s": 0.0}, {"censuses": 1 << 63}):
        with pytest.raises(msgspec.ValidationError):
            decode(json.dumps({"id": "a", **content}), Census)


def test_what_an_alert_will_say_is_clean() -> None:
    holder = Holder(name="a\x1b[2J" + "b" * 70_000, kind="\x1b[1mlist", file="c\n.py")
    census = Census(
        id="a", groups=(Group(group="", counts=(1, 2), bytes=1, holder=holder, sure="named"),)
    )
    found = allocator.holder_of(census, 5.0)
    assert found
    assert (found.name[:2], found.kind, found.file) == ("ab", "list", "c .py")
    assert len(found.name) < 1000


def test_a_file_name_that_is_no_text(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    census = {"id": "a", "groups": [{"group": "caf\udce9", "counts": [1], "bytes": 1}]}
    mailbox.Mailbox(str(tmp_path)).write(framework={"name": "cupy"}, last=census)
    found = mailboxes.read(tmp_path, os.getpid(), os.getuid())
    assert isinstance(found, mailboxes.Mailbox)
    assert found.census
    assert found.census.groups[0].group == "caf?"


def test_a_wrong_finding_costs_no_counters(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    census = {"id": "a", "groups": [{"group": "a", "counts": [1], "bytes": 1 << 70}]}
    mailbox.Mailbox(str(tmp_path)).write(framework={"name": "cupy"}, last=census)
    found = mailboxes.read(tmp_path, os.getpid(), os.getuid())
    assert isinstance(found, mailboxes.Mailbox)
    assert found.census is None


def test_what_is_no_text_is_no_mailbox(tmp_path: Path) -> None:
    (tmp_path / "7.json").touch(mode=0o600)
    (tmp_path / "7.json").write_bytes(b'{"python": "\xff"}')
    assert mailboxes.last_words(tmp_path, 7, os.getuid()) is MailboxFault.NO_MAILBOX


def test_a_folder_in_place_of_a_mailbox_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "7.json").mkdir(mode=0o700)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    assert mailboxes.read(tmp_path, 7, os.getuid()) is MailboxFault.NOT_TRUSTED
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_whoever_gives_up_leaves_the_request_of_another(tmp_path: Path) -> None:
    asked = mailboxes.ask(tmp_path, BOX, "census", uid=os.getuid(), limit_s=5.0)
    for request, left in (("ab", True), (asked, False)):
        mailboxes.answer(tmp_path, 7, os.getuid(), request, Census, limit_s=0.0)
        assert (tmp_path / "7.req").exists() is left


def test_a_replaced_open_costs_no_handles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    box = mailbox.Mailbox(str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    monkeypatch.setattr("builtins.open", None)
    for _ in range(3):
        box.write()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_request_is_not_put_over_one_of_just_before(tmp_path: Path) -> None:
    first = mailboxes.ask(tmp_path, BOX, "census", uid=os.getuid(), limit_s=5.0)
    with pytest.raises(FileExistsError):
        mailboxes.ask(tmp_path, BOX, "census", uid=os.getuid(), limit_s=5.0)
    assert json.loads((tmp_path / "7.req").read_text())["id"] == first
    last = mailboxes.ask(tmp_path, BOX, "census", uid=os.getuid(), limit_s=5.0, patience_s=0.1)
    assert json.loads((tmp_path / "7.req").read_text())["id"] == last
    assert [file.name for file in tmp_path.iterdir()] == ["7.req"]


@pytest.mark.parametrize("kind", ["link", "gone"])
def test_a_directory_that_takes_no_request_is_one_sentence(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    if kind == "link":
        place.symlink_to(tmp_path)
    with pytest.raises(GpuwatchdError, match=r"mailbox that is not its user's alone") as error:
        inspect._ask(place, os.getuid(), BOX, mailboxes.Census, 1.0)
    assert error.value.page == "errors#not-prepared"
