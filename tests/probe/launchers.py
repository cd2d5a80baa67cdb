"""Jobs that others start: an actor of Ray, and two ranks of MPI, the second of which leaks.

``python -m tests.probe.launchers --python PATH``, of an interpreter with ray, mpi4py and openmpi:
each job runs under `run` with a stand-in for CuPy, and what `inspect` names is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.probe.stand_in import CUPY

LEAK = """
import os, time, cupy
def train(leaks):
    history = []
    end = time.time() + 120
    while time.time() < end:
        if leaks:
            history.append(cupy.ndarray(100))
        time.sleep(0.02)
"""
JOBS = {
    "mpi": "from mpi4py import MPI\nif MPI.COMM_WORLD.rank: print(os.getpid(), flush=True)\n"
    "train(MPI.COMM_WORLD.rank)\nMPI.COMM_WORLD.barrier()\n",
    "ray": "import leak, ray\n"
    "class Trainer:\n"
    "    def pid(self): return os.getpid()\n"
    "    def train(self): leak.train(True)\n"
    "ray.init(num_cpus=1, include_dashboard=False)\n"
    "trainer = ray.remote(Trainer).remote()\n"
    "print(ray.get(trainer.pid.remote()), flush=True)\nray.get(trainer.train.remote())\n",
}


def named(job: str, python: str, folder: Path) -> list[str]:
    """Return what is named in the process of a job that leaks."""
    (folder / "cupy.py").write_text(CUPY)
    (folder / "leak.py").write_text(LEAK)
    (folder / f"{job}_job.py").write_text(LEAK + JOBS[job])
    (folder / "run").mkdir(mode=0o700, exist_ok=True)
    env = {**os.environ, "GPUWATCHD_RUNTIME_DIR": str(folder / "run"), "PYTHONPATH": str(folder)}
    env["HOME"] = str(folder)  # Ray leaves a token there
    program = Path(sys.executable).with_name("gpuwatchctl")
    command = [str(program), "run", "--", python, str(folder / f"{job}_job.py")]
    if job == "mpi":
        launcher = str(Path(python).with_name("mpirun"))
        command = [launcher, "--allow-run-as-root", "--oversubscribe", "-n", "2", *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as child:
        assert child.stdout is not None
        pid = child.stdout.readline().strip()
        time.sleep(60)
        asked = [str(program), "--json", "inspect", pid, "--every", "5s"]
        answer = subprocess.run(asked, env=env, capture_output=True, text=True, check=True)
    assert child.returncode == 0
    growing = json.loads(answer.stdout)["data"]["growing"]
    return [group["holder"]["name"] for group in growing if group["holder"]]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True)
    for name in JOBS:
        with tempfile.TemporaryDirectory() as place:
            print(name, named(name, parser.parse_args().python, Path(place)), flush=True)
