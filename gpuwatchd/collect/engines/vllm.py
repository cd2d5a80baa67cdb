"""vLLM: /metrics of its API server, of today and as it was called before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.collect import prometheus
from gpuwatchd.core.errors import EndpointError
from gpuwatchd.core.model import ServerReading

if TYPE_CHECKING:
    from collections.abc import Callable

_KV: Final = ("kv_cache_usage_perc", "gpu_cache_usage_perc")
_FACTS: Final = {
    "preemptions": ("num_preemptions_total",),
    "prefix_queries": ("prefix_cache_queries_total", "gpu_prefix_cache_queries_total"),
    "prefix_hits": ("prefix_cache_hits_total", "gpu_prefix_cache_hits_total"),
}
_NAMES: Final = (
    *_KV,
    # Not num_requests_waiting_by_reason, which counts the same requests once more.
    *("num_requests_running", "num_requests_waiting", "cache_config_info"),
    *(name for names in _FACTS.values() for name in names),
)


class Vllm:
    """Asks one vLLM server.

    The share of KV in use leaves out blocks that only the prefix cache holds: those are free.
    """

    name = "vLLM"

    def ask(self, get: Callable[[str], bytes], url: str, at_s: float) -> ServerReading:
        """Return what the server says of itself."""
        found = prometheus.metrics(get("/metrics"), "vllm", _NAMES)
        if not found:
            raise EndpointError("its /metrics has no vLLM metrics")
        config = next((m.labels for m in found if m.name == "cache_config_info"), {})
        facts = prometheus.facts(found, _FACTS)
        blocks = prometheus.number(config.get("num_gpu_blocks"))
        return ServerReading(
            kind=self.name,
            url=url,
            at_s=at_s,
            models=prometheus.served(found),
            kv_share=prometheus.share(prometheus.over_engines(found, _KV, max)),
            running=prometheus.requests(found, "num_requests_running"),
            waiting=prometheus.requests(found, "num_requests_waiting"),
            pool_share=prometheus.share(prometheus.number(config.get("gpu_memory_utilization"))),
            facts=facts if blocks is None else {**facts, "gpu_blocks": blocks},
        )
