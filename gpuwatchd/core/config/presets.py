"""What ``[policy] preset`` stands for: keys below the user's own files, so that keys set win.

``workstation`` is the defaults. A preset changes who is told, and how often; never what is found.
"""

from __future__ import annotations

from typing import Any, Final

PRESETS: Final[dict[str, dict[str, Any]]] = {
    "workstation": {},
    # A server of several people: mail instead of pop-ups that nobody sees, fewer reminders, a
    # summary each day, and memory that nobody works with is told of too.
    "shared": {
        "channels": ["email"],
        "digest": "daily",
        "digest-channels": ["email"],
        "repeat": ["4h", "1d"],
        "cooldown": "1h",
        "group-interval": "15m",
        "max-per-hour": 10,
        "tell-held": [
            *(
                "gone",
                "defunct",
                "driver-wait",
                "ghost",
                "orphaned-runner",
                "leaked-kv",
                "hung-rank",
            )
        ],
    },
    # A run without people: a job reads the verdict from check, or from analyze --fail-on. What is
    # told (by a channel that is set) is told once, at once, and without an epilogue.
    "ci": {
        "channels": [],
        "flap-hold": "0s",
        "repeat": [],
        "recovered": False,
        "digest": "off",
    },
}
"""Name -> keys of ``[policy]`` as they would be written in a file."""


def layer(name: str) -> dict[str, Any]:
    """Return a preset as a layer of configuration; empty where it changes nothing.

    Examples
    --------
    >>> layer("ci")["policy"]["repeat"], layer("workstation")
    ([], {})
    """
    keys = PRESETS[name]
    # Layers are merged in place.
    return {"policy": {key: _own(value) for key, value in keys.items()}} if keys else {}


def _own(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _own(one) for key, one in value.items()}
    return [*value] if isinstance(value, list) else value
