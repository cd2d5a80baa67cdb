"""The page that Prometheus scrapes: what is in it, what never is, and the verb that prints it."""

from __future__ import annotations

import importlib.util
import math
import socket
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuwatchd.core.codes import Hold, ProblemCode
from gpuwatchd.core.model import EtaRange, Subject
from gpuwatchd.view import metrics
from gpuwatchd.view.queries import current_state
from tests import making
from tests.cli import world

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuwatchd.store.live import LiveState
    from tests.cli.calls import Ctl
    from tests.cli.sick import Machine

LEAK = ("gpuwatchd_leak_growth_bytes_per_second", "gpuwatchd_leak_confidence_ratio")
Page = dict[str, list[tuple[dict[str, str], float]]]


def read(page: bytes | str) -> Page:
    """Return name -> labels and value of each series; no two series may be the same."""
    found: Page = {}
    words = page if isinstance(page, str) else page.decode()
    for family in text_string_to_metric_families(words):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    for name, series in found.items():
        keys = [tuple(sorted(labels.items())) for labels, _ in series]
        assert len(keys) == len(set(keys)), name
    return found


def rendered(state: LiveState, **more: Any) -> Page:
    return read(metrics.render(state, host="lab3", **more))


def the(page: Page, name: str, **labels: str) -> float:
    """Return the value of the only series of a name that has these labels."""
    (value,) = [v for own, v in page[name] if labels.items() <= own.items()]
    return value


def test_what_is_read_has_base_units_and_what_is_unknown_no_series() -> None:
    state = world.state()
    page = rendered(state)
    assert the(page, "gpuwatchd_gpu_memory_used_bytes", gpu="0", host="lab3") == 52 * world.GIB
    assert the(page, "gpuwatchd_gpu_utilization_ratio", uuid="GPU-1") == pytest.approx(0.87)
    assert the(page, "gpuwatchd_last_sample_timestamp_seconds", uuid="GPU-2") == state.taken_at_s
    assert "gpuwatchd_gpu_power_watts" not in page  # was not read
    assert the(page, "gpuwatchd_process_gpu_memory_bytes", pid="4711") == 50 * world.GIB
    lost = rendered(world.odd())
    assert the(lost, "gpuwatchd_last_sample_success", uuid="GPU-2") == 0.0
    assert {labels["uuid"] for labels, _ in lost["gpuwatchd_gpu_memory_used_bytes"]} == {"GPU-1"}
    assert len(lost["gpuwatchd_last_sample_timestamp_seconds"]) == 1
    kept = rendered(world.odd(), sampled_at_s={"GPU-2": 5.0})
    assert the(kept, "gpuwatchd_last_sample_timestamp_seconds", uuid="GPU-2") == 5.0
    assert the(lost, "gpuwatchd_orphan_memory_bytes", kind="gone") == 18 * world.GIB


def test_a_leak_has_rate_confidence_and_the_time_that_is_left() -> None:
    page = rendered(world.state())
    for name in LEAK:
        assert the(page, name, uuid="GPU-1", pid="4711", state="firing", severity="warning")
    left = {labels["quantile"]: value for labels, value in page["gpuwatchd_oom_eta_seconds"]}
    assert list(left) == ["0.05", "0.5", "0.95"]
    assert the(page, "gpuwatchd_alerts", kind="leak", state="firing") == 1.0
    calm = rendered(world.state(alerts=()))
    assert not {*LEAK, "gpuwatchd_oom_eta_seconds", "gpuwatchd_alerts"} & calm.keys()


def test_what_is_open_ended_or_no_number_has_no_series() -> None:
    found = world.leak(
        eta=EtaRange(low_s=60, mid_s=90, high_s=None), rate_bytes_per_s=math.inf, confidence=0.9
    )
    page = rendered(world.state(alerts=(world.firing(finding=found),)))
    assert "gpuwatchd_leak_growth_bytes_per_second" not in page
    assert {one["quantile"] for one, _ in page["gpuwatchd_oom_eta_seconds"]} == {"0.05", "0.5"}


def test_what_is_silenced_here_does_not_fire_there() -> None:
    def silenced(**changes: Any) -> bool:
        page = rendered(world.state(**changes))
        return [one["state"] for one, _ in page["gpuwatchd_alerts"]] == ["silenced"]

    assert silenced(silences=(world.silence(),))
    assert silenced(alerts=(world.firing(held_code=Hold.MUTED),))
    assert silenced(alerts=(world.firing(inhibited_by="gpu:GPU-1"),))
    assert not silenced(alerts=(world.firing(held_code=Hold.RATE_LIMIT),))


def test_foreign_words_are_escaped_and_bounded_and_no_command_line_is_in_a_label() -> None:
    words = 'a"b\\c\n# TYPE x counter\x1b[2J' + "n" * 5000
    state = world.odd(words)
    state = msgspec.structs.replace(state, alerts=(world.firing(),))
    secret = "--token=hunter2"
    first = state.devices[0]
    assert first.processes is not None
    busy = first.processes[0]
    info = msgspec.structs.replace(busy.info, argv=("python", secret))
    busy = msgspec.structs.replace(busy, info=info)
    first = msgspec.structs.replace(first, processes=(busy,))
    state = msgspec.structs.replace(state, devices=(first,))
    raw = metrics.render(state, host=words, compat=[name for name in metrics.DIALECTS if name])
    assert secret not in raw.decode()
    page = read(raw)
    words_in_labels = [
        word for series in page.values() for one, _ in series for word in one.values()
    ]
    assert max(map(len, words_in_labels)) <= 128
    assert b"\x1b" not in raw
    assert not any(name == "x" for name in page)


def test_series_of_processes_are_bounded_and_the_same_label_is_one_series() -> None:
    first, second = world.state().devices
    many = tuple(world.process(pid, f"p{pid}", 1 + pid / 1000) for pid in range(5000, 5400))
    first = msgspec.structs.replace(first, processes=many)
    twice = (world.process(1, "same"),) * 2
    second = msgspec.structs.replace(second, processes=twice)
    page = rendered(world.state(devices=(first, second)), compat=["nvitop"])
    for name in ("gpuwatchd_process_gpu_memory_bytes", "process_gpu_memory_MiB"):
        assert len(page[name]) <= metrics.MOST_PROCESSES
    series = page["gpuwatchd_process_gpu_memory_bytes"]
    whole = sum(process.used_bytes or 0 for process in (*many, *twice))
    assert sum(value for _, value in series) == pytest.approx(whole)
    both = the(page, "gpuwatchd_process_gpu_memory_bytes", uuid="GPU-2", pid="1")
    assert both == 100 * world.GIB
    leaks = tuple(
        world.firing(key=f"k{pid}", subject=Subject(device_uid="GPU-1", process=process.info.key))
        for pid, process in enumerate(many)
    )
    page = rendered(world.state(alerts=leaks))
    assert len(page["gpuwatchd_leak_confidence_ratio"]) == metrics.MOST_PROCESSES
    assert the(page, "gpuwatchd_alerts") == len(leaks)


COMPAT = {
    "dcgm": (
        "DCGM_FI_DEV_FB_USED", {"gpu": "0", "UUID": "GPU-1", "hostname": "lab3"}, 52 * 1024.0,
    ),
    "nvidia-smi": ("nvidia_smi_memory_used_bytes", {"uuid": "1"}, 52.0 * world.GIB),
    "nvitop": ("gpu_memory_used_MiB", {"index": "0", "uuid": "GPU-1"}, 52 * 1024.0),
}  # fmt: skip


@pytest.mark.parametrize("dialect", COMPAT)
def test_other_exporters_names_have_their_labels_and_units(dialect: str) -> None:
    name, labels, value = COMPAT[dialect]
    assert name not in rendered(world.state())
    page = rendered(world.state(), compat=[dialect])
    assert the(page, name, **labels) == pytest.approx(value)
    assert "gpuwatchd_gpu_memory_used_bytes" in page


def test_an_instance_has_the_card_and_its_number_as_dcgm_writes_them() -> None:
    item = world.state().devices[0]
    device = msgspec.structs.replace(
        making.CARD, uid="MIG-1", index=2, parent_uid="GPU-9", parent_index=3
    )
    item = msgspec.structs.replace(item, device=device)
    page = rendered(world.state(devices=(item,)), compat=["dcgm"])
    assert the(page, "DCGM_FI_DEV_FB_USED", gpu="3", UUID="GPU-9", GPU_I_ID="2")
    assert the(page, "gpuwatchd_gpu_memory_used_bytes", gpu="3:2", uuid="MIG-1")


def test_the_verb_prints_a_page_and_how_it_is_scraped(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write()
    off = ctl.both("metrics")
    assert the(read(off.out), "gpuwatchd_build_info") == 1.0
    assert "127.0.0.1:9750" in off.err
    assert ctl.both("metrics -q").err == ""
    monkeypatch.setenv("GPUWATCHD_METRICS_LISTEN", "127.0.0.1:9751")
    monkeypatch.setenv("GPUWATCHD_METRICS_FILE", "/var/lib/x/gpuwatchd.prom")
    data = ctl.data("metrics")
    assert (data["url"], data["file"]) == (
        "http://127.0.0.1:9751/metrics", "/var/lib/x/gpuwatchd.prom",
    )  # fmt: skip
    assert "--collector.textfile.directory=/var/lib/x" in ctl.both("metrics").err
    assert len(read(ctl("metrics --gpu 1 -q"))["gpuwatchd_gpu_info"]) == 1


def test_without_the_library_the_command_that_brings_it_is_named(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    find: Callable[..., Any] = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: find(name) if "prometheus" not in name else None
    )
    error = ctl.json("metrics", code=1)["error"]
    assert error["page"] == "errors#metrics-extra"
    assert "[metrics]" in error["hint"]
    monkeypatch.setenv("GPUWATCHD_METRICS_LISTEN", "unix")
    words = ctl.err("config validate", code=5)
    assert error["hint"] in words
    assert "[metrics] [metrics]" not in words


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("listen", '"0.0.0.0:9750"'), ("listen", '"example.org:80"'), ("listen", '"unix:here"'),
        ("file", '"relative.prom"'), ("file", '"/tmp/x.txt"'), ("compat", '["rocm"]'),
        ("token-file", '"here"'),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_at_once(
    ctl: Ctl, tmp_path: Path, key: str, value: str
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f"[metrics]\n{key} = {value}\n")
    error = ctl.json("config validate", str(file), code=5)["error"]
    assert f"[metrics] {key}" in error["message"] or key in error["message"]


def test_what_the_daemon_could_not_have_is_told_before_it_starts(
    ctl: Ctl, machine: Machine, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        settings = f'[metrics]\nlisten = "127.0.0.1:{port}"\nfile = "{tmp_path}/no/x.prom"\n'
        machine.settings = settings
        assert {*machine.faults("metrics")} == {"metrics-listen", "metrics-file"}
        file = tmp_path / "c.toml"
        file.write_text(settings)
        data = ctl.data("config validate", str(file), code=5)
        assert len(data["problems"]) == 2
        words = ctl.err("config validate", str(file), code=5)
        assert "[metrics]" in words
    machine.settings = f'[metrics]\nlisten = "0.0.0.0:{port}"\nremote = true\n'
    assert {*machine.faults("metrics")} == {"metrics-token"}
    machine.settings = f'[metrics]\nlisten = "127.0.0.1:{port}"\nfile = "{tmp_path}/x.prom"\n'
    assert not machine.faults("metrics")
    machine.settings = ""
    assert [one.level for one in machine.ask("metrics")] == ["ok"]


def test_what_the_daemon_says_of_its_page_is_told(
    ctl: Ctl, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port that another gpuwatchd has, with a state directory of its own, is taken too."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        machine.put("proc/net/tcp", f"head\n0: 0100007F:{port:04X} 0:0 0A 0:0 0:0 0 0 0 77 1\n")
        machine.put("proc/12/cmdline", "python3\0/bin/gpuwatchd\0")
        (machine.root / "proc/12/fd").mkdir()
        (machine.root / "proc/12/fd/3").symlink_to("socket:[77]")
        machine.settings = f'[metrics]\nlisten = "127.0.0.1:{port}"\n'
        assert {*machine.faults("metrics")} == {"metrics-listen"}
        world.write(pid=12)
        monkeypatch.setattr(current_state, "alive", lambda _: True)
        assert not machine.faults("metrics")  # by the daemon that is asked about
    assert {*machine.faults("metrics")} == {"metrics-listen"}  # which does not serve it now
    monkeypatch.setenv("GPUWATCHD_METRICS_LISTEN", f"127.0.0.1:{port}")
    assert ctl.data("metrics")["url"]
    code = ProblemCode.METRICS_LISTEN
    codes = (ProblemCode.OTHER, code)
    world.write(problems=("other", "taken"), problem_codes=codes, coded=True)
    (fault,) = machine.ask("metrics")
    assert (fault.id, fault.text) == (code, "taken")
    answer = ctl.json("metrics")
    assert answer["data"]["url"] is None
    assert code in {warning["code"] for warning in answer["warnings"]}


def test_a_target_that_can_be_asked_is_named_with_its_token(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write()
    monkeypatch.setenv("GPUWATCHD_METRICS_LISTEN", "0.0.0.0:9750")
    monkeypatch.setenv("GPUWATCHD_METRICS_REMOTE", "true")
    monkeypatch.setenv("GPUWATCHD_METRICS_TOKEN_FILE", "/etc/x/token")
    assert ctl.data("metrics")["url"] == f"http://{socket.gethostname()}:9750/metrics"
    assert 'credentials_file: "/etc/x/token"' in ctl.both("metrics").err
