"""The program ``gpuwatchd``."""
