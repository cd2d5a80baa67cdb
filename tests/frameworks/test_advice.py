"""What to check: every entry can be reached, is in the manual, and promises nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np
import pytest

from gpuwatchd.analysis import verdict
from gpuwatchd.analysis.frameworks import APPS, GRAPHICS, LIBRARIES, PREALLOCATES, advice
from gpuwatchd.analysis.frameworks.advice import ADVICE, TOPICS, Topic, lines, table, topic_of
from gpuwatchd.analysis.frameworks.recognition import EITHER_XLA
from gpuwatchd.core.config import DetectionSection
from gpuwatchd.core.model import Pattern, ProcessKey, Series, Subject

if TYPE_CHECKING:
    from gpuwatchd.core.model import Finding

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "frameworks.md"
GIB = 1024.0**3
KEY = ProcessKey(pid=4711, started_at_s=1.0)
NAMES = {app.name for app in APPS} | {name for name, _ in LIBRARIES} | {EITHER_XLA}


def judged(used: object, framework: str | None, **changes: object) -> Finding:
    """Judge an hour of this memory."""
    t = np.arange(0.0, 3600.0, 5.0)
    values = np.broadcast_to(np.asarray(used, dtype=float), t.shape).copy()
    facts: dict[str, object] = {
        "subject": Subject(device_uid="G", process=KEY),
        "limit_bytes": 80 * GIB,
        "total_bytes": 80 * GIB,
        **changes,
    }
    series = Series(t_s=t, used_bytes=values, framework=framework, **facts)  # type: ignore[arg-type]
    return verdict.judge(series, DetectionSection())


STEADY = np.arange(720) * 5e6
HIGH = 70 * GIB + np.arange(720) * 5e6


def test_every_entry_is_of_a_framework_that_is_recognised() -> None:
    assert ({name for name, _ in ADVICE} - {"any"}) | PREALLOCATES | GRAPHICS <= NAMES
    assert {topic for _, topic in ADVICE} == set(get_args(Topic)) == TOPICS.keys()
    for topic in TOPICS:
        assert ("any", topic) in ADVICE


def test_every_entry_can_be_reached() -> None:
    reached: set[tuple[str, str]] = set()
    patterns: tuple[Pattern, ...] = get_args(Pattern)
    for name in sorted(NAMES | {"any"}):
        framework = None if name == "any" else name
        for pattern in patterns:
            for flags in ({}, {"host": True}, {"unattributed": True}, {"pool_full": True}):
                topic = topic_of(pattern, framework, leaks=True, **flags)
                if topic is not None and (framework or "any", topic) in ADVICE:
                    reached.add((framework or "any", topic))
    # Pools have lines of their own, and so the general ones are for programs that nobody knows.
    assert ADVICE.keys() - reached == {("any", "above-pool"), ("any", "notebook")}
    assert lines("above-pool", EITHER_XLA) == ADVICE["any", "above-pool"]
    assert lines("gradual", None, "notebook kernel")[0] == ADVICE["any", "notebook"][0]


@pytest.mark.requirement("M10")
def test_every_line_is_in_the_manual() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for framework, how, told in table():
        assert f"| {framework} | {how} | {' '.join(told)} |" in page


@pytest.mark.parametrize(
    ("used", "framework", "changes", "entry"),
    [
        (STEADY, "PyTorch", {}, ("PyTorch", "gradual")),
        (STEADY, None, {}, ("any", "gradual")),
        (STEADY, "vLLM", {}, ("any", "gradual")),
        (4 * GIB, "PyTorch", {}, None),
        (4 * GIB, "vLLM", {}, None),
        (HIGH, "vLLM", {}, ("vLLM", "above-pool")),
        (HIGH, "JAX", {}, ("JAX", "above-pool")),
        (60 * GIB, "vLLM", {}, ("vLLM", "pool")),
        (60 * GIB, "TensorFlow", {}, ("TensorFlow", "pool")),
        (
            STEADY, "PyTorch", {"subject": Subject(device_uid="G", process=KEY, host=True)},
            ("PyTorch", "host"),
        ),
        (
            STEADY, None, {"subject": Subject(device_uid="G", unattributed=True)},
            ("any", "unattributed"),
        ),
    ],
)  # fmt: skip
@pytest.mark.requirement("G23", "G24", "G25")
def test_a_judgement_says_what_to_check(
    used: object, framework: str | None, changes: dict[str, object], entry: tuple[str, Topic] | None
) -> None:
    expected = () if entry is None else ADVICE[entry]
    assert judged(used, framework, **changes).advice == expected


@pytest.mark.parametrize(
    ("framework", "topic", "words"),
    [
        pytest.param(
            "PyTorch",
            "gradual",
            ("list of losses", "loss.item()", ".detach().cpu()"),
            marks=pytest.mark.requirement("B3", "M12", "W3"),
        ),
        pytest.param(
            "PyTorch",
            "gradual",
            ("total += loss", "retain_graph=True", "never detached"),
            marks=pytest.mark.requirement("M11"),
        ),
        pytest.param(
            "PyTorch",
            "gradual",
            ("outside PyTorch", "custom kernel", "nsys profile"),
            marks=pytest.mark.requirement("W11", "B6"),
        ),
        pytest.param(
            "PyTorch",
            "step",
            ("evaluation without torch.no_grad()",),
            marks=pytest.mark.requirement("B7"),
        ),
        pytest.param(
            "PyTorch",
            "cyclic",
            ("empty_cache", "cures no leak"),
            marks=pytest.mark.requirement("W17"),
        ),
        pytest.param(
            "PyTorch",
            "slowing",
            ("PYTORCH_CUDA_ALLOC_CONF", "cures no leak"),
            marks=pytest.mark.requirement("W10"),
        ),
        pytest.param(
            "PyTorch",
            "host",
            ("data-loader workers", "num_workers=0"),
            marks=pytest.mark.requirement("B4"),
        ),
        pytest.param(
            "any",
            "gradual",
            ("cache without a bound", "bound the cache"),
            marks=pytest.mark.requirement("M13", "W4"),
        ),
    ],
)
def test_each_usual_cause_is_named(framework: str, topic: Topic, words: tuple[str, ...]) -> None:
    assert [word for word in words if word not in " ".join(ADVICE[framework, topic])] == []


def test_a_notebook_is_told_to_restart_its_kernel() -> None:
    told = judged(STEADY, "PyTorch", role="notebook kernel").advice
    assert told == (ADVICE["any", "notebook"][0], *ADVICE["PyTorch", "gradual"][:2])


def test_a_preallocated_pool_is_called_what_it_is() -> None:
    found = judged(60 * GIB, "SGLang")
    assert (found.pattern, found.tier) == ("preallocated", "none")
    assert "a leak inside it is invisible" in found.reason


def test_what_nobody_owns_is_no_preallocated_pool() -> None:
    left = np.where(np.arange(720) < 360, 1.0, 72.0) * GIB
    assert judged(left, None).pattern == "preallocated"
    subject = Subject(device_uid="G", unattributed=True)
    assert judged(left, None, subject=subject).pattern == "spike"


def test_growth_beyond_the_pool_is_a_leak_for_every_framework_that_has_one() -> None:
    for framework in sorted(PREALLOCATES):
        found = judged(HIGH, framework)
        assert found.tier == "alert", framework
        assert topic_of(found.pattern, framework, leaks=True, pool_full=True) == "above-pool"


def test_what_draws_gets_no_advice_for_a_cache_that_fills() -> None:
    for name in GRAPHICS:
        assert topic_of("plateau", name, leaks=True) is None
    assert advice.topic_of("gradual", "display", leaks=False) is None
