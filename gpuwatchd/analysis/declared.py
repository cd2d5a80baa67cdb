"""Sizes that a program was told or a server tells: numbers beside the curve. Pure.

Options, variables and configuration files are gone through by the kind of names that programs use
(:data:`_RULES`), whichever program it is. Only numbers are taken of what they say.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from gpuwatchd.analysis.frameworks import engine_addresses
from gpuwatchd.core import units
from gpuwatchd.core.codes import FactName
from gpuwatchd.core.model import GrowthFact
from gpuwatchd.core.model.readings import FOR_GOOD_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpuwatchd.core.model import ServerReading

Kind = Literal[
    "share",  # of the card
    "vllm",  # the same, for vLLM
    "xla",  # the same, for the pool of XLA
    "pool",  # whether there is that pool
    "serves",  # it is a server of vLLM
    "limit",  # of what is taken of the card, bytes
    "bytes",  # of a part
    "count",  # of what a buffer keeps
    "item",  # bytes of one of these
    "each",  # the same, of what shares a word with its name
    "shape",  # elements of one of these
    "element",  # bytes of one element
    "layers",  # of a KV cache; the next four, too
    "heads",
    "head_dim",
    "tokens",
    "sequences",
    "gpu",  # whether buffers are there
    "mps",  # what is taken of the card of a number, where each has a limit of its own, bytes
]


class Setting(NamedTuple):
    """One number that a program was given."""

    kind: Kind
    value: float
    source: str
    """Where: "command line", the name of a variable or of a file."""
    option: str
    """Its name, with the part of the configuration that it is in."""
    weight: float
    host: bool = False
    """It is of the host's memory."""
    sides: str = ""
    """A shape, for people."""


class Declared(NamedTuple):
    """What one process was told, and the newest answer of the model server it belongs to."""

    settings: tuple[Setting, ...] | None = None
    """None: it was not looked at."""
    engine: ServerReading | None = None
    model: str | None = None
    """The model that it has for that server, where this is known."""


# ---- numbers: None for what is none, below 0, not finite or more than any machine has ----

MOST_WORDS: Final = 4096
MOST_SETTINGS: Final = 64
LEAST_BYTES: Final = 16.0 * 1024**2
"""A smaller part is not what grows."""
LONGEST_NAME: Final = 80
_MOST: Final = float(1 << 60)
_LONGEST: Final = 64
_LONGEST_MAPPING: Final = 4096
_NUMBER: Final = re.compile(
    r"(?:\w{1,16}[:=])?\+?((?:\d[\d_]{0,24}(?:\.\d{0,18})?|\.\d{1,18})(?:[eE][+-]?\d{1,3})?)"
    r"\s?([kKmMgGtT]?)(i?)([bB]?)"
)
"""A number with its unit; before it the number of a GPU or the name of a pool."""
_UNIT: Final = re.compile(
    r"_(?:in_)?(?:([kmgt])(?:i?b|(?:ilo|ega|iga|era)bytes?)|bytes?)(?:_size)?(?:_|$)"
)
_SIDES: Final = re.compile(r"[\[(]?\s*(\d{1,9}(?:\s*[x,*\s]\s*\d{1,9}){0,5})\s*,?\s*[\])]?")
_ELEMENTS: Final = {
    **dict.fromkeys(("uint8", "int8", "bool", "byte", "fp8", "u1"), 1.0),
    **dict.fromkeys(("float16", "bfloat16", "fp16", "bf16", "half", "int16"), 2.0),
    **dict.fromkeys(("float32", "fp32", "float", "int32"), 4.0),
    **dict.fromkeys(("float64", "fp64", "double", "int64"), 8.0),
}


def _text(value: object) -> str:
    """Return a number or a short text as text; "" for anything else."""
    if isinstance(value, str):
        return value.strip() if len(value) <= _LONGEST else ""
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MOST
    return repr(value) if number else ""


def _amount(value: object) -> tuple[float, str, str] | None:
    """Return a number, its letter (k, m, g, t) and what follows that."""
    match = _NUMBER.fullmatch(_text(value))
    amount = float(match[1].replace("_", "")) if match else 0.0
    good = match is not None and 0.0 < amount <= _MOST
    return (amount, match[2].lower(), match[3] + match[4]) if good and match else None


def _share(_: str, value: object) -> float | None:
    text = _text(value)
    found, whole = _amount(text.removesuffix("%")), 100.0 if text.endswith("%") else 1.0
    return found[0] / whole if found and found[0] <= whole and not any(found[1:]) else None


def _size(name: str, value: object, unit: str = "") -> float | None:
    """Return bytes, by the unit of the value or that of the name; None where neither has any.

    A bare letter is binary, as it is for most programs: too high rather than too low.
    """
    found, named = _amount(value), _UNIT.search(f"_{name}{unit}")
    if found is None or not (found[1] or found[2] or named):
        return None
    amount, letter, rest = found
    if not letter and not rest and named:
        letter, rest = named[1] or "", "i"
    decimal = 1000.0 if rest in {"b", "B"} else 1024.0
    size = amount * decimal ** " kmgt".index(letter or " ")
    return size if size <= _MOST else None


def _limit(name: str, value: object) -> float | None:
    """Return bytes as :func:`_size`; a large number without a unit is of bytes, too."""
    size = _size(name, value) or _size(name, value, "_bytes") or 0.0
    return size if size >= LEAST_BYTES else None


def _number(_: str, value: object) -> float | None:
    return _count(value)


def _count(value: object) -> float | None:
    found = _amount(value)
    count = found[0] * 1000.0 ** " kmgt".index(found[1] or " ") if found and not found[2] else 0.0
    return count if 1.0 <= count <= _MOST else None


def _sides(value: object) -> list[int]:
    if isinstance(value, list | tuple):
        value = ",".join([_text(part) for part in islice(value, 8)])
    match = _SIDES.fullmatch(_text(value))
    return [int(side) for side in re.findall(r"\d+", match[1])] if match else []


def _shape(_: str, value: object) -> float | None:
    elements = float(math.prod(_sides(value) or [0]))
    return elements if 0.0 < elements <= _MOST else None


def _element(_: str, value: object) -> float | None:
    return _ELEMENTS.get(_text(value).lower().rpartition(".")[2])


def _is_pool(_: str, value: object) -> float:
    return float(_text(value).lower() not in {"platform", "cuda_async"})


def _is_gpu(_: str, value: object) -> float:
    return float(not _text(value).lower().startswith("cpu"))


# ---- what names mean -----------------------------------------------------------------------------

_KEPT: Final = (
    "obs|observation|state|frame|item|sample|feat|feature|transition|image|pixel|latent|entry|"
    "record|embed|embedding|emb|proj|moco|tile|vector|clip|volume|row|graph|episode"
)
_KEEPS: Final = "cache|buffer|pool|replay|reservoir|queue|bank|lru|store|ring|rollout|experience"
_SHAPED: Final = rf"(?:.*_)?(?:{_KEPT}|{_KEEPS}|memory)_(?:shape|dims?)"
_SIDED: Final = rf"(?:.*_)?(?:{_KEPT})(?:_size)?"
_GPU: Final = r"(?:cuda|gpu|vram|device)"
_Read = Callable[[str, object], float | None]
_RULES: Final[tuple[tuple[Kind, str, _Read, float], ...]] = (
    ("vllm", r"(?:.*_)?gpu_memory_utilization", _share, 0.8),
    # What it leaves free is for activations and graphs, which take some of it.
    ("share", r"mem_fraction_static", _share, 0.6),
    ("xla", r"xla_(?:python_)?client_mem_fraction", _share, 0.8),
    ("share", r"per_process_(?:gpu_)?mem(?:ory)?_fraction", _share, 0.8),
    ("share", r"(?:.*_)?fraction_of_gpu_memory_to_use|gpu_max_alloc_fraction", _share, 0.8),
    ("share", rf"(?:.*_)?{_GPU}_mem(?:ory)?_(?:frac|fraction|ratio|share|limit)", _share, 0.7),
    ("share", r"mem(?:ory)?_frac(?:tion)?", _share, 0.5),
    # Not preallocated is a pool all the same; without its allocator there is none.
    ("pool", r"xla_python_client_preallocate", lambda *_: 1.0, 0.7),
    ("pool", r"xla_(?:python_)?client_allocator", _is_pool, 0.7),
    # The arena of one session of ONNX Runtime.
    ("bytes", r"gpu_mem_limit", partial(_size, unit="_bytes"), 0.7),
    ("limit", rf"(?:.*_)?{_GPU}_mem(?:ory)?_limit(?:_[kmgt]i?b|_bytes)?(?:_\d)?", _limit, 0.7),
    (
        "limit",
        rf"(?:max_)?{_GPU}(?:_mem(?:ory)?)?(?:_limit|_budget)?(?:_[kmgt]i?b|_bytes)?",
        _size,
        0.7,
    ),
    # Of each GPU by its number.
    ("limit", r"max_memory_\d", _size, 0.7),
    ("bytes", r"swap_space|hicache_size", partial(_size, unit="_gb"), 0.5),
    ("bytes", r"cache_ram", partial(_size, unit="_mb"), 0.5),
    # Of one layer, and seldom used up.
    ("bytes", r"mem_pool_size|workspace", partial(_size, unit="_mb"), 0.3),
    ("bytes", r"(?:.*_)?max_workspace_size", _limit, 0.3),
    ("shape", rf"{_SHAPED}|(?:embed|embedding|emb|feat|feature)_size", _shape, 1.0),
    ("shape", _SIDED, lambda _, value: _shape(_, value) if len(_sides(value)) > 1 else None, 1.0),
    ("element", rf"(?:{_KEPT}|{_KEEPS})_dtype", _element, 0.7),
    # The type of a model says little of what it keeps.
    ("element", r"dtype", _element, 0.5),
    ("element", r"bytes_per_(?:element|value)|(?:element|dtype)_(?:size|bytes)", _number, 0.7),
    ("item", rf"(?:{_KEPT})(?:_size|_bytes|_[kmgt]i?b)+", _size, 0.7),
    ("item", rf"(?:kv_)?(?:bytes|[kmgt]i?b)_per_(?:{_KEPT}|token)", _size, 0.7),
    ("gpu", r"(?:replay|buffer|memory)(?:_.*)?_device", _is_gpu, 1.0),
    ("layers", r"(?:n|num)_(?:hidden_)?layers?", _number, 0.5),
    ("heads", r"(?:n|num)_(?:kv|key_value)_heads?", _number, 0.5),
    ("head_dim", r"head_(?:dim|size)", _number, 0.5),
    ("tokens", r"max_(?:seq(?:uence)?_len(?:gth)?|context(?:_len(?:gth)?)?|tokens)", _number, 0.5),
    ("sequences", r"max_(?:batch_size|num_seqs)", _number, 0.5),
)
"""What an option is by its name, with the part that it is in or without; the first that fits."""


def _words(names: str) -> re.Pattern[str]:
    return re.compile(rf"(?:^|_)(?:{names})s?(?:_|$)")


_PART: Final = _words(f"{_KEEPS}|arena|workspace")
_COUNTED: Final = re.compile(
    rf"capacity|moco_k|\w+_rows|(?:n|num|max)_(?:\w+_)?cached(?:_\w+)?|(?:.*_)?(?:{_KEEPS})s?|"
    rf"(?:.*_)?(?:{_KEEPS}|memory)s?_(?:\w+_)?(?:tokens|max_?size|size|capacity|max_?len|len|"
    rf"length|entries|keys|slots|steps|(?:{_KEPT})s)"
)
"""A "memory" in bytes is rather a limit of the job; counted, it is one of experience."""
_NO_PART: Final = _words(
    "disk|file|log|logger|page|tmp|download|network|socket|read|write|(?<!gpu_)prefetch|shuffle|"
    "tokenizer|min|minimum|initial|init|warmup|block|chunk|batch|ttl|age|timeout|ratio|"
    "fraction|interval|send|recv|http|shm|shared"
)
_HOST: Final = _words("cpu|host|ram|pinned|swap|offload|hicache")
_OF_GPU: Final = _words("gpu|cuda|vram|device|kv|replay")
"""Other caches are as often on a disk."""
_EACH: Final = re.compile(r"(?!mem|ram|max|arena|workspace)[a-z]+_(?:bytes|[kmgt]i?b)")
_COUNTLESS: Final = float(1 << 30)
"""So many without a unit are rather bytes."""
_NAME: Final = re.compile(rf"[A-Za-z][\w.\-]{{0,{LONGEST_NAME - 1}}}")
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

MPS_LIMIT: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
TORCH: Final = "per_process_memory_fraction"
VARIABLES: Final = (
    *("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"),
    *("XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_ALLOCATOR"),
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"),
    *(MPS_LIMIT, "CUPY_GPU_MEMORY_LIMIT"),
    *("CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT_0"),
    *("FLAGS_fraction_of_gpu_memory_to_use", "FLAGS_gpu_memory_limit_mb", "CUDA_MEMORY_FRACTION"),
)
"""The variables of the environment that are read, and no others."""


def of_argv(argv: Sequence[str]) -> tuple[Setting, ...]:
    """Return the sizes on a command line; of an option that comes twice the last counts.

    Examples
    --------
    >>> [one[:2] for one in of_argv(("t.py", "--cache-gb", "8", "replay.capacity=1e6"))]
    [('bytes', 8589934592.0), ('count', 1000000.0)]
    """
    told = list(islice(_pairs(argv[:MOST_WORDS]), MOST_WORDS))
    found = of_pairs(reversed(told), "command line")[::-1]
    if engine_addresses.serves("vLLM", argv):
        return (*found, Setting("serves", 1.0, "default of vLLM", "", 0.4))
    return found


of_shown_argv: Final = lru_cache(maxsize=256)(of_argv)
"""The same of a command line whose secrets are masked, which is asked about again and again."""


def _pairs(argv: Sequence[str]) -> Iterator[tuple[str, object]]:
    words = engine_addresses.words_of(argv)
    for at, word in enumerate(words):
        # NAME:VALUE is one of Python; a place (redis-cache:6379) has no underscore.
        name, mark, value = word.partition(":" if _COLON.match(word) else "=")
        if mark:
            yield from of_text(name.lstrip("-+"), value)
        elif re.match(r"--|-[A-Za-z]{2}", name) and at + 1 < len(words):
            name = name.lstrip("-")
            sides = tuple(takewhile(str.isdigit, words[at + 1 : at + 7]))
            shaped = len(sides) > 1 and re.fullmatch(_SHAPED, plain(name))
            yield from ((name, sides),) if shaped else of_text(name, words[at + 1])
        elif re.fullmatch("-[A-Za-z]", name) and at + 2 < len(words):
            yield words[at + 1], words[at + 2]  # -o NAME VALUE


_COLON: Final = re.compile(r"[A-Za-z][^\W_]*_\w*:")
_FLOW: Final = re.compile(r"""["']?([\w.\-]{1,80})["']?\s*:\s*(\[[^][{}]{0,64}\]|[^][{},]{1,80})""")
"""One name with its value in a mapping of one line."""


def of_text(name: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield a name with its value, or those within a mapping of one line.

    Examples
    --------
    >>> list(of_text("cache", "{max_gb: 2, shape: [4, 4]}")), list(of_text("a", "1"))
    ([('cache.max_gb', '2'), ('cache.shape', '[4, 4]')], [('a', '1')])
    """
    if not text.startswith("{"):
        yield name, text
    elif text.count("{") == 1:
        for match in islice(_FLOW.finditer(text[:_LONGEST_MAPPING]), MOST_SETTINGS):
            yield f"{name}.{match[1]}", match[2].strip(" \"'")


def of_variables(variables: Iterable[tuple[str, str]]) -> tuple[Setting, ...]:
    """Return the sizes that variables of the environment give."""
    found: list[Setting] = []
    for name, text in variables:
        pairs = [(name, text)]
        if name.startswith("PYTORCH"):
            parts = [part.partition(":") for part in text[:1024].split(",")]
            pairs = [(key.strip(), value) for key, _, value in parts]
        elif name == MPS_LIMIT and "," in text:
            parts = [part.partition("=") for part in text[:1024].split(",")]
            sizes = [(key.strip(), _limit("", value)) for key, _, value in parts]
            found += [Setting("mps", size, name, key, 0.7) for key, size in sizes if size]
        found += of_pairs(pairs, name)
    return tuple(found)


def of_pairs(pairs: Iterable[tuple[str, object]], source: str) -> tuple[Setting, ...]:
    """Return the sizes among names with values; of a name that comes twice the first counts."""
    found: dict[tuple[str, str], Setting] = {}
    for path, value in pairs:
        if _NAME.fullmatch(path) and len(found) < MOST_SETTINGS:
            for setting in _meant(path, value, source):
                found.setdefault((plain(path), setting.kind), setting)
    return tuple(found.values())


def plain(name: str) -> str:
    """Return a name in small letters with one sign between its words."""
    return _CAMEL.sub("_", name).lower().replace("-", "_").replace(".", "_")


def _meant(path: str, value: object, source: str) -> Iterator[Setting]:
    """Yield what one option means: what has a bare letter may be a size or a count."""
    name, tail = plain(path.rpartition(".")[2]), plain(".".join(path.split(".")[-2:]))
    weight = 0.7 if _OF_GPU.search(plain(path)) else 0.5
    base = Setting("bytes", 0.0, source, path, weight, bool(_HOST.search(plain(path))))
    for kind, pattern, read, weight in _RULES:
        if not (re.fullmatch(pattern, name) or re.fullmatch(pattern, tail)):
            continue
        if (number := read(name, value)) is not None:
            sides = " x ".join(map(str, _sides(value))) if kind == "shape" else ""
            yield base._replace(kind=kind, value=number, weight=weight, sides=sides)
            return
    if _NO_PART.search(plain(path)):
        return
    large = 0.0 if (_count(value) or 0.0) < _COUNTLESS else _size(name, value, "_bytes")
    if _PART.search(tail) and (size := _size(name, value) or large):
        yield base._replace(value=size)
    elif _EACH.fullmatch(name) and (size := _size(name, value)):
        yield base._replace(kind="each", value=size)
    if (_COUNTED.fullmatch(name) or _COUNTED.fullmatch(tail)) and (count := _count(value)):
        yield base._replace(kind="count", value=count)


# ---- facts ---------------------------------------------------------------------------------------

WARM_UP_S: Final[dict[str, float]] = {
    **dict.fromkeys(("vLLM", "SGLang"), 600.0),  # compile, measure what is free, capture graphs
    "TensorRT": 600.0,  # builds and times its engines
    "Triton Server": 300.0,  # loads its models one after another
    **dict.fromkeys(("JAX", "TensorFlow", "TensorFlow or JAX"), 300.0),  # compile each new shape
    "PyTorch": 120.0,  # tries algorithms; the optimizer's state comes with its first step
    **dict.fromkeys(("Ollama", "llama.cpp"), 120.0),  # load the model
    **dict.fromkeys(("ONNX Runtime", "CuPy", "RAPIDS", "MLX"), 60.0),  # their pools begin to fill
}
"""How long a framework takes until it holds what it needs, seconds."""
_WARM: Final = 0.6
_GUESSED: Final = 0.3
"""Weight of a size whose element is a guess."""
XLA: Final = frozenset({"JAX", "TensorFlow", "TensorFlow or JAX"})
_USUAL: Final = {"pool": 0.75, "serves": 0.92}
"""What XLA and vLLM take at most unless told otherwise; before, vLLM took 0.9."""


def facts(
    declared: Declared,
    *,
    framework: str | None,
    card_bytes: float | None,
    age_s: float | None = None,
    host: bool = False,
) -> tuple[GrowthFact, ...]:
    """Return what is known beside the curve of a process of some age in seconds.

    Without ``card_bytes`` there are no shares of it. ``host`` is about its memory on the host: only
    the parts that may be there count.
    """
    settings, engine = declared.settings or (), declared.engine
    found: list[GrowthFact] = []
    if not host:
        found += () if engine is None else _of_engine(engine, declared.model, card_bytes)
        told = any(fact.level_bytes is not None for fact in found)
        found += _levels(settings, framework, card_bytes, told=told) if card_bytes else ()
    found += _parts(settings, host=host)
    warm_s = WARM_UP_S.get(framework or "", 0.0)
    if age_s is not None and 0.0 <= age_s < warm_s:
        weight = round(_WARM * (1.0 - age_s / warm_s), 3)
        text = f"warms up for about {warm_s / 60.0:g} min"
        name, source = FactName.WARM_UP, framework or ""
        found.append(GrowthFact(name=name, source=source, weight=weight, text=text))
    return tuple(found)


def _fact(
    name: FactName, of: Setting, text: str, *, level: float | None = None, part: float | None = None
) -> GrowthFact:
    return GrowthFact(
        name=name, source=of.source, weight=of.weight, text=text, level_bytes=level, part_bytes=part
    )


def is_enforced(one: Setting) -> bool:
    """Say whether memory runs out there: a limit, which a leak reaches, and no size to grow to."""
    torch = one.source.startswith("PYTORCH") and plain(one.option) == TORCH
    return torch or one.source == MPS_LIMIT


def _levels(
    settings: Sequence[Setting], framework: str | None, card_bytes: float, *, told: bool
) -> Iterator[GrowthFact]:
    """Yield what it takes of the card at most; ``told``: its server says so itself."""
    name, kinds = FactName.DECLARED_SHARE, [one.kind for one in settings]
    has_pool = framework in XLA and all(one.value for one in settings if one.kind == "pool")
    usual = {"pool": "xla" not in kinds, "serves": framework == "vLLM" and not told}
    # vLLM takes no share where it is told how large its cache is.
    whole = any(plain(one.option) == "kv_cache_memory_bytes" for one in settings)
    usual["serves"] &= "vllm" not in kinds and not whole
    for position, one in enumerate(settings):
        kind, size = one.kind, _USUAL.get(one.kind, one.value) * card_bytes
        if (kind in {"xla", "pool"} and not has_pool) or is_enforced(one):
            continue
        if kind == "limit" and one.value < card_bytes:
            text = f"takes {units.size(one.value)} of the card at most ({one.option})"
            yield _fact(name, one, text, level=one.value)
        elif kind == "vllm" and framework != "vLLM":
            # What runs vLLM beside its own work gives it a part.
            yield _fact(name, one, f"gives vLLM {one.value:g} of the card", part=size)
        elif kind in {"share", "vllm", "xla"}:
            yield _fact(name, one, f"takes {one.value:g} of the card ({one.option})", level=size)
        elif usual.get(kind) and kind not in kinds[:position]:
            text = f"takes {_USUAL[kind]:g} of the card unless told otherwise"
            yield _fact(name, one, text, level=size)


def _parts(settings: Sequence[Setting], *, host: bool) -> Iterator[GrowthFact]:
    """Yield what buffers, caches and pools take once they are full."""
    name, counted = FactName.DECLARED_SIZE, set()
    for one in settings:
        each = _item(settings, one)
        if each is None:
            continue  # so many of what?
        counted.add(one.option)
        place, size = _beside(settings, "gpu", one), one.value * each.value
        if LEAST_BYTES <= size <= _MOST and (place is None or bool(place.value) != host):
            text = f"{one.option} of {one.value:,.0f} x {each.sides}, {units.size(size)}"
            yield _fact(name, one._replace(weight=each.weight), text, part=size)
    sizes = [one for one in settings if one.kind == "bytes" and one.option not in counted]
    for one in sizes:
        # Of a pool with a size at first and one at most the latter counts.
        most = max(
            other.value for other in sizes if _words_of(other.option) == _words_of(one.option)
        )
        if LEAST_BYTES <= one.value == most and (host or not one.host):
            text = f"{one.option} of {units.size(one.value)}"
            yield _fact(name, one, text, part=one.value)


def _item(settings: Sequence[Setting], count: Setting) -> Setting | None:
    """Return the bytes of what a buffer keeps; None where nothing says them."""
    if count.kind not in {"count", "tokens"}:
        return None
    each = [
        one
        for one in settings
        if one.kind == "each" and _words_of(one.option) & _words_of(count.option)
    ]
    item, usual = _beside(settings, "item", count) or next(iter(each), None), 2.0
    if item is not None:
        return item._replace(sides=f"{item.value:g} bytes")
    if count.kind == "tokens":
        dims = [_beside(settings, kind, count) for kind in ("layers", "heads", "head_dim")]
        known = [one for one in dims if one is not None]
        batch = _beside(settings, "sequences", count) or count._replace(value=1.0)
        numbers = [2.0, *(one.value for one in known), batch.value]  # keys and values
        sides = " x ".join(f"{number:g}" for number in numbers)
        shape = count._replace(value=math.prod(numbers), sides=sides) if len(known) > 2 else None
    else:
        shape = _beside(settings, "shape", count)
        usual = 1.0 if shape and shape.sides.count("x") > 1 else 4.0  # images are of bytes
    if shape is None:
        return None
    element = _beside(settings, "element", count)
    size, weight = (element.value, element.weight) if element else (usual, _GUESSED)
    sides = f"{shape.sides} x {size:g} bytes"
    return shape._replace(value=shape.value * size, weight=weight, sides=sides)


def _beside(settings: Sequence[Setting], kind: Kind, beside: Setting) -> Setting | None:
    """Return the setting of a kind that belongs to another one; None where several might.

    What is in the same part of the configuration, else what shares a word with its name, else what
    has several sides, else what there is only one of.
    """
    part, words = beside.option.rpartition(".")[0], _words_of(beside.option)
    of_kind = [one for one in settings if one.kind == kind]
    nearer = (
        [one for one in of_kind if one.option.rpartition(".")[0].startswith(part) and part],
        [one for one in of_kind if words & _words_of(one.option)],
        [one for one in of_kind if " x " in one.sides],
    )
    near = next(filter(None, nearer), of_kind)
    return near[0] if len({one.value for one in near}) == 1 else None


_COMMON: Final = frozenset(("size", "max", "maximum", "num", "n", "dim", "shape", "dtype")) | {
    *("byte", "kb", "mb", "gb", "mib", "gib")
}


@lru_cache(maxsize=1024)
def _words_of(option: str) -> frozenset[str]:
    return frozenset(word.removesuffix("s") for word in plain(option).split("_")) - _COMMON


def _of_engine(
    reading: ServerReading, model: str | None, card_bytes: float | None
) -> Iterator[GrowthFact]:
    """Yield what a model server says of its pool or of its models."""
    said, weight, level = reading.facts, 0.3, None
    texts = [f"{len(reading.models)} loaded" if reading.models is not None else ""]
    held = sum(said.get(f"{name}_memory_usage_gb", 0.0) for name in ("kv_cache", "weight", "graph"))
    if reading.pool_share and card_bytes:
        level, weight = reading.pool_share * card_bytes, 0.9 if reading.kind == "vLLM" else 0.7
        texts.append(f"its pool takes {reading.pool_share:g} of the card")
    elif 0.0 < held < 1e6 and "kv_cache_memory_usage_gb" in said:
        level, weight = held * 1024.0**3, 0.5
        texts.append(f"weights, cache and graphs take {units.size(level)}")
    for served in reading.models or ():
        if served.name == model and served.vram_bytes:
            level, weight = float(served.vram_bytes), 0.4
            texts.append(f"{units.size(level)} by its estimate")
        if served.name == model and served.expires_at_s is not None:
            left_s = max(0.0, served.expires_at_s - reading.at_s)
            texts.append(
                f"unloaded after {units.duration(left_s)} without a request"
                if left_s < FOR_GOOD_S
                else "unloaded by hand"
            )
    for name, what in (("gpu_blocks", "blocks"), ("max_total_num_tokens", "tokens")):
        texts.append(f"a KV cache of {said[name]:g} {what}" if said.get(name) else "")
    if reading.kv_share is not None:
        texts.append(f"{units.percent(reading.kv_share)} of its KV cache in use")
    if reading.ok and any(texts):
        yield GrowthFact(
            name=FactName.ENGINE_POOL,
            source=reading.kind,
            weight=weight,
            level_bytes=level,
            text=", ".join(filter(None, texts)),
        )
