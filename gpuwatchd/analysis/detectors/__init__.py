"""One file per pattern; each detector is a stateless function of a window."""

DETECTORS: dict[str, str] = {
    "trend": "gpuwatchd.analysis.detectors.trend:Trend",
    "step": "gpuwatchd.analysis.detectors.step:Step",
    "cycle": "gpuwatchd.analysis.detectors.cycle:Cycle",
    "spike": "gpuwatchd.analysis.detectors.spike:Spike",
    "plateau": "gpuwatchd.analysis.detectors.plateau:Plateau",
}
