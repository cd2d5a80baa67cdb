"""How frameworks, serving engines and what draws show themselves: one row each, data only."""

from __future__ import annotations

from typing import Final, NamedTuple

from gpuwatchd.core.codes import Role

EITHER_XLA: Final = "TensorFlow or JAX"
"""What is known when only thread names can be read: both run on the same thread pools."""

PREALLOCATES: Final[frozenset[str]] = frozenset({"JAX", "TensorFlow", EITHER_XLA, "vLLM", "SGLang"})
"""Frameworks that take a pool of most of the device at start: flat by design, leak or no leak."""

GRAPHICS: Final[frozenset[str]] = frozenset({"display", "browser", "Blender"})
"""What draws: its growth is watched at most, and never alerts."""


class App(NamedTuple):
    """How one program shows itself. Every field is a list of alternatives."""

    name: str
    titles: tuple[str, ...] = ()
    """Beginnings of the process title or name (which the kernel cuts at 15 bytes)."""
    programs: tuple[str, ...] = ()
    """Base names of the executable or script, or "program word" for a sub-command."""
    modules: tuple[str, ...] = ()
    """Python modules started with -m (the module or anything below it)."""
    paths: tuple[str, ...] = ()
    """Parts of the command line."""
    pairs: tuple[tuple[str, str], ...] = ()
    """A program that counts only together with a part of its command line."""
    libraries: tuple[str, ...] = ()
    """Parts of a loaded library's path."""
    beneath: tuple[str, ...] = ()
    """Frameworks whose libraries confirm a match by command line."""
    launches: bool = False
    """It starts somebody's script: what that one has loaded says more."""


APPS: Final[tuple[App, ...]] = (
    App(
        "vLLM",
        titles=("VLLM::",),
        programs=("vllm",),
        modules=("vllm",),
        libraries=("/vllm/_C", "/vllm/_moe_C"),
        beneath=("PyTorch",),
    ),
    App(
        "SGLang",
        titles=("sglang::",),
        programs=("sglang",),
        modules=("sglang",),
        libraries=("/sglang/srt/", "/sgl_kernel/"),
        beneath=("PyTorch",),
    ),
    App(
        "Ollama",
        programs=("ollama runner", "ollama serve"),
        paths=("/lib/ollama/llama-server", "/ollama/models/blobs/sha256-", "/models/blobs/sha256-"),
        pairs=(("llama-server", "/blobs/sha256-"),),
        libraries=("/lib/ollama/",),
        beneath=("llama.cpp", "ggml", "MLX"),
    ),
    App(
        "llama.cpp",
        programs=("llama-server", "llama-cli", "llama-bench", "llama-run", "llama-perplexity"),
        libraries=("/libllama.so", "/libllama.dylib"),
        beneath=("ggml",),
    ),
    App(
        "Triton Server",
        programs=("tritonserver", "triton_python_backend_stub"),
        libraries=("/libtritonserver.so",),
    ),
    App("LM Studio", paths=("/LM Studio",), beneath=("llama.cpp", "ggml", "MLX")),
    App(
        "MLX",
        programs=("mlx_lm", "mlx_lm.server", "mlx_lm.generate"),
        modules=("mlx_lm",),
        launches=True,
    ),
    App(
        "PyTorch",
        titles=("pt_elastic", "pt_data_worker", "pt_data_pin"),
        programs=("torchrun", "accelerate launch", "accelerate-launch", "deepspeed"),
        modules=("torch.distributed", "accelerate.commands.launch", "deepspeed"),
        paths=("/ComfyUI/main.py", "/stable-diffusion-webui/"),
        launches=True,
    ),
    App("Ray", titles=("ray::",), programs=("raylet", "gcs_server"), launches=True),
    App("Blender", programs=("blender",)),
    App(
        "display",
        programs=(
            *("Xorg", "Xwayland", "gnome-shell", "kwin_wayland", "kwin_x11", "plasmashell"),
            *("mutter", "sway", "Hyprland", "WindowServer", "runningboardd"),
        ),
    ),
    App(
        "browser", programs=("firefox", "chrome", "chromium", "code"), paths=("--type=gpu-process",)
    ),
)
"""Programs, in the order in which they are tried."""

LIBRARIES: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    # Loaded when JAX really starts on an accelerator, which TensorFlow's stray import never does.
    (
        "JAX",
        (
            *("/xla_cuda_plugin.so", "/xla_rocm_plugin.so", "/cuda_plugin_extension.so"),
            "/libtpu.so",
        ),
    ),
    (
        "TensorFlow",
        (
            *("/libtensorflow_framework.so", "/libtensorflow_cc.so"),
            *("/_pywrap_tensorflow_internal.so", "/lib_pywrap_tensorflow_common.so"),
        ),
    ),
    ("JAX", ("/libjax_common.so", "/jaxlib/_jax", "/jaxlib/_xla", "/xla_extension.so")),
    (
        "PyTorch",
        (
            *("/libtorch_cpu.so", "/libtorch_python.so", "/libtorch.so", "/libc10.so"),
            *("/libtorch_cuda.so", "/libc10_cuda.so", "/libtorch_hip.so", "/libc10_hip.so"),
            *("/libtorch_cpu.dylib", "/libtorch_python.dylib", "/libc10.dylib"),
        ),
    ),
    (
        "ONNX Runtime",
        ("/onnxruntime_pybind11_state", "/libonnxruntime.so", "/libonnxruntime_providers_"),
    ),
    ("TensorRT", ("/libnvinfer.so", "/libnvinfer_plugin.so")),
    ("CuPy", ("/cupy/_core/core", "/cupy_backends/cuda/api/runtime")),
    ("RAPIDS", ("/libcudf.so", "/librmm.so", "/libcuml.so", "/libraft.so")),
    ("Numba", ("/numba/_dispatcher", "/libllvmlite.so", "/numba_cuda/")),
    ("Triton kernels", ("/triton/_C/libtriton.so",)),
    ("MLX", ("/mlx/core", "/libmlx.dylib", "/libmlx.so", "/mlx.metallib")),
    ("llama.cpp", ("/libllama.so", "/libllama.dylib")),
    (
        "ggml",
        (
            *("/libggml-base.", "/libggml-cuda.", "/libggml-hip.", "/libggml-vulkan."),
            "/libggml-metal.",
        ),
    ),
    # Whoever talks to Ray has it, whatever else it does.
    ("Ray", ("/ray/_raylet.so",)),
)
"""Frameworks by loaded library, in their order of precedence."""

GUESSES: Final[tuple[tuple[str, frozenset[str]], ...]] = (
    ("TensorFlow", frozenset({"tensorflow", "keras"})),
    ("JAX", frozenset({"jax", "flax"})),
    ("PyTorch", frozenset({"torch", "pytorch"})),
    ("MLX", frozenset({"mlx"})),
    ("CuPy", frozenset({"cupy"})),
)
"""Words in the name of a script that hint at what it uses."""

ROLES: Final[tuple[tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...]] = (
    # (role, beginnings of titles, programs, modules)
    (
        Role.NOTEBOOK.value,
        (),
        ("ipykernel_launcher.py", "colab_kernel_launcher.py"),
        ("ipykernel_launcher", "ipykernel", "colab_kernel_launcher"),
    ),
    ("engine", ("VLLM::EngineCor", "sglang::sched"), (), ()),
    ("engine worker", ("VLLM::Worker",), (), ()),
    ("detokenizer", ("sglang::detoken",), (), ()),
    ("tokenizer", ("sglang::tokeniz",), (), ()),
    ("controller", ("sglang::data_pa",), (), ()),
    (
        "API server",
        ("VLLM::APIServer",),
        ("vllm serve", "sglang serve", "llama-server", "mlx_lm.server"),
        ("vllm.entrypoints", "sglang.launch_server", "mlx_lm.server"),
    ),
    ("Ollama server (holds no memory)", (), ("ollama serve",), ()),
    ("Ollama runner", (), ("ollama runner",), ()),
    ("idle Ray worker", ("ray::IDLE",), (), ()),
    ("Ray agent", ("ray::DashboardAg", "ray::RuntimeEnvA"), ("raylet", "gcs_server"), ()),
    ("Ray worker", ("ray::",), (), ()),
    ("data loader worker", ("pt_data_worker", "pt_data_pin"), (), ()),
    (
        "launcher",
        ("pt_elastic",),
        ("torchrun", "accelerate launch", "accelerate-launch", "deepspeed"),
        (
            *("torch.distributed.run", "torch.distributed.launch"),
            *("accelerate.commands.launch", "deepspeed.launcher"),
        ),
    ),
    ("backend", (), ("triton_python_backend_stub",), ()),
)
"""Parts that processes play, in the order in which they are tried."""
