"""Ask a package index which files it has: the JSON form of the simple repository interface.

Addresses are asked for when they are needed and never written into a file of the project.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import sys
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

from project import Failed, run

ACCEPT = "application/vnd.pypi.simple.v1+json"
MOST_BYTES = 64 * 1024 * 1024
TIMEOUT_S = 60


@dataclass(frozen=True, kw_only=True)
class IndexFile:
    """One file of one version."""

    filename: str
    url: str
    sha256: str | None
    yanked: bool

    @property
    def is_sdist(self) -> bool:
        """Whether this is a source distribution."""
        return self.filename.endswith((".tar.gz", ".zip"))


def configured_index() -> str:
    """Return the index that pip uses here, in its own words, without a slash at the end."""
    # pip has no command that says what its files and its environment come to.
    asked = (
        "from pip._internal.commands import create_command;"
        "print(create_command('install').parser.parse_args([])[0].index_url)"
    )
    lines = run([sys.executable, "-c", asked]).split()
    if not lines or urllib.parse.urlsplit(lines[-1]).scheme not in {"https", "http", "file"}:
        raise Failed("pip names no package index", "pip config set global.index-url ADDRESS")
    return lines[-1].rstrip("/")


def files_of(name: str, index: str) -> list[IndexFile]:
    """Return all files of a package.

    Raises
    ------
    Failed
        When the index cannot be reached, does not know the package or answers in another form.
    """
    page = f"{index}/{name}/"
    answer = _fetch(page, name)
    try:
        return [_file(one, page) for one in answer["files"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise Failed(f"the index answers for {name} in a form that is not known") from error


def _file(one: dict[str, Any], page: str) -> IndexFile:
    return IndexFile(
        filename=one["filename"],
        url=urllib.parse.urljoin(page, one["url"]),
        sha256=one["hashes"].get("sha256"),
        yanked=bool(one.get("yanked")),
    )


def _fetch(page: str, name: str) -> dict[str, Any]:
    if urllib.parse.urlsplit(page).scheme not in {"http", "https"}:
        raise Failed(f"the index must be asked over https: {page}", "give another with --index")
    request = urllib.request.Request(page, headers={"Accept": ACCEPT})  # noqa: S310 (checked above)
    trusted = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
    context = ssl.create_default_context(cafile=trusted)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:  # noqa: S310
            kind = answer.headers.get_content_type()
            text = answer.read(MOST_BYTES)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError) as error:
        raise Failed(f"the index says nothing of {name}: {error}") from error
    if kind not in {ACCEPT, "application/json"}:
        raise Failed(f"the index answers for {name} in a form that is not known: {kind}")
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Failed(f"the index answers for {name} with what is no JSON") from error
    return dict(found)
