"""What is known of a process beside its curve: who, where, for whom, and what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.cli import verdict_text
from gpuwatchd.cli.envelope import is_leak
from gpuwatchd.core import units

if TYPE_CHECKING:
    from gpuwatchd.core.model import ProcessInfo
    from gpuwatchd.store.live import LiveProcess

_SHORT_POD = 8
_ALONE = {"C", ""}


def runs(info: ProcessInfo) -> str:
    """Return the framework, the model that it serves and the rank: "Ollama llama3:8b", "rank 3".

    Examples
    --------
    >>> from gpuwatchd.core.model import ProcessInfo, ProcessKey
    >>> key = ProcessKey(pid=1, started_at_s=None)
    >>> runs(ProcessInfo(key=key, name="x", framework="PyTorch", framework_sure=True, rank=3,
    ...                  world=8))
    'PyTorch, rank 3 of 8'
    """
    what = "" if not info.framework else verdict_text.framework(None, info)
    if info.model:
        what = f"{what} {info.model}".strip()
    of = f" of {info.world}" if info.world is not None else ""
    rank = f"rank {info.rank}{of}" if info.rank is not None else ""
    return ", ".join(word for word in (what, rank) if word)


def where(info: ProcessInfo) -> list[str]:
    """Return job, pod, container and unit, the most telling first.

    Examples
    --------
    >>> from gpuwatchd.core.model import ProcessInfo, ProcessKey
    >>> key = ProcessKey(pid=1, started_at_s=None)
    >>> where(ProcessInfo(key=key, name="x", job="slurm 42.0", container="docker " + "ab" * 32))
    ['slurm 42.0', 'docker abababababab']
    """
    named = (
        ("job", info.job),
        ("group", info.group if info.group != info.job else None),
        ("pod", f"pod {info.pod[:_SHORT_POD]}" if info.pod else None),
        ("container", info.short_container),
        ("unit", f"unit {info.unit}" if info.unit else None),
    )
    return [value if " " in value else f"{label} {value}" for label, value in named if value]


def host_growth(process: LiveProcess) -> str:
    """Return what its memory on the host does where that is a leak, else ""."""
    finding = process.host_finding
    if finding is None or not is_leak(finding):
        return ""
    held = f" ({units.size(process.host_bytes)})" if process.host_bytes is not None else ""
    return f"host memory {verdict_text.growth(finding.rate_bytes_per_s)}{held}"


def wide(process: LiveProcess, *, now_s: float) -> list[tuple[str, str]]:
    """Return everything else that is known, for ``--wide``."""
    info = process.info
    parts = list(where(info))
    if len(info.frameworks) > 1:
        parts.append(f"loaded: {', '.join(info.frameworks)}")
    if process.sm_pct is not None:
        parts.append(f"sm {process.sm_pct:.0f}%")
    if process.host_bytes is not None:
        parts.append(f"host {units.size(process.host_bytes)}")
    if process.kind not in _ALONE:
        parts.append(f"lists {process.kind}")
    if info.key.started_at_s is not None:
        parts.append(f"since {units.clock(info.key.started_at_s, now_s=now_s)}")
    if info.uid is not None and not info.user:
        parts.append(f"uid {info.uid}")
    if info.parents:
        parts.append(f"from {' < '.join(info.parents)}")
    if len(info.argv) > 1 and not info.foreign:
        parts.append(f"command: {' '.join(info.argv)}")
    return [(part, "dim") for part in parts]
