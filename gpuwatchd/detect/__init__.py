"""One file per pattern; each detector is a stateless function of a window."""

DETECTORS: dict[str, str] = {
    "trend": "gpuwatchd.detect.trend:Trend",
    "step": "gpuwatchd.detect.step:Step",
    "cycle": "gpuwatchd.detect.cycle:Cycle",
    "spike": "gpuwatchd.detect.spike:Spike",
    "plateau": "gpuwatchd.detect.plateau:Plateau",
}
