"""``run`` with limits: what is wrong starts nothing, what is right reaches the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.children import shell_script
from tests.cli import world

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calls import Ctl


@pytest.mark.parametrize(
    "words", ["--vram 20", "--vram 0GiB", "--vram=-1GiB", "--vram x", "--unit a/b", "--restart -1",
              "--checkpoint-signal KILL", "--vram 99TiB"],
)  # fmt: skip
def test_a_wrong_limit_starts_nothing(words: str, ctl: Ctl, tmp_path: Path) -> None:
    world.write()
    mark = tmp_path / "ran"
    ctl.err(f"run {words} -- {shell_script(tmp_path / 'job', f'touch {mark}')}", code=2)
    assert not mark.exists()


def test_the_job_gets_its_limit_and_its_signal(tmp_path: Path) -> None:
    world.write()
    job = shell_script(
        tmp_path / "job", "env | grep -E 'ALLOC_CONF|MEM_FRAC|CHECKPOINT_SIG' | sort"
    )
    done = world.run("run", "--vram", "6GiB", "--checkpoint-signal", "USR2", "--", job)
    assert done.returncode == 0, done.stderr
    assert [line.partition("=")[0] for line in done.stdout.splitlines()] == [
        "GPUWATCHD_CHECKPOINT_SIGNAL", "PYTORCH_CUDA_ALLOC_CONF", "XLA_PYTHON_CLIENT_MEM_FRACTION"
    ]  # fmt: skip
    assert len(done.stderr.splitlines()) == 2
    assert world.run("run", "-q", "--vram", "6GiB", "--", job).stderr == ""
