"""When the limit that binds a subject is reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd import forecast

if TYPE_CHECKING:
    from gpuwatchd.config import DetectionSection
    from gpuwatchd.model import EtaRange, Series
    from gpuwatchd.verdict.growth import Growth


def eta_of(
    series: Series, growth: Growth, rate: float, settings: DetectionSection
) -> EtaRange | None:
    if growth.headroom is None or rate <= 0.0:
        return None
    line_s = max(growth.headroom, 0.0) / rate
    return forecast.eta(
        growth.found,
        growth.weights,
        growth.best,
        line_s=line_s,
        horizon_s=max(forecast.HORIZON_S, float(settings.eta_horizon)),
    )
