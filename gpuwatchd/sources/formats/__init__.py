"""Formats of logs: one format = one file + one line here.

A reader is made with the collector, says in ``starts`` whether a block of its format begins at a
line, takes lines in ``feed`` until one is not its own, and ends a block in ``close``.
The order of the rows is the order in which formats are tried.
"""

FORMATS: dict[str, str] = {
    "gpuwatchd-csv": "gpuwatchd.sources.formats.gpuwatchd_csv:Reader",
    "gpuwatchd-ndjson": "gpuwatchd.sources.formats.gpuwatchd_ndjson:Reader",
    "nvidia-smi-table": "gpuwatchd.sources.formats.nvidia_table:Reader",
    "nvidia-smi-q": "gpuwatchd.sources.formats.nvidia_q:Reader",
    "nvidia-smi-xml": "gpuwatchd.sources.formats.nvidia_xml:Reader",
    "nvidia-smi-dmon": "gpuwatchd.sources.formats.dmon:Reader",
    "nvidia-smi-pmon": "gpuwatchd.sources.formats.pmon:Reader",
    "nvidia-smi-accounted": "gpuwatchd.sources.formats.accounted:Reader",
    "gpustat-json": "gpuwatchd.sources.formats.gpustat_json:Reader",
    "gpustat-text": "gpuwatchd.sources.formats.gpustat_text:Reader",
    "rocm-smi-json": "gpuwatchd.sources.formats.rocm_json:Reader",
    "wandb-jsonl": "gpuwatchd.sources.formats.wandb_jsonl:Reader",
    "wandb-csv": "gpuwatchd.sources.formats.wandb_csv:Reader",
    "json-lines": "gpuwatchd.sources.formats.json_lines:Reader",
    "prometheus": "gpuwatchd.sources.formats.prometheus:Reader",
    "dcgm-csv": "gpuwatchd.sources.formats.dcgm_csv:Reader",
    "dcgmi-dmon": "gpuwatchd.sources.formats.dcgmi_dmon:Reader",
    "compute-apps-csv": "gpuwatchd.sources.formats.compute_apps:Reader",
    "nvidia-smi-csv": "gpuwatchd.sources.formats.nvidia_csv:Reader",
    "csv": "gpuwatchd.sources.formats.home_csv:Reader",
    "csv-without-header": "gpuwatchd.sources.formats.bare_csv:Reader",
}
