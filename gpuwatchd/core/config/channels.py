"""Which channels the settings send by, which are set up, and what is neither."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.core.config.schema import Config

CHAT_SERVICES: Final = ("slack", "discord", "teams", "ntfy", "pagerduty", "telegram")
"""No channels of their own: each is an address of the channel chat."""


def used(settings: Config) -> tuple[str, ...]:
    """Return the channels that the settings send anything by, each once.

    Examples
    --------
    >>> from gpuwatchd.core.config import Config, OverrideSection, PolicySection
    >>> used(Config(policy=PolicySection(fallback=("email",), digest="daily"),
    ...             override=(OverrideSection(user="bob", channels=("chat", "desktop")),)))
    ('desktop', 'email', 'chat')
    """
    policy = settings.policy
    digest_channels = policy.digest_channels if policy.digest != "off" else ()
    by_rules = (name for rule in settings.override for name in rule.channels or ())
    return tuple(dict.fromkeys((*policy.channels, *policy.fallback, *by_rules, *digest_channels)))


def set_up(settings: Config) -> tuple[str, ...]:
    """Return the channels whose section has what they cannot do without."""
    notify = settings.notify
    complete = {
        "email": notify.email.host and notify.email.to,
        "chat": notify.chat.urls_file,
        "command": notify.command.argv,
    }
    return tuple(name for name, there in complete.items() if there)


def by_default(settings: Config) -> tuple[str, ...]:
    """Return ``[policy] channels`` where nobody has set it: that of the preset, and all set up.

    Mail that is not set up makes way for what is; pop-ups may work and stay. What is used for
    something else, such as the digest, is left to that; a preset without channels wants none.
    """
    preset, there = settings.policy.channels, set_up(settings)
    if not preset:
        return ()
    kept = [name for name in preset if name in there or name == "desktop"]
    others = [name for name in there if name not in used(settings)]
    return (*kept, *others) or preset


def unused(settings: Config) -> list[str]:
    """Return one sentence for each channel that is set up in vain."""
    in_use = used(settings)
    return [
        f"{name} is set up but nothing uses it; write [policy] channels = [{listed}]"
        for name in set_up(settings)
        if name not in in_use
        for listed in [", ".join(f'"{one}"' for one in (*settings.policy.channels, name))]
    ]


def unknown(name: str, known: Sequence[str]) -> str:
    """Return what is to be said of a name that no channel has."""
    if name in CHAT_SERVICES:
        return f'"{name}" is an address of the channel chat: gpuwatchctl notify add {name}'
    return f'no channel is called "{name}"; known: {", ".join(known)}'
