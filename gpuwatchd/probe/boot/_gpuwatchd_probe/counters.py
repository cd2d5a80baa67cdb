"""What a framework's allocator says of its memory, only of one that runs on a device already.

Each reader takes the framework out of ``sys.modules`` and returns rows as they stand in the
mailbox: bytes as int; a figure that a framework does not have is left out.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Callable, Dict, List

Row = Dict[str, Any]


def read(framework: str) -> list[Row]:
    """Return one row per device that the framework uses; [] before it does, and where it fails."""
    module = sys.modules.get(framework if framework != "mlx" else "mlx.core")
    reader = _READERS.get(framework)
    if module is None or reader is None:
        return []
    try:
        return [_placed(row) for row in reader(module)]
    except Exception:  # nothing of ours may reach the job
        return []


def _placed(row: Row) -> Row:
    """Return a row without a UUID with its device's, or with the device's number here."""
    index = row.get("index")
    if "uid" in row or index is None:
        return row
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    name = dict(enumerate(visible.split(","))).get(index, "").strip() if visible else str(index)
    return dict(row, number=int(name)) if name.isdecimal() else dict(row, uid=name or None)


def free(framework: str) -> float:
    """Return which share of its fullest device a framework can still take; 1 where unknown."""
    rows = read(framework)
    try:
        if framework == "torch":
            pairs = [sys.modules["torch"].cuda.mem_get_info(row["index"]) for row in rows]
        else:
            pairs = [(row["limit"] - row["allocated"], row["limit"]) for row in rows]
        return min([left / limit for left, limit in pairs], default=1.0)
    except Exception:  # nothing of ours may reach the job
        return 1.0


def has_device_nodes() -> bool:
    """Say whether this machine has a GPU that a framework may use, without asking a driver."""
    return any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))


def _torch(torch: Any) -> list[Row]:
    cuda = torch.cuda
    if not cuda.is_initialized():
        return []
    rows = []
    for index in range(cuda.device_count()):
        stats = cuda.memory_stats_as_nested_dict(index)
        reserved = _inner(stats, "reserved_bytes")
        if not reserved:
            continue  # not used by this process
        rows.append(
            _row(
                uid=_uuid(cuda, index),
                index=index,
                allocated=_inner(stats, "allocated_bytes"),
                reserved=reserved,
                active=_inner(stats, "active_bytes"),
                inactive_split=_inner(stats, "inactive_split_bytes"),
                peak=_inner(stats, "allocated_bytes", "peak"),
                retries=stats.get("num_alloc_retries"),
                ooms=stats.get("num_ooms"),
            )
        )
    return rows


def _inner(stats: Any, name: str, which: str = "current") -> int | None:
    value = stats.get(name, {}).get("all", {}).get(which)
    return None if value is None else int(value)


def _uuid(cuda: Any, index: int) -> str | None:
    uuid = getattr(cuda.get_device_properties(index), "uuid", None)
    return None if uuid is None else "GPU-" + str(uuid)


def _jax(jax: Any) -> list[Row]:
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is None or not getattr(bridge, "_backends", None):
        return []  # asking for devices would start the back end
    rows = []
    for device in jax.local_devices():
        stats = device.memory_stats()
        if not stats:
            continue  # a CPU
        rows.append(
            _row(
                index=getattr(device, "local_hardware_id", None),
                allocated=stats.get("bytes_in_use"),
                reserved=stats.get("pool_bytes", stats.get("bytes_reserved")),
                limit=stats.get("bytes_limit"),
                peak=stats.get("peak_bytes_in_use"),
            )
        )
    return rows


def _tensorflow(tensorflow: Any) -> list[Row]:
    context = sys.modules.get("tensorflow.python.eager.context")
    if context is None or not context.context()._initialized:
        return []
    rows = []
    for index, device in enumerate(tensorflow.config.list_logical_devices("GPU")):
        info = tensorflow.config.experimental.get_memory_info(device.name.split("device:")[-1])
        rows.append(_row(index=index, allocated=info.get("current"), peak=info.get("peak")))
    return rows


def _mlx(mlx: Any) -> list[Row]:
    active, cached = int(mlx.get_active_memory()), int(mlx.get_cache_memory())
    peak = int(mlx.get_peak_memory())
    return [_row(index=0, allocated=active, reserved=active + cached, peak=peak)] if peak else []


def _cupy(cupy: Any) -> list[Row]:
    pool = cupy.get_default_memory_pool()
    reserved = int(pool.total_bytes())
    if not reserved:
        return []
    return [_row(index=0, allocated=int(pool.used_bytes()), reserved=reserved)]


def _row(**figures: Any) -> Row:
    return {name: value for name, value in figures.items() if value is not None}


_READERS: Dict[str, Callable[[Any], List[Row]]] = {
    "torch": _torch,
    "jax": _jax,
    "tensorflow": _tensorflow,
    "mlx": _mlx,
    "cupy": _cupy,
}
