"""A stand-in for CuPy, as the text of a module: arrays that are counted, and their pool."""

from __future__ import annotations

CUPY = """
class ndarray:
    held = 0
    def __init__(self, rows):
        self.shape, self.dtype, self.nbytes = (rows, 4), "float32", 16 * rows
        ndarray.held += self.nbytes
    def __del__(self):
        ndarray.held -= self.nbytes
class Pool:
    def used_bytes(self):
        return (2 << 30) + ndarray.held
    def total_bytes(self):
        return (3 << 30) + ndarray.held
get_default_memory_pool = Pool
__version__ = "9.9"
"""
