"""Errors of the live page and of its API."""

from __future__ import annotations

from typing import Final

from gpuwatchd.cli.error_pages.asking import ErrorPage

SERVING: Final = (
    ErrorPage(
        "web-extra",
        "The live page needs libraries that are not installed",
        "`gpuwatchctl web` is served by Starlette and uvicorn, the extra `web`.",
        ("a plain `pip install gpuwatchd`: extras are named",),
        ("the hint has the command; the Debian package brings it",),
    ),
    ErrorPage(
        "web-listen",
        "The live page cannot listen there",
        "The address is taken, is none, or could be reached from other machines.",
        (
            "`gpuwatchctl web` runs already, or another program has the port",
            "an address that is not loopback, without `[web] remote = true`",
            "a path for a unix socket at which something else is, or one that is too long",
        ),
        (
            "`gpuwatchctl web --port 0` takes a free port and prints it",
            "from another machine: `ssh -t -L 9753:127.0.0.1:9753 HOST gpuwatchctl web`",
        ),
    ),
    ErrorPage(
        "web-token",
        "The token of the live page",
        "Whoever reads through the page or its API needs the token: a port of this machine is open"
        " to everybody on it, the history is not. Its file must be its owner's alone, no link.",
        (
            "the page was opened without the address that `gpuwatchctl web` prints",
            "`--new-token` has replaced it since",
            "the file can be read by others, is a link, or belongs to somebody else",
        ),
        (
            "`gpuwatchctl web --token` prints it; programs send it as `Authorization: Bearer`",
            "`gpuwatchctl web --new-token --token` replaces it",
        ),
    ),
    ErrorPage(
        "web-host",
        "The live page was called by a name that is not its own",
        "The server answers to localhost, 127.0.0.1 and [::1] with its port, and to the names in"
        " `[web] hosts`. Any other could be a page of a stranger that has made its name mean this"
        " machine.",
        ("a proxy or a tunnel with another name or port than the server's",),
        ('`[web] hosts = ["gpu.example.org", "localhost:8080"]` adds names',),
    ),
    ErrorPage(
        "web-request",
        "The live page's server refuses a request",
        "The address, its method, a parameter, the body, its size or its origin is not what the API"
        " takes.",
        (
            "a parameter that this address does not have",
            "a body that is not JSON, or too large",
            "a page of another origin asks",
        ),
        ("`/api/v1/openapi.json` and `gpuwatchctl docs api` describe all of it",),
    ),
)
