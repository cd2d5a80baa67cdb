"""Fills a real server with made-up GPUs, under the labels of dcgm-exporter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tests.bench import fleet_mix
from tests.fleet import servers

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bench.fleet_mix import Mix

WINDOW: Final = 385
"""Values of one series in the window of 6.4 h."""


def row_of(uuid: str) -> int:
    """Return which of the GPUs has a UUID."""
    return int(uuid.split("-")[1], 16)


def labels_of(mix: Mix, metric: str) -> tuple[list[dict[str, str]], list[int], list[bool]]:
    """Return labels as dcgm-exporter gives them; rows, and whether each is a row's second job."""
    out, rows, second = [], [], []
    for k, renamed in enumerate(mix.renamed.tolist()):
        for later in (False, True) if renamed else (False,):
            rows.append(k)
            second.append(later)
            out.append(
                {
                    "__name__": metric, "UUID": f"GPU-{k:08x}-1111-4222-8333-{k * 7919:012x}",
                    "Hostname": f"node{k // 8:05}.cluster", "gpu": f"{k % 8}",
                    "device": f"nvidia{k % 8}", "modelName": "NVIDIA H100 80GB HBM3",
                    "instance": f"10.{k // 8 >> 8 & 255}.{k // 8 & 255}.1:9400", "job": "dcgm",
                    "namespace": "research", "pod": f"train-{k}{'-next' if later else ''}",
                }
            )  # fmt: skip
    return out, rows, second


def fill(server: servers.Server, mix: Mix, end_s: float, totals_from: int) -> None:
    """Write the past of all GPUs that ends at an instant; total memory from a minute on only."""
    minutes = mix.used.shape[1]
    at_s = np.arange(1.0 - minutes, 1.0) * 60.0 + end_s
    used, rows, later = labels_of(mix, "DCGM_FI_DEV_FB_USED")
    free, reserved = (labels_of(mix, f"DCGM_FI_DEV_FB_{name}")[0] for name in ("FREE", "RESERVED"))
    minute = np.arange(minutes)
    begins = mix.begins[rows, None]
    second, renamed = np.array(later)[:, None], mix.renamed[rows, None]
    for first in range(0, minutes, servers.SLICE_STEPS):
        span = slice(first, first + servers.SLICE_STEPS)
        values = mix.used[:, span][rows].astype(np.float64)
        values[renamed & ((minute[span] >= begins) != second)] = np.nan
        servers.fill(server, used, at_s[span], values)
        if span.stop > totals_from:
            known = slice(max(first, totals_from), span.stop)
            values = values[:, known.start - first :]
            servers.fill(server, free, at_s[known], fleet_mix.LIMIT_MIB - values)
            servers.fill(server, reserved, at_s[known], values * 0 + fleet_mix.RESERVED_MIB)


def fleet_toml(server: servers.Server, folder: Path) -> Path:
    """Write the configuration that asks a server."""
    file = folder / "fleet.toml"
    file.write_text(f"[fleet]\nurl = '{server.url}'\n")
    return file
