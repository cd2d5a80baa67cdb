"""By which channels a notice goes, when, and why not."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.alerts import (
    Override,
    Rules,
    due_notices,
    grade,
    matches,
    quiet_until,
    routes,
    rules_for,
)
from gpuwatchd.core.codes import Hold
from gpuwatchd.core.config.validation import parse
from gpuwatchd.core.model import AlertSubject, EtaRange, Finding, Matcher, Silence
from gpuwatchd.core.units import Local
from tests.making import alert, calm, finding

BERLIN = ZoneInfo("Europe/Berlin")
NIGHT = ("22:00-07:00",)


def local(text: str) -> Local:
    """Return a time of day in Berlin: "2026-03-28 23:30"."""
    here = datetime.fromisoformat(text).replace(tzinfo=BERLIN)

    def epoch(day: int, minute: int) -> float:
        midnight = datetime(here.year, here.month, here.day, tzinfo=BERLIN) + timedelta(days=day)
        wall = midnight.replace(tzinfo=None) + timedelta(minutes=minute)
        return wall.replace(tzinfo=BERLIN).timestamp()

    minute = 60 * here.hour + here.minute
    return Local(now_s=here.timestamp(), weekday=here.weekday(), minute=minute, epoch=epoch)


def quiet(*ranges: str, at: str) -> tuple[float, str] | None:
    found = quiet_until([parse(one) for one in ranges], local(at))
    return None if found is None else ((found.at_s - local(at).now_s) / 3600.0, found.clock)


def test_quiet_hours_go_over_midnight() -> None:
    assert quiet(*NIGHT, at="2026-06-10 23:30") == (7.5, "07:00")
    assert quiet(*NIGHT, at="2026-06-11 06:57") == (0.05, "07:00")
    assert quiet(*NIGHT, at="2026-06-11 07:00") is None


def test_ranges_that_touch_are_one() -> None:
    weekend = ("sat,sun 00:00-24:00", "22:00-07:00")
    assert quiet(*weekend, at="2026-06-12 22:30") == (2 * 24 + 8.5, "mon 07:00")
    assert quiet("sat-sun 00:00-24:00", at="2026-06-12 22:30") is None


@given(st.integers(0, 7 * 1440 - 1), st.integers(0, 1439), st.integers(1, 1440))
def test_it_is_quiet_exactly_within_the_range(at: int, begin: int, end: int) -> None:
    if begin == end:
        return
    day, minute = divmod(at, 1440)
    here = Local(
        now_s=at * 60.0,
        weekday=day,
        minute=minute,
        epoch=lambda d, m: ((day + d) * 1440 + m) * 60.0,
    )
    text = f"{begin // 60:02d}:{begin % 60:02d}-{end // 60:02d}:{end % 60:02d}"
    inside = begin <= minute < end if begin < end else minute >= begin or minute < end
    found = quiet_until([parse(text)], here)
    assert (found is not None) == inside
    if found is not None and (begin, end) != (0, 1440):
        assert 0 < found.at_s - here.now_s <= 86_400.0


@pytest.mark.parametrize(
    "text", ["22-7", "25:00-26:00", "12:00-12:00", "xyz 10:00-11:00", "10:60-11:00", ""]
)
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)


def kinds(rules: Rules, notice: str = "firing", **changes: object) -> dict[str, str]:
    found = routes(alert(**changes), notice, rules, local=local("2026-06-10 23:30"))  # type: ignore[arg-type]
    return {one.channel: one.kind for one in found}


def test_each_channel_has_its_least_severity() -> None:
    rules = Rules(channels=("desktop", "email"), severity={"email": "critical"})
    assert kinds(rules) == {"desktop": "send", "email": "hold"}
    assert kinds(rules, severity="critical") == {"desktop": "send", "email": "send"}


def test_in_quiet_hours_only_what_is_critical_leaves_at_once() -> None:
    rules = Rules(channels=("desktop", "email"), quiet={"email": (parse(NIGHT[0]),)})
    assert kinds(rules) == {"desktop": "send", "email": "wait"}
    assert kinds(rules, severity="critical") == {"desktop": "send", "email": "send"}
    over = {"notice": "resolved", "severity": "critical", "state": "resolved"}
    assert kinds(rules, **over)["email"] == "wait"
    everywhere = Rules(quiet={"all": (parse(NIGHT[0]),)})
    (route,) = routes(alert(), "firing", everywhere, local=local("2026-06-10 23:30"))
    assert route.reason == "quiet hours until 07:00"
    assert route.until_at_s == local("2026-06-11 07:00").now_s


def test_quiet_hours_without_an_end_hold() -> None:
    always = Rules(quiet={"all": (parse("00:00-24:00"),)})
    (route,) = routes(alert(), "firing", always, local=local("2026-06-10 23:30"))
    assert (route.kind, route.code) == ("hold", Hold.QUIET_ALWAYS)
    assert kinds(always, severity="critical") == {"desktop": "send"}
    # Of what was told all the same people hear the end.
    assert kinds(always, notice="resolved", state="resolved") == {"desktop": "send"}


def test_over_is_told_to_those_who_know_of_the_beginning() -> None:
    rules = Rules(channels=("desktop", "email"), severity={"email": "critical"})
    told = alert(state="resolved", notices=1, told_on=("email",), severity="warning")
    assert [(r.channel, r.kind) for r in routes(told, "resolved", rules)] == [
        ("desktop", "hold"),
        ("email", "send"),
    ]


def silence(**changes: object) -> Silence:
    values = {"matcher": Matcher(kind="leak"), "from_at_s": 0.0, "until_at_s": 4e9, "who": "bob"}
    return Silence(**{**values, **changes})  # type: ignore[arg-type]


def test_a_silence_holds_and_says_whose_it_is() -> None:
    (held,) = routes(alert(), "firing", Rules(), silences=(silence(why="maintenance"),))
    assert held.kind == "hold"
    assert held.reason.startswith("silenced by bob until ")
    assert held.reason.endswith(": maintenance")
    assert held.until_at_s == 4e9


@pytest.mark.parametrize(
    "one",
    [
        silence(matcher=Matcher(user="carol")),
        silence(cleared_at_s=1.0),
        silence(until_at_s=100.0),
    ],
)
def test_what_is_not_silenced_is_sent(one: Silence) -> None:
    here = local("2026-06-10 12:00")
    assert [r.kind for r in routes(alert(), "firing", Rules(), local=here, silences=(one,))] == [
        "send"
    ]


def test_what_is_critical_passes_a_silence_that_does_not_mean_it() -> None:
    bad = alert(severity="critical")
    assert routes(bad, "firing", Rules(), silences=(silence(),))[0].kind == "send"
    meant = silence(even_critical=True)
    assert routes(bad, "firing", Rules(), silences=(meant,))[0].kind == "hold"


def test_what_is_told_as_a_warning_at_most_keeps_to_silences() -> None:
    cap = Override(matcher=Matcher(), name="override 1", severity="warning")
    rules = Rules(overrides=(cap,))
    bad = alert(severity="critical")
    assert routes(bad, "firing", rules, silences=(silence(),))[0].kind == "hold"


def test_that_it_is_over_is_told_although_it_was_quiet_until_then() -> None:
    until = silence(until_resolved=True)
    over = alert(state="resolved", notices=1)
    assert routes(alert(), "firing", Rules(), silences=(until,))[0].kind == "hold"
    assert routes(over, "resolved", Rules(), silences=(until,))[0].kind == "send"


def test_what_may_grow_is_told_when_memory_is_about_to_be_full() -> None:
    rules = Rules(
        overrides=(Override(matcher=Matcher(), name="override 1", grows=True, why="cache"),)
    )
    long = finding(eta=EtaRange(low_s=9e3, mid_s=1e4, high_s=2e4))
    soon = finding(eta=EtaRange(low_s=1e3, mid_s=2e3, high_s=3e3))
    (held,) = routes(alert(finding=long), "firing", rules)
    assert (held.kind, held.code) == ("hold", Hold.MAY_GROW)
    assert routes(alert(finding=soon), "firing", rules)[0].kind == "send"


def test_what_may_grow_to_a_level_is_told_above_it() -> None:
    one = Override(matcher=Matcher(), name="override 1", grows_to_bytes=24 * 2**30)
    rules = Rules(overrides=(one,))
    assert routes(alert(), "firing", rules, level_bytes=20 * 2**30)[0].kind == "hold"
    assert routes(alert(), "firing", rules, level_bytes=25 * 2**30)[0].kind == "send"
    # By the judgement alone: 30 GiB less what grows until then.
    known = finding(
        limit_bytes=30 * 2**30,
        rate_bytes_per_s=1e6,
        eta=EtaRange(low_s=9e3, mid_s=1e4, high_s=None),
    )
    assert routes(alert(finding=known), "firing", rules)[0].kind == "hold"


def test_a_mute_holds_everything_and_a_cap_keeps_it_from_being_critical() -> None:
    mute = Rules(overrides=(Override(matcher=Matcher(), name="override 1", mute=True),))
    assert routes(alert(severity="critical"), "firing", mute)[0].reason == "muted by override 1"
    capped = Rules(
        severity={"desktop": "critical"},
        overrides=(Override(matcher=Matcher(), name="override 1", severity="warning"),),
    )
    assert routes(alert(severity="critical"), "firing", capped)[0].kind == "hold"


def gpu_lost(**changes: object) -> object:
    bare = msgspec.structs.replace(alert().subject, process=None)
    return alert(
        **{
            "key": "gpu:GPU-1",
            "kind": "gpu",
            "severity": "critical",
            "subject": bare,
            "title": "GPU 0",
            "finding": calm(reason="it does not answer; nor do others"),
            **changes,
        }
    )


def test_inhibit() -> None:
    lost = gpu_lost()
    (held,) = routes(alert(severity="critical"), "firing", Rules(), others=[lost])  # type: ignore[list-item]
    assert (held.kind, held.reason) == ("hold", "GPU 0: it does not answer")
    over = gpu_lost(state="resolved")
    assert routes(alert(), "firing", Rules(), others=[over])[0].kind == "send"  # type: ignore[list-item]
    assert routes(lost, "firing", Rules(), others=[alert(severity="critical")])[0].kind == "send"  # type: ignore[arg-type]


def test_a_card_that_is_lost_silences_its_instances_and_one_to_be_reset_nobody() -> None:
    lost, leak = gpu_lost(), alert(severity="critical")
    part = msgspec.structs.replace(leak.subject, device_uid="MIG-1")
    of_part = alert(severity="critical", subject=part, about=AlertSubject(card_uid="GPU-1"))
    elsewhere = alert(severity="critical", subject=part, about=AlertSubject(card_uid="GPU-2"))
    assert routes(of_part, "firing", Rules(), others=[lost])[0].kind == "hold"  # type: ignore[list-item]
    assert routes(elsewhere, "firing", Rules(), others=[lost])[0].kind == "send"  # type: ignore[list-item]
    reset = gpu_lost(severity="warning")
    assert routes(leak, "firing", Rules(), others=[reset])[0].kind == "send"  # type: ignore[list-item]


def test_one_that_is_about_to_run_out_is_told_of_once() -> None:
    soon = alert(severity="critical")
    host = msgspec.structs.replace(soon.subject, host=True)
    lesser = alert(key="leak:host", subject=host)
    equal = alert(key="leak:host", subject=host, severity="critical")
    assert routes(lesser, "firing", Rules(), others=[soon])[0].kind == "hold"
    assert routes(equal, "firing", Rules(), others=[soon])[0].kind == "send"
    assert routes(soon, "firing", Rules(), others=[lesser])[0].kind == "send"
    whole = alert(key="leak:gpu", subject=msgspec.structs.replace(soon.subject, process=None))
    assert routes(whole, "firing", Rules(), others=[soon])[0].kind == "hold"
    due = msgspec.structs.replace(whole, next_notice_at_s=10_000.0)
    told = due_notices([soon, due], Rules(), now_s=10_000.0, sent_at_s=[])
    assert [(one.key, one.inhibited_by) for one in told.alerts] == [(whole.key, soon.key)]


def test_what_nobody_owns_and_what_another_memory_holds_is_news_of_its_own() -> None:
    leak = alert(severity="critical")
    bare = msgspec.structs.replace(leak.subject, process=None)
    unowned = alert(key="leak:rest", subject=msgspec.structs.replace(bare, unattributed=True))
    assert routes(unowned, "firing", Rules(), others=[leak])[0].kind == "send"
    # On a GPU that is lost nobody hears of the leak: it says nothing of the host's memory.
    unheard = alert(severity="critical", inhibited_by="gpu:GPU-1")
    host = alert(key="leak:host", subject=msgspec.structs.replace(leak.subject, host=True))
    assert routes(host, "firing", Rules(), others=[unheard])[0].kind == "send"


def at(mid_s: float, low_s: float | None = None, **changes: object) -> Finding:
    low = mid_s / 1.5 if low_s is None else low_s
    return finding(eta=EtaRange(low_s=low, mid_s=mid_s, high_s=None), **changes)


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (at(3_500), "critical"),
        (at(3_700), "warning"),
        (at(200_000), "warning"),
        (at(5_000, low_s=1_700, confidence=0.95), "critical"),
        (at(5_000, low_s=1_700, confidence=0.8), "warning"),
        (finding(eta=None, severity="critical", growth_bytes=9e9), "warning"),
        (finding(eta=None, severity="info"), "info"),
        (at(600, tier="watch", severity="warning"), "warning"),
        (at(600, tier="watch", severity="info"), "info"),
    ],
)
def test_the_time_that_is_left_makes_it_urgent(one: Finding, expected: str) -> None:
    assert grade(one) == expected


def test_what_is_critical_needs_twice_the_time_to_be_less() -> None:
    assert grade(at(7_000), "critical") == "critical"
    assert grade(at(7_300), "critical") == "warning"
    assert grade(at(9_000, low_s=3_500, confidence=0.5), "critical") == "critical"
    assert grade(at(7_000), "warning") == "warning"


def test_a_warning_does_not_become_information() -> None:
    assert grade(finding(eta=None, severity="info"), "warning") == "warning"


ABOUT = AlertSubject(
    gpu="0", gpu_name="NVIDIA A100-SXM4-80GB", user="alice", process="python", pid=4711,
    framework="PyTorch", command="python train.py --run [a]", job="slurm 42", container="web-1",
)  # fmt: skip
ONE = alert(about=ABOUT)


@pytest.mark.parametrize(
    "matcher",
    [
        Matcher(), Matcher(user="ALICE"), Matcher(user="a*"), Matcher(gpu="0"),
        Matcher(gpu="gpu-1"), Matcher(gpu="a100*"), Matcher(gpu="nvidia a100*"),
        Matcher(framework="pytorch"),
        Matcher(command="*train.py*"), Matcher(command="python train.py --run [a]"),
        Matcher(job="slurm*"), Matcher(container="web-?"), Matcher(kind="leak"),
        Matcher(pattern="gradual"), Matcher(severity="warning"), Matcher(key="leak:x"),
        Matcher(user="alice", process="python", gpu="0"),
    ],
)  # fmt: skip
def test_what_fits(matcher: Matcher) -> None:
    assert matches(matcher, ONE)


@pytest.mark.parametrize(
    "matcher",
    [
        Matcher(user="bob"), Matcher(gpu="1"), Matcher(gpu="0:*"), Matcher(kind="gpu"),
        Matcher(user="alice", process="ruby"), Matcher(key="leak:y"), Matcher(severity="critical"),
    ],
)  # fmt: skip
def test_what_does_not(matcher: Matcher) -> None:
    assert not matches(matcher, ONE)


def test_an_endless_glob_costs_no_time_and_fits_word_for_word_alone() -> None:
    began = time.process_time()
    assert not matches(Matcher(user="[" * 20_000), ONE)
    long = msgspec.structs.replace(ONE, key="leak:" + "x" * 600)
    assert matches(Matcher(key=long.key), long)
    assert time.process_time() - began < 1.0


def test_of_whom_nothing_is_known_no_condition_on_people_fits() -> None:
    assert not matches(Matcher(user="*"), alert())
    assert matches(Matcher(gpu="GPU-1"), alert())


def test_the_last_override_that_sets_a_key_wins() -> None:
    rules = Rules(
        channels=("desktop",),
        overrides=(
            Override(matcher=Matcher(user="alice"), name="override 1", severity="warning", why="x"),
            Override(matcher=Matcher(user="bob"), name="override 2", mute=True),
            Override(matcher=Matcher(), name="override 3", channels=("email",), severity="info"),
        ),
    )
    found = rules_for(ONE, rules)
    assert (found.severity, found.channels, found.mute) == ("info", ("email",), "")
    assert dict(found.applied) == {"severity": "override 3", "channels": "override 3"}
