"""A leak from its first byte to its name in the mail: `python -m tests.probe.end_to_end`.

A job under `gpuwatchctl run` with a stand-in for CuPy, the daemon as a process on the stand-in for
NVML, inspection when its alert opens, messages to a command. About three minutes; prints when what
was known.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.fakenvml import FakeNvml
from tests.probe.stand_in import CUPY

JOB = """
import time, cupy
def train():
    kept = []
    while True:
        kept.append(cupy.ndarray(1 << 17))
        time.sleep(0.05)
train()
"""
CONFIG = """
[daemon]
interval = "0.5s"
[sources]
enabled = ["nvml"]
[detection]
minimum-duration = "60s"
minimum-samples = 20
[probe]
inspect-on-alert = true
[policy]
channels = ["command"]
[notify.command]
argv = ["{python}", "{folder}/keep.py"]
"""
KEEP = """
import sys
open("{folder}/messages", "a").write(sys.stdin.read().replace("\\n", " ") + "\\n")
"""
LIMIT_S = 420.0


def main() -> int:
    """Return 0 when the variable stands in a message and in `explain`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fake = FakeNvml(folder)
        fake.write("gpu 0 total=24G")
        files = {"cupy.py": CUPY, "job.py": JOB, "keep.py": KEEP, "config.toml": CONFIG}
        for file, text in files.items():
            places = {"{python}": sys.executable, "{folder}": str(folder)}
            for place, value in places.items():
                text = text.replace(place, value)  # noqa: PLW2901
            (folder / file).write_text(text)
        environ = {
            **fake.env(),
            "GPUWATCHD_RUNTIME_DIR": f"{folder}/runtime",
            "GPUWATCHD_STATE_DIR": f"{folder}/state",
            "GPUWATCHD_CONFIG": f"{folder}/config.toml",
        }
        program = str(Path(sys.executable).parent / "gpuwatch")
        run = [program + "ctl", "run", "--", sys.executable, str(folder / "job.py")]
        with subprocess.Popen(run, env=environ) as job:
            try:
                fake.write("gpu 0 total=24G", f"proc 0 pid={job.pid} mem=4G type=C rate=40M")
                command = [program + "d", "--config", f"{folder}/config.toml"]
                with subprocess.Popen(command, env=environ) as daemon:
                    try:
                        return _follow(folder, program + "ctl", job.pid, environ, daemon)
                    finally:
                        daemon.terminate()
            finally:
                job.kill()


def _follow(
    folder: Path, ctl: str, pid: int, environ: dict[str, str], daemon: subprocess.Popen[bytes]
) -> int:
    begun_s, seen = time.monotonic(), set()
    messages = folder / "messages"
    while (passed_s := time.monotonic() - begun_s) < LIMIT_S:
        time.sleep(2.0)
        if daemon.poll() is not None:
            break
        done = subprocess.run(
            [ctl, "explain", str(pid), "--json"], env=environ, capture_output=True, check=False
        )
        data: dict[str, Any] = (json.loads(done.stdout or b"{}") or {}).get("data") or {}
        facts = {
            "alert": (data.get("alert") or {}).get("state"),
            "named": b"kept in train()" in done.stdout,
            "message": messages.exists() and "kept in train()" in messages.read_text(),
        }
        for item in facts.items():
            if item not in seen and item[1]:
                seen.add(item)
                print(f"{passed_s:5.0f} s  {item[0]}: {item[1]}", flush=True)
        if facts["named"] and facts["message"]:
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
