"""Where everything meets: read, remember, judge, decide, tell; and the one broad ``except``."""
