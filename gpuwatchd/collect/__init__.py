"""Where readings come from: one folder per vendor, one class per source."""

SOURCES: dict[str, str] = {
    "nvml": "gpuwatchd.collect.nvml.source:NvmlSource",
    "drm": "gpuwatchd.collect.drm.source:DrmSource",
    "metal": "gpuwatchd.collect.metal.source:MetalSource",
    "replay": "gpuwatchd.collect.replay:ReplaySource",
    "simulate": "gpuwatchd.collect.simulate:SimulateSource",
}
