"""What the tests of the NVML source share: a script in a process of its own, and its answers."""

from __future__ import annotations

from typing import Any

from tests.fakenvml import FakeNvml

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
    settings.setdefault("events", False)
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


class Nvml(FakeNvml):
    """The stand-in, and the beginning of every script that is played before it."""

    prelude = PRELUDE

    def play(self, script: str, *arguments: object) -> Any:
        """Return what a script says; ``folder`` is where the files of the stand-in are."""
        return self.run(self.prelude + script, *map(str, arguments))


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
