"""``fleet.toml``: which Prometheus, what its exporters call memory, and how much may be asked."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import ssl
from functools import lru_cache, partial
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from gpuwatchd.core import config, extras, units
from gpuwatchd.core.config import (
    SENSITIVITY,
    DetectionSection,
    Seconds,
    Section,
    Size,
    listening,
)
from gpuwatchd.core.errors import ConfigError, GpuwatchdError
from gpuwatchd.core.state_log import masked
from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuwatchd.core.config.listening import Address
    from gpuwatchd.core.state_log import StateLog

log = logging.getLogger("gpuwatchd.fleet")

MAPS: Final = Path(__file__).parent / "maps.toml"
_HINT: Final = "gpuwatchctl docs fleet names every key"
_NO_FILE_HINT: Final = (
    "gpuwatchctl docs fleet has one to copy; the Debian package has /etc/gpuwatchd/fleet.toml"
)
_LEAST_ANSWER: Final = 1 << 20
"""No question about the past fits into less: a smaller limit is a unit forgotten."""
_LONGEST_ANSWER_S: Final = 300.0
"""As the longest pause; the packaged unit takes 10 minutes without a sign for a hang."""
_LOOPBACK_ONLY: Final = '"127.0.0.1:9752", "unix" or "unix:PATH": this machine only'
_METRIC: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_SUCH: Final = {
    "url": "https://prometheus.example:9090",
    "alertmanagers": "https://alertmanager.example:9093",
}
_API: Final = re.compile(r"/api/v1(/query(_range)?)?/*$")
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_MATCHER: Final = re.compile(r'[a-zA-Z_]\w*\s*(=|!=|=~|!~)\s*"([^"\\\n]|\\.)*"', re.ASCII)
UNITS: Final = {"B": 1.0, "KiB": 2.0**10, "MB": 1e6, "MiB": 2.0**20, "GiB": 2.0**30}


class MetricMap(Section, frozen=True, kw_only=True):
    """What an exporter calls memory, and by which labels it says whose."""

    used: str
    """Metric of used memory."""
    total: str = ""
    """Metric of all memory; empty: the sum of used, free and reserved."""
    free: str = ""
    reserved: str = ""
    unit: Literal["B", "KiB", "MB", "MiB", "GiB"] = "B"
    blank_from: float = 2.0**60
    """From this value on, in that unit, a value says "unknown"."""
    uuid: str
    """Label of the GPU's UUID."""
    host: tuple[str, ...] = ("instance",)
    """Labels: the first that is there counts."""
    gpu: tuple[str, ...] = ()
    instance: tuple[str, ...] = ()
    """Of a MIG instance, on its card."""
    job: tuple[str, ...] = ()
    namespace: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[str, ...]:
        """The labels that tell one GPU from another."""
        return (self.uuid, *self.host, *self.instance)

    @property
    def bytes_each(self) -> float:
        """Return what one of its unit is."""
        return UNITS[self.unit]


class BudgetSection(Section, frozen=True, kw_only=True):
    """``[fleet] budget``: how much the server is asked at a time."""

    in_flight: Annotated[int, Meta(ge=1, le=16)] = 2
    """Questions at the same time."""
    answer: Size = Size(64 << 20)
    """The largest answer that is taken, unpacked."""
    series: Annotated[int, Meta(ge=1, le=10_000)] = 500
    """Series of one question about the past; halved where the server refuses."""
    timeout: Seconds = Seconds(20)
    """For all of one answer."""


class FleetSection(Section, frozen=True, kw_only=True):
    """``[fleet]``: the server and what is asked of it."""

    url: str
    """Address of the Prometheus, Thanos, Mimir or VictoriaMetrics, with its prefix, if any."""
    backend: Literal["auto", "prometheus", "thanos", "mimir", "victoriametrics"] = "auto"
    """What answers there; auto: what it says that it is."""
    token_file: str = ""
    """File with a bearer token, readable by its owner alone."""
    ca_file: str = ""
    """Certificates to trust with https instead of those of the system."""
    headers_file: str = ""
    """File with further headers, "X-Scope-OrgID: team" on each line, as private as a token."""
    map: str = "dcgm"
    """dcgm, nvidia-gpu-exporter, gpuwatchd, amd, or the path of a map of one's own."""
    matchers: tuple[str, ...] = ()
    """What the series must have besides, such as 'cluster="a"'."""
    shard: str = "1/1"
    """This worker of how many, "2/4"; "hostname/4" takes the number in this machine's name."""
    state: str = ""
    """File that gpuwatchctl fleet reads; empty: in the state directory, one for each shard."""
    step: Seconds = Seconds(60)
    """Time between two values of a series."""
    window: Seconds = Seconds(6.4 * 3600)
    """How far back is looked."""
    alertmanagers: tuple[str, ...] = ()
    """Addresses of every member of the site's Alertmanager, each with its prefix, if any."""
    alertmanager_token_file: str = ""
    alertmanager_headers_file: str = ""
    """For Alertmanager what token-file and headers-file are for the server; ca-file is for both."""
    cluster: str = ""
    """Label of every alert."""
    budget: BudgetSection = BudgetSection()


class ConfirmSection(Section, frozen=True, kw_only=True):
    """``[policy]``: how long evidence must last; the rest is the site's Alertmanager's."""

    confirm: Annotated[int, Meta(ge=1)] = 3
    """Evaluations in a row before a finding opens."""
    clear_after: Annotated[int, Meta(ge=1)] = 3
    """Evaluations in a row without the finding before it is resolved."""


class MetricsSection(Section, frozen=True, kw_only=True):
    """``[metrics]``: the worker's own metrics (extra metrics); off by default."""

    listen: str = ""
    """Address on loopback such as "127.0.0.1:9752", "unix" or "unix:PATH"."""


class FleetConfig(Section, frozen=True, kw_only=True):
    """All of ``fleet.toml``; ``[detection]`` is that of the daemon."""

    fleet: FleetSection
    detection: DetectionSection = DetectionSection()
    policy: ConfirmSection = ConfirmSection()
    metrics: MetricsSection = MetricsSection()


_FORM: Final = re.compile(r"(?:(hostname)|([0-9]{1,5}))/([0-9]{1,5})")
_ORDINAL: Final = re.compile(r"-([0-9]{1,5})$")
MOST: Final = 1024


class Shard(NamedTuple):
    """One of ``of`` workers, counted from 1."""

    number: int = 1
    of: int = 1

    def __str__(self) -> str:
        """Return it as it is written: "2/4"."""
        return f"{self.number}/{self.of}"

    def owns(self, host: str) -> bool:
        """Say whether a host's GPUs are this worker's."""
        return self.of == 1 or _owner(host, self.of) == self.number


def parse_shard(words: str, hostname: str | None = None) -> Shard:
    """Return the shard that a text means.

    "2/4" is the second of four. "hostname/4" takes the number at the end of this machine's name,
    which Kubernetes counts from 0 in a StatefulSet: "fleet-0" is 1/4, "fleet-3" is 4/4.

    Raises
    ------
    ValueError
        When it is none.

    Examples
    --------
    >>> str(parse_shard("2/4")), str(parse_shard("hostname/4", "fleet-3"))
    ('2/4', '4/4')
    """
    match = _FORM.fullmatch(words.strip())
    if match is None:
        form = f'"N/M", such as "2/4", or "hostname/M", with 1 to {MOST} shards'
        raise ValueError(f"expected {form}")
    number, of = int(match[2] or 0), int(match[3])
    if match[1]:
        name = os.uname().nodename.partition(".")[0] if hostname is None else hostname
        ordinal = _ORDINAL.search(name)
        if ordinal is None:
            raise ValueError('the name of this machine does not end with "-" and a number')
        number = int(ordinal[1]) + 1
    if not 1 <= of <= MOST:
        raise ValueError(f"expected 1 to {MOST} shards")
    if not 1 <= number <= of:
        which = f"this machine's number makes it shard {number}" if match[1] else f"shard {number}"
        raise ValueError(f"{which}, and there are {of}")
    return Shard(number, of)


@lru_cache(maxsize=1 << 17)
def _owner(host: str, of: int) -> int:
    name = host.encode("utf-8", "surrogatepass")
    return max(range(1, of + 1), key=lambda number: _weight(name, number))


def _weight(name: bytes, number: int) -> bytes:
    return hashlib.blake2b(b"%d/%s" % (number, name), digest_size=8).digest()


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """A checked configuration, with what its files hold."""

    section: FleetSection
    map: MetricMap
    detection: DetectionSection
    policy: ConfirmSection
    headers: dict[str, str]
    """Sent with each question: they hold secrets, and are never shown."""
    shard: Shard = Shard()
    listen: Address | None = None
    """Where the worker's own metrics are served; None: nowhere."""
    name: str = "fleet"
    """Of the configuration file, without its ending: it tells workers on one machine apart."""
    alertmanager_headers: dict[str, str] = {}
    """The same for alerts."""
    file: str = ""
    """Where it was read."""


def load(path: Path, shard: str | None = None, *, sends: bool = False) -> Fleet:
    """Read and check ``fleet.toml`` and the files that it names; ``shard`` replaces its own.

    ``sends``: a worker that sends alerts is to run by it.

    Raises
    ------
    ConfigError
        With file and key of the first thing that is wrong.
    ValueError
        When ``shard`` is none.
    """
    whole, file = _read(path), str(path)
    section = whole.fleet
    for fault in _faults(whole, file, shard, sends=sends):
        raise fault
    hours = float(section.window) / 3600.0
    if section.ca_file:
        trusted = str(Path(file).parent / Path(section.ca_file).expanduser())
        section = msgspec.structs.replace(section, ca_file=trusted)
    changed: dict[str, Any] = {"analysis_window_hours": hours}
    if whole.detection.confidence_threshold == DetectionSection().confidence_threshold:
        changed["confidence_threshold"] = SENSITIVITY[whole.detection.sensitivity]
    server_headers, alertmanager_headers = _secrets(section, file)
    return Fleet(
        section=section,
        map=metric_map(section.map, file),
        detection=msgspec.structs.replace(whole.detection, **changed),
        policy=whole.policy,
        headers=server_headers,
        alertmanager_headers=alertmanager_headers,
        file=file,
        shard=_shard(section.shard, file) if shard is None else parse_shard(shard),
        listen=_listen(whole.metrics.listen, file),
        name=path.stem,
    )


def faults(path: Path, shard: str | None = None, *, sends: bool = False) -> list[ConfigError]:
    """Return all for which a worker would not start by a file.

    Of one that is no TOML it is that alone; one that lacks a key or has one of another type, that
    and what is unknown in it.
    """
    found: list[ConfigError] = []
    try:
        whole = _read(path, found)
        found += _faults(whole, str(path), shard, sends=sends)
    except ConfigError as error:
        return [*found, error]
    if whole.metrics.listen:
        try:
            extras.need("metrics", "it", "prometheus_client", page="errors#metrics-extra")
        except GpuwatchdError as error:
            why = error.message
            found.append(
                ConfigError(str(path), "[metrics] listen", why, hint=error.hint, page=error.page)
            )
    return found


def _read(path: Path, unknown: list[ConfigError] | None = None) -> FleetConfig:
    words, _ = config.read_file(path, must_exist=True, hint=_NO_FILE_HINT)
    if not re.search(r"^\s*[^#\s]", words or "", re.MULTILINE):
        raise ConfigError(str(path), "[fleet]", "is not there", hint=_NO_FILE_HINT)
    return config.parse_as(words or "", FleetConfig, file=str(path), hint=_HINT, unknown=unknown)


def _faults(
    whole: FleetConfig, file: str, shard: str | None, *, sends: bool
) -> Iterator[ConfigError]:
    section = whole.fleet
    for key, why in _wrong(section):
        yield ConfigError(file, f"[fleet] {key}", why, hint=_HINT)
    most = max(3, int(section.window / max(section.step, 1)))
    for key, rounds in (
        ("confirm", whole.policy.confirm),
        ("clear-after", whole.policy.clear_after),
    ):
        if rounds > most:
            why = f"expected {most} at most: the window has no more rounds"
            yield ConfigError(file, f"[policy] {key}", why, hint=_HINT)
    if sends and not section.alertmanagers:
        key, hint = "[fleet] alertmanagers", "--once and --dry-run send nothing"
        yield ConfigError(file, key, "names none to send alerts to", hint=hint)
    parts: list[Callable[[], object]] = [
        lambda: metric_map(section.map, file),
        *(partial(part, section, file) for part in (_of_server, _of_alertmanager)),
        lambda: _of_authority(section, file),
        lambda: _listen(whole.metrics.listen, file),
    ]
    if shard is None:
        parts.append(lambda: _shard(section.shard, file))
    for part in parts:
        try:
            part()
        except ConfigError as error:
            yield error


def reread(fleet: Fleet, changes: StateLog) -> None:
    """Take over tokens and values of headers that were renewed; what cannot be read stays.

    ``changes`` has what was logged of that before.
    """
    try:
        server, alertmanager = _secrets(fleet.section, fleet.file)
    except ConfigError as error:
        if changes.change("secrets", masked(str(error))):
            log.warning("%s; the one before is used", error)
        return
    if changes.change("secrets", "read", first="read"):
        log.info("tokens and headers are read again")
    # Threads that send go through these: they change their values, never their size.
    for headers, fresh in ((fleet.headers, server), (fleet.alertmanager_headers, alertmanager)):
        headers.update({name: fresh[name] for name in headers if name in fresh})


def _secrets(section: FleetSection, file: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the headers for the server and those for the members of Alertmanager."""
    return _of_server(section, file), _of_alertmanager(section, file)


def _of_server(section: FleetSection, file: str) -> dict[str, str]:
    return _headers(section.token_file, section.headers_file, file)


def _of_alertmanager(section: FleetSection, file: str) -> dict[str, str]:
    token, headers = section.alertmanager_token_file, section.alertmanager_headers_file
    return _headers(token, headers, file, prefix="alertmanager-")


def trusting(ca_file: str) -> ssl.SSLContext:
    """Return what checks certificates, by those of a file or of the system.

    Raises
    ------
    ConfigError
        When the file holds none.
    """
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:  # of TLS, too
        why = "holds no certificate" if isinstance(error, ssl.SSLError) else error.strerror
        raise ConfigError(ca_file, "[fleet] ca-file", why or "cannot be read") from None


def _of_authority(section: FleetSection, file: str) -> None:
    if not section.ca_file:
        return
    if not any(url.startswith("https:") for url in (section.url, *section.alertmanagers)):
        why = "is of no use: neither url nor alertmanagers has https"
        raise ConfigError(file, "[fleet] ca-file", why, hint=_HINT)
    trusting(str(Path(file).parent / Path(section.ca_file).expanduser()))


def _shard(words: str, file: str) -> Shard:
    try:
        return parse_shard(words)
    except ValueError as error:
        raise ConfigError(file, "[fleet] shard", str(error), hint=_HINT) from None


def _listen(words: str, file: str) -> Address | None:
    if not words:
        return None
    try:
        return listening.parse(words, remote=False, section="metrics", socket="fleet-metrics.sock")
    except listening.NoAddress as error:
        raise ConfigError(file, "[metrics] listen", str(error), hint=_LOOPBACK_ONLY) from None


def _wrong(section: FleetSection) -> Iterator[tuple[str, str]]:
    secrets = {"token-file": section.token_file, "headers-file": section.headers_file}
    yield from _wrong_address("url", section.url, secrets)
    if _API.search(section.url):
        yield "url", "expected the address alone, without /api/v1"
    secrets = {
        "alertmanager-token-file": section.alertmanager_token_file,
        "alertmanager-headers-file": section.alertmanager_headers_file,
    }
    for url in section.alertmanagers:
        yield from _wrong_address("alertmanagers", url, secrets)
        if "/api/v" in url:
            yield "alertmanagers", "expected the address alone, without /api/v2"
    if len({url.rstrip("/") for url in section.alertmanagers}) < len(section.alertmanagers):
        yield "alertmanagers", "names one twice"
    if clean(section.cluster) != section.cluster:
        yield "cluster", "has control characters in it, or more than 256 characters"
    yield from _wrong_rounds(section)


def _wrong_rounds(section: FleetSection) -> Iterator[tuple[str, str]]:
    if section.step < 5 or section.step % 1:
        yield "step", "expected whole seconds, 5 at least"
    elif not 30 <= section.window / section.step <= 5000:
        yield "window", "expected 30 to 5000 steps"
    if section.budget.timeout < 1:
        yield "budget timeout", "shorter than 1 s"
    elif section.budget.timeout > _LONGEST_ANSWER_S:
        yield "budget timeout", f"longer than {units.duration(_LONGEST_ANSWER_S)}"
    if section.budget.answer < _LEAST_ANSWER:
        yield (
            "budget answer",
            f"smaller than {units.size(_LEAST_ANSWER)}; without a unit it is bytes",
        )
    state = config.expanded(section.state)
    if section.state and (not state.is_absolute() or not state.name or "\0" in section.state):
        yield "state", "expected the whole path of a file"
    elif section.state and state.is_dir():
        yield "state", "is a directory, expected a file in it"
    for matcher in section.matchers:
        if not _MATCHER.fullmatch(matcher):
            yield "matchers", f"{clean(matcher, limit=80)} is no matcher such as 'cluster=\"a\"'"


def _wrong_address(key: str, url: str, secrets: dict[str, str]) -> Iterator[tuple[str, str]]:
    try:
        split = urlsplit(url)
        host, _ = split.hostname, split.port
    except ValueError:
        host, split = None, urlsplit("")
    odd = not (url.isascii() and url.isprintable()) or " " in url
    if split.scheme not in {"http", "https"} or not host or split.query or split.fragment or odd:
        yield key, f"expected an address such as {_SUCH[key]}"
    if split.username is not None or split.password is not None:
        yield key, f"has a user or password in it: use {list(secrets)[1]}"
    if split.scheme == "http" and host not in _LOOPBACK:
        for name in [name for name, file in secrets.items() if file]:
            yield name, f"would be sent unencrypted to another host: use https in {key}"


def is_local(url: str) -> bool:
    """Say whether an address is of this machine's loopback."""
    return urlsplit(url).hostname in _LOOPBACK


def metric_map(name: str, file: str) -> MetricMap:
    """Return a metric map by its name, or from a file of one's own.

    Raises
    ------
    ConfigError
        When there is none of that name, or the file has another form.
    """
    known = msgspec.toml.decode(MAPS.read_bytes(), type=dict[str, MetricMap])
    if name in known:
        return known[name]
    if "/" not in name and not name.endswith(".toml"):
        why = f"{clean(name, limit=80)} is not one of {', '.join(known)}, nor a path"
        raise ConfigError(file, "[fleet] map", why, hint=_HINT)
    path = Path(file).parent / name
    hint = f"[fleet] map of {file} names it; gpuwatchctl docs fleet has one to copy"
    words, _ = config.read_file(path, must_exist=True, hint=hint)
    found = config.parse_as(words or "", MetricMap, file=str(path), hint=_HINT)
    metrics = [one for one in (found.used, found.total, found.free, found.reserved) if one]
    labels = (*found.identity, *found.gpu, *found.job, *found.namespace)
    odd = [one for one in metrics if not _METRIC.fullmatch(one)]
    odd += [one for one in labels if not _LABEL.fullmatch(one)]
    if odd or not found.used or not found.uuid:
        why = f"{clean(odd[0], limit=80)!r} is no name of a metric or label" if odd else "is empty"
        raise ConfigError(str(path), "" if odd else "used, uuid", why, hint=_HINT)
    if not found.total and not found.free:
        raise ConfigError(str(path), "total", "needs total, or free", hint=_HINT)
    return found


def _headers(token_file: str, headers_file: str, file: str, *, prefix: str = "") -> dict[str, str]:
    out = {}
    if token_file:
        token = _secret(token_file, file, f"{prefix}token-file").strip()
        out["Authorization"] = f"Bearer {token}"
    if headers_file:
        for line in _secret(headers_file, file, f"{prefix}headers-file").splitlines():
            name, colon, value = line.partition(":")
            if line.strip() and not (colon and name.strip()):
                key = f"[fleet] {prefix}headers-file"
                raise ConfigError(file, key, 'a line is not "Name: value"')
            if line.strip():
                out[name.strip()] = value.strip()
    probe = HTTPConnection("localhost")
    probe.putrequest("GET", "/")
    for name, value in out.items():
        try:
            probe.putheader(name, value.encode("ascii"))
        except (ValueError, UnicodeError):
            key = "token-file" if name == "Authorization" else "headers-file"
            why = "holds what no header can"
            raise ConfigError(file, f"[fleet] {prefix}{key}", why) from None
    return out


def _secret(name: str, file: str, key: str) -> str:
    """Return what a private file holds; its text is in no error."""
    path = Path(file).parent / Path(name).expanduser()
    words, _ = config.read_file(path, must_exist=True, hint=f"[fleet] {key} of {file} names it")
    handed = os.environ.get("CREDENTIALS_DIRECTORY")
    inside = handed is not None and path.resolve().is_relative_to(Path(handed).resolve())
    if path.stat().st_mode & 0o077 and not inside:
        hint = f"chmod 600 {path}"
        raise ConfigError(file, f"[fleet] {key}", "can be read by other users", hint=hint)
    if not (words or "").strip():
        raise ConfigError(file, f"[fleet] {key}", "is empty")
    return words or ""
