"""NVIDIA GPUs, through the library of the driver (NVML)."""
