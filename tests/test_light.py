"""What a daemon that has nothing to tell does without."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    *("apprise", "dbus_fast", "desktop_notifier", "keyring", "matplotlib", "rich", "smtplib"),
    *("textual", "urllib.request"),
)


def test_a_daemon_with_nothing_to_tell_loads_nothing_to_tell_it_with() -> None:
    script = (
        "import sys; from gpuwatchd.core import config; "
        "from gpuwatchd.daemon import main as daemon; daemon.Chores();"
        "from gpuwatchd.notify import dispatcher as outbox;"
        "made = outbox.build(config.NotifySection(), ('desktop', 'command'));"
        f"print(*sorted(made), *[name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["command", "desktop"]
