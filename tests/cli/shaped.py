"""Whether an answer is of the shape that is written down for it: every key, and no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gpuwatchd.view.answers import schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def strictly(content: bytes, kinds: Sequence[type[msgspec.Struct]]) -> list[str]:
    """Return why a JSON text is of none of these shapes; nothing when it is of one."""
    why = []
    for kind in kinds:
        try:
            msgspec.json.decode(content, type=kind)
        except msgspec.ValidationError as error:
            why.append(f"{kind.__name__}: {error}")
        else:
            return []
    return why


def kinds_of(said: dict[str, Any]) -> Sequence[type[msgspec.Struct]]:
    """Return the shapes that an emitted object may have."""
    if "verb" not in said:
        return schema.OTHERS["history-ndjson"]
    if "data" not in said:
        return schema.OTHERS["error"]
    assert said["verb"] in schema.ANSWERS, f"{said['verb']}: no row in ANSWERS, {schema.__file__}"
    return schema.ANSWERS[said["verb"]]


def must_fit(emitted: object) -> None:
    """Fail where an emitted object is not of its shape."""
    content = msgspec.json.encode(emitted)
    said = msgspec.json.decode(content)
    why = strictly(content, kinds_of(said))
    assert not why, f"gpuwatchctl {said.get('verb')} --json: {'; '.join(why)}"


def texts(value: object) -> Iterator[str]:
    """Yield every text of an answer."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from texts(one)
