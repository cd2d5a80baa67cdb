"""The configuration as text: every key with its meaning, and what a setting costs."""

from __future__ import annotations

import inspect
import json
import stat
from typing import TYPE_CHECKING, Any

import msgspec

from gpuwatchd.cli import rules_text
from gpuwatchd.core import config, text, units
from gpuwatchd.core.config import Config, OverrideSection, Seconds, Section, Size, expanded
from gpuwatchd.core.config import schema as config_sections
from gpuwatchd.core.errors import NotifyError
from gpuwatchd.view.answers.schema import notes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatchd.view.answers.program import Mix, OperatingPoint
    from gpuwatchd.view.blocks import Page

HEAD = """\
# gpuwatchd configuration. Every key is here with its default, switched off by the "#" before it;
# remove that "#" to set a key. Durations: 90s 15m 2h 7d. Sizes: 512MiB 24GiB.
# See what is in force: gpuwatchctl config print --origin
"""
EXAMPLES = """\
# [[override]]
# process = "vllm*"
# grows-to = "60GiB"
# why = "its cache fills up to there"

# [[override]]
# user = "alice"
# channels = ["chat"]
"""
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


def toml(value: object) -> str:
    """Return a value as TOML.

    Examples
    --------
    >>> toml(Seconds(900)), toml(("a", "b")), toml(0.5), toml(True)
    ('"15m"', '["a", "b"]', '0.5', 'true')
    """
    if isinstance(value, Seconds):
        return json.dumps(units.short_duration(value))
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(toml(item) for item in value)}]"
    if isinstance(value, dict):
        inside = ", ".join(f"{json.dumps(key)} = {toml(one)}" for key, one in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, Section):
        set_keys = {
            field.encode_name: one
            for field in msgspec.structs.fields(value)
            if (one := getattr(value, field.name)) != field.default
        }
        return "\n".join(f"{key} = {toml(one)}" for key, one in set_keys.items())
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return _size(value) if isinstance(value, Size) else str(value)


def _size(value: Size) -> str:
    for unit, bytes_each in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if value and value % bytes_each == 0:
            return f'"{value // bytes_each}{unit}"'
    return str(int(value))


def masked(value: object) -> object:
    """Return a value with secrets (tokens, logins in URLs) shown as ``****``.

    Examples
    --------
    >>> masked(("curl", "https://me:pw@host/x"))
    ('curl', 'https://****@host/x')
    """
    if isinstance(value, OverrideSection):
        return msgspec.structs.replace(value, command=text.mask_argv([value.command])[0])
    if isinstance(value, tuple) and all(isinstance(word, str) for word in value):
        return text.mask_argv(value, limit=64)
    return text.mask_argv([value])[0] if isinstance(value, str) and value else value


def plain(value: object) -> Any:
    """Return a value as JSON may have it; durations as the configuration writes them.

    Examples
    --------
    >>> plain((Seconds(90), Seconds(3600))), plain(Size(5)), plain("x")
    (('90s', '1h'), 5, 'x')
    """
    return msgspec.to_builtins(
        value,
        enc_hook=lambda one: units.short_duration(one) if isinstance(one, Seconds) else int(one),
    )


def _docs() -> dict[str, dict[str, str]]:
    """Return class name -> field name (and "" for what its docstring tells) -> its docstring."""
    # The name of a section stands before what it is about.
    return {
        name: {"": inspect.cleandoc(about).partition("``: ")[2].rstrip("."), **fields}
        for name, fields in notes(config_sections.__name__).items()
        for about in (getattr(config_sections, name).__doc__ or "",)
    }


def sections(kind: type[Section] = Config, path: str = "") -> Iterator[tuple[str, type[Section]]]:
    """Yield ("notify.email", EmailSection) for every section that has keys of its own."""
    fields = msgspec.structs.fields(kind)
    nested = [f for f in fields if isinstance(f.type, type) and issubclass(f.type, Section)]
    if path and len(nested) < len(fields):
        yield path, kind
    for field in nested:
        yield from sections(
            field.type, f"{path}.{field.encode_name}" if path else field.encode_name
        )


def default_file() -> str:
    """Return a commented configuration file: every key, its meaning and its default."""
    docs = _docs()
    lines = [HEAD]
    for path, kind in sections():
        about = docs[kind.__name__][""]
        lines.append(f"[{path}]" + (f"  # {about}" if about else ""))
        for field in msgspec.structs.fields(kind):
            if isinstance(field.type, type) and issubclass(field.type, Section):
                continue
            made = field.default is msgspec.NODEFAULT
            default = field.default_factory() if made else field.default
            lines += [f"# {line}" for line in docs[kind.__name__].get(field.name, "").splitlines()]
            value = "" if default is None else f" {toml(default)}"
            lines.append(f"#{field.encode_name} ={value}")
        lines.append("")
    return "\n".join([*lines, *_example(docs)])


def _example(docs: dict[str, dict[str, str]]) -> Iterator[str]:
    """Yield what an override looks like: every key of it, and two that people need."""
    yield f"# [[override]]: {docs['OverrideSection']['']}"
    for field in msgspec.structs.fields(OverrideSection):
        words = " ".join(docs["OverrideSection"][field.name].split())
        yield f"#   {field.encode_name:<10} {words}"
    yield ""
    yield from EXAMPLES.splitlines()


def consequences(settings: Config) -> list[str]:
    """Return what these settings hide, delay or silence, one sentence each."""
    return [
        *_thresholds(settings),
        *_windows(settings),
        *_policy(settings),
        *rules_text.notes(settings),
    ]


def _thresholds(settings: Config) -> Iterator[str]:
    section = settings.detection
    if section.min_slope_mb_per_sec > 0:
        floor = units.rate(section.min_slope_mb_per_sec * 1e6)
        yield f"min-slope-mb-per-sec: this slope floor hides leaks below {floor}"
    if section.min_r_squared > 0:
        yield (
            f"min-r-squared: gradual leaks whose R² is below {section.min_r_squared:g} are hidden;"
            " real allocators are often noisier"
        )
    if section.confidence_threshold > 0.9:
        yield "confidence-threshold: alerts come late, slow leaks perhaps never"
    if section.confidence_threshold < 0.6:
        yield "confidence-threshold: expect false alarms"
    if section.minimum_growth_mib > Config().detection.minimum_growth_mib:
        amount = units.size(section.minimum_growth_mib * 1024**2)
        yield f"minimum-growth-mib: growth below {amount} within the look-back is hidden"


def operating_points(out: Page, points: Sequence[OperatingPoint], measured_on: str) -> None:
    """Show what each sensitivity and the threshold in force brings and costs."""
    out.table(
        ["sensitivity", "level", "mix", "F1", "false alerts a day", "lead", "10, 30, 60 min"],
        [row for point in points for row in _operating_point(point)],
    )
    (level,) = (point for point in points if point.in_force)
    if level.figures is None:
        between = [f"{point.alert_confidence:g}" for point in points if point.nearest]
        words = f"no figures were measured for a confidence-threshold of {level.alert_confidence:g}"
        out.prose(
            words + (f"; it lies between {' and '.join(between)}" if between else ""), "yellow"
        )
    out.prose(
        f"simulated runs ({measured_on}), other keys at their defaults; field mix: weighed as in"
        " public telemetry; false alerts a harmless GPU-day (95 %); lead: share of the time that is"
        " left at the alert, median; leaks with at least 10, 30, 60 min left;"
        " gpuwatchctl docs detection#two-mixes"
    )


def _operating_point(point: OperatingPoint) -> Iterator[list[str]]:
    level, figures = f"{point.alert_confidence:g}", point.figures
    mark = "in force" if point.in_force else "nearest" if point.nearest else ""
    name = point.sensitivity or "(none)"
    if figures is None:
        yield [name, level, *["–"] * 5]
        yield [mark, *[""] * 6]
        return
    shares = (figures.left_10_min_share, figures.left_30_min_share, figures.left_60_min_share)
    left = ", ".join(units.percent(share).removesuffix(" %") for share in shares)
    yield [
        name,
        level,
        "field",
        *_mix(figures.field),
        units.percent(figures.lead_share),
        f"{left} %",
    ]
    yield [mark, "", "hard", *_mix(figures.hard), "", ""]


def _mix(mix: Mix) -> tuple[str, str]:
    low, high = mix.false_alerts_low_per_day, mix.false_alerts_high_per_day
    return f"{mix.f1:.2f}", f"{mix.false_alerts_per_day:.2f} ({low:.2f}–{high:.2f})"


def _windows(settings: Config) -> Iterator[str]:
    section, interval_s = settings.detection, settings.daemon.interval
    first_s = max(section.minimum_samples * interval_s, section.minimum_duration)
    if first_s > 600:
        yield f"minimum-samples: no alert before {units.duration(first_s)} of growth"
    window_s = section.analysis_window_hours * 3600
    if section.analysis_window_hours < Config().detection.analysis_window_hours:
        slowest = units.rate(section.minimum_growth_mib * 1024**2 / window_s)
        yield f"analysis-window-hours: leaks slower than {slowest} are hidden at best"
    if window_s < first_s:
        yield "analysis-window-hours: shorter than what an alert needs, so there will be none"
    if section.eta_horizon < 3600:
        yield f"eta-horizon: no alert earlier than {units.duration(section.eta_horizon)} before"
    if section.spike_window < 3 * interval_s:
        yield f"spike-window: shorter than 3 samples; {units.duration(3 * interval_s)} is used"


def _policy(settings: Config) -> Iterator[str]:
    if not settings.policy.channels:
        yield "channels: empty, so no alert is sent; status shows them"
    if not settings.sources.enabled:
        yield "sources.enabled: empty, so nothing is monitored"
    if settings.daemon.interval > 60:
        yield "interval: growth within minutes is seen late"
    if not settings.policy.repeat:
        yield "repeat: empty, so an alert is sent once and never again"


def problems(settings: Config) -> list[str]:
    """Return what cannot work, one sentence each: unknown names, incomplete or unsafe channels."""
    from gpuwatchd.analysis.frameworks import engine_addresses  # noqa: PLC0415
    from gpuwatchd.collect import SOURCES, selection  # noqa: PLC0415
    from gpuwatchd.notify.channels import chat  # noqa: PLC0415

    texts = [
        f'[sources] enabled: no source is called "{name}"; known: {", ".join(SOURCES)}'
        for name in settings.sources.enabled
        if name not in SOURCES and not selection.is_known(name)
    ]
    if "replay" in settings.sources.enabled and not settings.sources.replay.file:
        texts.append("[sources.replay] file: not set, and the source replay is enabled")
    texts += rules_text.problems(settings)
    used = config.channels.used(settings)
    if "email" in used:
        texts += _email(settings)
    if "command" in used and not settings.notify.command.argv:
        place = rules_text.place_of(settings, "command")
        texts.append(f"[notify.command] argv: empty, and the channel command is in use{place}")
    if "chat" in used and settings.notify.chat.urls_file:
        try:
            chat.load(settings.notify.chat.urls_file)
        except NotifyError as error:
            hint = f"; {error.hint}" if error.hint else ""
            texts.append(f"[notify.chat] {error.message}{hint}")
    if settings.act.checkpoint == "command" and not settings.act.argv:
        texts.append('[act] argv: empty, and checkpoint is "command"')
    return [*texts, *engine_addresses.misread(settings.endpoints.urls)]


def _email(settings: Config) -> Iterator[str]:
    section = settings.notify.email
    for key, value in (("host", section.host), ("to", section.to)):
        if not value:
            place = rules_text.place_of(settings, "email")
            yield f"[notify.email] {key}: empty, and the channel email is in use{place}"
    if section.security == "none" and section.host and section.host not in _LOOPBACK:
        yield f'[notify.email] security: "none" is refused for {section.host}'
    if not section.password_file:
        return
    file = expanded(section.password_file)
    try:
        mode = file.stat().st_mode
    except OSError as error:
        yield f"[notify.email] password-file: {file}: {error.strerror}"
        return
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        yield f"[notify.email] password-file: others can read {file}; run: chmod 600 {file}"
