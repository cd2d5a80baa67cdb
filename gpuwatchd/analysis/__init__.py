"""From series of memory to findings. Pure: no clock, no files, no threads."""
