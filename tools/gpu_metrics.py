# SPDX-License-Identifier: Apache-2.0
"""Generator of the reference page of the GPUs' metrics.

python -m tools.gpu_metrics > docs/reference/gpu-metrics.md
"""

from __future__ import annotations

from itertools import groupby

from dovetail.agent.exporter.dcgm import FIELDS
from dovetail.agent.exporter.kinds import GpmSource, Kind, OwnSource, table

_HEAD = """\
# Metrics of GPUs

Made from the table of the exporter by `python -m tools.gpu_metrics`. `dovetail agent run` serves these metrics on
`--exporter`, by default port 9400, at `/metrics`; [how to scrape them](../how-to/gpu-metrics.md). Names, types and
units are those of DCGM and dcgm-exporter where these have the value, so that boards and rules for dcgm-exporter work
unchanged. A GPU that does not support a value lacks its series; `dovetail agent inspect` lists what is absent, and why.

## Labels

| label | on | value |
|---|---|---|
| `gpu` | GPU, instance | NVML's index of the GPU |
| `UUID` | GPU, instance | uuid of the GPU; of an instance that of its GPU, as dcgm-exporter has it |
| `pci_bus_id` | GPU, instance | PCI bus id, with a domain of eight digits |
| `device` | GPU, instance | `nvidia0` for /dev/nvidia0 |
| `modelName` | GPU, instance | product name |
| `GPU_I_PROFILE`, `GPU_I_ID` | instance | MIG profile, id of the GPU instance |
| `mig_uuid` | instance | uuid of the MIG instance |
| `hostname`, `Hostname` | all | the Node; both spellings that dcgm-exporter had |
| `DCGM_FI_DRIVER_VERSION` | GPU, instance | version of the driver |
| `namespace`, `pod`, `container`, `pod_uid` | allocated | the owner; a free device has no such label |
| `vgpu` | shared | replica of a shared GPU |
| `queue`, `job`, `owner` | allocated | only with `--exporter-job-labels`; `job`: [its name](cli.md#the-name-of-a-job) |

A device with several owners has each series once for each owner: never sum these. The labels of pods change with each
pod, so a node with 8 GPUs and 100 pods per day makes about 20,000 series per day; `--exporter-job-labels` adds labels,
but no series, as a pod has one job. Prometheus must be set to keep these labels (`honorLabels: true`), else it renames
them to `exported_pod` and so on.

## What holds for all

- No value is NaN or one of the numbers by which NVML and DCGM mean "no data".
- Counters never go back, neither over a restart of the agent nor over a reload of the driver: they go on from the last
  value. So `> 0` on a counter means that it happened once; use `increase()`.
- `DCGM_FI_PROF_*` are means since the scrape before. They need GPM (Hopper and later), else a running DCGM.
- No sample names a pod that did not hold the device when it was read: the values of a reading that began before the
  last change of owner are left out, and so are means whose time began before it. `dovetail_gpu_allocated_share` is
  there all the same.
- A reading is shared by all scrapes within a second. A GPU that does not answer delays no other one; its series end
  45 seconds after its last reading, and those of a lost GPU at once.
- In MIG mode the GPU and each instance have series; the whole GPU has no owner then.
"""
_COLUMNS = "| metric | type | unit | instances | from | meaning |\n|---|---|---|---|---|---|\n"
_TITLES = {
    "clocks": "Clocks",
    "temperature": "Temperature",
    "power": "Power",
    "utilization": "Utilization",
    "memory": "Memory",
    "pcie": "PCIe",
    "ecc": "ECC",
    "remap": "Retired pages and remapped rows",
    "throttling": "Throttling",
    "nvlink": "NVLink and C2C",
    "fabric": "NVLink fabric",
    "profiling": "Profiling",
    "state": "State and health",
    "owner": "Owners",
    "exporter": "The exporter itself",
    "label": "Labels by counter lists",
    "unavailable": "Names that counter lists may have, without values",
}
_EXTRA = {
    "dovetail_gpu_throttle_seconds_total": "reason",
    "DCGM_EXP_CLOCK_EVENTS_COUNT": "clock_event",
    "dovetail_gpu_xids_total": "xid, action",
    "dovetail_gpu_xid_last_seconds": "xid, action",
    "DCGM_EXP_XID_ERRORS_COUNT": "xid",
    "dovetail_gpu_health_state": "state",
    "dovetail_gpu_processes": "holder",
    "dovetail_gpu_unowned_memory_bytes": "holder",
    "dovetail_exporter_errors_total": "call",
}


def page() -> str:
    """The text of the page."""
    parts = [_HEAD]
    for group, kinds in groupby(table().values(), key=lambda kind: kind.group):
        parts.append(f"\n## {_TITLES[group]}\n\n{_COLUMNS}")
        parts += map(_row, kinds)
    return "".join(parts)


def _row(kind: Kind) -> str:
    calls = list(dict.fromkeys(_from(kind)))
    labels = ", ".join(f"`{each}`" for each in _EXTRA.get(kind.name, "").split(", ") if each)
    label = f" Label: {labels}." if labels else ""
    instances = "yes" if kind.per_instance else ""
    return f"| `{kind.name}` | {kind.type} | {kind.unit} | {instances} | {', '.join(calls)} | {kind.help}{label} |\n"


def _from(kind: Kind) -> list[str]:
    texts = []
    for source in kind.sources:
        if isinstance(source, OwnSource):
            texts.append(source.reason or "the agent")
        elif isinstance(source, GpmSource):
            texts += ["`nvmlGpmMetricsGet`", *(["DCGM"] if kind.name in FIELDS else [])]
        else:
            texts.append(f"`{source.text}`")
    return texts


if __name__ == "__main__":
    print(page(), end="")
