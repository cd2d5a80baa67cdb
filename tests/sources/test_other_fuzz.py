"""Whatever the kernel or ioreg should print: nothing is raised, nothing is negative."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatchd.collect.drm import processes
from gpuwatchd.collect.metal import calls
from tests.conftest import present
from tests.sources.drm_case import amd_fdinfo, xe_fdinfo

DATA = Path(__file__).resolve().parent.parent / "data/macos"
FDINFO = (amd_fdinfo(7, 4096, 12, gfx=99), xe_fdinfo(8, 4096, cycles=5, total=9))
TEXTS = tuple((DATA / name).read_bytes() for name in ("ioreg_m2.plist", "ioreg_m2.txt"))
KEYS = ["drm-resident-", "drm-memory-", "drm-engine-", "drm-cycles-", "drm-client-id", "drm-pdev"]

damage = st.tuples(st.integers(0, 2000), st.integers(0, 60), st.binary(max_size=30))
lines = st.lists(
    st.tuples(st.sampled_from(KEYS), st.text(max_size=8), st.text(max_size=24)), max_size=12
)


def hurt(raw: bytes, wound: tuple[int, int, bytes]) -> bytes:
    at, length, inserted = wound
    return raw[: at % len(raw)] + inserted + raw[at % len(raw) + length :]


@given(st.sampled_from(FDINFO), st.lists(damage, max_size=4))
def test_damaged_fdinfo(text: str, wounds: list[tuple[int, int, bytes]]) -> None:
    raw = text.encode()
    for wound in wounds:
        raw = hurt(raw, wound) or b"x"
    sane(processes.parse(raw.decode("utf-8", "replace")))


@given(lines)
def test_strange_fdinfo(found: list[tuple[str, str, str]]) -> None:
    text = "".join(f"{key}{name}:\t{value}\n" for key, name, value in found)
    client = present(processes.parse(f"drm-driver:\tamdgpu\n{text}"))
    sane(client)


def sane(client: processes.Client | None) -> None:
    if client is None:
        return
    for table in (client.resident, client.engines, client.ticks, client.capacity):
        assert all(value >= 0 for value in table.values())
    for unified in (False, True):
        held = client.held_bytes(unified=unified)
        assert held is None or held >= 0
    busy = processes.Busy()
    for now_s in (1.0, 2.0):
        busy.start(now_s)
        assert all(0 <= share <= 1 for share in busy.of("key", client).values())


@settings(deadline=None)
@given(st.sampled_from(TEXTS), st.lists(damage, max_size=4))
def test_damaged_ioreg(raw: bytes, wounds: list[tuple[int, int, bytes]]) -> None:
    for wound in wounds:
        raw = hurt(raw, wound) or b"x"
    for node in calls.parse(raw):
        assert all(value >= 0 for value in node.stats.values())
        assert node.busy_pct is None or 0 <= node.busy_pct <= 100
        assert node.vendor
    calls.parse_clients(raw.decode("utf-8", "replace"))
    calls.platform_uuid(raw)


@given(st.binary(max_size=300))
def test_any_bytes(raw: bytes) -> None:
    text = raw.decode("utf-8", "replace")
    assert calls.parse(raw) == []
    system = calls.system_of(calls.parse_sysctl(text), text)
    assert system.available_bytes is None or system.available_bytes >= 0
    found = calls.parse_rusage(raw)
    assert found is None or found >= 0
