"""One screen of ``gpuwatchctl top`` is one file."""
