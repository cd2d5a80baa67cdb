"""Pop-ups on the desktop."""
