"""Where readings come from; one file per source."""

SOURCES: dict[str, str] = {
    "nvml": "gpuwatchd.sources.nvml:NvmlSource",
    "drm": "gpuwatchd.sources.drm:DrmSource",
    "metal": "gpuwatchd.sources.metal:MetalSource",
    "replay": "gpuwatchd.sources.replay:ReplaySource",
    "simulate": "gpuwatchd.sources.simulate:SimulateSource",
}
