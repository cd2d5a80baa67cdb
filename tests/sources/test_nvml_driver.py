"""The driver as a whole: what is wrong with it, what was exchanged, and letting go of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuwatchd.collect.nvml import driver_files
from gpuwatchd.collect.nvml.driver_files import Library, in_container
from tests.sources.nvml_case import TWO, UID

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sources.nvml_case import Nvml


@pytest.fixture
def library(tmp_path: Path) -> Library:
    """Return what is known of a library that this process is said to have loaded."""
    (tmp_path / "libnvidia-ml.so.535.129.03").write_bytes(b"old")
    (tmp_path / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.535.129.03")
    (tmp_path / "self").mkdir()
    path = tmp_path / "libnvidia-ml.so.535.129.03"
    (tmp_path / "self/maps").write_text(
        "7f00-7f10 r-xp 00000000 08:01 11 /usr/lib/libc.so.6\n"
        f"7f10-7f20 r-xp 00000000 08:01 12 {path}\n"
    )
    found = Library(tmp_path)
    found.note()
    return found


def test_a_library_that_is_still_there_was_not_replaced(library: Library) -> None:
    assert library.replaced_by() is None


@pytest.mark.parametrize("remove_old", [True, False])
def test_another_version_beside_or_instead_is_seen(
    library: Library, tmp_path: Path, remove_old: bool
) -> None:
    (tmp_path / "libnvidia-ml.so.550.54.15").write_bytes(b"newer")
    (tmp_path / "libnvidia-ml.so.1").unlink()
    assert library.replaced_by() is None, "half-way through there is nothing to load"
    (tmp_path / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.550.54.15")
    if remove_old:
        (tmp_path / "libnvidia-ml.so.535.129.03").unlink()
    assert library.replaced_by() == "550.54.15"


def test_a_file_without_a_version_in_its_name_is_seen_too(library: Library, tmp_path: Path) -> None:
    (tmp_path / "fresh").write_bytes(b"newer")
    (tmp_path / "fresh").replace(tmp_path / "libnvidia-ml.so.1")
    assert library.replaced_by() == ""


def test_without_a_loaded_library_nothing_is_said(tmp_path: Path) -> None:
    library = Library(tmp_path)
    library.note()
    assert library.replaced_by() is None


def test_a_container_is_known_by_what_it_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("container", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    assert not in_container(tmp_path / "proc")
    (tmp_path / ".dockerenv").touch()
    assert in_container(tmp_path / "proc")
    monkeypatch.setenv("container", "podman")
    assert in_container(tmp_path / "nowhere" / "proc")
    assert driver_files.nvidia_cards(tmp_path) == []


def test_an_exchanged_module_is_noticed_within_half_a_minute_and_told(
    fake: Nvml, tmp_path: Path
) -> None:
    version = tmp_path / "module/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("535.129.03\n")
    fake.write(*TWO)
    events, states = fake.play("""
s = source(sys_root=str(folder), proc_root=str(folder))
s.read()
(folder / "module/nvidia/version").write_text("550.54.15\\n")
now[0] += 30
sample = s.read()
out(plain(sample.events), [r.state for r in sample.readings])
""")
    assert [event["kind"] for event in events] == ["driver-changed"]
    assert "535.129.03" in events[0]["text"]
    assert "550.54.15" in events[0]["text"]
    assert states == ["ok", "ok"]
    assert fake.stats()["nvmlInitWithFlags"] == 2


def test_a_module_that_is_unloaded_costs_the_handles_at_once(fake: Nvml, tmp_path: Path) -> None:
    version = tmp_path / "module/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("535.129.03\n")
    fake.write(*TWO)
    states, faults, back = fake.play(f"""
s = source(sys_root=str(folder), proc_root=str(folder))
s.read()
(folder / "module/nvidia/version").unlink()
put(*{TWO!r}, "init_error 9")
now[0] += 30
sample = s.read()
(folder / "module/nvidia/version").write_text("535.129.03\\n")
put(*{TWO!r})
now[0] += 30
out([r.state for r in sample.readings], [f.why for f in sample.faults],
    [r.state for r in s.read().readings])
""")
    assert states == ["lost", "lost"]
    assert faults == ["the NVIDIA driver is installed but not loaded"]
    assert back == ["ok", "ok"]


def test_a_library_that_fits_no_more_and_was_replaced_asks_for_a_new_process(
    fake: Nvml, tmp_path: Path
) -> None:
    import shutil

    shutil.copy(fake.library_folder / "libnvidia-ml.so.1", tmp_path / "libnvidia-ml.so.1")
    fake.library_folder, fake.server = tmp_path, None  # another library is another process
    fake.write(*TWO)
    before, degraded, after, hint = fake.play(f"""
import shutil
s = source()
s.read()
before = s.needs_restart
put(*{TWO!r}, "fail nvmlDevice* * 18", "init_error 18")
s.read()
degraded = s.needs_restart
shutil.copy(folder / "libnvidia-ml.so.1", folder / "fresh")
(folder / "fresh").replace(folder / "libnvidia-ml.so.1")
now[0] += 1
sample = s.read()
out(before, degraded, s.needs_restart, sample.faults[0].why)
""")
    assert (before, degraded, after) == (False, False, True)
    assert "550.54.15" in hint


def test_released_cards_are_shown_and_taken_back_in_time(fake: Nvml) -> None:
    fake.write(*TWO)
    during, why, after, kinds = fake.play("""
s = source()
s.read()
s.release_driver(60)
sample = s.read()
kinds = [e.kind for e in sample.events]
during, why = [r.state for r in sample.readings], sample.faults[0].why
for _ in range(5):
    now[0] += 10
    kinds += [e.kind for e in s.read().events]
now[0] += 11
sample = s.read()
out(during, why, [r.state for r in sample.readings], [*kinds, *[e.kind for e in sample.events]])
""")
    assert during == ["released", "released"]
    assert why == "the NVIDIA driver is released on request for another 60 s"
    assert after == ["ok", "ok"]
    assert kinds == ["released", "released"]
    calls = fake.stats()
    assert (calls["nvmlInitWithFlags"], calls["nvmlShutdown"]) == (2, 2)


def test_a_release_is_extended_and_ended_early(fake: Nvml) -> None:
    fake.write(*TWO)
    states = fake.play("""
s = source()
def state():
    return s.read().readings[0].state
states = [state()]
s.release_driver(30)
states.append(state())
now[0] += 20
s.release_driver(30)
now[0] += 20
states.append(state())
s.release_driver(0)
out(*states, state())
""")
    assert states == ["ok", "released", "released", "ok"]


def test_released_before_any_card_was_seen_nothing_is_touched(fake: Nvml, tmp_path: Path) -> None:
    home = tmp_path / "bus/pci/devices/0000:01:00.0"
    home.mkdir(parents=True)
    (home / "vendor").write_text("0x10de\n")
    (home / "class").write_text("0x030200\n")
    fake.write("gpu 0 total=24G")
    shown, without, after = fake.play("""
s = source(sys_root=str(folder))
s.release_driver(60)
shown = [[r.device_uid, r.state] for r in s.read().readings]
other = source()
other.release_driver(60)
try:
    other.read()
except SourceUnavailable as error:
    without = str(error)
assert not Path(os.environ["FAKE_NVML_STATS"]).exists()
now[0] += 61
out(shown, without, [r.device_uid for r in s.read().readings])
""")
    assert shown == [["nvml-0000:01:00.0", "released"]]
    assert without.startswith("the NVIDIA driver is released on request")
    assert after == [UID(0)]
