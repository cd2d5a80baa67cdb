"""What a process was told: its command line, variables, and files with its owner's rights."""

from __future__ import annotations

import logging
import os
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.collect.host import declarations
from gpuwatchd.collect.host.declarations import MOST_BYTES, named_files, pairs, read_as, settings
from gpuwatchd.core.model import ProcessInfo, ProcessKey
from tests.conftest import present
from tests.host.world import linux

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = linux

BOOTED_S = 1000.0


class Made:
    """A made-up /proc with processes that work in a folder."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.work = folder / "proc", folder / "work"
        self.work.mkdir(parents=True)

    def process(
        self, argv: list[str], pid: int = 30, parent: int = 1, environ: bytes = b""
    ) -> ProcessInfo:
        place = self.proc / str(pid)
        place.mkdir(parents=True)
        (self.proc / "stat").write_text(f"cpu 1 2\nbtime {BOOTED_S:.0f}\n")
        fields = f"S {parent} 1 1 0 -1 0 0 0 0 0 1 2 0 0 20 0 1 0 {pid * 100} 0"
        (place / "stat").write_text(f"{pid} (a) {fields}")
        (place / "cmdline").write_bytes("\0".join([*argv, ""]).encode())
        (place / "environ").write_bytes(environ)
        (place / "cwd").symlink_to(self.work)
        (place / "root").symlink_to("/")
        key = ProcessKey(pid=pid, started_at_s=BOOTED_S + pid)
        return ProcessInfo(key=key, name="python3", uid=os.geteuid())

    def settings(self, info: ProcessInfo) -> list[tuple[str, float, str]]:
        found = present(settings(info, None, str(self.proc)))
        return [(one.kind, one.value, one.source) for one in found]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def test_the_command_line_comes_before_variables_and_these_before_files(made: Made) -> None:
    (made.work / "run.yaml").write_text("replay:\n  capacity: 5_000\ncache-gb: 2\npool-gb: 2\n")
    variables = b"TOKEN=x\0XLA_PYTHON_CLIENT_MEM_FRACTION=.5\0XLA_CLIENT_MEM_FRACTION=0.6\0"
    info = made.process(["python3", "t.py", "--cache-gb=1", "--cfg", "run.yaml"], environ=variables)
    assert made.settings(info) == [
        ("bytes", 2.0**30, "command line"),
        ("xla", 0.5, "XLA_PYTHON_CLIENT_MEM_FRACTION"),
        ("xla", 0.6, "XLA_CLIENT_MEM_FRACTION"),
        ("count", 5000.0, "run.yaml"),
        ("bytes", 2.0**31, "run.yaml"),
    ]


def test_of_a_worker_its_parent_counts(made: Made) -> None:
    spawned = ["python3", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()"]
    server = ["python3", "/bin/vllm", "serve", "m", "--gpu-memory-utilization", "0.8"]
    made.process(["python3", "train.py", "--pool-size", "1GiB"], pid=20)
    made.process(server, pid=21)
    assert made.settings(made.process(spawned, parent=20)) == [("bytes", 2.0**30, "command line")]
    engine = made.process(["VLLM::EngineCore"], pid=31, parent=21)
    assert ("vllm", 0.8, "command line") in made.settings(engine)
    assert made.settings(made.process(["python3", "other.py"], pid=32, parent=20)) == []


def test_a_process_that_has_ended_was_told_nothing(made: Made) -> None:
    info = made.process(["t", "--cache-gb", "1"])
    other = ProcessInfo(key=ProcessKey(pid=30, started_at_s=BOOTED_S + 77.0), name="t", uid=0)
    gone = ProcessInfo(key=ProcessKey(pid=31, started_at_s=BOOTED_S + 31.0), name="t", uid=0)
    assert made.settings(info)
    assert settings(other, None, str(made.proc)) is None
    assert settings(gone, None, str(made.proc)) is None


@pytest.mark.parametrize(
    "name", ["a.json", "a.toml", "a.yml", "a.cfg", "list.json", "list.yaml", "braces.yaml"]
)
def test_every_form_of_file_says_the_same(made: Made, name: str) -> None:
    text = {
        "a.json": '{"replay": {"capacity": 1e3, "obs_shape": [84, 84, 4], "obs_dtype": "uint8"}}',
        "a.toml": "[replay]\ncapacity = 1e3\nobs_shape = [84, 84, 4]\nobs_dtype = 'uint8'\n",
        "a.yml": "replay:  # x\n  capacity: 1e3\n  obs_shape:\n  - 84\n  - 84\n  - 4\n"
        "  obs_dtype: uint8\n",
        "a.cfg": "replay:\n    capacity: '1e3'\n    obs_shape: [84, 84, 4]\n    obs_dtype: uint8",
        "list.json": '{"replay": [{"a": 1}, {"capacity": 1e3, "obs_shape": [84, 84, 4],'
        ' "obs_dtype": "uint8"}]}',
        "list.yaml": "replay:\n- a: 1\n- capacity: 1e3\n  obs_shape:\n  - 84\n  - 84\n  - 4\n"
        "  obs_dtype: uint8\n",
        "braces.yaml": "replay: {capacity: 1e3, obs_shape: [84, 84, 4], obs_dtype: 'uint8'}",
    }[name]
    (made.work / name).write_text(text)
    found = made.settings(made.process(["python3", "t.py", "--config", name]))
    assert [one[:2] for one in found] == [("count", 1e3), ("shape", 28224.0), ("element", 1.0)]


BAD = {
    "deep.json": b'{"replay":' * 20_000 + b"1" + b"}" * 20_000,
    "list.json": b"[1, 2]",
    "cut.json": b'{"cache-gb": ',
    "deep.toml": b"a = " + b"[" * 20_000,
    "huge.toml": b"cache-gb = " + b"9" * 9_000,
    "long.yaml": b"cache-gb: 1\n" + b"#" * MOST_BYTES,
    "nul.yaml": b"cache-gb: 1\n\0",
    "latin.yaml": b"cache-gb: 1\n\xff\xfe",
    "anchor.yaml": b"x: &a\n\tcache-gb: 1\ncache-gb: *a\npool-gb: !!int 3\n"
    b"b: {c: {cache-gb: 2}}\ntext: |\n  cache-gb: 4\n  inner:\n    cache-gb: 5\n",
    "numbers.yaml": b"cache-gb: nan\npool-gb: 1e400\nbuffer-gb: -1\nqueue-gb: 0.9.1\n"
    b"arena-gb: .inf\n"
    b"replay-gb: true\nbank-gb: 99999999999999999999999999\n",
    "numbers.json": b'{"cache-gb": 1e400, "pool-gb": -3, "buffer-gb": null, "arena-gb": true}',
    "big.json": b'{"cache-gb": ' + b"9" * 400 + b"}",
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_none_says_nothing_and_breaks_nothing(made: Made, name: str) -> None:
    (made.work / name).write_bytes(BAD[name])
    (made.work / "good.json").write_text('{"cache-gb": 1}')
    info = made.process(["python3", "t.py", name, "good.json"])
    assert made.settings(info) == [("bytes", 2.0**30, "good.json")]


_INNER = [f"k{number:04}" for number in range(3900)]
LARGE = {
    "keys.toml": ".".join(["a"] * 9_000) + " = 1",
    "quoted.toml": " . ".join(['"\\""', "'a'", "b"] * 3_000) + " = 1",
    "header.toml": f"[{'.'.join(['a'] * 9_000)}]\nx = 1",
    "key.toml": f"[{'a' * 200_000}]\n" + "\n".join(f"{key} = 1" for key in _INNER),
    "key.json": f'{{"{"a" * 200_000}": {{' + ",".join(f'"{key}":1' for key in _INNER) + "}}",
    "key.yaml": f"{'a' * 200_000}:\n" + "\n".join(f" {key}: 1" for key in _INNER),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_small_file_takes_little_memory(made: Made, name: str) -> None:
    assert len(LARGE[name]) <= MOST_BYTES
    (made.work / name).write_text(LARGE[name])
    info = made.process(["python3", "t.py", name])
    tracemalloc.start()
    try:
        assert made.settings(info) == []
        assert tracemalloc.get_traced_memory()[1] < 32 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_a_file_that_is_not_read_is_one_debug_line_without_its_path(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(made.work / "pipe.yaml")
    (made.work / "folder.yaml").mkdir()
    info = made.process(
        ["t", "pipe.yaml", "folder.yaml", f"{made.work}/none.yaml", "/dev/zero.yaml"]
    )
    with caplog.at_level(logging.DEBUG, "gpuwatchd"):
        assert made.settings(info) == []
    assert len(caplog.records) == 4
    assert str(made.work) not in caplog.text


@pytest.mark.parametrize("name", ["a.json", "a.toml", "a.yaml"])
def test_a_mark_of_byte_order_is_no_part_of_a_name(name: str) -> None:
    text = {"a.json": '{"cache-gb": "1"}', "a.toml": "cache-gb = '1'", "a.yaml": "cache-gb: 1"}
    assert pairs(name, b"\xef\xbb\xbf" + text[name].encode()) == [("cache-gb", "1")]


def test_named_files_are_few() -> None:
    argv = ["t", *(f"{number}.yaml" for number in range(99))]
    assert len(named_files(argv)) == declarations.MOST_FILES
    assert named_files(["t", "--config", "--cache-gb", "1", "", "--config=", "s3://b/a.yaml"]) == []
    assert len(pairs("a.yaml", b"a: 1\n" * 9_000)) <= declarations.MOST_VALUES


class Strangers:
    """A daemon of root that reads for somebody else: the user 4242."""

    uid = 4242

    def __init__(self, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
        made.process(["t"])
        self.work, self.place = made.work, str(made.proc / "30")
        self.work.chmod(0o755)
        monkeypatch.setattr(os, "geteuid", lambda: 0)

    def reads(self, path: str) -> bool:
        try:
            return read_as(self.place, path, self.uid) == b"x: 1"
        except (OSError, ValueError):
            return False


@pytest.fixture
def strangers(made: Made, monkeypatch: pytest.MonkeyPatch) -> Strangers:
    return Strangers(made, monkeypatch)


def test_a_daemon_of_root_reads_what_everybody_may_read(strangers: Strangers) -> None:
    inner = strangers.work / "in"
    inner.mkdir(0o755)
    (inner / "a.yaml").write_text("x: 1")
    (inner / "a.yaml").chmod(0o644)
    assert strangers.reads("in/a.yaml")
    assert strangers.reads("./in/../in//a.yaml")
    assert not strangers.reads("in/b.yaml")
    (inner / "a.yaml").chmod(0o640)
    assert not strangers.reads("in/a.yaml")
    (inner / "a.yaml").chmod(0o644)
    inner.chmod(0o750)
    assert not strangers.reads("in/a.yaml")
    inner.chmod(0o755)
    strangers.work.chmod(0o700)
    assert not strangers.reads("in/a.yaml")


def test_a_daemon_of_root_follows_no_link_of_a_user(strangers: Strangers) -> None:
    (strangers.work / "a.yaml").write_text("x: 1")
    (strangers.work / "a.yaml").chmod(0o644)
    (strangers.work / "link.yaml").symlink_to("a.yaml")
    (strangers.work / "there").symlink_to(strangers.work)
    assert strangers.reads("a.yaml")
    assert not strangers.reads("link.yaml")
    assert not strangers.reads("there/a.yaml")


def test_what_is_the_owners_own_is_read(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    (made.work / "a.yaml").write_text("x: 1")
    (made.work / "a.yaml").chmod(0o600)
    made.process(["t"])
    uid, place = os.getuid(), str(made.proc / "30")
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    assert read_as(place, "a.yaml", uid) == b"x: 1"
    with pytest.raises(PermissionError):
        read_as(place, "a.yaml", uid + 2)
    with pytest.raises(PermissionError):
        read_as(place, "a.yaml", None)
