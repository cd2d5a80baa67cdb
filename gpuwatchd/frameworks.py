"""Which framework a process runs, from its command line, title, threads and loaded libraries. Pure.

A serving engine names the process; otherwise the libraries do, in an order of precedence:
TensorFlow before JAX before PyTorch, because TensorFlow drags the JAX libraries in, and both are
often found beside PyTorch's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

PREALLOCATES: Final[frozenset[str]] = frozenset({"JAX", "TensorFlow", "vLLM", "SGLang"})
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
    libraries: tuple[str, ...] = ()
    """Parts of a loaded library's path."""
    beneath: tuple[str, ...] = ()
    """Frameworks whose libraries confirm a match by command line."""


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
        libraries=("/lib/ollama/",),
        beneath=("llama.cpp", "MLX"),
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
    App("MLX", programs=("mlx_lm", "mlx_lm.server", "mlx_lm.generate"), modules=("mlx_lm",)),
    App(
        "PyTorch",
        titles=("pt_elastic", "pt_data_worker", "pt_data_pin"),
        programs=("torchrun", "accelerate launch", "deepspeed"),
        modules=("torch.distributed", "accelerate.commands.launch"),
        paths=("/ComfyUI/main.py", "/stable-diffusion-webui/"),
    ),
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
    # Loaded when JAX really starts on a GPU, which TensorFlow's stray import of it never does.
    ("JAX", ("/xla_cuda_plugin.so", "/xla_rocm_plugin.so")),
    (
        "TensorFlow",
        (
            *("/libtensorflow_framework.so", "/libtensorflow_cc.so"),
            *("/_pywrap_tensorflow_internal.so", "/lib_pywrap_tensorflow_common.so"),
        ),
    ),
    ("JAX", ("/libjax_common.so", "/jaxlib/_jax", "/jaxlib/_xla", "/xla_extension.so")),
    ("PyTorch", ("/libtorch_cpu.so", "/libtorch_python.so", "/libtorch.so", "/libc10.so")),
    ("ONNX Runtime", ("/onnxruntime_pybind11_state", "/libonnxruntime.so")),
    ("TensorRT", ("/libnvinfer.so", "/libnvinfer_plugin.so")),
    ("CuPy", ("/cupy/_core/core", "/cupy_backends/cuda/api/runtime")),
    ("RAPIDS", ("/libcudf.so", "/librmm.so", "/libcuml.so", "/libraft.so")),
    ("Numba", ("/numba/_dispatcher", "/libllvmlite.so", "/numba_cuda/")),
    ("MLX", ("/mlx/core", "/libmlx.dylib", "/libmlx.so", "/mlx.metallib")),
    ("llama.cpp", ("/libllama.so", "/libllama.dylib")),
    ("ggml", ("/libggml-base.", "/libggml-cuda.", "/libggml-hip.", "/libggml-metal.")),
)
"""Frameworks by loaded library, in their order of precedence."""

_LAUNCHERS: Final = frozenset({"PyTorch", "MLX"})
"""Rows of APPS that start somebody's script, which may use something else."""

_GUESSES: Final[tuple[tuple[str, frozenset[str]], ...]] = (
    ("TensorFlow", frozenset({"tensorflow", "keras"})),
    ("JAX", frozenset({"jax", "flax"})),
    ("PyTorch", frozenset({"torch", "pytorch"})),
    ("MLX", frozenset({"mlx"})),
    ("CuPy", frozenset({"cupy"})),
)
_PYTHON: Final = re.compile(r"(?:python|pypy)[\d.]*")
_WORD: Final = re.compile(r"[a-z]+")
_TAKES_VALUE: Final = frozenset({"-X", "-W", "--check-hash-based-pycs"})
_NO_SCRIPT: Final = frozenset({"-c", "-"})


class _Command(NamedTuple):
    program: str
    """Base name of what runs: the executable, or the script that an interpreter runs."""
    module: str
    word: str
    """The first argument after it."""
    line: str


def recognise(
    argv: Sequence[str],
    libraries: Iterable[str] = (),
    name: str = "",
    threads: Iterable[str] = (),
) -> tuple[str | None, bool]:
    """Return (framework, sure); (None, False) when nothing is recognised.

    Parameters
    ----------
    argv
        Command line; one long string (a rewritten title) is understood too.
    libraries
        Paths of the files that the process has mapped; empty when they cannot be read.
    name
        Process name as the kernel has it.
    threads
        Names of its threads.

    Returns
    -------
    tuple
        ``sure`` is True only when a loaded library supports the answer.

    Examples
    --------
    >>> recognise(["python", "-m", "vllm.entrypoints.openai.api_server"])
    ('vLLM', False)
    >>> recognise(["python", "train.py"], ["/usr/lib/libtorch_cpu.so"])
    ('PyTorch', True)
    """
    loaded = "\n".join(libraries)
    beneath = _by_library(loaded)
    command = _command(argv)
    for app in APPS:
        if any(part in loaded for part in app.libraries):
            return app.name, True
        if _matches(app, command, name):
            return _named(app, beneath)
    if beneath is not None:
        return beneath, True
    if any(thread.startswith("pt_") for thread in threads):
        return "PyTorch", False
    return _guess(command), False


def _named(app: App, beneath: str | None) -> tuple[str, bool]:
    """Return what a match by command line amounts to, given the library evidence."""
    if beneath is None:
        return app.name, False
    if beneath == app.name or beneath in app.beneath:
        return app.name, True
    # "torchrun train_jax.py": a launcher says less than what is loaded.
    return (beneath, True) if app.name in _LAUNCHERS else (app.name, False)


def _by_library(loaded: str) -> str | None:
    if not loaded:
        return None
    for framework, parts in LIBRARIES:
        if any(part in loaded for part in parts):
            return framework
    return None


def _matches(app: App, command: _Command, name: str) -> bool:
    title = command.line or name
    if any(title.startswith(start) or name.startswith(start) for start in app.titles):
        return True
    if _is_program(app.programs, command) or (not command.line and name in app.programs):
        return True
    module = command.module
    if module and any(module == known or module.startswith(known + ".") for known in app.modules):
        return True
    return any(part in command.line for part in app.paths)


def _is_program(programs: Collection[str], command: _Command) -> bool:
    return command.program in programs or f"{command.program} {command.word}" in programs


def _command(argv: Sequence[str]) -> _Command:
    """Find what really runs behind an interpreter and its options."""
    words = [word for word in argv if word]
    if len(words) == 1 and " " in words[0] and not words[0].startswith("/"):
        words = words[0].split()
    line = " ".join(words)
    if not words:
        return _Command("", "", "", "")
    program, rest = _base(words[0]), words[1:]
    if not _PYTHON.fullmatch(program):
        return _Command(program, "", rest[0] if rest else "", line)
    while rest and rest[0].startswith("-"):
        option = rest[0]
        if option == "-m" and len(rest) > 1:
            return _Command(rest[1], rest[1], rest[2] if len(rest) > 2 else "", line)
        if option in _NO_SCRIPT:
            return _Command(program, "", "", line)
        rest = rest[2:] if option in _TAKES_VALUE else rest[1:]
    if not rest:
        return _Command(program, "", "", line)
    return _Command(_base(rest[0]), "", rest[1] if len(rest) > 1 else "", line)


def _base(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _guess(command: _Command) -> str | None:
    """Guess from the script's or module's own name ("train_jax.py")."""
    words = frozenset(_WORD.findall(command.program.lower()))
    for framework, known in _GUESSES:
        if words & known:
            return framework
    return None
