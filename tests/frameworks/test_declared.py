"""Sizes that a program was told: which numbers are understood, and what facts they make."""

from __future__ import annotations

import shlex
import sys
import time
from typing import Any

import pytest

from gpuwatchd.analysis import declared
from gpuwatchd.analysis.declared import Declared
from gpuwatchd.collect.host import declarations
from gpuwatchd.core.codes import FactName
from gpuwatchd.core.model import GrowthFact, ServedModel, ServerReading

GIB = 1 << 30
MIB = 1 << 20
CARD = 80.0 * GIB
SHAPE = "--obs-shape 84x84x4"
XLA = "XLA_PYTHON_CLIENT_"


FORMS: tuple[tuple[str, str, float | None], ...] = (
    ("vLLM", "$ vllm serve m --gpu-memory-utilization 0.85", 0.85 * CARD),
    ("vLLM", "$ vllm serve m --kv-cache-memory-bytes 20G", 20.0 * GIB),
    ("SGLang", "$ python -m sglang.launch_server --mem-fraction-static=0.8", 0.8 * CARD),
    ("PyTorch", "CUDA_MEMORY_FRACTION=0.7", 0.7 * CARD),
    (
        "Triton Server",
        (
            "$ tritonserver --cuda-memory-pool-byte-size=0:268435456"
            " --pinned-memory-pool-byte-size=1073741824"
        ),
        0.25 * GIB,
    ),
    ("TensorFlow", "$ tf_server --per_process_gpu_memory_fraction=0.4", 0.4 * CARD),
    ("JAX", "XLA_PYTHON_CLIENT_MEM_FRACTION=.6", 0.6 * CARD),
    ("PyTorch", "PYTORCH_CUDA_ALLOC_CONF=a:True,per_process_memory_fraction:0.5", None),
    ("PyTorch", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=16G", None),
    ("RAPIDS", "$ dask cuda worker tcp://s:8786 --rmm-pool-size 20GB", 20e9),
    ("RAPIDS", "$ dask cuda worker tcp://s:8786 --device-memory-limit 0.5", 0.5 * CARD),
    ("RAPIDS", "$ dask-cuda-worker tcp://s:8786 --device-memory-limit=12GB", 12e9),
    ("RAPIDS", "$ java S --conf spark.rapids.memory.gpu.maxAllocFraction=0.6", 0.6 * CARD),
    ("RAPIDS", "$ java S --conf spark.rapids.memory.pinnedPool.size=8G", None),
    (
        "ONNX Runtime",
        'ort.json\n{"providers": {"cuda": {"device_id": 0, "gpu_mem_limit": 4294967296}}}',
        4.0 * GIB,
    ),
    ("CuPy", "CUPY_GPU_MEMORY_LIMIT=8589934592", 8.0 * GIB),
    ("CuPy", "CUPY_GPU_MEMORY_LIMIT=50%", 0.5 * CARD),
    ("PyTorch", "FLAGS_fraction_of_gpu_memory_to_use=0.3", 0.3 * CARD),
    ("PyTorch", "FLAGS_gpu_memory_limit_mb=4096", 4.0 * GIB),
    ("PyTorch", "$ sac.py --buffer-size 100_000 --obs-shape '(84, 84, 4)'", 1e5 * 28224),
    (
        "PyTorch",
        (
            "$ t.py replay_buffer.capacity=2e5 +replay_buffer.obs_shape=[3,64,64]"
            " replay_buffer.dtype=uint8"
        ),
        2e5 * 12288,
    ),
    (
        "PyTorch",
        "$ t.py buffer.size=50_000 buffer.pixel_shape=[4,84,84] buffer.pixel_dtype=uint8",
        5e4 * 28224,
    ),
    (
        "PyTorch",
        (
            "dqn.yaml\ntraining:\n  replay_buffer_config: {type: Prioritized, capacity: 100000}\n"
            "  observation_shape: [84, 84, 4]"
        ),
        1e5 * 28224,
    ),
    ("PyTorch", "$ t.py -params buffer_size:100000 frame_shape:(84,84,4)", 1e5 * 28224),
    ("PyTorch", "$ main_moco.py --moco-k 65536 --moco-dim 128", 65536 * 128 * 4.0),
    ("PyTorch", "m.yaml\nmemory_bank:\n  size: 1281167\n  dim: 128\n", 1281167 * 128 * 4.0),
    ("PyTorch", "$ main_swav.py --queue_length 38400 --feat_dim 128", 38400 * 128 * 4.0),
    ("PyTorch", "$ t.py --bank-size 1e6 --embed-dim 256 --bank-dtype float16", 1e6 * 512),
    ("PyTorch", "$ t.py --embedding-cache-rows 20000000 --embedding-dim 64", 2e7 * 256),
    (
        "PyTorch",
        'e.toml\n[embedding_cache]\nrows = 10_000_000\ndim = 128\ndtype = "float16"\n',
        1e7 * 256,
    ),
    ("PyTorch", "$ t.py --cache-size-gb 12", 12.0 * GIB),
    ("PyTorch", 'c.json\n{"cache": {"max_bytes": 6442450944}}', 6.0 * GIB),
    ("PyTorch", "f.yaml\nfeature_cache:\n  max_size_mb: 8192\n", 8.0 * GIB),
    ("PyTorch", "$ t.py --gpu-cache-size 8192MB", 8192e6),
    ("PyTorch", "$ dgl.py --num-gpu-cached-features=500000 --feature-dim 1024", 5e5 * 4096),
    ("PyTorch", "$ dgl.py --gpu-cache-size-in-gigabytes=4", 4.0 * GIB),
    (
        "PyTorch",
        "$ t.py --lru-items 2000 --latent-shape 4x128x128 --latent-dtype fp16",
        2000 * 131072.0,
    ),
    (
        "PyTorch",
        (
            "l.yml\nlatent_cache:\n  max_items: 5000\n  item_shape:\n    - 4\n    - 64\n    - 64\n"
            "  dtype: float16\n"
        ),
        5000 * 32768.0,
    ),
    (
        "PyTorch",
        (
            "$ serve.py --max-seq-len 32768 --n-layers 32 --n-kv-heads 8 --head-dim 128"
            " --max-batch-size 4 --dtype bfloat16"
        ),
        16.0 * GIB,
    ),
    (
        "PyTorch",
        (
            "k.yaml\nkv_cache:\n  max_tokens: 100000\n  num_layers: 32\n  num_kv_heads: 8\n"
            "  head_dim: 128\n  dtype: float16\n"
        ),
        1e5 * 131072,
    ),
    ("PyTorch", 'a.json\n{"max_memory": {"0": "20GiB", "cpu": "30GiB"}}', 20.0 * GIB),
    ("PyTorch", """$ t.py --max-memory '{0: "20GiB", "cpu": "60GiB"}'""", 20.0 * GIB),
    ("PyTorch", "$ server.py --gpu-memory 3500MiB", 3500.0 * MIB),
    ("PyTorch", "$ qlora.py --max_memory_MB 24000", None),
    ("RAPIDS", "$ heavydb --gpu-buffer-mem-bytes=34359738368", 32.0 * GIB),
    ("RAPIDS", "milvus.yaml\ngpu:\n  initMemSize: 2048\n  maxMemSize: 4096\n", None),
    ("TensorRT", "$ trtexec --onnx=m.onnx --memPoolSize=workspace:4096", 4.0 * GIB),
    ("ONNX Runtime", 'o.json\n{"trt_max_workspace_size": "2147483648"}', 2.0 * GIB),
    ("TensorRT", "$ trtllm-serve m --kv_cache_config.max_gpu_total_bytes 8589934592", 8.0 * GIB),
    ("PyTorch", "$ bench_gpu_1bn.py IVF -tempmem 1536000000", None),
    ("PyTorch", "$ t.py --gpu-prefetch-buffer-gb 3", 3.0 * GIB),
    ("PyTorch", "CUDA_DEVICE_MEMORY_LIMIT_0=3g", 3.0 * GIB),
    ("PyTorch", "$ t.py -o cache.max_bytes=2GiB", 2.0 * GIB),
    ("PyTorch", "$ t.py -o cache_size 2GiB", 2.0 * GIB),
    (
        "RAPIDS",
        "r.yaml\nrmm:\n  initial_pool_size: 10GiB\n  maximum_pool_size: 24GiB\n",
        24.0 * GIB,
    ),
    ("PyTorch", "$ t.py --cache-capacity 4096 --sample-mb 2", 8.0 * GIB),
    (
        "PyTorch",
        "$ t.py --n-cached 4000 --image-shape 3,224,224 --image-dtype float32",
        4000 * 602112.0,
    ),
    (
        "PyTorch",
        (
            "r.yaml\nreplay:\n  max_transitions: 500_000\n  obs:\n    shape: [84, 84, 4]\n"
            "    dtype: uint8\n"
        ),
        5e5 * 28224,
    ),
    (
        "PyTorch",
        'b.json\n{"buffer": {"capacity": "50k", "shape": [12, 64, 64], "dtype": "torch.uint8"}}',
        5e4 * 49152,
    ),
    ("PyTorch", "m.yaml\nmemory:\n  size: 200000\n  state_dim: 512\n", 2e5 * 2048),
    ("PyTorch", "$ t.py cache.maxsize=1024 cache.item_bytes=4MiB", 4.0 * GIB),
    ("PyTorch", "$ t.py --memory-bank-size 65536 --proj-dim 256", 65536 * 1024.0),
    ("PyTorch", "$ t.py --max-cached-graphs 500 --graph-mb 12", 6000.0 * MIB),
    ("PyTorch", "$ t.py --session-cache 1000 --session-mb 16", 16000.0 * MIB),
    ("PyTorch", "$ t.py --memory-fraction 0.6", 0.6 * CARD),
    ("PyTorch", "$ t.py --table-rows 2e7 --row-bytes 256", 2e7 * 256),
    ("PyTorch", "n.yaml\nneg_queue: {length: 65536, dim: 256, dtype: float32}", 65536 * 1024.0),
    ("PyTorch", "c.yaml\ncache: {policy: lru, size: 6 GiB}", 6.0 * GIB),
    (
        "PyTorch",
        "t.yaml\ntile_cache:\n  tiles: 4096\n  tile_shape: [3, 512, 512]\n  dtype: uint8",
        4096 * 786432.0,
    ),
    # These say nothing of the card.
    ("PyTorch", "$ t.py --batch-size 512 --obs-shape 84x84x4", None),
    ("PyTorch", "$ t.py --disk-cache-gb 100 --download-cache-size 50G", None),
    ("PyTorch", "$ t.py --max-memory 64G", None),
    ("PyTorch", "l.yaml\nlogger:\n  buffer_size: 100000\nmodel:\n  feature_dim: 512\n", None),
    ("PyTorch", "$ t.py --tokenizer-cache 50000 --embed-dim 512", None),
    ("PyTorch", "$ t.py --memory-capacity 1e6 --max-memory-gb 200 --checkpoint-mb 64", None),
    ("PyTorch", "$ t.py --warmup-steps 1000 --feature-dim 512", None),
    ("PyTorch", "$ t.py --learning-starts 80000 --obs-shape 84x84x4", None),
    ("PyTorch", "$ gpt.py --vocab-size 50257 --embedding-dim 768 --max-seq-len 4096", None),
    (
        "PyTorch",
        (
            'ds.json\n{"zero_optimization": {"reduce_bucket_size": 5e8, "offload_param":'
            ' {"buffer_size": 1e8, "buffer_count": 5}, "stage3_max_live_parameters": 1e9}}'
        ),
        None,
    ),
    ("PyTorch", "d.yaml\nshuffle_buffer_size: 10000\nimage_shape: [3, 224, 224]\n", None),
    ("PyTorch", "$ t.py --queue-size 8 --num-workers 8 --embedding-dim 512", None),
    ("llama.cpp", "$ llama-server -m m.gguf -c 32768 --cache-ram 8192", None),
    ("PyTorch", "lmcache.yaml\nmax_local_cpu_size: 5.0\nmax_local_disk_size: 20\n", None),
    ("PyTorch", "$ t.py --cpu-offload-gb 20 --cpu-buffer-mem-bytes=68719476736", None),
    ("PyTorch", "$ lmdeploy serve m --cache-max-entry-count 0.5", None),
    ("PyTorch", "$ t.py --lru-cache-size 128 --prefetch-factor 4 --hidden-dim 1024", None),
    ("PyTorch", "h.yaml\nhttp_cache:\n  max_size_mb: 512\nlog_buffer: 8MB\n", None),
    ("PyTorch", "$ t.py --replay-ratio 4 --frame-stack 4 --total-timesteps 1e7", None),
)
"""As real programs are told: framework; a line ("$ "), a variable, or a file after its name; and
what it takes, bytes. Written from their documentation before the rules were broadened for every
second one; None also for three whose unit only the documentation says."""


def told(text: str) -> tuple[declared.Setting, ...]:
    head, _, body = text.partition("\n")
    if body:
        return declared.of_pairs(declarations.pairs(head, body.encode()), head)
    if head.startswith("$ "):
        return declared.of_argv(shlex.split(head[2:]))
    name, _, value = head.partition("=")
    return declared.of_variables([(name, value)] if name in declared.VARIABLES else [])


@pytest.mark.parametrize(("framework", "text", "size_bytes"), FORMS)
def test_what_real_programs_are_told_is_read_rightly(
    framework: str, text: str, size_bytes: float | None
) -> None:
    found = list(declared.facts(Declared(told(text)), framework=framework, card_bytes=CARD))
    sizes = [fact.level_bytes or fact.part_bytes for fact in found]
    assert sizes == ([] if size_bytes is None else [pytest.approx(size_bytes)])


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
        # Memory runs out there: a limit, not where growth ends.
        ({"PYTORCH_ALLOC_CONF": "a:b,per_process_memory_fraction:0.5"}, "PyTorch", None),
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
        f"--cache-host redis-cache:6379 {SHAPE}",
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
    words += ["--a={" + "b: 1, " * 2000 + "}"] * 100
    words += [
        "--" + "a-" * 5000,
        "9" * 10_000,
        "--cache-gb",
        "1" * 10_000,
        "x" * 1_000_000,
        "x_" * 60_000,
    ]
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
