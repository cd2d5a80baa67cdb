"""The lesson is done as it is written: its marked commands are run in one shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "tutorial" / "first-leak.md"
_STEP = re.compile(r"<!-- run(?: until: ([^>]*?))? -->\n```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
_PATIENCE_S = 90


def script(text: str) -> str:
    """Return the steps as one script; a step that waits is repeated until it shows the words."""
    lines = ["set -m"]
    for words, body in _STEP.findall(text):
        if words:
            lines += [
                f"for i in $(seq {_PATIENCE_S}); do",
                f"shown=$({body.strip()})",
                f'case "$shown" in *"{words}"*) break;; esac',
                "sleep 1; done",
                'echo "$shown"',
            ]
        else:
            lines.append(body)
    return "\n".join(lines)


def test_every_step_does_what_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "contrib").symlink_to(ROOT / "contrib")
    programs = Path(sys.executable).parent
    kept = {name: os.environ[name] for name in ("HOME", "USER") if name in os.environ}
    done = subprocess.run(
        ["bash", "-c", script(PAGE.read_text(encoding="utf-8"))],
        check=False, cwd=tmp_path, capture_output=True, text=True, timeout=115,
        env={**kept, "PATH": f"{programs}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8",
             "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    shown = done.stdout
    assert done.returncode == 0, shown + done.stderr
    log, _, watched = shown.partition("exit code 3")
    assert "alert firing: 50.0 MB/min" in log
    for words in (
        "nothing leaks", "critical since", "growth rate   +", "What is judged", "firing critical",
    ):  # fmt: skip
        assert words in watched, words
    assert "takes it back" in watched
    assert sorted(file.name for file in tmp_path.iterdir()) == ["contrib"]


def test_every_step_that_can_be_run_here_is_run() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(_STEP.findall(text)) == text.count("```sh\n") == 6
