"""Which channels the settings send by, which are set up, and what is neither."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatchd.core.config.schema import Config


class ChatService(NamedTuple):
    """A chat service: what people paste, and the address that is made of it."""

    asks: str
    kind: str
    """What Apprise calls it before "://"."""
    address: str = "{}"
    option: str = "--url"


CHAT_SERVICES: Final = {
    "slack": ChatService("webhook, https://hooks.slack.com/services/...", "slack"),
    "discord": ChatService("webhook, https://discord.com/api/webhooks/...", "discord"),
    "teams": ChatService("workflow address, https://...", "workflow"),
    "ntfy": ChatService("topic, or https://SERVER/TOPIC", "ntfys", "ntfys://ntfy.sh/{}", "--topic"),
    "pagerduty": ChatService(
        "key of an Events API v2 integration",
        "pagerduty",
        "pagerduty://{}@apikey?action=map",
        "--key",
    ),
    "telegram": ChatService("token of the bot", "tgram", "tgram://{}/{}", "--token"),
}
"""No channels of their own: each is an address of the channel chat."""
ADDED: Final = (*CHAT_SERVICES, "email")
"""What ``notify add`` sets up."""


def uses(settings: Config) -> Iterator[tuple[str, str]]:
    """Yield each channel and the key that puts it to use."""
    policy = settings.policy
    lists: dict[str, Sequence[str]] = {
        "[policy] channels": policy.channels,
        "[policy] fallback": policy.fallback,
        "[policy] digest-channels": policy.digest_channels if policy.digest != "off" else (),
    }
    for number, section in enumerate(settings.override, start=1):
        lists[f"[[override]] {number} channels"] = section.channels or ()
    yield from ((name, key) for key, names in lists.items() for name in names)


def used(settings: Config) -> tuple[str, ...]:
    """Return the channels that the settings send anything by, each once.

    Examples
    --------
    >>> from gpuwatchd.core.config import Config, OverrideSection, PolicySection
    >>> used(Config(policy=PolicySection(fallback=("email",), digest="daily"),
    ...             override=(OverrideSection(user="bob", channels=("chat", "desktop")),)))
    ('desktop', 'email', 'chat')
    """
    return tuple(dict.fromkeys(name for name, _ in uses(settings)))


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
    """Return one sentence for each channel that is set up in vain, or by half."""
    current, in_use, mail = settings.policy.channels, used(settings), settings.notify.email
    lists = {name: [*current, name] for name in set_up(settings) if name not in in_use}
    half = "email" not in in_use and bool(mail.host) != bool(mail.to)
    return ["email is not used: [notify.email] needs both host and to"] * half + [
        f"{name} is set up but nothing uses it; write [policy] channels = {json.dumps(listed)}"
        for name, listed in lists.items()
    ]


def unknown(name: str, known: Sequence[str], verb: str = "") -> str:
    """Return what is to be said of a name that no channel has; ``verb``: what chat can do."""
    if name in CHAT_SERVICES:
        command = f"{verb} chat" if verb else f"notify add {name}"
        return f'"{name}" is an address of the channel chat: gpuwatchctl {command}'
    return f'no channel is called "{name}"; known: {", ".join(known)}'
