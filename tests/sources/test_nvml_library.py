"""A library that is not there, and one that is there and cannot be loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.collect.nvml.driver import NAME, find, library_defect
from tests.conftest import ROOT, need, not_here, only_where, present, ran
from tests.fakenvml import FakeNvml
from tests.fakenvml.build import cached, compiler
from tests.sources.nvml_case import PRELUDE

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

ELF_32 = b"\x7fELF\x01\x01\x01" + bytes(9) + b"\x03\x00\x08\x00"
"""The beginning of a library for a 32-bit MIPS processor."""


def probe(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Return what a source says with this library, and the threads that have loaded it."""
    script = """
import ctypes, threading
threads = []
load = ctypes.CDLL
def watched(name, *more, **named):
    if "nvidia" in str(name):
        threads.append(threading.current_thread().name)
    return load(name, *more, **named)
ctypes.CDLL = watched
s = source()
out(plain(s.probe()), threads)
"""
    done = ran(
        [sys.executable, "-W", "error", "-c", PRELUDE + script],
        check=True,
        timeout=60,
        cwd=ROOT,
        env={"PYTHONPATH": ".", "LD_LIBRARY_PATH": str(folder), "PATH": "/usr/bin:/bin"},
    )
    return tuple(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture
def real(tmp_path: Path) -> bytes:
    """Return the stand-in library."""
    if not sys.platform.startswith("linux"):
        not_here("the stand-in library is for Linux")
    need(FakeNvml.available(), "a C compiler builds the stand-in library")
    return (cached() / NAME).read_bytes()


def other_processor(real: bytes) -> bytes:
    number = 183 if real[18] != 183 else 62
    return real[:18] + number.to_bytes(2, "little") + real[20:]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda _: b"", NAME),
        (lambda _: b"\x1b[31mnot a library\n" * 20, "ELF"),
        (lambda real: real[:4000], NAME),
        (lambda real: real[:100], NAME),
        (lambda _: ELF_32 + bytes(80), "32 bits"),
        (other_processor, "64 bits"),
    ],
    ids=["empty", "text", "cut", "head", "32", "other"],
)
def test_a_library_that_cannot_be_loaded_is_told_as_that(
    tmp_path: Path, real: bytes, spoil: Callable[[bytes], bytes], says: str
) -> None:
    absent, _ = probe(tmp_path)
    (tmp_path / NAME).write_bytes(spoil(real))
    found, threads = probe(tmp_path)
    assert found["ok"] is False
    assert found["reason"] != absent["reason"]
    assert found["hint"] != absent["hint"]
    assert str(tmp_path / NAME) in found["reason"]
    assert says in found["reason"]
    assert found["reason"].isprintable()
    # A file system that hangs must hold up nobody.
    assert set(threads) <= {"nvml"}


def test_what_the_library_needs_is_named_when_it_is_missing(tmp_path: Path, real: bytes) -> None:
    cc = present(compiler())
    source, needed, library = tmp_path / "x.c", tmp_path / "libneeded.so.9", tmp_path / NAME
    source.write_text("int needed(void) { return 0; }\n")
    subprocess.run([cc, "-shared", "-fPIC", "-o", needed, source], check=True)
    source.write_text("int needed(void); int other(void) { return needed(); }\n")
    subprocess.run([cc, "-shared", "-fPIC", "-o", library, source, needed], check=True)
    needed.unlink()
    found, threads = probe(tmp_path)
    assert set(threads) == {"nvml"}
    assert "libneeded.so.9" in found["reason"]
    assert str(library) in found["hint"]


def test_a_folder_in_the_place_of_a_library_is_told_as_that(tmp_path: Path, real: bytes) -> None:
    """Container engines make one where the file to be mounted does not exist."""
    (tmp_path / NAME).mkdir()
    found, _ = probe(tmp_path)
    assert f"{tmp_path / NAME}: Is a directory" in found["reason"]


@only_where(os.geteuid() != 0, "root may read everything")
def test_a_library_that_may_not_be_read_is_told_as_that(tmp_path: Path, real: bytes) -> None:
    (tmp_path / NAME).write_bytes(real)
    (tmp_path / NAME).chmod(0)
    found, _ = probe(tmp_path)
    assert "Permission denied" in found["reason"]


def test_a_library_of_this_machine_has_no_flaw(tmp_path: Path, real: bytes) -> None:
    (tmp_path / NAME).write_bytes(real)
    assert find(Path("/"), {"LD_LIBRARY_PATH": f"/nowhere::{tmp_path}"}) == tmp_path / NAME
    assert library_defect(tmp_path / NAME) is None


def test_a_link_to_nothing_is_no_library(tmp_path: Path) -> None:
    (tmp_path / NAME).symlink_to("libnvidia-ml.so.550.54.15")
    assert find(tmp_path, {"LD_LIBRARY_PATH": str(tmp_path)}) is None
