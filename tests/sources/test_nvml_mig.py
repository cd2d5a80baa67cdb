"""MIG instances as devices: they stay while the driver does not say that they have gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sources.nvml_case import UID

if TYPE_CHECKING:
    from tests.sources.nvml_case import Nvml

PARTS = (
    "gpu 0 total=80G mig=1",
    "mig 0 gi=1 total=20G uuid=MIG-a",
    "mig 0 gi=2 total=20G uuid=MIG-b",
)


@pytest.mark.parametrize(
    "failure",
    [
        "fail nvmlDeviceGetMigMode 0 10",
        "fail nvmlDeviceGetMaxMigDeviceCount 0 999",
        "fail nvmlDeviceGetMigDeviceHandleByIndex 0 999",
        "fail nvmlDeviceGetUUID 0:1 10",
    ],
)
def test_an_instance_is_not_gone_because_a_call_failed(fake: Nvml, failure: str) -> None:
    fake.write(*PARTS)
    devices = fake.play(f"""
s = source(rescan_s=60)
def uids():
    s.read()
    return [device.uid for device in s.devices()]
before = uids()
put(*{PARTS!r}, {failure!r})
now[0] += 61
during = uids()
put(*{PARTS!r})
now[0] += 61
out(before, during, uids())
""")
    assert devices == [[UID(0), "MIG-a", "MIG-b"]] * 3


def test_an_instance_knows_which_card_it_is_on(fake: Nvml) -> None:
    fake.write("gpu 0 total=80G", "gpu 1 total=80G mig=1", "mig 1 gi=1 total=20G uuid=MIG-a")
    labels = fake.play("""
s = source()
s.read()
out([device.label for device in s.devices()])
""")
    assert labels == [["GPU 0", "GPU 1", "MIG 1:0"]]
