"""What every test may use."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import pytest

from gpuwatchd.collect.host.procfs import inside_container
from gpuwatchd.core import units
from tests import children

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "data"
_NOT_FOR_THIS = "not for this machine: "
_QUIETENED = ("", "gpuwatchd", "apscheduler", "desktop_notifier", "asyncio")
_LONG = (
    "tests/real/test_machine", "tests/packaging/", "tests/real/", "tests/browser/",
    "tests/promises/", "tests/scenarios/",
)  # fmt: skip
"""Where the tests are that take longest, the longest first."""

_MARKED = {
    "tests/browser/": (pytest.mark.real_browser, pytest.mark.timeout(300)),
    "tests/promises/": (pytest.mark.laboratory,),
    "tests/scenarios/": (pytest.mark.laboratory,),
}
"""What all tests of a folder are; a mark of the test itself goes first."""

children.heed_interrupts()


def present(value: T | None) -> T:
    """Return a value that has to be there."""
    assert value is not None
    return value


def ran(
    argv: Sequence[object], *, check: bool = False, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and return what it said."""
    words = [str(word) for word in argv]
    return subprocess.run(words, capture_output=True, text=True, check=check, **more)


def need(condition: object, reason: str) -> None:
    """Skip with the reason where a real part is missing; in CI that is a failure."""
    if condition:
        return
    if os.environ.get("CI"):
        pytest.fail(f"CI must have this part: {reason}")
    pytest.skip(reason)


def not_here(reason: str) -> NoReturn:
    """Skip what this kind of machine cannot run: such skips are named, in CI too."""
    pytest.skip(f"{_NOT_FOR_THIS}{reason}")


def only_where(condition: object, reason: str) -> pytest.MarkDecorator:
    """Return the mark of tests that only such a machine can run."""
    return pytest.mark.skipif(not condition, reason=f"{_NOT_FOR_THIS}{reason}")


ON_LINUX = only_where(sys.platform == "linux", "needs Linux: /proc, pidfd, namespaces")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a skip through neither door be a failure in CI."""
    report = yield
    if report.skipped and os.environ.get("CI") and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr)
        if _NOT_FOR_THIS not in reason:
            report.outcome, report.longrepr = "failed", f"CI must skip nothing: {reason}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what the tests keep on disk, so that the next run need not make it again."""
    kept = sorted(path for path in (ROOT / "build").glob("*") if path.is_dir())
    for path in kept:
        size_bytes = 0
        for file in path.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # another run may remove it
                size_bytes += file.lstat().st_size
        terminalreporter.write_line(f"kept in {path.relative_to(ROOT)}: {units.size(size_bytes)}")


def need_index() -> None:
    """Skip unless the caller wants packages from an index; in CI that is a failure."""
    need(os.environ.get("PACKAGES") == "1", "asks a package index: make test PACKAGES=1")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("real_packages"):
        need_index()


def pytest_itemcollected(item: pytest.Item) -> None:
    for folder, marks in _MARKED.items():
        if item.nodeid.startswith(folder):
            for mark in marks:
                item.add_marker(mark)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take long: begun last, one would keep all but one worker idle."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}

    def place(item: pytest.Item) -> int:
        found = (i for i, part in enumerate(_LONG) if part in item.nodeid)
        return next(found, len(_LONG) if item.path in slow else len(_LONG) + 1)

    items.sort(key=place)


@pytest.fixture(scope="module", autouse=True)
def _started() -> Iterator[dict[int, str]]:
    """End the processes that a file of tests leaves behind, and fail with the test's name."""
    known, started = children.left(), dict[int, str]()
    yield started
    if ended := children.end(children.left(known), started):
        pytest.fail("processes were left running, and were ended:\n" + "\n".join(ended))


@pytest.fixture(autouse=True)
def _started_here(request: pytest.FixtureRequest, _started: dict[int, str]) -> Iterator[None]:
    yield
    for pid in children.pids():
        _started.setdefault(pid, request.node.nodeid)


@pytest.fixture
def own_pids() -> None:
    """Skip where the driver's pids mean nobody: in a container processes are never named."""
    if inside_container(Path("/proc"), Path("/")):
        not_here("in a pid namespace of its own the driver's numbers mean nobody")


@pytest.fixture
def not_the_first() -> None:
    """Skip where the tests are pid 1, as alone in a container: it is nobody's ancestor."""
    if os.getpid() == 1:
        not_here("the tests are the first process here, which is no ancestor worth naming")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of real telemetry that is not part of the project."""
    if not SHARED.is_dir():
        not_here("the folder of real telemetry (../shared/data) is not here")
    return SHARED


@pytest.fixture
def live_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Return what changes the time zone until the test is over."""

    def move(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield move
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(autouse=True)
def _own_umask() -> Iterator[None]:
    """Take back the umask of a daemon that ran within a test: others make files for everybody."""
    umask = os.umask(0o022)
    yield
    os.umask(umask)


@pytest.fixture(autouse=True)
def _own_log_levels() -> Iterator[None]:
    """Take back what a program that ran within a test keeps quiet: others read the log."""
    loggers = [logging.getLogger(name) for name in _QUIETENED]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture(autouse=True)
def _own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep every test away from the user's own configuration and history."""
    for name in list(os.environ):
        if name.startswith("GPUWATCHD_") or name in {"NOTIFY_SOCKET", "WATCHDOG_USEC"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("GPUWATCHD_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("GPUWATCHD_RUNTIME_DIR", str(tmp_path / "run"))
