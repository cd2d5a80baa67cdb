"""Recognition of frameworks, from small samples of our own and, where present, real maps files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.analysis.frameworks import loaded, recognise, role
from gpuwatchd.analysis.frameworks.recognition import EITHER_XLA

if TYPE_CHECKING:
    from pathlib import Path

SITE = "/opt/venv/lib/python3.12/site-packages"
TORCH = [f"{SITE}/torch/lib/libtorch_cpu.so", f"{SITE}/torch/lib/libc10.so"]
TENSORFLOW = [f"{SITE}/tensorflow/libtensorflow_framework.so.2"]
JAX = [f"{SITE}/jaxlib/libjax_common.so", f"{SITE}/jaxlib/_jax.so"]
JAX_ON_GPU = [*JAX, f"{SITE}/jax_plugins/xla_cuda12/xla_cuda_plugin.so"]
GGML = ["/usr/lib/libggml-base.so", "/usr/lib/libggml-cuda.so"]


@pytest.mark.parametrize(
    ("libraries", "framework"),
    [
        (TORCH, "PyTorch"),
        (JAX, "JAX"),
        (TENSORFLOW + JAX, "TensorFlow"),
        (JAX + TENSORFLOW, "TensorFlow"),
        (TENSORFLOW + JAX_ON_GPU, "JAX"),
        (JAX + TORCH, "JAX"),
        ([f"{SITE}/jaxlib/xla_extension.so"], "JAX"),
        ([f"{SITE}/onnxruntime/capi/onnxruntime_pybind11_state.so"], "ONNX Runtime"),
        ([f"{SITE}/cupy/_core/core.cpython-312-x86_64-linux-gnu.so"], "CuPy"),
        ([f"{SITE}/numba/_dispatcher.cpython-312-x86_64-linux-gnu.so"], "Numba"),
        ([f"{SITE}/mlx/core.cpython-312-darwin.so"], "MLX"),
        ([f"{SITE}/vllm/_C.abi3.so", *TORCH], "vLLM"),
        (["/usr/lib/ollama/libggml-base.so"], "Ollama"),
        (["/usr/lib/libllama.so", *GGML], "llama.cpp"),
        (GGML, "ggml"),
    ],
)
@pytest.mark.requirement("G23")
def test_loaded_libraries_name_the_framework_for_sure(libraries: list[str], framework: str) -> None:
    assert recognise(["python", "train.py"], libraries) == (framework, True)


@pytest.mark.parametrize(
    ("argv", "framework"),
    [
        (["python3.12", "-m", "vllm.entrypoints.openai.api_server", "--port", "8000"], "vLLM"),
        (["/opt/venv/bin/python", "/opt/venv/bin/vllm", "serve", "m"], "vLLM"),
        (["VLLM::EngineCore_DP0"], "vLLM"),
        (["python", "-m", "sglang.launch_server"], "SGLang"),
        (["sglang::scheduler_TP0"], "SGLang"),
        (["/usr/local/bin/ollama", "runner", "--model", "/m/blobs/sha256-ab"], "Ollama"),
        (["/usr/lib/ollama/llama-server", "--model", "x"], "Ollama"),
        (["/opt/llama/llama-server", "-m", "model.gguf"], "llama.cpp"),
        (["python", "-u", "-X", "dev", "-m", "torch.distributed.run", "t.py"], "PyTorch"),
        (["torchrun", "--nproc-per-node=2", "t.py"], "PyTorch"),
        (["python", "-m", "mlx_lm.server"], "MLX"),
        (["python", "train_jax.py"], "JAX"),
        (["python", "finetune-tensorflow.py"], "TensorFlow"),
        (["python /srv/vllm serve --model m"], "vLLM"),
        (["/usr/lib/xorg/Xorg", ":0"], "display"),
        (["python", "/opt/ComfyUI/main.py"], "PyTorch"),
        (["/opt/tritonserver", "--model-repository=/m"], "Triton Server"),
        (["ray::Trainer.step"], "Ray"),
        (["/opt/blender", "-b", "x.blend"], "Blender"),
        (["/usr/share/any/app", "--type=gpu-process"], "browser"),
    ],
)
def test_a_command_line_alone_is_a_guess(argv: list[str], framework: str) -> None:
    assert recognise(argv) == (framework, False)


@pytest.mark.parametrize(
    "argv",
    [
        ["vim", "vllm", "serve"],
        ["grep", "-r", "torch", "."],
        ["python", "train.py", "--logger", "jax"],
        ["python", "-c", "import torch"],
        ["tail", "-f", "/var/log/ollama.log"],
        ["sleep", "60"],
        [],
        [""],
    ],
)
def test_a_word_among_the_arguments_is_no_evidence(argv: list[str]) -> None:
    assert recognise(argv) == (None, False)


def test_libraries_confirm_what_the_command_line_says() -> None:
    assert recognise(["VLLM::EngineCore"], TORCH) == ("vLLM", True)
    assert recognise(["/opt/llama-server"], GGML) == ("llama.cpp", True)


def test_the_cut_kernel_name_is_enough() -> None:
    assert recognise([], name="VLLM::EngineCor") == ("vLLM", False)
    assert recognise([], name="sglang::scheduler_TP0"[:15]) == ("SGLang", False)
    assert recognise([], name="gnome-shell") == ("display", False)


@given(st.lists(st.text(), max_size=6), st.lists(st.text(), max_size=6), st.text(max_size=15))
def test_any_text_gets_an_answer(argv: list[str], libraries: list[str], name: str) -> None:
    framework, sure = recognise(argv, libraries, name)
    assert framework is not None or not sure


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("sample", "framework"),
    [
        ("torch", "PyTorch"),
        ("jax", "JAX"),
        ("tensorflow", "TensorFlow"),
        ("onnxruntime", "ONNX Runtime"),
        ("numba", "Numba"),
        ("plain", None),
    ],
)
def test_real_maps(shared_data: Path, sample: str, framework: str | None) -> None:
    text = (shared_data / "platforms" / "maps" / f"proc_maps_{sample}_cpu.txt").read_text()
    paths = {line.split(None, 5)[5] for line in text.splitlines() if len(line.split(None, 5)) == 6}
    assert recognise(["python", "run.py"], paths) == (framework, framework is not None)


def test_everything_that_is_loaded_is_listed_in_order_of_precedence() -> None:
    mixed = [*TORCH, *JAX, *TENSORFLOW, f"{SITE}/triton/_C/libtriton.so"]
    assert loaded(mixed) == ("TensorFlow", "JAX", "PyTorch", "Triton kernels")
    assert loaded(JAX_ON_GPU) == ("JAX",)
    assert loaded([f"{SITE}/vllm/_C.abi3.so", *TORCH]) == ("vLLM", "PyTorch")
    assert loaded([]) == ()


@pytest.mark.parametrize(
    ("threads", "argv", "framework"),
    [
        (["tf_Compute", "tf_XLAEigen"], ["python", "train.py"], EITHER_XLA),
        (["tf_graph_runner"], ["python", "train_jax.py"], "JAX"),
        (["tf_Compute"], ["python", "keras_fit.py"], "TensorFlow"),
        (["pt_data_pin"], ["python", "train.py"], "PyTorch"),
        (["python", "worker"], ["python", "train.py"], None),
    ],
)
def test_threads_are_a_hint_where_libraries_cannot_be_read(
    threads: list[str], argv: list[str], framework: str | None
) -> None:
    assert recognise(argv, threads=threads) == (framework, False)


@pytest.mark.parametrize(
    ("argv", "libraries", "framework"),
    [
        (["ray::Trainer.step"], TORCH, "PyTorch"),
        (["ray::IDLE"], [], "Ray"),
        (["python", "-m", "ipykernel_launcher", "-f", "k"], JAX, "JAX"),
        (["python", "-m", "ipykernel_launcher", "-f", "k"], [], None),
        (["deepspeed", "train.py"], [], "PyTorch"),
        (["python", "driver.py"], [f"{SITE}/ray/_raylet.so"], "Ray"),
        (["python", "driver.py"], [f"{SITE}/ray/_raylet.so", *TORCH], "PyTorch"),
        (["/usr/bin/python3 -m vllm.entrypoints.openai.api_server --model m"], TORCH, "vLLM"),
        (["/Applications/LM Studio.app/Contents/MacOS/LM Studio"], [], "LM Studio"),
        (["/data/llama-server", "--model", "/v/blobs/sha256-1"], GGML, "Ollama"),
    ],
)
def test_launchers_notebooks_and_titles_in_one_string(
    argv: list[str], libraries: list[str], framework: str | None
) -> None:
    assert recognise(argv, libraries)[0] == framework


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


@pytest.mark.requirement("B4")
def test_the_cut_title_of_a_process_says_its_part_too() -> None:
    assert role([], "VLLM::EngineCor") == "engine"
    assert role(["python", "train.py"], "pt_data_worker") == "data loader worker"
