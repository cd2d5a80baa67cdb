"""Formats of logs: one format = one reader + one line here; formats of one kind share a file.

A reader is made with the collector, says in ``starts`` whether a block of its format begins at a
line, takes lines in ``line`` (or ``feed``) until one is not its own, and ends a block in ``close``.
The order of the rows is the order in which formats are tried.
"""

FORMATS: dict[str, str] = {
    "gpuwatchd-csv": "gpuwatchd.collect.logs.formats.csv_tables:ExportTable",
    "gpuwatchd-ndjson": "gpuwatchd.collect.logs.formats.json_rows:ExportReader",
    "nvidia-smi-table": "gpuwatchd.collect.logs.formats.nvidia_reports:TableReader",
    "nvidia-smi-q": "gpuwatchd.collect.logs.formats.nvidia_reports:TextReader",
    "nvidia-smi-xml": "gpuwatchd.collect.logs.formats.nvidia_reports:XmlReader",
    "nvidia-smi-dmon": "gpuwatchd.collect.logs.formats.monitors:DeviceMonitor",
    "nvidia-smi-pmon": "gpuwatchd.collect.logs.formats.monitors:ProcessMonitor",
    "nvidia-smi-accounted": "gpuwatchd.collect.logs.formats.csv_tables:AccountedTable",
    "gpustat-json": "gpuwatchd.collect.logs.formats.gpustat:ObjectReader",
    "gpustat-text": "gpuwatchd.collect.logs.formats.gpustat:TextReader",
    "rocm-smi-json": "gpuwatchd.collect.logs.formats.rocm_json:RocmReader",
    "wandb-jsonl": "gpuwatchd.collect.logs.formats.wandb:LinesReader",
    "wandb-csv": "gpuwatchd.collect.logs.formats.wandb:CsvReader",
    "json-lines": "gpuwatchd.collect.logs.formats.json_rows:LooseReader",
    "prometheus": "gpuwatchd.collect.logs.formats.metrics:PrometheusReader",
    "dcgm-csv": "gpuwatchd.collect.logs.formats.metrics:DcgmTable",
    "dcgmi-dmon": "gpuwatchd.collect.logs.formats.monitors:DcgmiMonitor",
    "compute-apps-csv": "gpuwatchd.collect.logs.formats.csv_tables:AppsTable",
    "nvidia-smi-csv": "gpuwatchd.collect.logs.formats.csv_tables:NvidiaTable",
    "csv": "gpuwatchd.collect.logs.formats.csv_tables:HeadedTable",
    "csv-without-header": "gpuwatchd.collect.logs.formats.csv_tables:BareTable",
}
