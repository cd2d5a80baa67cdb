"""What cards say of their own health: what is due is told, since whenever it is so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sources.nvml_case import play

if TYPE_CHECKING:
    from tests.fakenvml import FakeNvml


def test_a_reset_that_is_due_from_before_is_told_once(fake: FakeNvml) -> None:
    fake.write("gpu 0 total=24G remapped=3 remap_pending=1")
    texts = play(
        fake,
        """
s = source()
texts = []
for more in ("remap_pending=1", "remap_pending=1", "remap_failure=1", "remap_failure=1", ""):
    put(f"gpu 0 total=24G remapped=3 {more}")
    texts += [event.text for event in s.read().events]
    now[0] += 61
out(*texts)
""",
    )
    assert texts == [
        "3 rows of memory out of use; the GPU has to be reset",
        "3 rows of memory out of use; no spare rows are left, exchange the GPU",
    ]


def test_rows_that_were_replaced_long_ago_are_no_news(fake: FakeNvml) -> None:
    fake.write("gpu 0 total=24G remapped=3")
    texts = play(
        fake,
        """
s = source()
texts = []
for _ in range(3):
    texts += [event.text for event in s.read().events]
    now[0] += 61
out(*texts)
""",
    )
    assert texts == []
