"""Show one message as a pop-up and save a picture of the screen, to be looked at.

Run it as ``python -m tests.real.popup OUT.png [MESSAGE.json]``; it brings its own bus, screen and
server. The message is JSON in the shape of ``gpuwatchd.core.model.Message``; "-" reads standard
input.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import msgspec

from gpuwatchd.core.model import Message
from gpuwatchd.notify.channels.desktop.channel import DesktopNotifier
from tests.real.stage import Stage, missing, until

EXAMPLE = Message(
    id="example",
    notice="firing",
    severity="critical",
    subject="GPU 0 (A100 80GB): python[4711] of alice leaks",
    body=(
        "It grows 12.4 MB/min (gradual, likely, 91 %).\n"
        "Full in 47 min (39 to 62 min).\n"
        "A name with <b>markup</b> & an escape \x1b[31mstays text."
    ),
    command="gpuwatchctl explain 4711",
)


def main(argv: list[str]) -> int:
    """Show, look, end."""
    if not argv or missing():
        print(f"usage: popup OUT.png [MESSAGE.json]; missing tools: {missing()}", file=sys.stderr)
        return 2
    message = EXAMPLE
    if len(argv) > 1:
        text = sys.stdin.read() if argv[1] == "-" else Path(argv[1]).read_text(encoding="utf-8")
        message = msgspec.json.decode(text.encode(), type=Message)
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder))
        notifier = DesktopNotifier()
        try:
            stage.start_bus()
            stage.start_screen()
            stage.start_server()
            os.environ.update(stage.environ)
            print(notifier.probe().reason)
            print(notifier.send(message))
            until(lambda: stage.windows() > 0)
            stage.picture(Path(argv[0]))
        finally:
            notifier.close()
            stage.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
