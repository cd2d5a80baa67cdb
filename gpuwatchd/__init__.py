"""GPU memory leaks, recognised long before the crash."""  # modules moved last: 2026-11-27

__version__ = "1.0.0rc1"
