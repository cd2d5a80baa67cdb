"""Who is at work: asked as often as it takes to believe the answer, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sources.nvml_case import Nvml


def test_doubt_about_a_busy_card_comes_to_rest(fake: Nvml, child: int) -> None:
    (found,) = fake.play(f"""
put("gpu 0 total=24G util=90", "proc 0 pid={child} mem=1G sm=0")
s = source(slow_every=1000)
seen = []
for tick in range(200):
    seen.append(plain(s.read().readings)[0]["uses"][0]["sm_pct"])
    now[0] += 1
out([seen[0], seen[-1]])
""")
    assert found == [0, 0]
    # Once per doubt and then in turn only; without an end to doubt it would be 200.
    assert fake.stats()["nvmlDeviceGetProcessUtilization"] <= 12
