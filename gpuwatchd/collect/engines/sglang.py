"""SGLang: /metrics of a server that was started with --enable-metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.collect import prometheus
from gpuwatchd.core.errors import EndpointError
from gpuwatchd.core.model import ServerReading

if TYPE_CHECKING:
    from collections.abc import Callable

_FACTS: Final = (
    *("kv_used_tokens", "kv_available_tokens", "kv_evictable_tokens", "max_total_num_tokens"),
    *("weight_memory_usage_gb", "kv_cache_memory_usage_gb", "graph_memory_usage_gb"),
    "startup_available_gpu_memory_gb",
)
_NAMES: Final = ("token_usage", "num_running_reqs", "num_queue_reqs", *_FACTS)


class Sglang:
    """Asks one SGLang server.

    Its token usage leaves out what the radix cache could evict at once.
    """

    name = "SGLang"

    def ask(self, get: Callable[[str], bytes], url: str, at_s: float) -> ServerReading:
        """Return what the server says of itself."""
        metrics = prometheus.metrics(get("/metrics"), "sglang", _NAMES)
        if not metrics:
            raise EndpointError("its /metrics has no SGLang metrics")
        facts = prometheus.facts(metrics, {name: (name,) for name in _FACTS})
        usage = prometheus.over_engines(metrics, ("token_usage",), max)
        if usage is None and facts.get("max_total_num_tokens") and "kv_used_tokens" in facts:
            usage = facts["kv_used_tokens"] / facts["max_total_num_tokens"]
        return ServerReading(
            kind=self.name,
            url=url,
            at_s=at_s,
            models=prometheus.served(metrics),
            kv_share=prometheus.share(usage),
            running=prometheus.requests(metrics, "num_running_reqs"),
            waiting=prometheus.requests(metrics, "num_queue_reqs"),
            facts=facts,
        )
