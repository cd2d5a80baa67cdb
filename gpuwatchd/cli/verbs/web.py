"""``web``: the live page and the JSON API, served on loopback until it is stopped."""

from __future__ import annotations

import contextlib
import html
import importlib.util
import os
import sys
import threading
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click

from gpuwatchd.cli import options, output
from gpuwatchd.core import text
from gpuwatchd.core.config import expanded, runtime_dir, state_dir
from gpuwatchd.core.errors import GpuwatchdError

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from gpuwatchd.cli.flags import Globals
    from gpuwatchd.core.config import WebSection
    from gpuwatchd.web.auth import Tokens

_NEEDED = ("starlette", "uvicorn")
_DOOR = "web-open.html"
_ASK = "(gpuwatchctl web --token prints its token)"


@click.command(
    "web",
    epilog=options.examples(
        "web", "web --open", "web --port 0", "web --listen unix", "web --token"
    ),
)
@click.option(
    "--listen", metavar="ADDRESS", help="Address and port, unix or unix:PATH (127.0.0.1:9753)."
)
@click.option("--port", type=click.IntRange(0, 65535), help="Another port; 0 takes a free one.")
@click.option("--open", "opens", is_flag=True, help="Open it in the browser.")
@click.option("--token", is_flag=True, help="Print the token and exit.")
@click.option(
    "--new-token",
    is_flag=True,
    help="Serve with a new token, or with --token print one; the old one is no longer valid.",
)
def command(
    listen: str | None,
    port: int | None,
    opens: bool,  # noqa: FBT001
    token: bool,  # noqa: FBT001
    new_token: bool,  # noqa: FBT001
) -> int:
    """Serve the live page and the JSON API on this machine, until Ctrl-C.

    It prints one line: the address with the token, which lets in whoever has it; where the output
    is no terminal but a file, a pipe or a journal, without (--token prints it). The page shows
    what status, predict, alerts, zombies and history know, and snoozes alerts. From elsewhere:
    ssh -t -L 9753:127.0.0.1:9753 HOST gpuwatchctl web. /api/v1/openapi.json describes the API.
    """
    flags = options.current()
    section = flags.load_config().config.web
    _need_extra()
    from gpuwatchd.web import auth  # noqa: PLC0415 - of the extra

    path = expanded(section.token_file) if section.token_file else state_dir() / auth.FILE_NAME
    secret = auth.renew(path) if new_token else auth.kept(path)
    if token:
        _confirm(flags, secret, None, listens=None, token=secret, path=path)
        return 0
    return _serve(flags, section, _Listening(listen, port, opens), auth.Tokens(path), secret)


class _Listening(NamedTuple):
    """What the flags say of where and how."""

    listen: str | None
    port: int | None
    opens: bool


def _serve(
    flags: Globals, section: WebSection, wish: _Listening, tokens: Tokens, secret: str
) -> int:
    from gpuwatchd.web import listening, server  # noqa: PLC0415 - of the extra

    address = listening.parse(wish.listen or section.listen, remote=section.remote)
    if wish.port is not None:
        if address.path is not None:
            raise click.UsageError("--port is of an address, not of a unix socket")
        address = address._replace(port=wish.port)
    made = listening.sockets(address)
    where = _where(made[0], address.hosts)
    url = None if address.path is not None else f"{where}/#token={secret}"

    def begun() -> None:
        if sys.stdout.isatty():
            _confirm(
                flags, url or f"{where} {_ASK}", url, listens=where, token=secret, path=tokens.path
            )
        else:  # a file or a journal, which others may read, and which is kept
            _confirm(flags, f"{where} {_ASK}", None, listens=where, token=None, path=tokens.path)
        if wish.opens and url is not None:
            # A browser of the terminal comes back when it is left: we must answer it until then.
            threading.Thread(target=_open, args=(url,), daemon=True).start()

    try:
        return server.Page(
            flags, tokens, section.hosts, verbose=flags.verbose, debug=flags.debug
        ).serve(made, begun)
    finally:
        if wish.opens:
            with contextlib.suppress(OSError):
                (runtime_dir() / _DOOR).unlink()


def _where(made: socket.socket, hosts: tuple[str, ...]) -> str:
    at = made.getsockname()
    if not isinstance(at, tuple):
        return f"unix:{text.clean(os.fsdecode(at))}"
    host = "localhost" if len(hosts) > 1 else f"[{at[0]}]" if ":" in at[0] else at[0]
    return f"http://{host}:{at[1]}"


def _confirm(
    flags: Globals,
    words: str,
    url: str | None,
    *,
    listens: str | None,
    token: str | None,
    path: Path,
) -> None:
    if flags.json:
        data = {"url": url, "listens": listens, "token": token, "token_file": text.clean(str(path))}
        output.emit("web", data)
    else:
        print(words, flush=True)


def _open(url: str) -> None:
    """Open the page without the token in any command line, which every user may read."""
    import webbrowser  # noqa: PLC0415 - only where it is asked for

    door = runtime_dir() / _DOOR
    page = f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(url)}">'
    opened = False
    try:
        door.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        door.unlink(missing_ok=True)
        handle = os.open(door, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(handle, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
            file.write(page)
        opened = webbrowser.open(door.as_uri())
    except (OSError, ValueError, webbrowser.Error):
        opened = False
    if not opened:
        print(
            "gpuwatchctl: no browser could be opened; the line above is the address",
            file=sys.stderr,
        )


def _need_extra() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        _lacks(missing)


def _lacks(missing: list[str]) -> NoReturn:
    from gpuwatchd.core import extras  # noqa: PLC0415 - rare

    raise GpuwatchdError(
        f"the live page needs {' and '.join(missing)}, which are not installed",
        hint=extras.install("web"),
        page="errors#web-extra",
    )
