"""llama.cpp's llama-server: /metrics (with --metrics), and /slots where that says more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatchd.collect import prometheus
from gpuwatchd.core import decoding
from gpuwatchd.core.errors import EndpointError
from gpuwatchd.core.model import ServerReading

if TYPE_CHECKING:
    from collections.abc import Callable

_FACTS: Final = (
    *("prompt_tokens_total", "tokens_predicted_total", "n_decode_total", "n_tokens_max"),
    *("n_busy_slots_per_decode", "kv_cache_tokens", "kv_cache_usage_ratio"),
)
_FOR_GOOD: Final = frozenset({401, 403, 404, 405, 501})
"""Answers of a server that will not show a page; 503 is one that loads its model."""
_NAMES: Final = ("requests_processing", "requests_deferred", *_FACTS)


class _Next(msgspec.Struct):
    n_decoded: int = 0


class _Slot(msgspec.Struct):
    n_ctx: int = 0
    is_processing: bool | None = None
    n_prompt_tokens: int | None = None
    """Missing where a slot has had no request yet."""
    next_token: list[_Next] | _Next | None = None

    def tokens(self) -> int:
        """Return the tokens of its request: the prompt and what was generated so far."""
        told = self.next_token if isinstance(self.next_token, list) else [self.next_token]
        decoded = sum(one.n_decoded for one in told if one is not None)
        return max(0, self.n_prompt_tokens or 0) + max(0, decoded)


class LlamaCpp:
    """Asks one llama-server.

    The share of KV in use counts what requests hold now, from /slots; today's /metrics have none.
    An idle slot keeps its last prompt on purpose, to use it again: that is told as a fact
    (``kept_share``), not as use. The old ``kv_cache_usage_ratio`` counts both together, so that it
    is told as a fact too.
    """

    name = "llama.cpp"

    def __init__(self) -> None:
        self._refused: set[str] = set()
        """Paths that the server was not started with."""

    def ask(self, get: Callable[[str], bytes], url: str, at_s: float) -> ServerReading:
        """Return what the server says of itself."""
        shown = self._try(get, "/metrics")
        slots = self._try(get, "/slots")
        if shown is None and slots is None:
            self._refused.clear()
            raise EndpointError("neither /metrics nor /slots answers (start it with --metrics)")
        metrics = prometheus.metrics(shown or b"", "llamacpp", _NAMES)
        known = _slots(slots)
        if not metrics and not known:
            raise EndpointError("what it shows is not from llama.cpp")
        facts = {name: some[0] for name in _FACTS if (some := prometheus.values(metrics, name))}
        in_use, kept = _shares(known)
        if kept is not None:
            facts["kept_share"] = kept
        running = prometheus.values(metrics, "requests_processing")
        waiting = prometheus.values(metrics, "requests_deferred")
        busy = [slot for slot in known if slot.is_processing]
        told = any(slot.is_processing is not None for slot in known)
        return ServerReading(
            kind=self.name,
            url=url,
            at_s=at_s,
            kv_share=in_use,
            running=prometheus.count(running[0]) if running else len(busy) if told else None,
            waiting=prometheus.count(waiting[0]) if waiting else None,
            facts=facts,
        )

    def _try(self, get: Callable[[str], bytes], path: str) -> bytes | None:
        """Return one page; None where there is none. What is refused is not asked for again."""
        if path in self._refused:
            return None
        try:
            return get(path)
        except EndpointError as error:
            if error.status is None:
                self._refused.clear()  # What answers later may have been started otherwise.
                raise
            if error.status in _FOR_GOOD:
                self._refused.add(path)
            return None


def _slots(raw: bytes | None) -> list[_Slot]:
    if raw is None:
        return []
    try:
        return decoding.decode(raw, list[_Slot])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise EndpointError("its /slots is not understood") from error


def _shares(slots: list[_Slot]) -> tuple[float | None, float | None]:
    """Return which shares of the context running requests use, and idle slots keep."""
    room = sum(slot.n_ctx for slot in slots if slot.n_ctx > 0)
    busy = [slot for slot in slots if slot.is_processing]
    idle = [slot for slot in slots if not slot.is_processing and slot.n_prompt_tokens is not None]
    if room <= 0:
        return None, None
    told = all(slot.n_prompt_tokens is not None for slot in busy)
    used = sum(slot.tokens() for slot in busy) / room if told else None
    kept = sum(slot.tokens() for slot in idle) / room if idle else None
    return prometheus.share(used), prometheus.share(kept)
