"""GPU memory leaks, recognised long before the crash."""

__version__ = "0.1.0"
