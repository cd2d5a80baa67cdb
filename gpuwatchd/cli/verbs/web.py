"""``web``: the live page and the JSON API, served on loopback until it is stopped."""

from __future__ import annotations

import contextlib
import html
import os
import sys
import threading

import click

from gpuwatchd.cli import options, output
from gpuwatchd.core import extras, registry, text
from gpuwatchd.core.config import runtime_dir
from gpuwatchd.view.answers.program import Serving, Web
from gpuwatchd.view.queries import current_state

_SERVER = {"web": "gpuwatchd.web.server:WebServer"}
"""Starlette and uvicorn come with it."""
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
    extras.need("web", "the live page", *_NEEDED, page="errors#web-extra")
    if flags.gpu:
        current_state.load_view(flags)  # refuses what is not here, before anybody opens the page
    listen = listen or section.listen
    if port is not None and listen.startswith("unix"):
        raise click.UsageError("--port is of an address, not of a unix socket")
    server = registry.load(_SERVER, "web")(flags, section, verbose=flags.verbose, debug=flags.debug)
    secret = server.token(renew=new_token)

    def confirm(words: str, url: str | None, listens: str | None, shown: str | None) -> None:
        if flags.json:
            file = text.clean(str(server.token_file))
            output.emit_answer(Web, Serving(url=url, listens=listens, token=shown, token_file=file))
        else:
            print(words, flush=True)

    def begun(where: str) -> None:
        url = f"{where}/#token={secret}" if where.startswith("http") else None
        if sys.stdout.isatty():
            confirm(url or f"{where} {_ASK}", url, where, secret)
        else:  # a file or a journal, which others may read, and which is kept
            confirm(f"{where} {_ASK}", None, where, None)
        if opens and url is not None:
            # A browser of the terminal comes back when it is left: we must answer it until then.
            threading.Thread(target=_open, args=(url,), daemon=True).start()

    if token:
        confirm(secret, None, None, secret)
        return 0
    try:
        return int(server.serve(listen, port, begun))
    finally:
        if opens:
            with contextlib.suppress(OSError):
                (runtime_dir() / _DOOR).unlink()


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
