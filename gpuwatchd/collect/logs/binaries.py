"""Files that are no text and are refused, each in one sentence."""

from __future__ import annotations

_KINDS: tuple[tuple[bytes, str, str], ...] = (
    (
        b":W&B",
        "this is the binary log of Weights & Biases, which is not read",
        "export the system metrics of the run as CSV",
    ),
    (
        b"PK\x03\x04",
        "this is a zip archive or a PyTorch file, not a log",
        "unpack it, or log with nvidia-smi",
    ),
    (b"SQLite format 3\0", "this is a database, not a log", "use gpuwatchctl history"),
    (b"PAR1", "this is a Parquet file, not a log", "export it as CSV"),
    (b"\x89HDF", "this is an HDF5 file, not a log", "export it as CSV"),
    (b"BZh", "this is compressed with bzip2, which is not read", "decompress it, or use gzip"),
    (b"\xfd7zXZ\0", "this is compressed with xz, which is not read", "decompress it, or use gzip"),
    (b"\x28\xb5\x2f\xfd", "this is compressed with zstd, which is not read", "decompress it"),
    (b"\x7fELF", "this is a program, not a log", ""),
)


def refusal(head: bytes) -> tuple[str, str] | None:
    r"""Return the sentence and the hint for a binary file, or None for what may be text.

    Examples
    --------
    >>> refusal(b"\x7fELF\x02\x01")[0]
    'this is a program, not a log'
    >>> refusal(b"timestamp, index") is None
    True
    """
    for magic, sentence, hint in _KINDS:
        if head.startswith(magic):
            return sentence, hint
    return None
