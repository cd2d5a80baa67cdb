"""The message of ``notify test``: it shows what a mail's picture looks like."""

from __future__ import annotations

from gpuwatchd.ctl.notify import _message
from gpuwatchd.notify import curve, render
from gpuwatchd.notify.page import html


def test_its_curve_is_an_example_and_says_so() -> None:
    message = _message()
    assert message.chart is not None
    assert curve.words(message.chart).startswith("Memory grew from 12.0 GiB")
    assert "Curve: an example" in render.plain(message)
    assert "an example" in html(message, picture="chart")
    # A pop-up has no curve, and nothing is said of it there.
    assert "example" not in render.popup(message, markup=False)
