"""KV cache that stays in use while nobody uses it, and what is none."""

from __future__ import annotations

import msgspec
import pytest

from gpuwatchd.analysis.frameworks.engine_addresses import LEAST_S, idle_kv, only_model
from gpuwatchd.core.model import ServedModel, ServerReading
from tests.conftest import present


def answers(*shares: float | None, running: int = 0, kind: str = "vLLM") -> list[ServerReading]:
    return [
        ServerReading(
            kind=kind, url="u", at_s=1000.0 + 15.0 * n, kv_share=share, running=running, waiting=0
        )
        for n, share in enumerate(shares)
    ]


def test_blocks_that_stay_in_use_while_idle() -> None:
    busy = answers(0.5, 0.6, running=3)
    idle = [msgspec.structs.replace(one, at_s=one.at_s + 30.0) for one in answers(*[0.12] * 60)]
    found = present(idle_kv([*busy, *idle]))
    assert (found.since_s, found.for_s, found.share, found.readings) == (1030.0, 885.0, 0.12, 60)


@pytest.mark.parametrize(
    "readings",
    [
        [],
        answers(*[0.12] * 20),  # idle for five minutes only
        answers(*[0.0] * 60),
        answers(*[0.004] * 60),
        answers(*[0.12] * 60, running=1),
        answers(*[0.12] * 60, None),  # not known any more
        answers(*[0.5 - 0.008 * n for n in range(60)]),  # still given back
        answers(*[0.12] * 60, kind="llama.cpp"),  # keeps prompts on purpose
        [*answers(*[0.12] * 60), *answers(0.12, running=2)],
    ],
)
def test_what_is_no_leaked_cache(readings: list[ServerReading]) -> None:
    assert idle_kv(readings) is None


def test_an_answer_that_failed_begins_anew() -> None:
    readings = answers(*[0.12] * 60)
    readings[50] = msgspec.structs.replace(readings[50], ok=False)
    assert idle_kv(readings) is None
    assert idle_kv(readings, least_s=60.0) is not None
    assert LEAST_S >= 480.0


@pytest.mark.requirement("G26")
def test_only_one_model_is_a_name() -> None:
    one = answers(0.0)[0]
    a, b = ServedModel(name="a"), ServedModel(name="b")
    named = {
        (): None,
        (a,): "a",
        (a, b): None,
        (ServedModel(name=""),): None,
    }
    for models, name in named.items():
        assert only_model(msgspec.structs.replace(one, models=models)) == name
    assert only_model(one) is None
    assert only_model(msgspec.structs.replace(one, models=(a,), ok=False)) is None
