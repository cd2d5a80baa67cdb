"""One world written down as every tool writes it: a leak and a quiet neighbour on one GPU."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEP_S = 10
TICKS = 360
TOTAL, RESERVED, CONTEXT = 24576, 300, 400
LEAKER, QUIET = 4711, 4712
NAMES = {LEAKER: "/opt/envs/ml/bin/python", QUIET: "/opt/server, v2/serve"}
UUID = "GPU-0a0b0c0d-1111-2222-3333-444455556666"
BUS = "00000000:3B:00.0"
_BEGIN_S = 1_770_112_800


class Tick(NamedTuple):
    """One look at the world; memory in MiB."""

    at: datetime
    leaker: int
    quiet: int

    @property
    def used(self) -> int:
        """What the device uses, without the driver's reserve."""
        return CONTEXT + self.leaker + self.quiet

    @property
    def free(self) -> int:
        """What the device has left."""
        return TOTAL - RESERVED - self.used

    def held(self) -> Iterator[tuple[int, str, int]]:
        """Yield pid, name and MiB of each process."""
        yield LEAKER, NAMES[LEAKER], self.leaker
        yield QUIET, NAMES[QUIET], self.quiet


def ticks() -> list[Tick]:
    """Return an hour in which one process grows by 150 MiB a minute and another stays."""
    return [
        Tick(
            datetime.fromtimestamp(_BEGIN_S + n * STEP_S, UTC),
            3000 + n * 25,
            5000 + 2 * (n * 7919 % 3),
        )
        for n in range(TICKS)
    ]


def _slashes(tick: Tick) -> str:
    return tick.at.strftime("%Y/%m/%d %H:%M:%S.000")


def _words(tick: Tick) -> str:
    return tick.at.strftime("%a %b %e %H:%M:%S %Y")


def query_gpu() -> str:
    """Return nvidia-smi --query-gpu."""
    head = "timestamp, index, name, uuid, memory.total [MiB], memory.used [MiB], memory.free [MiB]"
    return "\n".join(
        [head]
        + [
            f"{_slashes(t)}, 0, Example GPU, {UUID}, {TOTAL} MiB, {t.used} MiB, {t.free} MiB"
            for t in ticks()
        ]
    )


def compute_apps() -> str:
    """Return nvidia-smi --query-compute-apps; a name holds a comma."""
    head = "timestamp, gpu_name, gpu_uuid, pid, process_name, used_gpu_memory [MiB]"
    rows = [
        f"{_slashes(t)}, Example GPU, {UUID}, {pid}, {name}, {mib} MiB"
        for t in ticks()
        for pid, name, mib in t.held()
    ]
    return "\n".join([head, *rows])


def pmon() -> str:
    """Return nvidia-smi pmon -s um -o DT, its header repeated."""
    head = (
        "#Date       Time        gpu         pid   type     sm    mem     fb   command \n"
        "#YYYYMMDD   HH:MM:SS    Idx           #    C/G      %      %     MB   name "
    )
    lines = []
    for n, t in enumerate(ticks()):
        lines += [head] if n % 20 == 0 else []
        lines += [
            f" {t.at:%Y%m%d   %H:%M:%S}      0  {pid}     C     10      5  {mib}"
            f"   {name.rpartition('/')[2][:15]} "
            for pid, name, mib in t.held()
        ]
    return "\n".join(lines)


def dmon() -> str:
    """Return nvidia-smi dmon -s mu -o DT."""
    head = (
        "#Date       Time        gpu     fb   bar1     sm    mem\n"
        "#YYYYMMDD   HH:MM:SS    Idx     MB     MB      %      %"
    )
    rows = [f" {t.at:%Y%m%d   %H:%M:%S}      0  {t.used}      5     90     40" for t in ticks()]
    return "\n".join([head, *rows])


def xml() -> str:
    """Return nvidia-smi -q -x in a loop."""
    return "\n".join(
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'
        f"<nvidia_smi_log>\n<timestamp>{_words(t)}</timestamp>\n<attached_gpus>1</attached_gpus>\n"
        f'<gpu id="{BUS}"><product_name>Example GPU</product_name><uuid>{UUID}</uuid>'
        f"<fb_memory_usage><total>{TOTAL} MiB</total><reserved>{RESERVED} MiB</reserved>"
        f"<used>{t.used} MiB</used><free>{t.free} MiB</free></fb_memory_usage><processes>"
        + "".join(
            f"<process_info><pid>{pid}</pid><type>C</type><process_name>{name}</process_name>"
            f"<used_memory>{mib} MiB</used_memory></process_info>"
            for pid, name, mib in t.held()
        )
        + "</processes></gpu></nvidia_smi_log>"
        for t in ticks()
    )


def q_text() -> str:
    """Return nvidia-smi -q in a loop."""
    parts = []
    for t in ticks():
        parts.append(
            "\n==============NVSMI LOG==============\n\n"
            f"Timestamp                                 : {_words(t)}\n"
            f"Attached GPUs                             : 1\nGPU {BUS}\n"
            "    Product Name                          : Example GPU\n"
            f"    GPU UUID                              : {UUID}\n"
            "    FB Memory Usage\n"
            f"        Total                             : {TOTAL} MiB\n"
            f"        Reserved                          : {RESERVED} MiB\n"
            f"        Used                              : {t.used} MiB\n"
            f"        Free                              : {t.free} MiB\n"
            "    BAR1 Memory Usage\n        Total      : 32768 MiB\n        Used     : 1 MiB\n"
            "    Processes"
        )
        parts += [
            f"        Process ID                        : {pid}\n"
            "            Type                          : C\n"
            f"            Name                          : {name}\n"
            f"            Used GPU Memory               : {mib} MiB"
            for pid, name, mib in t.held()
        ]
    return "\n".join(parts)


def table() -> str:
    """Return the default table of nvidia-smi in a loop."""
    bar = "+" + "-" * 77 + "+"
    parts = []
    for t in ticks():
        parts += [
            _words(t), bar,
            "| NVIDIA-SMI 550.54       Driver Version: 550.54       CUDA Version: 12.4     |",
            "|-------------------------------+----------------------+----------------------+",
            "| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |",
            "| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |",
            "|===============================+======================+======================|",
            f"|   0  Example GPU         On   | {BUS} Off |                    0 |",
            f"| N/A   53C    P0   225W / 250W | {t.used:6}MiB / {TOTAL}MiB |     90%          |",
            "+-------------------------------+----------------------+----------------------+",
            "", bar,
            "| Processes:                                                                  |",
            "|  GPU   GI   CI        PID   Type   Process name                  GPU Memory |",
            "|        ID   ID                                                   Usage      |",
            "|=============================================================================|",
            *(f"|    0   N/A  N/A   {pid:8}      C   {name:<30} {mib:8}MiB |"
              for pid, name, mib in t.held()),
            bar,
        ]  # fmt: skip
    return "\n".join(parts)


def gpustat_json() -> str:
    """Return gpustat --json, one object after another."""
    return "\n".join(
        json.dumps(
            {
                "hostname": "node1",
                "query_time": t.at.strftime("%Y-%m-%dT%H:%M:%S.181294"),
                "gpus": [
                    {
                        "index": 0, "uuid": UUID, "name": "Example GPU",
                        "memory.used": t.used, "memory.total": TOTAL,
                        "processes": [
                            {"username": "ann", "command": name.rpartition("/")[2],
                             "full_command": [name], "gpu_memory_usage": mib, "pid": pid}
                            for pid, name, mib in t.held()
                        ],
                    }
                ],
            },
            indent=4,
        )
        for t in ticks()
    )  # fmt: skip


def gpustat_text() -> str:
    """Return gpustat -cp in a loop."""
    return "\n".join(
        f"node1  {_words(t)}  550.54\n[0] Example GPU | 45'C,  12 % | {t.used} / {TOTAL} MB |"
        f" ann:python/{LEAKER}({t.leaker}M) bob:serve/{QUIET}({t.quiet}M)"
        for t in ticks()
    )


def rocm_json() -> str:
    """Return rocm-smi --json in a loop: bytes, no time."""
    return "\n".join(
        json.dumps(
            {
                "card0": {
                    "Unique ID": "0x2150e7d042a1124",
                    "VRAM Total Memory (B)": str(TOTAL << 20),
                    "VRAM Total Used Memory (B)": str(t.used << 20),
                    "VIS_VRAM Total Used Memory (B)": "13557760",
                },
                "system": {"Driver version": "6.3.6"},
            }
        )
        for t in ticks()
    )


def prometheus() -> str:
    """Return scrapes of DCGM's exporter one after another: no time."""
    where = f'gpu="0",UUID="{UUID}",modelName="Example, \\"big\\" GPU",Hostname="n1"'
    return "\n".join(
        f"# TYPE DCGM_FI_DEV_FB_USED gauge\nDCGM_FI_DEV_FB_USED{{{where}}} {t.used}\n"
        f"# TYPE DCGM_FI_DEV_FB_FREE gauge\nDCGM_FI_DEV_FB_FREE{{{where}}} {t.free}"
        for t in ticks()
    )


def dcgm_csv() -> str:
    """Return a long table of DCGM's metrics."""
    head = (
        "timestamp,metric_name,gpu_id,device,uuid,modelName,Hostname,container,pod,namespace,"
        "value,labels_raw"
    )
    rows = [
        f'"{t.at:%Y-%m-%dT%H:%M:%SZ}","DCGM_FI_DEV_FB_{what}","0","nvidia0","{UUID}",'
        f'"Example GPU","node0","","train-0","ml","{value}","job=""x"""'
        for t in ticks()
        for what, value in (("USED", t.used), ("FREE", t.free))
    ]
    return "\n".join([head, *rows])


def dcgmi_dmon() -> str:
    """Return dcgmi dmon: no time."""
    rows = [f"GPU 0     {TOTAL}   {t.used}   95" for t in ticks()]
    return "\n".join(["#Entity   FBTTL   FBUSD   GPUTL", "ID", *rows])


def tegrastats() -> str:
    """Return tegrastats of a Jetson: the memory of the machine is the GPU's."""
    rest = "(lfb 4x4MB) SWAP 9/7000MB (cached 0MB) CPU [1%@729,off] GR3D_FREQ 0% GPU@46C"
    return "\n".join(f"{t.at:%m-%d-%Y %H:%M:%S} RAM {t.used}/{TOTAL}MB {rest}" for t in ticks())


def wandb_csv() -> str:
    """Return exported system metrics of Weights & Biases: gpu.0.memory is no amount."""
    rows = [
        f"{t.at.timestamp():.0f},{n * STEP_S},{n % 40},{t.used << 20}"
        for n, t in enumerate(ticks())
    ]
    return "\n".join(["_timestamp,_runtime,gpu.0.memory,gpu.0.memoryAllocatedBytes", *rows])


def wandb_jsonl() -> str:
    """Return the same as JSON Lines."""
    return "\n".join(
        json.dumps(
            {
                "_timestamp": t.at.timestamp(),
                "system.gpu.0.memory": 7,
                "system.gpu.0.memoryAllocatedBytes": t.used << 20,
            }
        )
        for t in ticks()
    )


def json_lines() -> str:
    """Return somebody's own JSON Lines."""
    return "\n".join(
        json.dumps({"time": t.at.isoformat(), "gpu": 0, "mem_used_mb": str(t.used),
                    "mem_total_mb": TOTAL})
        for t in ticks()
    )  # fmt: skip


def home_csv() -> str:
    """Return somebody's own table: semicolons, bandwidth beside memory."""
    rows = [f"{t.at:%Y-%m-%d %H:%M:%S};0;{n % 100};{t.used};{TOTAL}" for n, t in enumerate(ticks())]
    return "\n".join(["time;gpu;memory;Memory Used (MB);Memory Max", *rows])


class Written(NamedTuple):
    """How one tool's log is written, and what it can tell."""

    text: Callable[[], str]
    processes: bool = False
    """It names processes: then the process is judged, not the device."""
    total: bool = True
    """It tells the size of the memory: then there is an ETA."""
    flags: tuple[str, ...] = ()


def successive_jobs() -> tuple[str, str]:
    """Return logs of a device and of its processes: six flat jobs, each larger, no pause."""
    gpu = ["timestamp, index, name, uuid, memory.total [MiB], memory.used [MiB]"]
    apps = ["timestamp, gpu_name, gpu_uuid, pid, process_name, used_gpu_memory [MiB]"]
    for n, t in enumerate(ticks()):
        job = n // 60
        held = 2000 + 1800 * job
        gpu.append(f"{_slashes(t)}, 0, Example GPU, {UUID}, {TOTAL} MiB, {CONTEXT + held} MiB")
        apps.append(f"{_slashes(t)}, Example GPU, {UUID}, {900 + job}, python, {held} MiB")
    return "\n".join(gpu), "\n".join(apps)


def cards(rate: float, *, count: int = 1) -> str:
    """Return an hour of cards that grow by so many MiB each ten seconds."""
    head = "timestamp, index, uuid, name, memory.used [MiB], memory.total [MiB]\n"
    return head + "".join(
        f"2026/03/01 10:{at // 60:02}:{at % 60:02}.000, {card}, GPU-{card}, NVIDIA A100,"
        f" {900 + rate * at / 10:.0f} MiB, 81920 MiB\n"
        for at in range(0, 3600, 10)
        for card in range(count)
    )


_UNTIMED = ("--interval", str(STEP_S))
WRITTEN: dict[str, Written] = {
    "nvidia-smi-csv": Written(query_gpu),
    "compute-apps-csv": Written(compute_apps, processes=True, total=False),
    "nvidia-smi-pmon": Written(pmon, processes=True, total=False),
    "nvidia-smi-dmon": Written(dmon, total=False),
    "nvidia-smi-xml": Written(xml, processes=True),
    "nvidia-smi-q": Written(q_text, processes=True),
    "nvidia-smi-table": Written(table, processes=True),
    "gpustat-json": Written(gpustat_json, processes=True),
    "gpustat-text": Written(gpustat_text, processes=True),
    "rocm-smi-json": Written(rocm_json, flags=_UNTIMED),
    "prometheus": Written(prometheus, flags=_UNTIMED),
    "dcgm-csv": Written(dcgm_csv),
    "dcgmi-dmon": Written(dcgmi_dmon, flags=_UNTIMED),
    "tegrastats": Written(tegrastats),
    "wandb-csv": Written(wandb_csv, total=False),
    "wandb-jsonl": Written(wandb_jsonl, total=False),
    "json-lines": Written(json_lines),
    "csv": Written(home_csv),
}
"""Name of the format -> the world in it."""
