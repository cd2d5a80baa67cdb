"""What the tests of the NVML source share: a script in a process of its own, and its answers."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.children import Child
from tests.fakenvml import FakeNvml

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1024**2
GIB = 1024**3
ONE = "gpu 0 total=24G"
TWO = (ONE, "gpu 1 total=24G")
UID = "GPU-00000000-0000-0000-0000-00000000000{}".format

PRELUDE = """
import atexit, json, logging, os, sys
from pathlib import Path
import msgspec
from gpuwatchd.core.errors import SourceUnavailable
from gpuwatchd.collect.nvml.source import NvmlSource

now = [1000.0]
folder = Path(os.environ.get("FAKE_NVML_CONF", "")).parent
def source(**settings):
    settings.setdefault("sys_root", "/nowhere")
    made = NvmlSource(monotonic=lambda: now[0], clock=lambda: 5e8 + now[0], **settings)
    atexit.register(made.close)
    return made
def put(*lines):
    conf = Path(os.environ["FAKE_NVML_CONF"])
    fresh = conf.with_suffix(".fresh")
    fresh.write_text("\\n".join(lines) + "\\n")
    fresh.replace(conf)
def listen(found):
    class Kept(logging.Handler):
        def emit(self, record):
            found.append((record.levelname, record.getMessage()))
    logging.getLogger("gpuwatchd").addHandler(Kept())
    logging.getLogger("gpuwatchd").setLevel("INFO")
def plain(value):
    return json.loads(msgspec.json.encode(value))
def out(*values):
    print(json.dumps(values))
"""


SERVER = """
import json, os, signal, sys
import gpuwatchd.collect.nvml.source
for line in sys.stdin:
    asked = json.loads(line)
    pid = os.fork()
    if pid == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
else:
    sys.exit()
signal.alarm(30)
os.environ.clear()
os.environ.update(asked["environ"])
sys.argv[1:] = asked["arguments"]
for number in (1, 2):
    os.dup2(os.open(asked["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
exec(asked["script"])
"""


class ForkServer:
    """A process with the source imported, forked for each script: an import takes half a second."""

    def __init__(self, fake: FakeNvml) -> None:
        self.child: Child[str] = Child(
            [sys.executable, "-W", "error", "-c", SERVER], env=fake.env(), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def run(self, output: Path, **asked: Any) -> Any:
        """Run a script in a fork; return its last line as JSON."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        output.unlink(missing_ok=True)
        print(json.dumps({"output": str(output), **asked}), file=self.child.stdin, flush=True)
        code, said = int(self.child.stdout.readline()), output.read_text()
        assert code == 0, f"exit {code}\n{said}"
        return json.loads(said.splitlines()[-1])


class Nvml(FakeNvml):
    """The stand-in, and the beginning of every script that is played before it."""

    prelude = PRELUDE
    server: ForkServer | None = None

    def play(self, script: str, *arguments: object) -> Any:
        """Return what a script says; ``folder`` is where the files of the stand-in are."""
        script, words = self.prelude + script, [*map(str, arguments)]
        if self.server is None:
            return self.run(script, *words)
        output = self.folder / "fakenvml.output"
        return self.server.run(output, script=script, arguments=words, environ=self.env())


def one_read(fake: Nvml, *conf: str) -> tuple[list[Any], list[Any], list[Any]]:
    """Return (readings, devices, faults) of a first read of this configuration."""
    fake.write(*conf)
    readings, devices, faults = fake.play("""
s = source()
sample = s.read()
out(plain(sample.readings), plain(s.devices()), plain(sample.faults))
""")
    return readings, devices, faults


def several(fake: Nvml, reads: int, *conf: str, step_s: int = 5, **settings: str) -> Any:
    """Return (readings of each read, events) of the only card."""
    fake.write(*conf)
    return fake.play(f"""
s = source(**{settings!r})
readings, events = [], []
for _ in range({reads}):
    sample = s.read()
    readings += plain(sample.readings)
    events += plain(sample.events)
    now[0] += {step_s}
out(readings, events, plain(s.devices()))
""")
