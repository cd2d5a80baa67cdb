"""Runs, their profiles and what the user said of them, any field of which can be changed."""

from __future__ import annotations

from typing import Any

from gpuwatchd.core.model import ProcessKey, Profile, Subject
from gpuwatchd.store.profiles import Run
from gpuwatchd.store.tables import UserLabel
from tests.making import GIB
from tests.store.world import CARDS, T0


def profile(at_s: float = T0, **changes: Any) -> Profile:
    values: dict[str, Any] = {
        "ended_at_s": at_s,
        "run_s": 3600.0,
        "base_bytes": 2.0 * GIB,
        "hold_s": 30.0,
        "proven_bytes": 9.0 * GIB,
        "top_bytes": 10.0 * GIB,
        "grown_bytes": (1.0, 2.0),
    }
    return Profile(**{**values, **changes})


def run(number: int = 0, key: str = "k", **changes: Any) -> Run:
    at_s = T0 + 10_000.0 * number
    values: dict[str, Any] = {
        "key": key,
        "device_uid": CARDS[0].uid,
        "process": ProcessKey(pid=100 + number, started_at_s=at_s - 3600),
        "label": "python train.py",
        "begun_at_s": at_s - 3600,
        "profile": profile(at_s),
    }
    return Run(**{**values, **changes})


def word(about: Run, said: str = "normal", **changes: Any) -> UserLabel:
    values: dict[str, Any] = {
        "alert_key": f"leak:{about.process}",
        "opened_at_s": T0,
        "subject": Subject(device_uid=about.device_uid, process=about.process),
        "title": "GPU 0: python[100]",
        "word": said,
        "given_at_s": T0 + 5,
        "why": "a cache",
        "who": "alice",
    }
    return UserLabel(**{**values, **changes})
