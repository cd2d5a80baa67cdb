"""Sizes that a program was told: which numbers are understood, and what facts they make."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest

from gpuwatchd.analysis import declared
from gpuwatchd.analysis.declared import Declared
from gpuwatchd.core.codes import FactName
from gpuwatchd.core.model import GrowthFact, ServedModel, ServerReading

GIB = 1 << 30
CARD = 80.0 * GIB
SHAPE = "--obs-shape 84x84x4"
XLA = "XLA_PYTHON_CLIENT_"


def facts_of(
    line: str,
    framework: str | None = "PyTorch",
    variables: dict[str, str] | None = None,
    **changes: Any,
) -> list[GrowthFact]:
    settings = declared.of_argv(line.split()) + declared.of_variables((variables or {}).items())
    given = {"framework": framework, "card_bytes": CARD, **changes}
    return list(declared.facts(Declared(settings), **given))


def amounts(found: list[GrowthFact]) -> list[tuple[Any, Any]]:
    return [(fact.level_bytes, fact.part_bytes) for fact in found]


@pytest.mark.parametrize(
    ("line", "framework", "share"),
    [
        ("vllm serve m --gpu-memory-utilization 0.85", "vLLM", 0.85),
        ("vllm serve m --gpu_memory_utilization=.5e0 --gpu-memory-utilization=0.5", "vLLM", 0.5),
        ("python -m sglang.launch_server --mem-fraction-static 0.8", "SGLang", 0.8),
        ("text-generation-server --cuda-memory-fraction 0.7", None, 0.7),
        ("tensorflow_model_server --per_process_gpu_memory_fraction=0.5", "TensorFlow", 0.5),
    ],
)
def test_a_fraction_of_the_card_is_a_level(line: str, framework: str, share: float) -> None:
    (fact,) = facts_of(line, framework)
    assert fact.name is FactName.DECLARED_SHARE
    assert fact.level_bytes == pytest.approx(share * CARD)
    assert fact.part_bytes is None
    assert facts_of(line, framework, card_bytes=None) == facts_of(line, framework, host=True) == []


def test_a_server_of_vllm_takes_most_of_the_card_unless_told_otherwise() -> None:
    served = facts_of("vllm serve m", "vLLM")
    assert amounts(served) == [(pytest.approx(0.92 * CARD), None)]
    assert facts_of("python batch.py", "vLLM") == []
    own = facts_of("vllm serve m --gpu-memory-utilization 0.9", "vLLM")
    assert own[0].weight > served[0].weight


def test_what_runs_vllm_beside_its_own_work_gives_it_a_part() -> None:
    found = facts_of("python grpo.py --vllm_gpu_memory_utilization=0.3")
    assert amounts(found) == [(None, pytest.approx(0.3 * CARD))]


@pytest.mark.parametrize(
    ("variables", "framework", "share"),
    [
        ({f"{XLA}MEM_FRACTION": "0.5"}, "JAX", 0.5),
        ({f"{XLA}MEM_FRACTION": "0.5", f"{XLA}PREALLOCATE": "false"}, "JAX", 0.5),
        ({f"{XLA}PREALLOCATE": "false"}, "JAX", 0.75),
        ({f"{XLA}MEM_FRACTION": "0.5", f"{XLA}ALLOCATOR": "platform"}, "JAX", None),
        ({f"{XLA}PREALLOCATE": "false"}, "PyTorch", None),
        ({f"{XLA}MEM_FRACTION": "0.5"}, "PyTorch", None),
        ({f"{XLA}MEM_FRACTION": "nan"}, "JAX", None),
        ({"PYTORCH_ALLOC_CONF": "a:b,per_process_memory_fraction:0.5"}, "PyTorch", 0.5),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:128"}, "PyTorch", None),
    ],
)
def test_variables_of_a_framework_count_for_that_one(
    variables: dict[str, str], framework: str, share: float | None
) -> None:
    found = amounts(facts_of("t", framework, variables))
    assert found == ([] if share is None else [(pytest.approx(share * CARD), None)])


@pytest.mark.parametrize(
    ("line", "size_bytes"),
    [
        (f"--replay-size 1e6 {SHAPE} --obs-dtype uint8", 1e6 * 28224),
        (f"--buffer-size 500k {SHAPE} --obs-dtype torch.float16", 5e5 * 28224 * 2),
        ("--memory-size 1_000_000 --obs-shape (84,84,4) --dtype float32", 1e6 * 28224 * 4),
        ("--capacity 1000 --obs-shape 84 84 4 --obs-dtype uint8", 1e3 * 28224),
        ("replay.capacity=1e6 replay.obs_shape=[84,84] replay.dtype=uint8", 1e6 * 7056),
        ("--replay-capacity 1e4 --frame-bytes 28224", 1e4 * 28224),
        ("--cache-size 8GiB", 8.0 * GIB),
        ("--cache-size=8GB", 8e9),
        ("--kv-cache-memory-bytes 1000000000", 1e9),
        ("--cache-gb 8 --cache-gb 2", 2.0 * GIB),
        ("--max-cache-mb 512", 0.5 * GIB),
        ("--pool-size 4G", 4.0 * GIB),
        ("--cuda-memory-pool-byte-size=0:67108864", 64.0 * (1 << 20)),
        ("provider.gpu_mem_limit=2147483648", 2.0 * GIB),
        ("+trainer.kvCacheSize=1GiB", 1.0 * GIB),
    ],
)
def test_a_buffer_cache_or_pool_is_a_part(line: str, size_bytes: float) -> None:
    (fact,) = facts_of(f"t.py {line}")
    assert (fact.name, fact.source) == (FactName.DECLARED_SIZE, "command line")
    assert (fact.level_bytes, fact.part_bytes) == (None, size_bytes)


@pytest.mark.parametrize(
    "line",
    [
        "--replay-size 1e6",  # of what?
        "--replay-size 1e6 --obs-shape",
        "--replay-size 1e6 --obs-shape 0x4",
        "--replay-size 1e6 a.obs_shape=84,84 b.obs_shape=64,64",  # of which?
        "--replay-size -5 --obs-shape 84x84",
        "--replay-size 0.5 --obs-shape 84x84",
        "--replay-size 1e18 --obs-shape 999999999x999999999",
        "--cache-gb nan --pool-gb inf --cache-mb 1e400 --buffer-gb -1 --arena-gb 0.9.1 --pool-gb .",
        "--gpu-memory-fraction 1.5 --cuda-memory-fraction 0 --gpu-memory-fraction 0.9.1",
        "--memory 16G --mem 3G --disk-cache-size 10G --log-file-size 1G --batch-size 64 --gpus 4",
        "--cache-size 5 --gpu 3 --max-gpu 2 --device 1 --shm-size 16G --kv-cache-dtype fp8",
        "--swap-space 4 --pinned-memory-pool-gb 2",  # of the host
        "--gpu-memory-limit 96GiB",  # more than there is
        f"--total-frames 2e8 --max-len 512 --expert-capacity 8 --maxlen 9 {SHAPE}",  # no buffers
        f"--capacity-factor 2 --replay-ratio 4 --buffer-size-factor 3 --num-items 5 {SHAPE}",
        "--cache-max-age 3G --pool-timeout 5G",
        f"--min-replay-size 2e4 --prefetch-buffer-size 8 --shuffle-buffer-size 9 {SHAPE}",
    ],
)
def test_what_is_not_known_for_certain_is_not_invented(line: str) -> None:
    assert facts_of(f"t.py {line}") == []


def test_a_guessed_element_weighs_less_than_one_of_a_model_and_than_its_own() -> None:
    line = f"t.py --replay-size 1e6 {SHAPE}"
    guess, model, own = (
        facts_of(f"{line} {more}")[0].weight for more in ("", "--dtype uint8", "--obs-dtype uint8")
    )
    assert 0.0 < guess < model < own < 1.0


def test_parts_of_the_host_count_for_its_memory_alone() -> None:
    line = f"t.py --swap-space 4 --replay-size 1e6 {SHAPE} --replay-device cpu"
    assert facts_of(line) == []
    assert amounts(facts_of(line, host=True)) == [(None, 1e6 * 28224), (None, 4.0 * GIB)]
    there = facts_of(line.replace("cpu", "cuda:0"))
    assert amounts(there) == [(None, 1e6 * 28224)]


def test_several_parts_are_several_facts_and_a_limit_is_a_level() -> None:
    assert facts_of("t.py --device-memory-limit-bytes 1e9")[0].level_bytes == 1e9
    found = facts_of("t.py --cache-gb 1 --pool-gb 2 --max-gpu-memory 20GiB")
    assert amounts(found) == [(20.0 * GIB, None), (None, 1.0 * GIB), (None, 2.0 * GIB)]


def test_a_warm_up_weighs_less_the_older_the_process_is() -> None:
    weights = [fact.weight for age_s in (0.0, 60.0, 119.0) for fact in facts_of("t", age_s=age_s)]
    assert weights == sorted(weights, reverse=True)
    assert len(weights) == 3
    (fact,) = facts_of("t", "vLLM", age_s=599.0)
    assert (fact.name, fact.level_bytes, fact.part_bytes) == (FactName.WARM_UP, None, None)
    assert (
        facts_of("t", age_s=120.0) == facts_of("t", "Xorg", age_s=1.0) == facts_of("t", None) == []
    )


def reading(kind: str, **changes: Any) -> ServerReading:
    return ServerReading(kind=kind, url="http://127.0.0.1:1", at_s=100.0, **changes)


def engine(read: ServerReading, model: str | None = None) -> list[GrowthFact]:
    line = declared.of_argv(["vllm", "serve", "m"])
    return list(declared.facts(Declared(line, read, model), framework=read.kind, card_bytes=CARD))


@pytest.mark.parametrize(
    ("read", "level_bytes"),
    [
        (reading("vLLM", pool_share=0.5, facts={"gpu_blocks": 100.0}), 0.5 * CARD),
        (reading("SGLang", pool_share=0.8), 0.8 * CARD),
        (
            reading(
                "SGLang",
                facts={"kv_cache_memory_usage_gb": 20.0, "weight_memory_usage_gb": 12.0},
            ),
            32.0 * GIB,
        ),
        (reading("Ollama", models=(ServedModel(name="a", vram_bytes=GIB),)), 1.0 * GIB),
        (reading("Ollama", models=(ServedModel(name="b", vram_bytes=GIB),)), None),
        (reading("llama.cpp", kv_share=0.5), None),
    ],
)
def test_what_a_server_says_of_its_pool(read: ServerReading, level_bytes: float | None) -> None:
    (fact,) = [fact for fact in engine(read, "a") if fact.name is FactName.ENGINE_POOL]
    assert (fact.source, fact.level_bytes, fact.part_bytes) == (read.kind, level_bytes, None)
    assert fact.text


def test_what_a_server_says_itself_stands_for_what_is_usual() -> None:
    names = [fact.name for fact in engine(reading("vLLM", pool_share=0.5))]
    assert names == [FactName.ENGINE_POOL]
    assert [fact.name for fact in engine(reading("vLLM", ok=False, pool_share=0.5))] == [
        FactName.DECLARED_SHARE
    ]


def test_a_huge_command_line_costs_little_and_keeps_little() -> None:
    words = [f"--cache-{number}-gb=1" for number in range(10_000)]
    words += ["--" + "a-" * 5000, "9" * 10_000, "--cache-gb", "1" * 10_000, "x" * 1_000_000]
    before_s = time.process_time()
    assert len(declared.of_argv(words)) == declared.MOST_SETTINGS
    declared.of_argv(words[::-1])
    declared.of_argv(
        ["--obs-shape", "1 x " * 20_000, "obs_shape=" + "1" * 64, "--cache-gb", "1_" * 31]
    )
    assert time.process_time() - before_s < 2.0


def test_only_numbers_are_kept() -> None:
    secret = "hunter2-8GiB"
    line = f"t.py --cache-gb 1 --cache-size {secret} --pool-key {secret} {secret}.capacity=5"
    kept = repr(declared.of_argv(line.split()))
    assert "bytes" in kept
    assert secret not in kept.replace(f"{secret}.capacity", "")
    values = {"PYTORCH_ALLOC_CONF": f"{secret}:1,per_process_memory_fraction:{secret}"}
    assert declared.of_variables(values.items()) == ()


def test_numbers_of_a_file_may_be_of_any_size() -> None:
    pairs = [("cache_gb", 10**400), ("pool_gb", float("nan")), ("buffer_gb", sys.float_info.max)]
    assert declared.of_pairs([*pairs, ("arena_gb", True), ("queue_gb", [1])], "f") == ()
