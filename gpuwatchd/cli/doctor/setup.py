"""Is the configuration right, and what it means."""

from __future__ import annotations

import os
import shlex
import stat
import time
from typing import TYPE_CHECKING

from gpuwatchd.cli import settings
from gpuwatchd.cli.doctor.answer import Check, failed, ok, warning
from gpuwatchd.core import config, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.cli.doctor.answer import Around

_SECRET = ("password", "token", "secret", "://")
_ORIGIN = "gpuwatchctl config print --origin"


def check(around: Around) -> Iterator[Check]:
    """Yield what is wrong with the configuration."""
    if around.faulty is not None:
        message, hint = around.faulty
        yield failed("config-error", "config", message, hint or "gpuwatchctl config validate")
        return
    checks = [*_sources(around)]
    yield from checks
    files = around.loaded.files
    if not checks:
        names = ", ".join(map(str, files)) or "no file; the defaults"
        over = "; the second wins key by key" if len(files) > 1 else ""
        yield ok("config", f"{names}{over}")


def _sources(around: Around) -> Iterator[Check]:
    chosen = around.settings
    for words in settings.problems(chosen):
        yield failed("config-problem", "config", words, "gpuwatchctl config validate")
    for words in around.loaded.warnings:
        yield warning("config-variable", "config", words, _ORIGIN)
    for words in settings.consequences(chosen):
        yield warning("config-consequence", "config", words, _ORIGIN)
    for file in around.loaded.files:
        try:
            about = file.stat()
            content = file.read_text(encoding="utf-8", errors="replace").lower()
        except OSError:
            continue
        mode, mine, quoted = about.st_mode, about.st_uid == os.geteuid(), shlex.quote(str(file))
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            hint = f"{'' if mine else 'sudo '}chmod go-w {quoted}"
            yield warning("config-writable", "config", f"others can change {file}", hint)
        elif mode & stat.S_IROTH and _tells(content):
            hidden = f"chmod 600 {quoted}" if mine else f"sudo chmod o-r {quoted}"
            yield warning(
                "config-readable", "config",
                f"others can read {file}, and a login or token seems to be in it",
                f"{hidden}, and use password-file or urls-file",
            )  # fmt: skip
    if around.environ.get("GPUWATCHD_CONFIG") and len(around.loaded.files) == 1:
        own = config.user_file()
        if own.exists() and not own.samefile(around.loaded.files[0]):
            yield ok("config", f"{own} is not read: GPUWATCHD_CONFIG names another file")


def _tells(content: str) -> bool:
    """Say whether a line holds what looks like a secret: masking it would change it."""
    for line in content.splitlines():
        words = line.partition("#")[0].strip()
        if any(mark in words for mark in _SECRET) and text.mask_argv([words])[0] != words:
            return True
    return False


# Is it known what the GPUs cost.


def prices(around: Around) -> Iterator[Check]:
    """Yield which price is used, and what is doubtful about it."""
    from gpuwatchd.cli import money  # noqa: PLC0415

    state, _ = around.state
    devices = [] if state is None else [item.device for item in state.devices]
    for well, words, hint in money.Book(around.settings, devices, now_s=time.time()).checks():
        yield ok("price", words) if well else warning("price-doubtful", "price", words, hint)
