"""Whether a user's services go on without a login."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.service.systemctl import user_name

if TYPE_CHECKING:
    from gpuwatchd.service.runner import Runner


def on(run: Runner) -> bool:
    """Say whether this user lingers."""
    done = run(["loginctl", "show-user", user_name(), "--property=Linger", "--value"])
    return done.code == 0 and done.output == "yes"


def advice(run: Runner, *, want: bool) -> list[str]:
    """Return what is to be said about running without a login; enable it when wanted."""
    user = user_name()
    if on(run):
        return ["it also runs while you are logged out (linger)"]
    if not want:
        return [f"it stops when you log out; to keep it: loginctl enable-linger {user}"]
    done = run(["loginctl", "enable-linger", user])
    if done.code:
        why = done.last_line
        return [f"linger could not be enabled ({why}): sudo loginctl enable-linger {user}"]
    return ["linger enabled: it also runs while you are logged out"]


def left() -> str:
    """Return what is said of lingering that stays after the service has gone."""
    return (
        "you go on lingering, other services may need it; if none does:"
        f" loginctl disable-linger {user_name()}"
    )
