"""What the thread that asks serving engines keeps of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.pipeline import engine_polling
from gpuwatchd.pipeline.engine_polling import Ask, Asker

if TYPE_CHECKING:
    import pytest


def test_what_is_kept_of_servers_is_bounded_and_the_one_in_use_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_polling, "MOST_ENGINES", 3)
    asker = Asker()
    used = Ask("Ollama", "http://127.0.0.1:11434", 1.0)
    engine = asker._engine(used)
    for port in range(20):
        asker._engine(Ask("vLLM", f"http://127.0.0.1:{8000 + port}", 1.0))
        assert asker._engine(used) is engine
    assert len(asker._engines) == 3
