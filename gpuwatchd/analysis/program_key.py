"""Which program a process runs, as a key: the same work has the same key, anything else another.

Knowing what earlier runs did is worth much when they were runs of the same program, and worse than
nothing when they were not: so the key is strict, and where it cannot be, there is none. It is a
hash of the executable, the script with its size and time of change, the arguments, the user and
the main library of its framework; for a judgement the card's model and memory join them. What
changes from run to run without changing the work is left out of the arguments:

* options for seeds, ports, addresses, ranks, GPU numbers, names of runs, experiments and jobs, and
  places to write to (``--seed 7``, ``--master-port=29500``, ``--run-name``, ``--output-dir``,
  ``trainer.seed=1``), with their values;
* dates, times, UUIDs, hashes of 8 to 40 digits, numbers of nine digits and more, numbers of jobs
  (``job_4711``), IP addresses, ports of localhost and names below a temporary directory.

No key have shells, notebook kernels, interpreters without a script, code on the command line,
programs that have overwritten their command line, and what draws windows. Secrets are masked
before anything is hashed; nothing but the hash is kept.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.core.model import Device

_SHELLS: Final = frozenset(
    {"sh", "bash", "dash", "zsh", "fish", "ksh", "csh", "tcsh", "busybox", "tmux", "screen"}
)
_NOTEBOOKS: Final = re.compile(
    r"(?:i?python_?kernel|ipykernel|ipython|jupyter|notebook|colab_kernel|xeus|xpython|spyder)",
    re.IGNORECASE,
)
_INTERPRETER: Final = re.compile(
    r"(?:python|pypy|node|nodejs|ruby|perl|php|julia|R|Rscript|lua|luajit|java|octave|tclsh)[\d.]*"
)
_PYTHON: Final = re.compile(r"(?:python|pypy)[\d.]*")
_FLAGS: Final = re.compile(r"-[bBdEhIOPqsSuvVx]*([mci])(.*)", re.DOTALL)
"""Python's flags, up to the one that ends them: a module, a command, an interactive session."""
_CONSOLES: Final = frozenset({"code", "pdb", "asyncio", "idlelib"})
_TAKES_VALUE: Final = frozenset({"-X", "-W", "--check-hash-based-pycs"})

_DROPPED: Final = frozenset(
    {
        *("o", "output", "out", "outdir", "outfile", "save", "savedir", "workdir", "tmpdir"),
        *("logdir", "logfile", "log", "logs", "tensorboard", "tb", "tag", "tags", "comment"),
        *("notes", "description", "desc", "experiment", "exp", "rank", "host", "addr", "address"),
        *("gpu", "gpu-id", "gpu-index", "device-id", "uuid", "timestamp", "date"),
        *("master-addr", "rdzv-endpoint", "rdzv-conf", "multiprocessing-fork", "parent-pid"),
    }
)
"""Options that say nothing about the work."""
_ENDINGS: Final = frozenset({"seed", "seeds", "port", "ports", "addr", "endpoint"})
"""The same by the last part of the name."""
_RUN: Final = frozenset(
    {"run", "exp", "experiment", "job", "trial", "wandb", "mlflow", "session", "task", "sweep"}
)
_RUN_FACTS: Final = frozenset({"id", "name", "group", "tag", "tags", "notes", "title", "index"})
_RANKS: Final = frozenset({"local", "node", "global", "machine", "process", "worker", "world"})
_WRITTEN: Final = frozenset(
    {
        *("output", "out", "log", "logs", "logging", "save", "result", "results", "tensorboard"),
        *("tb", "wandb", "work", "working", "tmp", "temp", "scratch", "run", "runs"),
    }
)
_PLACES: Final = frozenset(
    {"dir", "directory", "path", "folder", "file", "root", "prefix", "base", "to"}
)

_VARYING: Final = re.compile(
    r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
    r"|\d{4}-\d{2}-\d{2}(?:[T_ -]?\d{2}[:._-]?\d{2}(?:[:._-]?\d{2}(?:\.\d+)?)?Z?)?"
    r"|\b\d{8}[-_T]\d{4,6}\b"
    r"|\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b"
    r"|(?<=localhost):\d+"
    r"|(?<=[/_-])(?:job|run|exp|trial|slurm|pid)[-_]?\d+\b"
    r"|^(?:job|run|exp|trial|slurm|pid)[-_]?\d+$"
    r"|(?<=^/tmp/)[^/]+|(?<=^/var/tmp/)[^/]+|(?<=^/dev/shm/)[^/]+"
    r"|\d{9,}",
    re.IGNORECASE,
)
_HASH: Final = re.compile(
    r"(?<![0-9A-Za-z])(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,40}(?![0-9A-Za-z])"
)
_DEVICE: Final = re.compile(r"\b(cuda|gpu|xpu|mps|hip):\d+\b")


class Launch(NamedTuple):
    """What a command line starts."""

    program: str
    """Base name of the executable: "python3.11", "llama-server"."""
    script: str
    """Script as it was given, "" when the executable is the program."""
    module: str
    """Python module started with ``-m``."""
    arguments: tuple[str, ...]
    """What follows."""


class FileMark(NamedTuple):
    """What tells a changed file from the same one."""

    path: str
    size: int | None = None
    changed_ns: int | None = None


def launch(argv: Sequence[str], executable: str | None = None) -> Launch | None:
    """Return what a command line starts; None when that says nothing about a next run.

    ``argv``: the command line, whole, secrets masked.

    Examples
    --------
    >>> launch(["python3", "-u", "train.py", "--lr", "0.1"])
    Launch(program='python3', script='train.py', module='', arguments=('--lr', '0.1'))
    >>> launch(["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"])[2:]
    ('vllm.entrypoints.openai.api_server', ('--model', 'm'))
    >>> launch(["bash"]), launch(["python"]), launch(["python", "-c", "import x"])
    (None, None, None)
    """
    if not argv or not argv[0]:
        return None
    first = posixpath.basename(argv[0]).lstrip("-")
    program = posixpath.basename(executable) if executable else first
    # A title that was written over the command line: what it says is not what was started.
    written_over = ": " in argv[0] or "::" in argv[0] or (" " in argv[0] and len(argv) == 1)
    if written_over or (" " in argv[0] and _PYTHON.fullmatch(program)):
        return None
    if program in _SHELLS or first in _SHELLS or _NOTEBOOKS.match(program):
        return None
    if not _INTERPRETER.fullmatch(program):
        return Launch(program, "", "", tuple(argv[1:]))
    if executable and not _INTERPRETER.fullmatch(first):
        return None
    if not _PYTHON.fullmatch(program):
        return _scripted(program, argv)
    return _python(program, argv)


def _scripted(program: str, argv: Sequence[str]) -> Launch | None:
    for position, word in enumerate(argv[1:], 1):
        if word in {"-e", "-E", "--eval", "-r"}:
            return None
        if not word.startswith("-"):
            options = (*argv[1:position], *argv[position + 1 :])
            return Launch(program, word, "", options)
    return None


def _python(program: str, argv: Sequence[str]) -> Launch | None:
    position = 1
    while position < len(argv):
        word = argv[position]
        flags = _FLAGS.fullmatch(word)
        if word == "-" or (flags is not None and flags[1] != "m"):
            return None
        if flags is not None:
            following = argv[position + 1 : position + 2]
            module, rest = flags[2] or "".join(following), argv[position + 1 :]
            if not module or _NOTEBOOKS.match(module) or module in _CONSOLES:
                return None
            return Launch(program, "", module, tuple(rest if flags[2] else rest[1:]))
        if not word.startswith("-"):
            if _NOTEBOOKS.match(posixpath.basename(word)):
                return None
            return Launch(program, word, "", tuple(argv[position + 1 :]))
        position += 2 if word in _TAKES_VALUE else 1
    return None


def settled(word: str) -> str:
    """Return a word without what changes from run to run.

    Examples
    --------
    >>> settled("/data/run_17/2026-11-21T09:30/x.json"), settled("cuda:3"), settled("gpt2-1.5b")
    ('/data/#/#/x.json', 'cuda', 'gpt2-1.5b')
    """
    return _DEVICE.sub(r"\1", _HASH.sub("#", _VARYING.sub("#", word)))


def _says_nothing(option: str) -> bool:
    """Say whether an option's name, without dashes in front, is of one that is left out."""
    name = option.lower().lstrip("+~").replace("_", "-")
    parts = name.replace(".", "-").split("-")
    last, before = parts[-1], parts[-2] if len(parts) > 1 else ""
    return (
        name in _DROPPED
        or name.rpartition(".")[2] in _DROPPED
        or last in _ENDINGS
        or (last in _RUN_FACTS and before in _RUN)
        or (last in {"rank", "id", "index"} and before in _RANKS)
        or (last in _PLACES and bool(_WRITTEN.intersection(parts[:-1])))
    )


def settled_arguments(words: Iterable[str]) -> tuple[str, ...]:
    """Return arguments without what changes from run to run, in their order.

    Examples
    --------
    >>> settled_arguments(["--lr", "0.1", "--seed", "7", "--output-dir=/x/1", "optim.lr=3"])
    ('--lr', '0.1', 'optim.lr=3')
    """
    texts: list[str] = []
    skip = False
    for word in words:
        is_option = word.startswith("-") and not re.fullmatch(r"-\d+(?:\.\d*)?", word)
        if skip and not is_option:
            skip = False
            continue
        name, mark, _ = word.lstrip("-").partition("=")
        looks_named = is_option or (bool(mark) and re.fullmatch(r"[\w.+~/-]+", name) is not None)
        skip = looks_named and _says_nothing(name)
        if skip:
            # With "=" the value goes with it, otherwise it is the next word.
            skip = not mark
            continue
        texts.append(settled(word))
    return tuple(texts)


def program_key(
    found: Launch,
    *,
    user: str | None,
    executable: FileMark | None = None,
    script: FileMark | None = None,
    library: FileMark | None = None,
) -> str:
    """Return the key of a program, 32 hexadecimal digits.

    Parameters
    ----------
    found
        What is started, from :func:`launch`.
    user
        Who runs it: what one says of a program is not said for another.
    executable, script
        The files, where they can be read: changed code is another program.
    library
        The framework's main library: another version is another program.

    Examples
    --------
    >>> first = launch(["python", "train.py", "--seed", "1"])
    >>> again = launch(["python", "train.py", "--seed", "2"])
    >>> other = launch(["python", "train.py", "--batch", "2"])
    >>> program_key(first, user="a") == program_key(again, user="a")
    True
    >>> program_key(first, user="a") == program_key(other, user="a")
    False
    """
    marks = [
        "" if mark is None else f"{settled(mark.path)}|{mark.size}|{mark.changed_ns}"
        for mark in (executable, script, library)
    ]
    named = settled(found.script) if script is None else ""
    parts = [
        *(found.program, named, found.module, user or "", *marks),
        *settled_arguments(found.arguments),
    ]
    return _digest(parts)


def key_on(program: str | None, device: Device) -> str | None:
    """Return the key of a program on a model of card; None where the program has none.

    Examples
    --------
    >>> from gpuwatchd.core.model import Device
    >>> card = Device(uid="u", vendor="nvidia", index=0, name="A100", memory_total_bytes=80)
    >>> key_on(None, card), len(key_on("ab", card))
    (None, 32)
    """
    if program is None:
        return None
    return _digest([program, device.vendor, device.name, str(device.memory_total_bytes)])


def _digest(parts: Iterable[str]) -> str:
    text = "\0".join(part.encode("utf-8", "replace").decode() for part in parts)
    # hashlib's own, without the 3 MiB of OpenSSL that hashlib brings into a daemon.
    from _blake2 import blake2b  # noqa: PLC0415

    return blake2b(text.encode(), digest_size=16, person=b"gpuwatchd-key-1").hexdigest()
