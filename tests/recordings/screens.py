"""What stands on the live screen, row by row."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tests.recordings.frozen import NOW_S, PID
from tests.recordings.items import Item
from tests.tui import leaky, viewing
from tests.tui import world as machines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.recordings.worlds import Stage

KEYS: Final = ("", "P", "d", "h", "a", "s", "question_mark")
SIZES: Final = ((80, 24), (140, 40))


def items(stage: Stage) -> Iterator[Item]:
    """Yield each screen."""
    for key in KEYS:
        for size in SIZES:
            yield Item(
                f"screens/leak/{key or 'overview'}/{size[0]}",
                partial(_leak, stage, key, size),
                whole=size[0] == 80,
            )
    for name in ("eight", "strange"):
        for columns in (40, 80, 160):
            yield Item(
                f"screens/{name}/overview/{columns}", partial(_overview, stage, name, (columns, 30))
            )


def _leak(stage: Stage, key: str, size: tuple[int, int]) -> str:
    with stage.before("leak"):
        return asyncio.run(_shown(leaky.view(), [key] if key else [], size))


def _overview(stage: Stage, name: str, size: tuple[int, int]) -> str:
    make = machines.state if name == "eight" else machines.strange
    with stage.before(name):
        return asyncio.run(_shown(viewing.view_of(make(at_s=NOW_S, pid=PID)), [], size))


async def _shown(view: Any, keys: list[str], size: tuple[int, int]) -> str:
    async with viewing.opened(view, *keys, size=size, now_s=NOW_S) as (app, _):
        return viewing.shown(app)
