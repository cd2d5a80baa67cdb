"""The benchmark of detection: ``python -m tests.scenarios.bench``."""
