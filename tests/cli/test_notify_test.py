"""The message of ``notify test``: it shows what a mail's picture looks like."""

from __future__ import annotations

import pytest

from gpuwatchd.charts import text_description
from gpuwatchd.cli.verbs.notify import _message
from gpuwatchd.notify import plain_text
from gpuwatchd.notify.channels.email.message import as_html


def test_its_curve_is_an_example_and_says_so() -> None:
    message = _message()
    assert message.chart is not None
    assert text_description.words(message.chart).startswith("Memory grew from 12.0 GiB")
    assert "Curve: an example" in plain_text.plain(message)
    assert "an example" in as_html(message, picture="chart")


@pytest.mark.parametrize("channel", ["desktop", "chat", "command"])
def test_a_channel_without_curves_says_nothing_of_one(channel: str) -> None:
    message = _message(channel)
    assert message.chart is None
    assert set(message.facts) == {"Host", "Sent"}
