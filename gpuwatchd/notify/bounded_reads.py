"""Answers of web services, read no further and no longer than anybody needs.

Apprise reads whatever a service answers to its end, in our process, and has no setting for it. A
service that never comes to an end would fill the memory, in a thread that was long given up.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_BYTES: Final = 1 << 20
"""No answer to a notice is as long; its status, which counts, comes before."""
LONGEST_S: Final = 60.0


def bound(response: Any) -> None:
    """Make a class of responses (``requests.Response``) stop reading; twice does nothing more."""
    whole = response.iter_content
    if getattr(whole, "bounded", False):
        return

    def iter_content(self: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
        ends_s, taken = time.monotonic() + LONGEST_S, 0
        for chunk in whole(self, *arguments, **options):
            yield chunk
            taken += len(chunk)
            if taken >= MOST_BYTES or time.monotonic() >= ends_s:
                # What is left of it would come before the next answer.
                self.close()
                return

    iter_content.bounded = True  # type: ignore[attr-defined]
    response.iter_content = iter_content
