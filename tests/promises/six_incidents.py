"""Incidents in one history, and what every view says of them, as JSON on stdout.

For a process of its own: the clock is moved along, which is never undone.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.recordings import frozen

if TYPE_CHECKING:
    from tests.recordings.worlds import Incident

INCIDENTS: Final = ("open", "over", "died", "snoozed", "normal", "lost", "watch")
"""What became of each; its place is the number of its GPU."""
_MINUTES: Final = 75.0
_END_S: Final = frozen.NOW_S
_GIB: Final = 1024**3
_UID: Final = "GPU-simulated-demo-"
CONFIG: Final = """
[policy]
channels = ["email", "command"]

[notify.email]
host = "mail.example.org"
sender = "gpu@example.org"
to = ["ops@example.org"]

[notify.command]
argv = ["/usr/bin/logger", "-t", "gpu"]

[cost]
usd-per-gpu-hour = 2.5

[detection]
analysis-window-hours = 0.5
"""


def pid(incident: str) -> int:
    """Return the pid of the process that an incident is about."""
    return 4_200_000 + 1024 * INCIDENTS.index(incident)


def _names(incident: str) -> tuple[str, str]:
    """Return what names the alert of an incident, and its process in an address; "" for none."""
    if incident == "lost":
        return f"gpu:{_UID}{INCIDENTS.index(incident)}", ""
    return str(pid(incident)), f"&pid={pid(incident)}"


def _world() -> Any:
    """Return a card for each incident."""
    from msgspec.structs import replace

    from gpuwatchd.collect.scenarios import worlds

    def program(name: str, user: str, **changes: Any) -> Any:
        return worlds.Actor(
            name="python", user=user, argv=("python", f"{name}.py"), framework="PyTorch",
            **{"shape": worlds.Flat(4 * _GIB), "pattern": "stable", **changes},
        )  # fmt: skip

    def leak(name: str, mb_per_min: float, start_gib: float, **changes: Any) -> Any:
        rate, onset_s = mb_per_min * 1e6 / 60.0, 3600.0 + 240.0
        return program(
            f"train_{name}", "alice", shape=worlds.Linear(start_gib * _GIB, rate, onset_s),
            **{"pattern": "gradual", "leak": True, "onset_s": onset_s, **changes},
        )  # fmt: skip

    other = program("serve", "bob")
    return worlds.World(
        title="an incident on each card",
        cards=(
            worlds._rtx_4090(leak("open", 80.0, 11.5), other),
            worlds._a10(leak("over", 300.0, 5.0, stays_s=6000.0), other),
            worlds._a10(leak("died", 300.0, 9.0), other),
            worlds._a100(leak("snoozed", 300.0, 40.0)),
            worlds._a100(leak("normal", 200.0, 40.0), other),
            replace(worlds._h100(program("train_lost", "alice")), lost=((3900.0, 1e9),)),
            worlds._a100(leak("watch", 40.0, 40.0), other),
        ),
    )


class Machine:
    """The machine, and what was answered while it went on and in the end."""

    def __init__(self, root: Path) -> None:
        from tests.recordings import worlds

        self.place = root / "worlds" / "facts"
        for part in ("state", "run", "config/gpuwatchd", "cwd"):
            (self.place / part).mkdir(parents=True, mode=0o700)
        file = self.place / "config/gpuwatchd/config.toml"
        file.write_text(CONFIG)
        file.chmod(0o600)
        self.answers: dict[str, str] = {}
        self._messages = 0
        with worlds.entered(self.place):
            self._go_on(0.0)
            self.incident = worlds.drive(
                "demo",
                _MINUTES,
                _world(),
                self._meanwhile,
                detection={"analysis-window-hours": 0.5},
            )
            self._go_on(_MINUTES * 60.0)
            self._ask()

    def _go_on(self, elapsed_s: float) -> None:
        vars(frozen)["NOW_S"] = _END_S - _MINUTES * 60.0 + elapsed_s

    def _meanwhile(self, incident: Incident, elapsed_s: float) -> None:
        self._go_on(elapsed_s)
        taken = incident.post.taken
        # Each channel gets the same; a second try is of what was said before.
        new = {one.alert_key: one.message for one in taken[self._messages :] if not one.attempts}
        self._messages = len(taken)
        for message in new.values():
            self._message(f"message at {elapsed_s:.0f} s", message)
        if elapsed_s == _MINUTES * 60.0 - 10.0:
            for line in (
                f"snooze {pid('snoozed')} 1h --why known",
                f"feedback {pid('normal')} normal --why cache",
            ):
                assert self._verb(line).startswith("exit 0"), line

    def _verb(self, line: str) -> str:
        from tests.recordings import calling

        form = calling.Form("facts", ("--color", "never"), 400, terminal=True)
        return calling.ctl(*line.split(), form=form)

    def _both(self, line: str, name: str = "") -> None:
        self.answers[name + line] = self._verb(line)
        self.answers[f"{name}{line} --json"] = self._verb(f"{line} --json")

    def _message(self, name: str, message: Any) -> None:
        """Keep a message as its channels have it, and what the views say at that moment."""
        from tests.recordings import messages

        for channel in ("mail-text", "mail-html", "pop-up", "chat", "command"):
            text = messages.CHANNELS[channel](message)
            self.answers[f"{name} {message.notice} {message.alert_key} {channel}"] = text
        for line in (f"alerts show {message.alert_key}", "cost --by incident", "status"):
            self._both(line, f"{name} {message.notice} ")

    def _ask(self) -> None:
        for line in (
            "status", "status --wide", "predict", "alerts --all", "cost --by incident",
            "report --since 2h", "plot --since 2h", "snooze list", "feedback list",
        ):  # fmt: skip
            self._both(line)
        self.answers["check"] = self._verb("check")
        for gpu, name in enumerate(INCIDENTS):
            alert, who = _names(name)
            self._both(f"explain {gpu if name == 'lost' else alert}")
            self._both(f"alerts show {alert}")
            self._both(f"plot {gpu} --since 2h{who.replace('&', ' --').replace('=', ' ')}")
        asyncio.run(self._screens())
        self._pages()

    def _pages(self) -> None:
        from tests.recordings import pages

        server = pages._Server(self.place)
        paths = [
            "status", "predict", "alerts?all=true", "cost?by=incident",
            "page/overview", "page/predict", "page/alerts",
        ]  # fmt: skip
        for gpu, name in enumerate(INCIDENTS):
            alert, who = _names(name)
            about = f"gpu={_UID}{gpu}{who}&span=6h"
            paths += [f"page/{view}?{about}" for view in ("process", "evidence", "picture")]
            paths += [f"page/gpu?gpu={_UID}{gpu}", f"page/alert?id={alert}"]
            paths += [f"explain?target={pid(name)}", f"alerts/{alert}"]
        for path in paths:
            self.answers[f"api {path}"] = server.ask("GET", f"/api/v1/{path}")

    async def _screens(self) -> None:
        from tests.tui import leaky, viewing

        for key in ("", "P", "d", "h", "a"):
            keys = [key] if key else []
            async with viewing.opened(leaky.view(), *keys, size=(300, 60), now_s=frozen.NOW_S) as (
                app,
                _,
            ):
                self.answers[f"top {key}"] = viewing.shown(app)


def main() -> int:
    """Print what every view says."""
    root = Path(tempfile.mkdtemp(prefix="gpuwatchd-facts-", dir="/tmp"))
    try:
        frozen.freeze(root)
        print(json.dumps(Machine(root).answers))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
