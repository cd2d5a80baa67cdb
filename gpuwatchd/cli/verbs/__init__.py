"""One verb of ``gpuwatchctl`` is one file."""
