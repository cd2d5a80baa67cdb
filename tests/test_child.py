"""A program that cannot be ended is not waited for."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core import child_process

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_one_that_not_even_sigkill_ends_yet_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an uninterruptible call into a driver that hangs; here signals do not arrive."""
    file = tmp_path / "pid"
    code = f"import os,time; open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(20)"
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", lambda *_: None)
        ended = child_process.run([sys.executable, "-c", code], b"", environ={}, timeout_s=3.0)
    pid = int(file.read_text())
    try:
        assert ended.code is None
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "it still runs"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
