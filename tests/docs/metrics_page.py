"""docs/reference/metrics.md: every name on the page that Prometheus scrapes."""

from __future__ import annotations

from gpuwatchd.view import metrics

_TITLES = {
    "dcgm": "dcgm-exporter", "nvidia-smi": "nvidia_gpu_exporter", "nvitop": "nvitop-exporter",
}  # fmt: skip
_DEVICE = "uuid, gpu, host"
_LEAK = (
    f"{_DEVICE}, pid, user, process, framework, workload (job or container), memory (device or"
    " host), pattern, state (watch, firing or silenced), severity"
)
_LABELS = {
    "gpuwatchd_alerts": f"{_DEVICE}, kind, state, severity",
    "gpuwatchd_build_info": "version",
    "gpuwatchd_gpu_info": f"{_DEVICE}, name, vendor",
    "gpuwatchd_orphan_memory_bytes": f"{_DEVICE}, kind",
    "gpuwatchd_oom_eta_seconds": "those of a leak, and quantile (0.05, 0.5, 0.95)",
    "gpuwatchd_leak_confidence_ratio": _LEAK,
    "gpuwatchd_leak_growth_bytes_per_second": _LEAK,
    "gpuwatchd_process_gpu_memory_bytes": "uuid, pid, user, framework",
}


def page() -> list[str]:
    """Return the lines of the page."""
    own = metrics.DIALECTS[""]
    meanings = {name: metrics.MEANING[of] for name, (of, _) in own.gauges.items()}
    meanings |= {own.process: metrics.MEANING["process"], **metrics.HELP}
    lines = [
        "# Metrics", "",
        "What Prometheus scrapes ([how](../how-to/prometheus.md)). Base units, the unit last in",
        "the name. What is unknown has no series: it is never 0 or infinity. A leak without an end",
        "in sight has no time until it is full.", "",
        f"At most {metrics.MOST_PROCESSES} series of processes, and of leaks, under one name; the",
        'smallest processes beyond them are summed with `pid="other"`. A label is at most 128',
        "characters long and never holds a command line.", "",
        "| name | meaning | labels |", "|---|---|---|",
    ]  # fmt: skip
    lines += [
        f"| `{name}` | {meanings[name]} | {_LABELS.get(name, _DEVICE)} |"
        for name in sorted(meanings)
    ]
    lines += ["", "## Names of other exporters", "", "With `[metrics] compat`:"]
    for key, title in _TITLES.items():
        dialect = metrics.DIALECTS[key]
        names = [*dialect.gauges, *([dialect.process] if dialect.process else [])]
        listed = ", ".join(f"`{name}`" for name in names)
        lines += ["", f"* `{key}` ({title}): {listed}"]
    return lines
