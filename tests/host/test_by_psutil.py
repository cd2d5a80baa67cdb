"""Who processes are where there is no /proc."""

from __future__ import annotations

import os
import sys

import psutil
import pytest

from gpuwatchd.collect.host import by_psutil
from tests.children import Child
from tests.conftest import present


@pytest.mark.usefixtures("not_the_first")
def test_a_child_of_this_program_is_known_with_its_ancestors() -> None:
    with Child([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
        try:
            info = by_psutil.identify(child.pid)
        finally:
            child.kill()
    assert info is not None
    assert (info.key.pid, info.uid, info.parent_pid) == (child.pid, os.getuid(), os.getpid())
    assert info.parents[0].endswith(f"[{os.getpid()}]")
    assert "[1]" not in "".join(info.parents)


@pytest.mark.parametrize(
    ("argv", "framework"),
    [
        (("/usr/local/bin/mlx_lm.server", "--model", "m"), "MLX"),
        (("/opt/homebrew/bin/llama-server", "-m", "x.gguf"), "llama.cpp"),
        (("/x/ollama", "runner", "--mlx-engine", "--model", "m"), "Ollama"),
    ],
)
def test_a_macs_engines_are_recognised_without_a_map_of_their_memory(
    argv: tuple[str, ...], framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def facts(_: psutil.Process, names: list[str]) -> dict[str, object]:
        known = {"name": argv[0].rpartition("/")[2], "cmdline": list(argv)}
        return {name: known.get(name) for name in names}

    monkeypatch.setattr(psutil.Process, "as_dict", facts)
    info = present(by_psutil.identify(os.getpid()))
    assert (info.framework, info.framework_sure) == (framework, False)
    assert (info.user, info.uid, info.state) == (None, None, None)


def test_a_pid_that_is_nobodys_is_none() -> None:
    assert by_psutil.identify(2**22 + 1) is None
    assert by_psutil.started_at_s(2**22 + 1) is None


def test_an_ancestor_that_ends_meanwhile_costs_the_ancestors_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    really = psutil.Process.as_dict

    def as_dict(process: psutil.Process, names: list[str]) -> dict[str, object]:
        if process.pid != os.getpid():
            raise psutil.NoSuchProcess(process.pid)
        return really(process, names)

    monkeypatch.setattr(psutil.Process, "as_dict", as_dict)
    info = present(by_psutil.identify(os.getpid()))
    assert (info.key.pid, info.parents) == (os.getpid(), ())


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("0A1B2C3D-0000-1111-2222-333344445555", "0A1B2C3D-0000-1111-2222-333344445555"),
        ("", "boot-1700000000"),
        ("garbage", "boot-1700000000"),
    ],
)
def test_a_boot_is_known_by_its_name_rather_than_by_its_time(
    monkeypatch: pytest.MonkeyPatch, named: str, expected: str
) -> None:
    monkeypatch.setattr(by_psutil, "_boot_session", lambda: named)
    monkeypatch.setattr(psutil, "boot_time", lambda: 1_700_000_000.9)
    assert by_psutil.boot_id() == expected
