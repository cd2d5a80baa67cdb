"""Every Struct that is kept as JSON, or handed as JSON to a program that may be of another version.

The names on the left, and the JSON recorded under them, never change. The places on the right are
where the Struct is now. ``python -m tests.store.stored`` records what has been added: a name that
was recorded stays as it was written, since users have it on their disks.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from gpuwatchd.store import live

STRUCTS = {
    # Columns of the history.
    "alert": "gpuwatchd.core.model:Alert",
    "matcher": "gpuwatchd.core.model:Matcher",
    "message": "gpuwatchd.core.model:Message",
    "profile": "gpuwatchd.core.model:Profile",
    # Files of the runtime directory and of the state directory.
    "boot": "gpuwatchd.collect.host.processes:_Anchor",
    "fleet-state": "gpuwatchd.view.queries.fleet_state:FleetState",
    "fleet-state-head": "gpuwatchd.view.queries.fleet_state:_Head",
    "pop-ups": "gpuwatchd.notify.channels.desktop.connection:_Kept",
    "release": "gpuwatchd.store.live:ReleaseRequest",
    "state": "gpuwatchd.store.live:LiveState",
    "state-head": "gpuwatchd.view.queries.state_location:_Head",
    # Bodies of requests to the API.
    "feedback-request": "gpuwatchd.web.openapi:FeedbackBody",
    "reap-request": "gpuwatchd.web.openapi:ReapBody",
    "snooze-request": "gpuwatchd.web.openapi:SnoozeBody",
    # Between a daemon that runs and the programs that it starts, which an upgrade may exchange.
    "keyring-answer": "gpuwatchd.notify.credentials:Answer",
    "report-chart-order": "gpuwatchd.charts.chart_model:Order",
}
FOREIGN = {
    "gpuwatchd.core.config.loading:Config": "the user's TOML; unknown keys are refused",
    "gpuwatchd.core.config.prices:_Table": "TOML of the package itself",
    "gpuwatchd.view.queries.operating_points:Measured": "JSON of the package itself",
    "gpuwatchd.store.live:LiveProcess": "part of the state",
    "gpuwatchd.store.live:_RawState": "the state, its processes not yet read",
    "gpuwatchd.collect.engines.llamacpp:_Slot": "answers of llama.cpp",
    "gpuwatchd.fleet.alertmanager:Active": "answers of Alertmanager",
    "gpuwatchd.fleet.client:_BuildInfo": "answers of Prometheus",
    "gpuwatchd.fleet.client:_Matrix": "answers of Prometheus",
    "gpuwatchd.fleet.client:_Vector": "answers of Prometheus",
    "gpuwatchd.fleet.client:_Refusal": "answers of Prometheus",
    "gpuwatchd.collect.engines.ollama:_Loaded": "answers of Ollama",
    "gpuwatchd.collect.engines.ollama:_Version": "answers of Ollama",
}
"""What is decoded all the same, but not by names of ours; and whose it is."""
RECORDED = Path(__file__).with_name("histories") / "structs.json"


def struct(place: str) -> type[msgspec.Struct]:
    """Return the Struct of a place."""
    module, _, name = place.partition(":")
    found: type[msgspec.Struct] = getattr(import_module(module), name)
    return found


def encoded(value: msgspec.Struct) -> Any:
    """Return a value as the JSON that the program itself writes, read as plain values."""
    if isinstance(value, live.LiveState):
        return json.loads(b"".join(live.encode(value, live.Pieces())))
    return json.loads(msgspec.json.encode(value))


def recorded() -> dict[str, Any]:
    """Return the JSON of each Struct as it was recorded."""
    found: dict[str, Any] = json.loads(RECORDED.read_text("utf-8")) if RECORDED.exists() else {}
    return found


def merged(old: Any, new: Any) -> Any:
    """Return what was recorded, with the keys that are new."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {key: merged(old.get(key, new.get(key)), new.get(key)) for key in {**old, **new}}
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [merged(*pair) for pair in zip(old, new, strict=True)]
    return old


def main() -> None:
    """Record what has been added."""
    from tests.store.filling import filled

    now = {name: encoded(filled(struct(place))) for name, place in STRUCTS.items()}
    text = json.dumps(merged(recorded(), now), indent=1, ensure_ascii=False, sort_keys=True)
    RECORDED.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
