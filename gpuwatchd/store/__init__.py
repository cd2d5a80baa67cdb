"""The history and the live state: everything that outlives a tick."""
