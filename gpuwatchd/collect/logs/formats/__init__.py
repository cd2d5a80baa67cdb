"""Formats of logs: one format = one file + one line here.

A reader is made with the collector, says in ``starts`` whether a block of its format begins at a
line, takes lines in ``feed`` until one is not its own, and ends a block in ``close``.
The order of the rows is the order in which formats are tried.
"""

FORMATS: dict[str, str] = {
    "gpuwatchd-csv": "gpuwatchd.collect.logs.formats.gpuwatchd_csv:Reader",
    "gpuwatchd-ndjson": "gpuwatchd.collect.logs.formats.gpuwatchd_ndjson:Reader",
    "nvidia-smi-table": "gpuwatchd.collect.logs.formats.nvidia_table:Reader",
    "nvidia-smi-q": "gpuwatchd.collect.logs.formats.nvidia_q:Reader",
    "nvidia-smi-xml": "gpuwatchd.collect.logs.formats.nvidia_xml:Reader",
    "nvidia-smi-dmon": "gpuwatchd.collect.logs.formats.dmon:Reader",
    "nvidia-smi-pmon": "gpuwatchd.collect.logs.formats.pmon:Reader",
    "nvidia-smi-accounted": "gpuwatchd.collect.logs.formats.accounting:Reader",
    "gpustat-json": "gpuwatchd.collect.logs.formats.gpustat_json:Reader",
    "gpustat-text": "gpuwatchd.collect.logs.formats.gpustat_text:Reader",
    "rocm-smi-json": "gpuwatchd.collect.logs.formats.rocm_json:Reader",
    "wandb-jsonl": "gpuwatchd.collect.logs.formats.wandb_jsonl:Reader",
    "wandb-csv": "gpuwatchd.collect.logs.formats.wandb_csv:Reader",
    "json-lines": "gpuwatchd.collect.logs.formats.json_lines:Reader",
    "prometheus": "gpuwatchd.collect.logs.formats.prometheus:Reader",
    "dcgm-csv": "gpuwatchd.collect.logs.formats.dcgm_csv:Reader",
    "dcgmi-dmon": "gpuwatchd.collect.logs.formats.dcgmi_dmon:Reader",
    "compute-apps-csv": "gpuwatchd.collect.logs.formats.compute_apps:Reader",
    "nvidia-smi-csv": "gpuwatchd.collect.logs.formats.nvidia_csv:Reader",
    "csv": "gpuwatchd.collect.logs.formats.home_csv:Reader",
    "csv-without-header": "gpuwatchd.collect.logs.formats.bare_csv:Reader",
}
