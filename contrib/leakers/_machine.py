# ruff: noqa: INP001
"""What this machine is: its GPU, driver and PyTorch, as told by a process that ends again."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from typing import Any, Final

_PATIENCE_S: Final = 180.0
"""Importing torch may take so long on a cold machine."""
_FACTS: Final = """
import json, sys
facts = {}
try:
    import torch
    facts["torch"] = str(torch.__version__)
    facts["cuda"] = getattr(torch.version, "cuda", None)
    if sys.argv[1].startswith("cuda"):
        facts["usable"] = bool(torch.cuda.is_available())
        if facts["usable"]:
            facts["gpu"] = torch.cuda.get_device_name(sys.argv[1])
            facts["total_bytes"] = int(torch.cuda.mem_get_info(sys.argv[1])[1])
except ImportError as error:
    facts["why"] = f"this needs PyTorch: pip install torch ({error})"
try:
    import pynvml
    pynvml.nvmlInit()
    driver = pynvml.nvmlSystemGetDriverVersion()
    facts["driver"] = driver if isinstance(driver, str) else driver.decode()
    pynvml.nvmlShutdown()
except Exception as error:
    facts["why"] = facts.get("why") or f"NVML does not answer: {error}"
print(json.dumps(facts))
"""


class Failure(Exception):
    """Why nothing can be recorded, in one line."""


def facts_of(device: str) -> dict[str, Any]:
    """Return what this machine is.

    Raises
    ------
    Failure
        When it has no torch, or no GPU.
    """
    done = subprocess.run(
        [sys.executable, "-c", _FACTS, device],
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE_S,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise Failure(f"PyTorch does not work here: {last}")
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    why = facts.pop("why", None)
    if why is not None:
        raise Failure(why)
    if not facts.pop("usable", True):
        raise Failure("PyTorch sees no CUDA device here (try --dry-run)")
    from gpuwatchd import __version__  # noqa: PLC0415 - the help works without it

    return facts | {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "gpuwatchd": __version__,
    }
