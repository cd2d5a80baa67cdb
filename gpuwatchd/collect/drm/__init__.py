"""AMD and Intel GPUs on Linux."""
