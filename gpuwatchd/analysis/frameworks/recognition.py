"""Which framework a process runs, from its command line, title, threads and loaded libraries. Pure.

A serving engine names the process; otherwise the libraries do, in an order of precedence:
TensorFlow before JAX before PyTorch, because TensorFlow drags the JAX libraries in, and both are
often found beside PyTorch's.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.core.codes import Role

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

EITHER_XLA: Final = "TensorFlow or JAX"
"""What is known when only thread names can be read: both run on the same thread pools."""

PREALLOCATES: Final[frozenset[str]] = frozenset({"JAX", "TensorFlow", EITHER_XLA, "vLLM", "SGLang"})
"""Frameworks that take a pool of most of the device at start: flat by design, leak or no leak."""

POOL_SHARE: Final = 0.6
"""A level of this share of the device, taken at once, may be a preallocated pool."""

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


_PYTHON: Final = re.compile(r"(?:python|pypy)[\d.]*")
_WORD: Final = re.compile(r"[a-z]+")
_TAKES_VALUE: Final = frozenset({"-X", "-W", "--check-hash-based-pycs"})
_NO_SCRIPT: Final = frozenset({"-c", "-"})


class Command(NamedTuple):
    """What really runs behind an interpreter and its options."""

    program: str
    """Base name of what runs: the executable, or the script that an interpreter runs."""
    module: str
    word: str
    """The first argument after it."""
    line: str


def recognise(
    argv: Sequence[str], libraries: Iterable[str] = (), name: str = "", threads: Iterable[str] = ()
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
        Names of its threads, which anybody may read: they help where the libraries cannot be.

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
    paths = "\n".join(libraries)
    found = (name for name, parts in LIBRARIES if any(part in paths for part in parts))
    beneath = next(found, None)
    command = command_of(argv)
    for app in APPS:
        if any(part in paths for part in app.libraries):
            return app.name, True
        if _matches(app, command, name):
            return _named(app, beneath)
    if beneath is not None:
        return beneath, True
    return _hinted(tuple(threads), command), False


def loaded(libraries: Iterable[str]) -> tuple[str, ...]:
    """Return every framework whose libraries a process has mapped, in order of precedence.

    Examples
    --------
    >>> loaded(["/x/jaxlib/_jax.so", "/x/libtensorflow_cc.so.2"])
    ('TensorFlow', 'JAX')
    """
    paths = "\n".join(libraries)
    if not paths:
        return ()
    rows = (*((app.name, app.libraries) for app in APPS), *LIBRARIES)
    return tuple(
        dict.fromkeys(name for name, parts in rows if any(part in paths for part in parts))
    )


def role(argv: Sequence[str], name: str = "") -> str | None:
    """Return which part a process plays in what it belongs to; None for an ordinary program.

    Of ``name``, as the kernel has it, a title that was cut is enough.

    Examples
    --------
    >>> role(["python", "-m", "ipykernel_launcher", "-f", "/run/kernel-1.json"])
    'notebook kernel'
    >>> role(["/usr/bin/ollama", "serve"]), role(["python", "train.py"])
    ('Ollama server (holds no memory)', None)
    """
    return _role(tuple(argv), name)


@lru_cache(maxsize=1024)
def _role(argv: tuple[str, ...], name: str) -> str | None:
    """Return the same; a process is asked about again and again."""
    command = command_of(argv)
    if command.program == "llama-server" and _matches(_OLLAMA, command, name):
        return "Ollama runner"
    for value, titles, programs, modules in ROLES:
        if any(text.startswith(start) for start in titles for text in (command.line, name)):
            return value
        if is_program(programs, command) or is_module(modules, command.module):
            return value
    return None


def _named(app: App, beneath: str | None) -> tuple[str, bool]:
    """Return what a match by command line amounts to, given the library evidence."""
    if beneath is None:
        return app.name, False
    if beneath == app.name or beneath in app.beneath:
        return app.name, True
    # "torchrun train_jax.py": a launcher says less than what is loaded.
    return (beneath, True) if app.launches else (app.name, False)


def _hinted(threads: Collection[str], command: Command) -> str | None:
    """Return what thread names, or that of the script or module ("train_jax.py"), hint at."""
    words = frozenset(_WORD.findall(command.program.lower()))
    guess = next((framework for framework, names in GUESSES if words & names), None)
    if any(thread.startswith("pt_") for thread in threads):
        return "PyTorch"
    if any(thread.startswith("tf_") for thread in threads):
        return guess if guess in {"TensorFlow", "JAX"} else EITHER_XLA
    return guess


def _matches(app: App, command: Command, name: str) -> bool:
    title = command.line or name
    if any(title.startswith(start) or name.startswith(start) for start in app.titles):
        return True
    if is_program(app.programs, command) or (not command.line and name in app.programs):
        return True
    if is_module(app.modules, command.module):
        return True
    if any(command.program == program and part in command.line for program, part in app.pairs):
        return True
    return any(part in command.line for part in app.paths)


def is_program(programs: Collection[str], command: Command) -> bool:
    """Say whether a command runs one of some programs, or "program word"s."""
    return command.program in programs or f"{command.program} {command.word}" in programs


def is_module(modules: Iterable[str], module: str) -> bool:
    """Say whether a module is one of some, or below one."""
    return bool(module) and any(module == text or module.startswith(text + ".") for text in modules)


def command_of(argv: Sequence[str]) -> Command:
    """Find what really runs behind an interpreter and its options.

    Examples
    --------
    >>> command_of(["/usr/bin/python3", "-u", "-m", "vllm.entrypoints.api_server", "m"])[:3]
    ('vllm.entrypoints.api_server', 'vllm.entrypoints.api_server', 'm')
    """
    words = [word for word in argv if word]
    if len(words) == 1 and " " in words[0]:
        words = _split(words[0])
    line = " ".join(words)
    if not words:
        return Command("", "", "", "")
    program, rest = _base(words[0]), words[1:]
    if not _PYTHON.fullmatch(program):
        return Command(program, "", rest[0] if rest else "", line)
    while rest and rest[0].startswith("-"):
        option = rest[0]
        if option == "-m" and len(rest) > 1:
            return Command(rest[1], rest[1], rest[2] if len(rest) > 2 else "", line)
        if option in _NO_SCRIPT:
            return Command(program, "", "", line)
        rest = rest[2:] if option in _TAKES_VALUE else rest[1:]
    if not rest:
        return Command(program, "", "", line)
    return Command(_base(rest[0]), "", rest[1] if len(rest) > 1 else "", line)


def _split(line: str) -> list[str]:
    """Split a command line that is one string; a path with blanks in it stays whole."""
    words = line.split()
    first = _base(words[0]) if words else ""
    known = first in _FIRST_WORDS or _PYTHON.fullmatch(first)
    return words if known or not line.startswith("/") else [line]


def _base(path: str) -> str:
    return path.rsplit("/", 1)[-1]


_OLLAMA: Final = next(app for app in APPS if app.name == "Ollama")
_FIRST_WORDS: Final = frozenset(
    program.split(" ", 1)[0] for app in APPS for program in app.programs
)
