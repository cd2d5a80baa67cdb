"""What is counted, and that nothing of the user's runs."""

from __future__ import annotations

from typing import Any

import pytest
from _gpuwatchd_probe import census, inspection, tensors

from tests.probe.leaks import Blob

CALLED: list[str] = []


def _called(name: str) -> Any:
    def call(cls: type, *_: object) -> Any:
        CALLED.append(name)
        return getattr(type, name)(cls, *_)

    return call


class Meta(type):
    """What compares classes, or asks one, calls this."""


for _name in ("__eq__", "__hash__", "__instancecheck__", "__subclasscheck__", "__getattribute__"):
    setattr(Meta, _name, _called(_name))


class Hostile(metaclass=Meta):
    """Everything that a careless look would call."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        CALLED.append("__class__")
        raise RuntimeError

    def __getattribute__(self, name: str) -> Any:
        CALLED.append(name)
        raise RuntimeError

    def __len__(self) -> int:
        CALLED.append("__len__")
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        CALLED.append("__eq__")
        raise RuntimeError

    def __hash__(self) -> int:
        CALLED.append("__hash__")
        raise RuntimeError

    def __del__(self) -> None:
        CALLED.append("__del__")


class HostileBlob(Blob, metaclass=Meta):
    def __del__(self) -> None:
        CALLED.append("__del__")

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        CALLED.append("__dict__")
        raise RuntimeError

    def __repr__(self) -> str:
        CALLED.append("__repr__")
        raise RuntimeError


def test_groups_with_and_without_the_shape() -> None:
    kept = [Blob(length) for length in (3, 3, 5, 7)]
    taken = census.take((Blob,))
    assert taken.fine["[3] Blob"].total == 2
    assert taken.fine["[3] Blob"].size == 24
    assert taken.fine["[5] Blob"].ids == [id(kept[2])]
    assert taken.coarse["Blob"].total >= 4


def test_subclasses_count_and_nothing_of_the_users_runs() -> None:
    kept = [Hostile(), HostileBlob(9)]
    CALLED.clear()
    taken = census.take((Blob,))
    assert any("HostileBlob" in key for key in taken.fine)
    assert CALLED == []
    assert len(kept) == 2


@pytest.mark.parametrize(
    ("counts", "steady"),
    [
        ([1, 3, 5, 7], True),
        ([1, 9, 12, 15], True),
        ([1, 30, 32, 34], False),
        ([5, 7, 7, 9], False),
        ([9, 7, 5, 3], False),
        ([1, 3, 5], False),
        ([1, 2, 3, 4], False),
    ],
)
def test_what_is_steady(counts: list[int], steady: bool) -> None:
    assert inspection.is_steady(counts, least=inspection.FEWEST_OBJECTS) is steady


def test_of_several_growing_graphs_the_first_variable_is_meant() -> None:
    def row(nodes: int) -> dict[str, Any]:
        facts = {"count": 4, "nodes": nodes, "kind": "float32", "file": "train.py"}
        return {"variables": {"loss": {**facts, "line": 9}, "hidden": {**facts, "line": 3}}}

    rows = [row(nodes) for nodes in (100, 200, 300, 400)]
    (found,) = inspection._growing_variables(rows, [])
    assert (found["holder"]["name"], found["sure"]) == ("hidden", "graph")
    loose = [inspection._group("[4]", [1, 2, 3, 4], 9, None, "native")]
    assert inspection._growing_variables([row(tensors.MOST_NODES)] * 4, loose) == []
    assert (loose[0]["holder"]["name"], loose[0]["sure"]) == ("hidden", "graph")


def test_a_graph_is_as_large_as_its_nodes() -> None:
    from tests.probe.leaks import Plain

    kit = Plain()
    total = kit.loss()
    for _ in range(20):
        total = kit.add(total, kit.loss())
    assert tensors.graph_size(total, (Blob,)) == 41
