"""The worlds of the source that simulates."""
