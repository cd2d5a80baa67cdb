"""Layers of TOML and environment -> one checked :class:`Config`."""

from __future__ import annotations

import errno
import os
import re
import stat
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec

from gpuwatchd.core import decoding, units
from gpuwatchd.core.config import channels
from gpuwatchd.core.config.schema import SENSITIVITY, Config, Seconds, Section, Size
from gpuwatchd.core.directories import SYSTEM_FILE, user_file
from gpuwatchd.core.errors import ConfigError
from gpuwatchd.core.text import guess

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ENV_PREFIX = "GPUWATCHD_"
_KEY_PAGE = "errors#configuration-key"
_KEYS_HINT = "gpuwatchctl docs config shows every key with its default"
Whole = TypeVar("Whole", bound=Section)
LONGEST_S = 1e9
"""Thirty years: what waits for longer waits for ever, and clocks overflow on it."""
_ENV_PATHS = frozenset({"GPUWATCHD_CONFIG", "GPUWATCHD_STATE_DIR", "GPUWATCHD_RUNTIME_DIR"})
SECRET_VARIABLES = frozenset({"GPUWATCHD_SMTP_PASSWORD", "GPUWATCHD_CHAT_URLS"})
"""No settings: read by their channel alone, never shown, not passed on to other programs."""
_ENV_ALERT = "GPUWATCHD_ALERT_"
"""What a program of the command channel is given; it may well call gpuwatchctl."""
_ENV_JOB = frozenset(
    {"GPUWATCHD_ACT", "GPUWATCHD_CHECKPOINT_SIGNAL"}
    | {f"GPUWATCHD_PROBE{name}" for name in ("", "_DIR", "_RECORD")}
)
"""What a job is started with; it may well say ``gpuwatchctl checkpointed``."""
_fields = cache(msgspec.structs.fields)  # which evaluates every annotation anew


def _hook(kind: type, value: object) -> object:
    if kind is Seconds:
        if isinstance(value, str):
            value = units.parse_duration(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:
            if value > LONGEST_S:
                raise ValueError("longer than any machine lives")
            return Seconds(value)
        raise ValueError('expected a duration such as "15m" or a number of seconds')
    if kind is Size:
        if isinstance(value, str):
            return Size(units.parse_size(value))
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return Size(value)
        raise ValueError('expected a size such as "24GiB" or a number of bytes')
    raise TypeError(f"no way to read a {kind}")


def _section(kind: Any) -> type[Section] | None:
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def _listed(kind: Any) -> type[Section] | None:
    """Return the section of a list of tables, ``[[override]]``; None of anything else."""
    return _section(get_args(kind)[0]) if get_origin(kind) is tuple else None


def keys() -> Iterator[tuple[str, Any]]:
    """Yield every key as ("detection.min-r-squared", default), in order; no lists of tables."""
    for name, field in _keys():
        default = field.default
        yield name, default if default is not msgspec.NODEFAULT else field.default_factory()


def _keys(kind: type[Section] = Config, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name of every key, and its field."""
    for field in _fields(kind):
        name = f"{prefix}{field.encode_name}"
        nested = _section(field.type)
        if nested is not None:
            yield from _keys(nested, f"{name}.")
        elif _listed(field.type) is None:
            yield name, field


def _normalise(
    raw: Mapping[str, Any],
    kind: type[Section],
    path: str,
    file: str,
    hint: str = _KEYS_HINT,
    *,
    faults: list[ConfigError] | None = None,
) -> dict[str, Any]:
    """Return the table with kebab-case keys; refuse what is unknown, or add it to ``faults``."""
    fields = {f.encode_name: f.type for f in _fields(kind)}
    out: dict[str, Any] = {}
    for key, value in raw.items():
        name = key.replace("_", "-")
        full = f"[{path}] {key}" if path else f"[{key}]"
        if name in out:
            raise ConfigError(file, full, f"given twice (also as {name!r})", page=_KEY_PAGE)
        if name not in fields:
            what = (
                "key" if path else "section" if isinstance(value, dict) else "key outside a section"
            )
            why = f"unknown {what}{guess(name, fields, 0.5)}"
            why, mend = _elsewhere(name, kind, path, file) or (why, hint)
            fault = ConfigError(file, full, why, hint=mend, page=_KEY_PAGE)
            if faults is None:
                raise fault
            faults.append(fault)
            continue
        nested, listed = _section(fields[name]), _listed(fields[name])
        if listed is not None:
            if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
                raise ConfigError(file, full, f"expected tables: [[{name}]]")
            out[name] = [
                _normalise(one, listed, f"{name} {number}", file, hint, faults=faults)
                for number, one in enumerate(value, start=1)
            ]
        elif nested is None:
            out[name] = value
        elif isinstance(value, dict):
            inner = f"{path}.{name}" if path else name
            out[name] = _normalise(value, nested, inner, file, hint, faults=faults)
        else:
            raise ConfigError(file, full, "expected a table")
    return out


def _elsewhere(name: str, kind: type[Section], path: str, file: str) -> tuple[str, str] | None:
    """Return why a key is unknown that is known in another place, and what to do."""
    if path == "notify" and name in channels.CHAT_SERVICES:
        why = "no section of its own: it is an address of the channel chat"
        return why, f"gpuwatchctl notify add {name}"
    if kind is Config and name == "fleet":
        why = "no section of this file, but of that of gpuwatchd fleet"
        return why, f"gpuwatchd fleet --config {file} --check"
    return None


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        else:
            base[key] = value


_WORDS = {
    "`array`": 'a list such as ["one", "two"]',
    "`str`": "a text in quotes",
    "`float`": "a number",
    "`int`": "a whole number",
    "`bool`": "true or false",
    "`object`": "a table",
    "`float | null`": "a number",
    "`int | null`": "a whole number",
    "`null`": "nothing",
}


_PART = re.compile(r"\[(\d*|\.\.\.)\]")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")


def _choices(path: str, whole: type[Section]) -> tuple[str, ...]:
    """Return the words that a key of that path may have; () where it may have others."""
    kind: Any = whole
    for part in _PART.sub("", path).split("."):
        kind = {f.encode_name: f.type for f in _fields(kind)}.get(part)
        kind = _section(kind) or _listed(kind) or kind
    return tuple(dict.fromkeys(_literals(kind)))


def _literals(kind: Any) -> Iterator[str]:
    """Yield every word in a type: of a list, a table or a union, too."""
    if get_origin(kind) is Literal:
        yield from get_args(kind)
    else:
        for part in get_args(kind):
            yield from _literals(part)


def _plainly(text: str, path: str, whole: type[Section]) -> str:
    """Return a complaint of the decoder in words of the file format."""
    if text.startswith("Invalid enum value"):
        choices = ", ".join(f'"{choice}"' for choice in _choices(path, whole))
        return f"{text.rpartition(' ')[2]} is not one of {choices}"
    for word, plain in _WORDS.items():
        text = text.replace(word, plain)
    return text[:1].lower() + text[1:]


def _named(path: str, whole: type[Section]) -> str:
    """Return the key of a path as people write it: "[policy] severity", "[[override]] 1 gpu"."""

    def shown(match: re.Match[str]) -> str:
        return f" {int(match[1]) + 1}" if match[1].isdecimal() else ""

    head, _, key = path.replace("[...]", "").rpartition(".")
    name, mark, number = head.partition("[")
    kinds = {f.encode_name: f.type for f in _fields(whole)}
    if not head and _section(kinds.get(key)):
        return f"[{key}]"
    if mark and _listed(kinds[name]):
        return f"[[{name}]]{_PART.sub(shown, mark + number)} {key}"
    return f"[{head}] {key}" if head else key


def _typed_as(raw: dict[str, Any], kind: type[Whole], file: str, hint: str) -> Whole:
    try:
        return decoding.convert(raw, kind, dec_hook=_hook)
    except (msgspec.ValidationError, OverflowError) as error:
        text, _, where = str(error).partition(" - at ")
        path = where.strip("`").removeprefix("$").removeprefix(".")
        if missing := _MISSING.fullmatch(text):
            path, text = f"{path}.{missing[1]}".lstrip("."), "is not set"
        raise ConfigError(file, _named(path, kind), _plainly(text, path, kind), hint=hint) from None


def _convert(raw: dict[str, Any], file: str) -> Config:
    config = _typed_as(raw, Config, file, _KEYS_HINT)
    from gpuwatchd.core.config import validation  # noqa: PLC0415 - status reads no file, and must be quick

    validation.check(config, file)
    return config


def parse(text: str, *, file: str = "<text>") -> dict[str, Any]:
    """Return the normalised table of one TOML text, checked on its own.

    Raises
    ------
    ConfigError
        With file and key (or line) when it is not TOML, has an unknown key or a bad value.
    """
    table = _normalise(_toml(text, file), Config, "", file)
    _convert(table, file)
    return table


def parse_as(
    text: str,
    kind: type[Whole],
    *,
    file: str,
    hint: str,
    unknown: list[ConfigError] | None = None,
) -> Whole:
    """Return one TOML text that is a configuration of its own, such as that of a fleet.

    Keys that are unknown are added to ``unknown``, and left out; without it they are refused.

    Raises
    ------
    ConfigError
        As :func:`parse`; ``hint`` says where its keys are described.
    """
    table = _normalise(_toml(text, file, hint), kind, "", file, hint, faults=unknown)
    return _typed_as(table, kind, file, hint)


def _toml(text: str, file: str, hint: str = "") -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - status needs directories only, and must start quickly

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        hint = hint or f"mend that, then: gpuwatchctl config validate {file}"
        raise ConfigError(file, "", f"not valid TOML: {error}", hint=hint, page=PAGE) from None
    except RecursionError:
        raise ConfigError(file, "", "nested too deeply", page=PAGE) from None


def _from_environment(environ: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    names = {
        ENV_PREFIX + name.upper().replace(".", "_").replace("-", "_"): (name, default)
        for name, default in keys()
    }
    kinds = {name: field.type for name, field in _keys()}
    table: dict[str, Any] = {}
    warnings: list[str] = []
    for variable, text in environ.items():
        if not variable.startswith(ENV_PREFIX) or variable.startswith(_ENV_ALERT):
            continue
        if variable in _ENV_PATHS | _ENV_JOB | SECRET_VARIABLES:
            continue
        if variable not in names:
            hint = guess(variable, [*names, *SECRET_VARIABLES])
            warnings.append(f"unknown environment variable {variable}{hint}")
            continue
        name, default = names[variable]
        value = _typed(text, default, kinds[name])
        node = table
        *parents, leaf = name.split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return table, warnings


def _typed(text: str, default: object, kind: Any) -> object:
    if isinstance(default, tuple):
        return _words(text)
    if isinstance(default, dict) and not text.lstrip().startswith("{"):
        # "email=critical; desktop=warning", and lists as they are elsewhere: "all=a, b".
        listed = get_origin(get_args(kind)[1]) is tuple
        pairs = [part.partition("=") for part in text.split(";") if part.strip()]
        return {
            name.strip(): _words(value) if listed else toml_value(value.strip())
            for name, _, value in pairs
        }
    if isinstance(default, (str, Seconds, Size)):
        return text
    return toml_value(text)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def toml_value(text: str) -> object:
    """Return a value as TOML has it; what is no TOML (``15m``) is a text."""
    import tomllib  # noqa: PLC0415

    try:
        return tomllib.loads(f"v = {text}")["v"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


class Loaded(msgspec.Struct, kw_only=True):
    """A configuration and where each value came from."""

    config: Config
    origin: dict[str, str]
    """Dotted key -> "default", "preset shared", a file, "environment" or "command line".

    That of ``policy.channels`` is "set up" where channels that are set up came to the default.

    "override" is there where some layer has overrides; the last such layer has them all.
    """
    files: list[Path]
    warnings: list[str]
    channels_chosen: bool = False
    """Whether some layer sets ``[policy] channels``."""


def load(
    file: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Loaded:
    """Read the layers and return the configuration that results.

    A ``file`` takes the place of the system's and the user's and must exist; ``overrides`` are
    flags, as a nested table with kebab-case keys.

    Raises
    ------
    ConfigError
        With file and key of the first thing that is wrong.
    """
    environ = os.environ if environ is None else environ
    chosen = file or (
        Path(environ["GPUWATCHD_CONFIG"]) if environ.get("GPUWATCHD_CONFIG") else None
    )
    candidates = [chosen] if chosen is not None else [SYSTEM_FILE, user_file(environ)]
    layers: list[tuple[dict[str, Any], str]] = []
    read: list[Path] = []
    unread: list[str] = []
    for path in candidates:
        text, trouble = read_file(path, must_exist=chosen is not None)
        unread += [trouble] if trouble else []
        if text is not None:
            layers.append((parse(text, file=str(path)), str(path)))
            read.append(path)
    table, warnings = _from_environment(environ)
    _convert(table, "environment")
    layers.append((table, "environment"))
    if overrides:
        normal = _normalise(overrides, Config, "", "command line")
        _convert(normal, "command line")
        layers.append((normal, "command line"))

    preset = _last(layers, "policy", "preset") or Config().policy.preset
    sensitivity = _last(layers, "detection", "sensitivity")
    if sensitivity:
        threshold = {"detection": {"confidence-threshold": SENSITIVITY[sensitivity]}}
        layers.insert(0, (threshold, f"sensitivity {sensitivity}"))
    merged: dict[str, Any] = {}
    origin = {name: "default" for name, _ in keys()}
    idle_preset = _last(layers, "zombies", "preset") or Config().zombies.preset
    presets = [
        (preset_layer(preset), f"preset {preset}"),
        (msgspec.to_builtins(IDLE_PRESETS[idle_preset]), f"idle preset {idle_preset}"),
    ]
    for table, source in (*presets, *layers):
        _merge(merged, table)
        origin.update(dict.fromkeys(_leaves(table), source))
    config = _convert(merged, str(read[-1]) if read else "configuration")
    by_hand = any("channels" in table.get("policy", {}) for table, _ in layers)
    if not by_hand:
        wanted = channels.by_default(config)
        if wanted != config.policy.channels:
            policy = msgspec.structs.replace(config.policy, channels=wanted)
            config = msgspec.structs.replace(config, policy=policy)
            origin["policy.channels"] = "set up"
    return Loaded(
        config=config,
        channels_chosen=by_hand,
        origin=origin,
        files=read,
        warnings=[*unread, *warnings],
    )


_TABLES = frozenset(name for name, default in keys() if isinstance(default, dict))
"""Keys whose value is a table of the user's own names."""


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, dict) and f"{prefix}{key}" not in _TABLES:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


# A file of the configuration as text, whatever lies at its place.

PAGE = "errors#configuration-file"
MAX_BYTES = 1 << 20
"""No configuration is larger."""


_NO_FILE_HINT: Final = "gpuwatchctl config path names the usual file, config init writes it"


def read_file(path: Path, *, must_exist: bool, hint: str = _NO_FILE_HINT) -> tuple[str | None, str]:
    """Return the text of a file, and what is to be said where it had to be left out.

    The text is None where there is no file, or none that we may read: the machine's file can be
    for others. A file that was asked for by name (``must_exist``) is never left out; ``hint`` says
    where such a one comes from.

    Raises
    ------
    ConfigError
        When it is no text of a sensible size, or cannot be read.
    """
    try:
        with open(path, "rb", opener=_opener) as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(str(path), "", f"larger than {units.size(MAX_BYTES)}", page=PAGE)
        return content.decode("utf-8"), ""
    except FileNotFoundError:
        if must_exist:
            raise ConfigError(str(path), "", "no such file", hint=hint, page=PAGE) from None
        return None, ""
    except UnicodeDecodeError:
        raise ConfigError(str(path), "", "not UTF-8 text", page=PAGE) from None
    except OSError as error:
        if not must_exist and isinstance(error, NotADirectoryError):
            return None, ""
        if not must_exist and isinstance(error, PermissionError):
            # Left out in silence, its channels would be missed only when an alert comes.
            return None, f"{path}: not readable by this user, so it is ignored"
        raise ConfigError(str(path), "", error.strerror or "cannot be read", page=PAGE) from None


def _opener(path: str, flags: int) -> int:
    # A FIFO that nobody writes to would hold us up for ever; a shell's <(...) has its writer.
    if stat.S_ISFIFO(os.stat(path).st_mode) and not path.startswith(("/dev/fd/", "/proc/self/fd/")):  # noqa: PTH116 - the opener's path is text
        raise OSError(errno.EINVAL, "is a FIFO, not a file")
    return os.open(path, flags | os.O_NOCTTY)


def _last(layers: Sequence[tuple[dict[str, Any], str]], section: str, key: str) -> Any:
    """Return the value that wins of a key; None where no layer has it."""
    named = [found for table, _ in layers if (found := table.get(section, {}).get(key))]
    return named[-1] if named else None


# What ``[policy] preset`` stands for: keys below the user's own files, so that keys set win.
# ``workstation`` is the defaults. A preset changes who is told, and how often; never what is
# found.

PRESETS: Final[dict[str, dict[str, Any]]] = {
    "workstation": {},
    # A server of several people: mail instead of pop-ups that nobody sees, fewer reminders, a
    # summary each day, and memory that nobody works with is told of too.
    "shared": {
        "channels": ["email"],
        "digest": "daily",
        "digest-channels": ["email"],
        "repeat": ["4h", "1d"],
        "cooldown": "1h",
        "group-interval": "15m",
        "max-per-hour": 10,
        "tell-held": [
            "gone",
            "defunct",
            "driver-wait",
            "ghost",
            "orphaned-runner",
            "leaked-kv",
            "hung-rank",
        ],
    },
    # A run without people: a job reads the verdict from check, or from analyze --fail-on. What is
    # told (by a channel that is set) is told once, at once, and without an epilogue.
    "ci": {"channels": [], "flap-hold": "0s", "repeat": [], "recovered": False, "digest": "off"},
}
"""Name -> keys of ``[policy]`` as they would be written in a file."""


IDLE_PRESETS: Final[dict[str, dict[str, Any]]] = {
    "workstation": {},
    # 15 min, some 65 min, some 2 h.
    "shared": {"zombies": {"idle-after": "15m"}, "act": {"notices": 3, "notice-gap": "50m"}},
    # 15 min, some 40 min, the step at an hour.
    "strict": {"zombies": {"idle-after": "15m"}, "act": {"notices": 2, "notice-gap": "22m"}},
}
"""Preset of ``[zombies]`` -> the keys that it stands for."""


def preset_layer(name: str) -> dict[str, Any]:
    """Return a preset as a layer of configuration; empty where it changes nothing.

    Examples
    --------
    >>> preset_layer("ci")["policy"]["repeat"], preset_layer("workstation")
    ([], {})
    """
    keys = PRESETS[name]
    # A copy: layers are merged in place.
    return {"policy": msgspec.to_builtins(keys)} if keys else {}
