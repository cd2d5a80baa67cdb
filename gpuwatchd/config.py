"""TOML text -> :class:`Config`: every key, its default and its meaning.

Layers, lowest first: the defaults below, ``/etc/gpuwatchd/config.toml``, the user's file,
``GPUWATCHD_*`` variables, flags. They are merged key by key; lists are replaced. An unknown key
is refused with the nearest valid one. ``snake_case`` spellings are accepted.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gpuwatchd import units
from gpuwatchd.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

SYSTEM_FILE = Path("/etc/gpuwatchd/config.toml")
ENV_PREFIX = "GPUWATCHD_"
_ENV_PATHS = frozenset({"GPUWATCHD_CONFIG", "GPUWATCHD_STATE_DIR", "GPUWATCHD_RUNTIME_DIR"})


class Seconds(float):
    """A duration: in TOML a number of seconds or a text such as "15m"."""

    __slots__ = ()


class Size(int):
    """A size: in TOML a number of bytes or a text such as "24GiB"."""

    __slots__ = ()


class Section(
    msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True
):
    """Base of every section."""


class DaemonSection(Section, frozen=True, kw_only=True):
    """``[daemon]``: the sampling loop."""

    interval: Seconds = Seconds(5)
    """Time between two samples."""
    source_deadline: Seconds = Seconds(2)
    """A source that has not answered by then is unknown for this tick; the others go on."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class ReplaySection(Section, frozen=True, kw_only=True):
    """``[sources.replay]``: a recorded log as a source."""

    file: str = ""
    speed: Annotated[float, Meta(gt=0)] = 1.0
    """How much faster than recorded."""


class SimulateSection(Section, frozen=True, kw_only=True):
    """``[sources.simulate]``: a scripted world of GPUs."""

    scenario: str = "demo"
    seed: int = 7
    speed: Annotated[float, Meta(gt=0)] = 1.0


class SourcesSection(Section, frozen=True, kw_only=True):
    """``[sources]``: where readings come from; several at once are fine."""

    enabled: tuple[str, ...] = ("nvml",)
    replay: ReplaySection = ReplaySection()
    simulate: SimulateSection = SimulateSection()


class DetectionSection(Section, frozen=True, kw_only=True):
    """``[detection]``: what counts as a leak. The first five keys are gpulse's, same units."""

    min_r_squared: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Extra condition on gradual leaks; 0 means that R² is reported and decides nothing."""
    min_slope_mb_per_sec: Annotated[float, Meta(ge=0)] = 0.0
    """Floor of the growth rate, 1 MB = 1,000,000 bytes; 0 means none."""
    confidence_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.75
    """Confidence from which a finding may alert; a watch needs less."""
    minimum_samples: Annotated[int, Meta(ge=2)] = 20
    """Samples before an alert."""
    analysis_window_hours: Annotated[float, Meta(gt=0, le=168)] = 6.4
    """The longest look-back."""
    minimum_duration: Seconds = Seconds(300)
    """Growth younger than this does not alert (it may be watched)."""
    minimum_growth_mib: Annotated[float, Meta(ge=0)] = 16.0
    """Growth below this, or below 0.15 % of the device, is no candidate."""
    eta_horizon: Seconds = Seconds(72 * 3600)
    """A leak that needs longer than this to fill the device is information, not an alert."""
    spike_percent: Annotated[float, Meta(gt=0)] = 20.0
    """A jump by this share of the used memory (and 256 MiB) is a spike."""
    spike_window: Seconds = Seconds(30)
    """Time within which a spike rises; never shorter than three samples."""


class PolicySection(Section, frozen=True, kw_only=True):
    """``[policy]``: when people are told, and how often."""

    channels: tuple[str, ...] = ("desktop",)
    """Every one of them gets every notice, so that one that fails never silences an alert."""
    confirm: Annotated[int, Meta(ge=1)] = 3
    """Evaluations in a row before a finding opens."""
    cooldown: Seconds = Seconds(1800)
    """No repeat for the same subject before this has passed; an escalation passes it."""
    flap_hold: Seconds = Seconds(30)
    """From opening to the first notice; what resolves within it is never sent."""
    clear_after: Annotated[int, Meta(ge=1)] = 3
    """Evaluations in a row without the finding before it is resolved."""
    repeat: tuple[Seconds, ...] = tuple(Seconds(h * 3600) for h in (1, 2, 4, 8, 24))
    """Reminders while it lasts; the last one repeats."""
    recovered: bool = True
    """Tell when it is over (only if its opening was told)."""
    max_per_hour: Annotated[int, Meta(ge=1)] = 20
    """Messages per hour over all channels; what exceeds it waits."""


class DesktopSection(Section, frozen=True, kw_only=True):
    """``[notify.desktop]``: a pop-up on the session bus."""

    timeout: Seconds = Seconds(20)


class EmailSection(Section, frozen=True, kw_only=True):
    """``[notify.email]``: a mail by SMTP."""

    host: str = ""
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    """Default 587 for starttls, 465 for tls, 25 for none."""
    security: Literal["starttls", "tls", "none"] = "starttls"
    """"none" is accepted for loopback hosts only."""
    ca_file: str = ""
    username: str = ""
    password_file: str = ""
    """Readable by you alone (0600)."""
    sender: str = ""
    to: tuple[str, ...] = ()
    timeout: Seconds = Seconds(20)


class CommandSection(Section, frozen=True, kw_only=True):
    """``[notify.command]``: a program of yours gets the finding as JSON on standard input."""

    argv: tuple[str, ...] = ()
    timeout: Seconds = Seconds(20)


class NotifySection(Section, frozen=True, kw_only=True):
    """``[notify.*]``: the channels."""

    desktop: DesktopSection = DesktopSection()
    email: EmailSection = EmailSection()
    command: CommandSection = CommandSection()


class StoreSection(Section, frozen=True, kw_only=True):
    """``[store]``: the history and its bounds."""

    flush: Seconds = Seconds(60)
    """Raw samples wait this long in memory; alerts are written at once."""
    max_db_mib: Annotated[int, Meta(ge=8)] = 256
    min_free_mib: Annotated[int, Meta(ge=0)] = 500
    """Free disk space below which raw samples are not written."""
    raw: Seconds = Seconds(7 * 86400)
    process_raw: Seconds = Seconds(48 * 3600)
    minute: Seconds = Seconds(90 * 86400)
    process_minute: Seconds = Seconds(30 * 86400)
    hour: Seconds = Seconds(5 * 365 * 86400)
    events: Seconds = Seconds(365 * 86400)


class Config(Section, frozen=True, kw_only=True):
    """The whole configuration."""

    daemon: DaemonSection = DaemonSection()
    sources: SourcesSection = SourcesSection()
    detection: DetectionSection = DetectionSection()
    policy: PolicySection = PolicySection()
    notify: NotifySection = NotifySection()
    store: StoreSection = StoreSection()


def _hook(kind: type, value: object) -> object:
    if kind is Seconds:
        if isinstance(value, str):
            return Seconds(units.parse_duration(value))
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:
            return Seconds(value)
        raise ValueError('expected a duration such as "15m" or a number of seconds')
    if kind is Size:
        if isinstance(value, str):
            return Size(units.parse_size(value))
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return Size(value)
        raise ValueError('expected a size such as "24GiB" or a number of bytes')
    raise NotImplementedError(kind)


def _section(kind: Any) -> type[Section] | None:
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def keys(kind: type[Section] = Config, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every key as ("detection.min-r-squared", default), in order."""
    for field in msgspec.structs.fields(kind):
        name = f"{prefix}{field.encode_name}"
        nested = _section(field.type)
        if nested is None:
            default = field.default
            yield name, default if default is not msgspec.NODEFAULT else field.default_factory()
        else:
            yield from keys(nested, f"{name}.")


def _nearest(word: str, known: Iterable[str], cutoff: float) -> list[str]:
    import difflib  # noqa: PLC0415 - only for mistakes; status must start quickly

    return difflib.get_close_matches(word, known, n=1, cutoff=cutoff)


def _normalise(raw: Mapping[str, Any], kind: type[Section], path: str, file: str) -> dict[str, Any]:
    """Return the table with kebab-case keys; refuse what is unknown."""
    fields = {f.encode_name: f.type for f in msgspec.structs.fields(kind)}
    out: dict[str, Any] = {}
    for key, value in raw.items():
        name = key.replace("_", "-")
        full = f"[{path}] {key}" if path else f"[{key}]"
        if name in out:
            raise ConfigError(file, full, f"given twice (also as {name!r})")
        if name not in fields:
            near = _nearest(name, fields, 0.5)
            what = "key" if path else "section"
            why = f"unknown {what}" + (f"; did you mean {near[0]}?" if near else "")
            raise ConfigError(file, full, why, hint="gpuwatchctl config init prints every key")
        nested = _section(fields[name])
        if nested is None:
            out[name] = value
        elif isinstance(value, dict):
            out[name] = _normalise(value, nested, f"{path}.{name}" if path else name, file)
        else:
            raise ConfigError(file, full, "expected a table")
    return out


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        else:
            base[key] = value


def _convert(raw: dict[str, Any], file: str) -> Config:
    try:
        return msgspec.convert(raw, Config, dec_hook=_hook)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at ")
        section, _, key = where.strip("`").removeprefix("$").removeprefix(".").rpartition(".")
        raise ConfigError(
            file,
            f"[{section}] {key}" if section else key,
            text[:1].lower() + text[1:],
            hint="gpuwatchctl config init prints every key with its default",
        ) from None


def parse(text: str, *, file: str = "<text>") -> dict[str, Any]:
    """Return the normalised table of one TOML text, checked on its own.

    Raises
    ------
    ConfigError
        With file and key (or line) when it is not TOML, has an unknown key or a bad value.
    """
    import tomllib  # noqa: PLC0415 - status needs directories only, and must start quickly

    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(file, "", f"not valid TOML: {error}") from None
    table = _normalise(raw, Config, "", file)
    _convert(table, file)
    return table


def _from_environment(environ: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    names = {
        ENV_PREFIX + name.upper().replace(".", "_").replace("-", "_"): (name, default)
        for name, default in keys()
    }
    table: dict[str, Any] = {}
    warnings: list[str] = []
    for variable, text in environ.items():
        if not variable.startswith(ENV_PREFIX) or variable in _ENV_PATHS:
            continue
        if variable not in names:
            near = _nearest(variable, names, 0.6)
            hint = f"; did you mean {near[0]}?" if near else ""
            warnings.append(f"unknown environment variable {variable}{hint}")
            continue
        name, default = names[variable]
        value = _typed(text, default)
        node = table
        *parents, leaf = name.split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return table, warnings


def _typed(text: str, default: object) -> object:
    if isinstance(default, tuple):
        return [word.strip() for word in text.split(",") if word.strip()]
    if isinstance(default, (str, Seconds, Size)):
        return text
    import tomllib  # noqa: PLC0415

    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


class Loaded(msgspec.Struct, kw_only=True):
    """A configuration and where each value came from."""

    config: Config
    origin: dict[str, str]
    """Dotted key -> "default", a file, or an environment variable."""
    files: list[Path]
    warnings: list[str]


def load(
    file: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Loaded:
    """Read the layers and return the configuration that results.

    Parameters
    ----------
    file
        Replaces the system's and the user's file; it must exist.
    environ
        Environment; by default the process's own.
    overrides
        Flags, as a nested table with kebab-case keys.

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
    merged: dict[str, Any] = {}
    origin = {name: "default" for name, _ in keys()}
    read: list[Path] = []
    for path in candidates:
        text = _read(path, must_exist=chosen is not None)
        if text is None:
            continue
        table = parse(text, file=str(path))
        read.append(path)
        _merge(merged, table)
        origin.update(dict.fromkeys(_leaves(table), str(path)))
    table, warnings = _from_environment(environ)
    _convert(table, "environment")
    _merge(merged, table)
    origin.update(dict.fromkeys(_leaves(table), "environment"))
    if overrides:
        normal = _normalise(overrides, Config, "", "command line")
        _merge(merged, normal)
        origin.update(dict.fromkeys(_leaves(normal), "command line"))
    return Loaded(
        config=_convert(merged, str(read[-1]) if read else "configuration"),
        origin=origin,
        files=read,
        warnings=warnings,
    )


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _read(path: Path, *, must_exist: bool) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if must_exist:
            raise ConfigError(str(path), "", "no such file") from None
        return None
    except UnicodeDecodeError:
        raise ConfigError(str(path), "", "not UTF-8 text") from None
    except OSError as error:
        if not must_exist and isinstance(error, (NotADirectoryError, PermissionError)):
            return None
        raise ConfigError(str(path), "", error.strerror or "cannot be read") from None


def user_file(environ: Mapping[str, str] | None = None) -> Path:
    """Return where the user's configuration file is, whether it exists or not."""
    environ = os.environ if environ is None else environ
    if os.uname().sysname == "Darwin":
        return _library("Application Support") / "config.toml"
    base = environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "gpuwatchd" / "config.toml"


def state_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return the directory of the history."""
    environ = os.environ if environ is None else environ
    if environ.get("GPUWATCHD_STATE_DIR"):
        return Path(environ["GPUWATCHD_STATE_DIR"])
    if os.uname().sysname == "Darwin":
        return _library("Application Support")
    base = environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "gpuwatchd"


def runtime_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return the directory of the live state and the lock.

    Without ``XDG_RUNTIME_DIR`` it lies in the state directory: a guessable folder in the
    temporary directory could be planted by another user.
    """
    environ = os.environ if environ is None else environ
    if environ.get("GPUWATCHD_RUNTIME_DIR"):
        return Path(environ["GPUWATCHD_RUNTIME_DIR"])
    if os.uname().sysname == "Darwin":
        return _library("Caches")
    base = environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "gpuwatchd" if base else state_dir(environ) / "run"


def _library(folder: str) -> Path:
    base = Path.home() / "Library" / folder
    return base / "TemporaryItems" / "gpuwatchd" if folder == "Caches" else base / "gpuwatchd"
