"""``gpuwatchctl top``: the live screen, of the live state and the history; it writes neither."""
