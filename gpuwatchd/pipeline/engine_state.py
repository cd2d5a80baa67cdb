"""The serving engines of this machine, and what they said of themselves lately."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatchd.analysis.frameworks.engine_addresses import only_model
from gpuwatchd.core.model import ProcessKey, ServerReading  # noqa: TC001 - fields of a Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuwatchd.analysis.frameworks.engine_addresses import Address
    from gpuwatchd.core.model import ProcessInfo

KEPT: Final = 240
"""Answers of each server that are remembered: an hour at the usual pace."""


class Server(msgspec.Struct, kw_only=True, eq=False):
    """One server that is asked."""

    kind: str
    url: str
    configured: bool = False
    address: Address | None = None
    members: dict[ProcessKey, float] = {}
    """Processes on a GPU that belong to it -> when each was last seen (monotonic)."""
    runs: dict[ProcessKey, str] = {}
    """What each of them was started for, as far as its command line says."""
    past: deque[ServerReading] = msgspec.field(default_factory=lambda: deque(maxlen=KEPT))
    seen_s: float = 0.0
    """When a process of it was last seen (monotonic), in a container too."""
    due_s: float = 0.0
    pending: bool = False
    failures: int = 0

    def model_of(self, key: ProcessKey) -> str | None:
        """Return which model a process of it serves; None where that is not certain.

        Ollama has a process for each model, and one that it has forgotten may be among them.
        """
        if self.kind == "Ollama" and len(self.members) > 1:
            return self.runs.get(key)
        return only_model(self.past[-1]) or self.runs.get(key)


class Engines:
    """The servers by address, and what others use of their answers."""

    def __init__(self) -> None:
        self.servers: dict[str, Server] = {}
        self.readings: tuple[ServerReading, ...] = ()
        """The newest answer of each server that has been asked."""
        self.named: dict[ProcessKey, str] = {}
        """Processes whose model is known beyond doubt -> its name."""
        self._with_models: dict[ProcessKey, tuple[ProcessInfo, ProcessInfo]] = {}

    def publish(self, servers: Iterable[Server]) -> None:
        """Bring what others use up to date; ``servers`` are those that have answered."""
        servers = tuple(servers)
        self.readings = tuple(server.past[-1] for server in servers)
        self.named = {
            key: model
            for server in servers
            for key in server.members
            if (model := server.model_of(key)) is not None
        }
        self._with_models = {
            key: pair for key, pair in self._with_models.items() if key in self.named
        }

    def recent(self, url: str) -> tuple[ServerReading, ...]:
        """Return the remembered answers of a server, oldest first, failures among them."""
        server = self.servers.get(url)
        return tuple(server.past) if server is not None else ()

    def members(self, url: str) -> tuple[ProcessKey, ...]:
        """Return the processes on a GPU that belong to a server."""
        server = self.servers.get(url)
        return tuple(server.members) if server is not None else ()

    def with_models(
        self, infos: Mapping[ProcessKey, ProcessInfo]
    ) -> Mapping[ProcessKey, ProcessInfo]:
        """Return who processes are, with the models that they serve."""
        if not self.named:
            return infos
        with_models = dict(infos)
        for key, model in self.named.items():
            info = infos.get(key)
            if info is None or info.model is not None:
                continue
            pair = self._with_models.get(key)
            if pair is None or pair[0] is not info or pair[1].model != model:
                pair = self._with_models[key] = (info, msgspec.structs.replace(info, model=model))
            with_models[key] = pair[1]
        return with_models
