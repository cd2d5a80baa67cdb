"""What a daemon that has nothing to tell does without."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    *("apprise", "asyncio", "dbus_fast", "desktop_notifier", "http.client", "keyring"),
    *("matplotlib", "rich", "smtplib", "ssl"),
)


def test_a_daemon_with_nothing_to_tell_loads_nothing_to_tell_it_with() -> None:
    script = (
        "import sys; import gpuwatchd.daemon; from gpuwatchd import config;"
        "from gpuwatchd.notify import outbox;"
        "made = outbox.build(config.NotifySection(), ('desktop', 'command'));"
        f"print(*sorted(made), *[name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["command", "desktop"]
