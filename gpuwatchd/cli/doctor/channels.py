"""Can the channels in use reach anybody: their own probes, asked side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.cli import ruleset
from gpuwatchd.cli.doctor.answer import Asked, Check, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.cli.doctor.answer import Around
    from gpuwatchd.core.ports import Notifier


def check(around: Around) -> Iterator[Check]:
    """Yield what each channel says of itself."""
    from gpuwatchd.notify import NOTIFIERS, dispatcher  # noqa: PLC0415

    used = ruleset.used_channels(around.settings)
    names = [name for name in NOTIFIERS if name in used]
    built = dispatcher.build(around.settings.notify, names)
    asked = [_ask(name, notifier) for name, notifier in built.items()]
    for one in asked:
        yield from one.answers()


def _ask(name: str, notifier: Notifier) -> Asked:
    test = f"gpuwatchctl notify test {name}"
    hung = warning("channel-hangs", f"channel {name}", "does not answer", test)

    def probe() -> list[Check]:
        availability = notifier.probe()
        if availability.ok:
            return [ok(f"channel {name}", availability.reason)]
        return [
            warning(
                f"channel-{name}", f"channel {name}", availability.reason, availability.hint or test
            )
        ]

    return Asked(probe, hung)
