"""Formats of logs: one format = one file + one line here.

A reader is made with the collector, says in ``starts`` whether a block of its format begins at a
line, takes lines in ``feed`` until one is not its own, and ends a block in ``close``.
The order of the rows is the order in which formats are tried.
"""

FORMATS: dict[str, str] = {
    "nvidia-smi-csv": "gpuwatchd.sources.formats.nvidia_csv:Reader",
}
