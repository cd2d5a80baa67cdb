"""The examples of the page on JSON, run as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import jsonschema
import msgspec
import pytest

from tests import making
from tests.cli import logs_of, recorded, world
from tests.conftest import ROOT, need

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs/how-to/use-the-json.md"
EXAMPLES = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.slow
def test_every_example_runs_and_answers(tmp_path: Path) -> None:
    need(shutil.which("jq"), "jq is not installed")
    recorded.record("gradual")
    alert = msgspec.structs.replace(world.firing(), held_back="quiet hours")
    first, second = world.state().devices
    world.write(devices=(first, second), alerts=(alert,))
    (tmp_path / "training.csv").write_text(logs_of.cards(90))
    environment = {**os.environ, "PATH": f"{world.PROGRAM.parent}:{os.environ['PATH']}"}
    outputs = []
    for example in EXAMPLES:
        done = subprocess.run(
            ["bash", "-c", example], cwd=tmp_path, env=environment, text=True,
            capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{example}\n{done.stderr}"
        assert "jq: " not in done.stderr, example
        outputs.append(done.stdout)
    wanted = [
        "GPU-1  12 MB/min  full in 47 min", '"uid":"GPU-2","free":', "exit code 3", "4711\t1970",
        "GPU 0", '"at_risk":', '"20', "GPU-1", "1\n", "(exit 1, errors#no-such-gpu)", "",
    ]  # fmt: skip
    assert len(outputs) == len(wanted)
    for words, output in zip(wanted, outputs, strict=True):
        assert words in output
    assert outputs[8] == "1\n"
    schema = msgspec.json.decode((tmp_path / "status.schema.json").read_bytes())
    said = msgspec.json.decode((tmp_path / "status.json").read_bytes())
    jsonschema.Draft202012Validator(schema).validate(said)
    assert said["data"][0]["device"]["uid"] == making.CARD.uid
