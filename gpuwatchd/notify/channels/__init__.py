"""One file or folder per channel."""
