"""What runs inside a prepared job: standard library only, Python 3.8 to 3.14.

It never raises into the job, prints, imports a framework or initialises a device. Until a
framework is imported it is one entry in ``sys.meta_path``.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing takes 19 ms, as long as the interpreter itself
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any

    from .spans import report, span, watch

__all__ = ["attach", "report", "span", "start", "watch"]

FRAMEWORKS = {
    "torch.cuda": "torch",
    "jax": "jax",
    "tensorflow": "tensorflow",
    "mlx.core": "mlx",
    "cupy": "cupy",
}
"""Module after whose import its framework is ready -> the framework."""
_SPEC = __spec__


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(name)
    from . import spans  # 25 ms of every job's start

    return getattr(spans, name)


def start() -> None:
    """Wait for a framework; once per process, however often it is called. Raises nothing."""
    try:
        if any(isinstance(finder, _Finder) for finder in sys.meta_path):
            return
        sys.meta_path.append(_Alias())
        ready = [name for name in FRAMEWORKS if name in sys.modules]
        sys.meta_path.insert(0, _Finder(name for name in FRAMEWORKS if name not in ready))
        for name in ready:
            _ready(name)
    except Exception:  # nothing of ours may reach the job
        pass


def attach(folder: str) -> None:
    """Start at once, with mailboxes in ``folder``: in a process that was not prepared."""
    try:
        from . import agent

        os.environ["GPUWATCHD_PROBE_DIR"] = folder
        for name, framework in FRAMEWORKS.items():
            if name in sys.modules:
                agent.start(framework, 0.0)
        start()
    except Exception:  # nothing of ours may reach the job
        pass


def _ready(name: str) -> None:
    from . import agent  # the modules that it needs are imported by every framework anyway

    agent.framework_imported(FRAMEWORKS[name])


class _Finder:
    """Says when a framework's import is finished; it finds nothing itself."""

    def __init__(self, names: Any) -> None:
        self.waiting = set(names)
        self.asking: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of the next finders, its loader telling us when it is done."""
        if name not in self.waiting or name in self.asking:
            return None
        self.asking.add(name)
        try:
            return self._next_spec(name, path, target)
        finally:
            self.asking.discard(name)

    def _next_spec(self, name: str, path: Any, target: Any) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                _hook(spec.loader, name, self.waiting)
                return spec
        return None


def _hook(loader: Any, name: str, waiting: set[str]) -> None:
    """Whoever only asks for the spec, to see what is installed, imports nothing: wait on."""
    try:
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            """Execute the module, then say that its framework is ready."""
            execute(module)
            try:
                waiting.discard(name)
                _ready(name)
            except Exception:  # nothing of ours may reach the job
                pass

        loader.exec_module = exec_module
    except Exception:  # nothing of ours may reach the job
        pass


class _Alias:
    """Lets a job ``import gpuwatchd.probe`` where no gpuwatchd is installed; asked last."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        """Return the spec of what stands for gpuwatchd."""
        if name not in ("gpuwatchd", "gpuwatchd.probe"):
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, self, is_package=name == "gpuwatchd")  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> Any:
        """Return this package for the probe; None, a new module, for the package around it."""
        return sys.modules[__name__] if spec.name == "gpuwatchd.probe" else None

    def exec_module(self, module: Any) -> None:
        """Give this package its own spec back; there is nothing to execute."""
        global __spec__  # noqa: PLW0603 - imports within it would warn
        if module is sys.modules[__name__]:
            __spec__ = _SPEC
