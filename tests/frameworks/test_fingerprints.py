"""The table of fingerprints, row by row: recognised, or left out for a reason that is given."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.analysis.frameworks import recognise, role

if TYPE_CHECKING:
    from pathlib import Path

APPS = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "ollama-runner": "Ollama",
    "ollama-server": "Ollama",
    "llama.cpp": "llama.cpp",
    "triton-inference-server": "Triton Server",
    "ray-worker": "Ray",
    "torchrun-agent": "PyTorch",
    "torch-dataloader-worker": "PyTorch",
    "comfyui": "PyTorch",
    "mlx_lm": "MLX",
    "lmstudio": "LM Studio",
    "blender": "Blender",
    "display": "display",
    "browser/electron": "browser",
}
OTHERWISE = {
    "torch-rank": "its variables name the job and the rank, which is not the framework's affair",
    "jupyter-kernel": "any framework may run in it: it has a role instead",
    "a1111": "launch.py and webui.py are anybody's names; its directory is not in the command line",
}
LEFT_OUT = {
    "main.py --listen (cwd */ComfyUI)": "the working directory is private",
    "cuda_v12/": "a directory of Ollama's that other programs have too",
    "cuda_v13/": "a directory of Ollama's that other programs have too",
    "libggml-cuda.so": "ggml alone does not say which program it is in",
    "libggml-base.so": "ggml alone does not say which program it is in",
    "libggml-cpu*.so": "ggml alone does not say which program it is in",
    "libggml-metal.so": "ggml alone does not say which program it is in",
    "ray/_raylet.so": "a driver script has it too",
}
LIBRARIES = {
    "PyTorch": "PyTorch",
    "TensorFlow": "TensorFlow",
    "JAX": "JAX",
    "ONNX Runtime": "ONNX Runtime",
    "TensorRT": "TensorRT",
    "CuPy": "CuPy",
    "RAPIDS": "RAPIDS",
    "Numba": "Numba",
    "Triton (kernels)": "Triton kernels",
    "MLX": "MLX",
    "llama.cpp/ggml": {"libllama.so": "llama.cpp", "": "ggml"},
    "any CUDA user": None,  # every process on an NVIDIA GPU: says nothing of the framework
}
FILLED = {
    "vllm serve": "vllm serve model",
    "vllm.entrypoints.openai.api_server": "python -m vllm.entrypoints.openai.api_server",
    "sglang.launch_server": "python -m sglang.launch_server",
    "sglang.srt": "python -m sglang.srt.entrypoints.http_server",
    "torch.distributed.run": "python -m torch.distributed.run t.py",
    "torch.distributed.launch": "python -m torch.distributed.launch t.py",
    "ComfyUI/main.py": "python /opt/ComfyUI/main.py",
    "sgl_kernel": "sgl_kernel/common_ops.abi3.so",
    "--type=gpu-process": "/usr/share/any/app --type=gpu-process",
}


@pytest.fixture
def table(shared_data: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((shared_data / "platforms/fingerprints.json").read_text())
    return found


def concrete(pattern: str) -> str:
    """Return an example of a pattern."""
    for mark in ("<Actor>", "<task>"):
        pattern = pattern.replace(mark, mark[1:-1])
    return pattern.removeprefix("*").replace("*", "0")


@pytest.mark.shared_data
def test_every_program_of_the_table_is_recognised_or_left_out_for_a_reason(
    table: dict[str, Any],
) -> None:
    rows = {row["id"]: row for row in table["apps"]}
    assert rows.keys() == APPS.keys() | OTHERWISE.keys()
    for name, framework in APPS.items():
        row = rows[name]
        for title in row.get("title", ()):
            assert recognise([concrete(title)]) == (framework, False), title
        for comm in row.get("comm15", ()):
            assert recognise([], name=comm) == (framework, False), comm
        for exe in row.get("exe", ()):
            path = f"/x{concrete(exe)}" if exe.startswith("*/") else f"/opt/{concrete(exe)}/main"
            assert recognise([path])[0] == framework, exe
        for line in row.get("cmd", ()):
            if line not in LEFT_OUT:
                words = concrete(FILLED.get(line, line)).split()
                assert recognise(words)[0] == framework, line
        for library in row.get("libs", ()):
            if library not in LEFT_OUT:
                path = f"/lib/{concrete(FILLED.get(library, library))}"
                assert recognise(["x"], [path]) == (framework, True), library


@pytest.mark.shared_data
def test_every_library_of_the_table_is_recognised(table: dict[str, Any]) -> None:
    assert {row["fw"] for row in table["libs"]} == LIBRARIES.keys()
    kinds = ("any", "cuda", "rocm", "old", "tpu", "trt")
    for row in table["libs"]:
        wanted = LIBRARIES[row["fw"]]
        for library in (name for kind in kinds for name in row.get(kind, ())):
            expected = wanted.get(library, wanted[""]) if isinstance(wanted, dict) else wanted
            path = f"/lib/{concrete(library)}"
            assert recognise(["x"], [path])[0] == expected, library


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["python", "-m", "ipykernel_launcher", "-f", "/run/kernel-1.json"], "notebook kernel"),
        (["python3.12 -m ipykernel_launcher -f k.json"], "notebook kernel"),
        (["ollama", "serve"], "Ollama server (holds no memory)"),
        (["/usr/local/bin/ollama", "runner", "--model", "x"], "Ollama runner"),
        (["/usr/lib/ollama/llama-server", "--model", "x"], "Ollama runner"),
        (["/opt/llama-server", "--model", "/v/blobs/sha256-ab"], "Ollama runner"),
        (["/opt/llama-server", "-m", "x.gguf"], "API server"),
        (["VLLM::EngineCore_DP0"], "engine"),
        (["VLLM::Worker_TP0"], "engine worker"),
        (["sglang::scheduler_TP0"], "engine"),
        (["sglang::detokenizer"], "detokenizer"),
        (["vllm", "serve", "m"], "API server"),
        (["ray::IDLE"], "idle Ray worker"),
        (["ray::Trainer.step"], "Ray worker"),
        (["ray::DashboardAgent"], "Ray agent"),
        (["torchrun", "t.py"], "launcher"),
        (["python", "-m", "torch.distributed.run", "t.py"], "launcher"),
        (["accelerate", "launch", "t.py"], "launcher"),
        (["deepspeed", "t.py"], "launcher"),
        (["python", "train.py"], None),
        ([], None),
    ],
)
def test_parts_that_processes_play(argv: list[str], part: str | None) -> None:
    assert role(argv) == part


def test_the_cut_title_of_a_process_says_its_part_too() -> None:
    assert role([], "VLLM::EngineCor") == "engine"
    assert role(["python", "train.py"], "pt_data_worker") == "data loader worker"
