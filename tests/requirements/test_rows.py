"""Every row of the checklist is named by a test, and every name is that of a row."""

from __future__ import annotations

from tests.requirements.__main__ import ROWS, named, rows


def test_every_row_is_named_by_a_test() -> None:
    assert len(rows()) == ROWS
    assert named().keys() == rows().keys()
