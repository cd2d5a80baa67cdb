"""Formats of logs: one format = one class + one line here; formats of one kind share a file.

A class declares how a block of the format begins (``start``) and what its rows lack or leave out
(``lacking``, ``units``, ``vendor``). It takes lines in ``line`` (JSON: objects in ``value``) until
one is not its own, takes each apart into a row, role -> text, and hands that to its ``_rows``.
The order here is the order in which formats are tried.
"""

FORMATS: dict[str, str] = {
    "gpuwatchd-corpus": "gpuwatchd.collect.logs.formats.corpus:CorpusLines",
    "gpuwatchd-csv": "gpuwatchd.collect.logs.formats.rows:ExportTable",
    "gpuwatchd-ndjson": "gpuwatchd.collect.logs.formats.rows:ExportLines",
    "nvidia-smi-table": "gpuwatchd.collect.logs.formats.nvidia_reports:TableReader",
    "nvidia-smi-q": "gpuwatchd.collect.logs.formats.nvidia_reports:TextReader",
    "nvidia-smi-xml": "gpuwatchd.collect.logs.formats.nvidia_reports:XmlReader",
    "nvidia-smi-dmon": "gpuwatchd.collect.logs.formats.monitors:DeviceMonitor",
    "nvidia-smi-pmon": "gpuwatchd.collect.logs.formats.monitors:ProcessMonitor",
    "nvidia-smi-accounted": "gpuwatchd.collect.logs.formats.rows:AccountedTable",
    "gpustat-json": "gpuwatchd.collect.logs.formats.monitors:GpustatObjects",
    "gpustat-text": "gpuwatchd.collect.logs.formats.monitors:GpustatLines",
    "rocm-smi-json": "gpuwatchd.collect.logs.formats.monitors:RocmReader",
    "wandb-jsonl": "gpuwatchd.collect.logs.formats.metrics:WandbLines",
    "wandb-csv": "gpuwatchd.collect.logs.formats.metrics:WandbTable",
    "json-lines": "gpuwatchd.collect.logs.formats.rows:JsonLines",
    "prometheus": "gpuwatchd.collect.logs.formats.metrics:PrometheusReader",
    "dcgm-csv": "gpuwatchd.collect.logs.formats.metrics:DcgmTable",
    "dcgmi-dmon": "gpuwatchd.collect.logs.formats.monitors:DcgmiMonitor",
    "tegrastats": "gpuwatchd.collect.logs.formats.monitors:TegraMonitor",
    "compute-apps-csv": "gpuwatchd.collect.logs.formats.rows:AppsTable",
    "nvidia-smi-csv": "gpuwatchd.collect.logs.formats.rows:NvidiaTable",
    "csv": "gpuwatchd.collect.logs.formats.rows:HeadedTable",
    "csv-without-header": "gpuwatchd.collect.logs.formats.rows:BareTable",
}
