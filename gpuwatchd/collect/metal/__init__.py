"""GPUs of a Mac."""
