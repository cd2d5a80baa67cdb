"""``check`` as a monitoring system calls it: exit code, one line, performance data."""

from __future__ import annotations

import json
import math
import re
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.cli import command_line, monitoring_plugin
from gpuwatchd.core import config
from gpuwatchd.core.model import ChannelHealth, EtaRange, Holding, Matcher, ProcessInfo, Subject
from gpuwatchd.core.model.alerts import process_title
from gpuwatchd.store import live
from tests import making
from tests.cli import world
from tests.cli.nagios import Datum, call, read

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calls import Ctl


OK, WARNING, CRITICAL, UNKNOWN = range(4)


def test_a_leak_that_is_full_within_the_hour_is_critical() -> None:
    world.write()
    code, answer = call()
    assert code == CRITICAL
    eta = answer.perf["gpu0_eta"]
    assert eta.value is not None
    assert 2700 < eta.value <= 2820
    assert eta[1:] == ("s", "14400:", "3600:", "0", "")
    assert answer.perf["gpu1_eta"].value is None
    used = answer.perf["gpu0_used"]
    assert used[:2] == (52 * world.GIB, "B")
    assert used.high == str(80 * world.GIB)
    assert answer.perf["findings"].value == 1


@pytest.mark.parametrize("name", ["train.py", "a_very_long_name_of_a_program_of_ours.py"])
@pytest.mark.parametrize("count", [1, 12])
def test_the_gpu_comes_first_and_all_of_it_fits_80_characters(name: str, count: int) -> None:
    info = msgspec.structs.replace(world.process().info, argv=("python", name))
    parts = process_title(making.CARD, info).parts
    alert = world.firing(title_parts=parts, title="".join(part.text for part in parts))
    alerts = [msgspec.structs.replace(alert, key=f"leak:{number}") for number in range(count)]
    down = ChannelHealth(name="email", ok=False, why="refused")
    world.write(alerts=tuple(alerts), channels=(down,))
    head, _, _ = world.run("check").stdout.partition("|")
    assert len(head.rstrip()) <= 80
    text = head.partition(" - ")[2]
    assert text.startswith("GPU 0: ")
    assert "[4711]" in text
    assert "47 min" in text


def test_the_first_line_names_what_decides_the_state() -> None:
    late = world.leak(eta=EtaRange(low_s=9000, mid_s=9000, high_s=9000))
    mild = world.firing(key="leak:2", severity="info", title="soon[2]")
    world.write(alerts=(world.firing(severity="warning", finding=late), mild))
    code, answer = call()
    assert code == CRITICAL
    assert "soon[2]" in answer.line


def test_severity_decides_without_thresholds_and_numbers_with_them() -> None:
    world.write()
    assert call("--mode", "leak")[0] == WARNING
    assert call("--mode", "leak", "-c", "0")[0] == CRITICAL
    assert call("--mode", "leak", "-w", "3")[0] == OK
    world.write(alerts=(world.firing(severity="critical"),))
    assert call("--mode", "leak")[0] == CRITICAL
    world.write(alerts=())
    code, answer = call("--mode", "leak")
    assert (code, answer.perf["findings"].value) == (OK, 0)


def test_growth_that_is_only_watched_never_pages() -> None:
    world.write(alerts=(world.firing(state="watch", firing_at_s=None),))
    code, answer = call()
    assert code == OK
    assert "1 watched" in answer.line
    code, answer = call("--mode", "eta")
    assert code == WARNING
    assert "(watched)" in answer.line


def test_what_somebody_has_silenced_is_shown_and_does_not_page() -> None:
    silence = world.silence(matcher=Matcher(key="leak:*4711*"), even_critical=True)
    world.write(silences=(silence,))
    code, answer = call()
    assert code == OK
    assert "1 silenced" in answer.line
    assert answer.more[0].startswith("silenced: GPU 0")
    assert answer.perf["findings"].value == 0
    over = msgspec.structs.replace(silence, until_at_s=time.time() - 1)
    world.write(silences=(over,))
    assert call()[0] == CRITICAL


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("-w", "30m:", "-c", "10m:"), OK),
        (("-w", "1h:", "-c", "10m:"), WARNING),
        (("-w", "7200:", "-c", "3600:"), CRITICAL),
        (("-w", "@2000:3000"), WARNING),
        (("-c", "~:10"), CRITICAL),
        (("--warning", "10:"), OK),
    ],
)
def test_ranges_decide_as_plug_in_ranges_do(arguments: tuple[str, ...], expected: int) -> None:
    world.write()
    assert call("--mode", "eta", *arguments)[0] == expected


def test_used_is_of_per_cent_and_silent_without_a_threshold() -> None:
    world.write()
    assert call("--mode", "used")[0] == OK
    code, answer = call("--mode", "used", "-w", "50", "-c", "90%")
    assert code == WARNING
    assert answer.perf["gpu0_used_pct"] == Datum(65, "%", "50", "90", "0", "100")
    assert answer.more[0].startswith("GPU 0 65 % used (52.0 GiB of 80.0 GiB)")


def test_what_cannot_be_read_is_unknown() -> None:
    lost = live.LiveDevice(device=world.SECOND, reading=None)
    world.write(devices=(lost,), alerts=())
    code, answer = call("--mode", "used", "-w", "50")
    assert (code, answer.perf["gpu1_used_pct"].value) == (UNKNOWN, None)
    assert call("--mode", "daemon")[0] == WARNING


def test_memory_held_without_work_warns() -> None:
    who = ProcessInfo(key=making.KEY, name="a|b'=c", user="alice")
    one = Holding(kind="defunct", device_uid=making.CARD.uid, process=who, held_bytes=3 * world.GIB)
    world.write(holdings=(one,))
    code, answer = call("--mode", "zombies")
    assert code == WARNING
    assert answer.perf["zombies_held"][:2] == (3 * world.GIB, "B")
    assert call("--mode", "zombies", "--gpu", "1")[0] == OK


def test_the_daemon_and_whether_its_warnings_arrive() -> None:
    world.write()
    code, answer = call("--mode", "daemon")
    assert code == OK
    assert answer.perf["sample_age"].unit == "s"
    dead = ChannelHealth(name="email", ok=False, why="refused | for good")
    world.write(channels=(dead,), untold=("leak:GPU-1/4711@1000.0",))
    code, answer = call("--mode", "daemon")
    assert code == WARNING
    assert answer.more[:2] == [
        "channel email does not deliver: refused / for good", "1 alert not delivered"
    ]  # fmt: skip
    assert answer.more[0] in call()[1].more


def _gone(content: live.LiveState) -> None:
    world.write(msgspec.structs.replace(content, stopped=True))


def _late(content: live.LiveState) -> None:
    world.write(msgspec.structs.replace(content, taken_at_s=time.time() - 3600))


def _absent(_: live.LiveState) -> None:
    (config.runtime_dir() / live.FILE_NAME).unlink(missing_ok=True)


def _broken(_: live.LiveState) -> None:
    world.write_raw(b'{"format":')


@pytest.mark.slow
@pytest.mark.parametrize("damage", [_gone, _late, _absent, _broken])
def test_without_a_running_daemon_nothing_is_known(damage: object) -> None:
    assert callable(damage)
    damage(world.state())
    for mode in ("all", "leak", "eta", "used", "zombies"):
        assert call("--mode", mode)[0] == UNKNOWN, mode
    assert call("--mode", "daemon")[0] == CRITICAL


def test_a_state_of_somebody_else_is_unknown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path, *_: object) -> int:  # as root none of us is refused
        raise PermissionError(13, "Permission denied", str(path))

    world.write()
    monkeypatch.setattr("gpuwatchd.cli.verbs.check.os.open", refuse)
    assert command_line.call(["check", "--mode", "daemon"]) == UNKNOWN
    answer = read(capsys.readouterr().out)
    assert answer.more == ["hint: run this check as the user of the daemon"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--frobnicate",), ("-w",), ("-w", "ten"), ("-w", "20:10"), ("-c", ""), ("--mode", "all?"),
        ("-t", "0"), ("--gpu", "9"), ("surplus",), ("--config", "/nonexistent.toml"),
        ("-w", "nan"), ("-w", "inf:"), ("--mode", "eta", "-w", "50%"), ("-t", "0.000001"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_every_mistake_is_unknown(arguments: tuple[str, ...]) -> None:
    world.write()
    assert call(*arguments)[0] == UNKNOWN


def test_a_mistake_before_the_verb_is_unknown_too() -> None:
    done = world.run("--frobnicate", "check")
    assert done.returncode == UNKNOWN
    assert read(done.stdout).state == "UNKNOWN"
    done = world.run("check", "--json", "--frobnicate")
    assert done.returncode == UNKNOWN
    assert json.loads(done.stdout)["error"]["exit_code"] == UNKNOWN


def test_what_nobody_expected_is_unknown(tmp_path: Path) -> None:
    world.write()
    (tmp_path / "sitecustomize.py").write_text(
        "import gpuwatchd.cli.verbs.check as m\n"
        "def boom(case): raise RuntimeError('no | such\\nthing')\n"
        "m.MODES['all'] = boom\n"
    )
    done = world.run("check", env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == UNKNOWN
    assert "no / such thing" in read(done.stdout).line


def test_hostile_names_stay_text_on_their_line() -> None:
    title = f"GPU 0: {world.HOSTILE}|'x'=1;2 [4711]"
    world.write(alerts=(world.firing(title=title),))
    _, answer = call()
    assert "'x'" not in answer.perf
    assert "/'x'=1;2" in answer.more[0]
    assert "\u202e" not in answer.line


def test_an_eta_counts_from_now() -> None:
    old = world.leak(judged_at_s=time.time() - 600, eta=EtaRange(low_s=500, mid_s=900, high_s=None))
    world.write(alerts=(world.firing(finding=old),))
    value = call("--mode", "eta")[1].perf["gpu0_eta"].value
    assert value is not None
    assert 240 <= value <= 300
    ahead = world.leak(judged_at_s=time.time() + 3600)
    world.write(alerts=(world.firing(finding=ahead),))
    assert call("--mode", "eta")[1].perf["gpu0_eta"].value == 2820


def test_a_gpu_that_has_gone_is_still_told_of() -> None:
    gone = world.firing(key="gpu:GPU-9", kind="gpu", severity="critical", title="GPU 9 is lost",
                        subject=Subject(device_uid="GPU-9"))  # fmt: skip
    world.write(alerts=(gone,))
    code, answer = call()
    assert (code, answer.more[0].startswith("critical: GPU 9 is lost")) == (CRITICAL, True)
    assert call("--mode", "daemon")[0] == CRITICAL
    assert call("--gpu", "1")[0] == OK


_RANGES = st.none() | st.sampled_from(
    [monitoring_plugin.parse(words) for words in ("@1:2", "~:5", "3:", "0")]
)
_PERF = st.builds(
    monitoring_plugin.Perf,
    label=st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=12).filter(
        lambda words: bool(words.strip())
    ),
    value=st.none() | st.floats(-1e15, 1e15) | st.just(math.inf) | st.just(math.nan),
    unit=st.sampled_from(["", "s", "%", "B", "c"]),
    warn=_RANGES,
    crit=_RANGES,
    low=st.none() | st.floats(-1e15, 1e15),
    high=st.none() | st.floats(0, 1e15),
)


@given(
    st.builds(
        monitoring_plugin.Answer,
        state=st.sampled_from([OK, WARNING, CRITICAL, UNKNOWN]),
        line=st.text(min_size=1).filter(lambda words: bool(monitoring_plugin.safe(words))),
        perf=st.lists(_PERF, max_size=4, unique_by=lambda one: str(one).partition("'=")[0]).map(
            tuple
        ),
        more=st.lists(st.text(), max_size=30).map(tuple),
    )
)
def test_whatever_is_said_can_be_read_again(answer: monitoring_plugin.Answer) -> None:
    found = read(monitoring_plugin.render(answer) + "\n")
    assert found.state == monitoring_plugin.STATES[answer.state]
    assert found.line == monitoring_plugin.safe(answer.line)
    assert [one.value for one in found.perf.values()] == [
        pytest.approx(one.value, abs=0.001)
        if one.value is not None and math.isfinite(one.value)
        else None
        for one in answer.perf
    ]
    assert len(found.more) <= 20


_ENDS = st.floats(min_value=-1e6, max_value=1e6).map(lambda value: round(value, 2))


@given(_ENDS, _ENDS, st.booleans(), _ENDS)
def test_a_range_alerts_as_the_guidelines_say(
    low: float, high: float, inside: bool, value: float
) -> None:
    low, high = min(low, high), max(low, high)
    found = monitoring_plugin.parse(f"{'@' if inside else ''}{low}:{high}")
    outside = value < low or value > high
    assert found.alerts(value) == (not outside if inside else outside)
    assert monitoring_plugin.parse(str(found)) == found


@given(st.text(max_size=12))
def test_no_text_breaks_the_reader_of_ranges(words: str) -> None:
    try:
        found = monitoring_plugin.parse(words)
    except ValueError:
        return
    assert found.low <= found.high
    assert not math.isnan(found.low)


def _check(ctl: Ctl, mode: str) -> dict[str, Any]:
    answer = ctl.both("check --json --mode", mode, code=None)
    said: dict[str, Any] = json.loads(answer.out)["data"]
    assert answer.code == said["exit_code"]
    return said


def test_the_time_left_of_what_is_silenced_is_said(ctl: Ctl) -> None:
    world.write(silences=(world.silence(even_critical=True),))
    said = _check(ctl, "eta")
    assert said["state"] == "OK"
    assert re.fullmatch(r"GPU 0 full in 4[67] min \(silenced\)", said["text"])
    perf = {one["label"]: one["value"] for one in said["perfdata"]}
    assert 2700 < perf["gpu0_eta"] <= 2820


@pytest.mark.parametrize("mode", ["all", "leak"])
def test_a_silenced_leak_is_not_denied(ctl: Ctl, mode: str) -> None:
    world.write(silences=(world.silence(even_critical=True),))
    said = _check(ctl, mode)
    assert said["state"] == "OK"
    assert said["text"] == "no other leak on 2 GPUs, 1 silenced"
