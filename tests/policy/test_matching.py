"""Which alerts a rule is about."""

from __future__ import annotations

import time

import msgspec
import pytest

from gpuwatchd.alerts import Override, Rules, matches, rules_for
from gpuwatchd.core.model import About, Matcher
from tests.making import alert

ABOUT = About(
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
