# SPDX-License-Identifier: Apache-2.0
"""Samples of GPUs and MIG instances with the containers that hold them, out of the series of an exporter.

Rules
- The names are those of dcgm-exporter, and `dovetail_*` of the agent's exporter; either alone is enough.
- A device with several holders has its series once for each. Its utilization and memory may then be those of the
  holder: the device has the sum over the processes of its pods, where they are known. Other values are the device's.
- Without `dovetail_gpu_allocated_share` a pod label is what makes a device allocated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

from dovetail.kube.reading.exposition import SeriesValues

UTILIZATION, MEMORY_COPY = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_MEM_COPY_UTIL"
ENGINE, SM, TENSOR = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"
FP64, DRAM = "DCGM_FI_PROF_PIPE_FP64_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE"
PCIE_SENT, PCIE_RECEIVED = "DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_PCIE_RX_BYTES"
NVLINK_SENT, NVLINK_RECEIVED = "DCGM_FI_PROF_NVLINK_TX_BYTES", "DCGM_FI_PROF_NVLINK_RX_BYTES"
PCIE_SENT_TOTAL, PCIE_RECEIVED_TOTAL = "dovetail_gpu_pcie_transmit_bytes_total", "dovetail_gpu_pcie_receive_bytes_total"
NVLINK_TOTAL_KIB = "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"
POWER, POWER_LIMIT, POWER_MANAGEMENT_LIMIT = (
    "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "DCGM_FI_DEV_POWER_MGMT_LIMIT",
)  # fmt: skip
TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"
MEMORY_USED, MEMORY_FREE = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"
MEMORY_RESERVED, MEMORY_TOTAL = "DCGM_FI_DEV_FB_RESERVED", "DCGM_FI_DEV_FB_TOTAL"
HEALTHY, HEALTH_STATE, SHARE = "dovetail_gpu_healthy", "dovetail_gpu_health_state", "dovetail_gpu_allocated_share"
POD_MEMORY, POD_SM = "dovetail_gpu_pod_memory_used_bytes", "dovetail_gpu_pod_sm_ratio"
PROCESSES = "dovetail_gpu_processes"
COUNTERS = frozenset({PCIE_SENT_TOTAL, PCIE_RECEIVED_TOTAL, NVLINK_TOTAL_KIB})
VALUES = frozenset({
    UTILIZATION, MEMORY_COPY, ENGINE, SM, TENSOR, FP64, DRAM, PCIE_SENT, PCIE_RECEIVED, NVLINK_SENT, NVLINK_RECEIVED,
    POWER, POWER_LIMIT, POWER_MANAGEMENT_LIMIT, TEMPERATURE, MEMORY_USED, MEMORY_FREE, MEMORY_RESERVED, MEMORY_TOTAL,
    HEALTHY, *COUNTERS,
})  # fmt: skip
NAMES = VALUES | {HEALTH_STATE, SHARE, POD_MEMORY, POD_SM, PROCESSES}
"""All that is requested of an exporter."""
_MIB = 1 << 20


class DeviceKey(NamedTuple):
    """A GPU, or a MIG instance by the id of its GPU instance ("" for a GPU)."""

    node: str
    uuid: str
    instance: str


class SampleHolder(Struct, gc=False):
    """A container that holds a device, or the `share` of it. `utilization` (percent) and `memory_mib` are its own, from
    its processes; None where they are not known. `job`, `queue` and `user` are "" where they are not known."""

    namespace: str
    pod: str
    container: str
    share: float = 1.0
    utilization: float | None = None
    memory_mib: float | None = None
    job: str = ""
    queue: str = ""
    user: str = ""


class DeviceSample(Struct, gc=False):
    """The values of a device at one time, by name of the metric (VALUES). `state` is its health where the exporter has
    it; `processes` are numbers by holder. `index` is that of its GPU."""

    key: DeviceKey
    index: int
    product: str
    profile: str
    values: dict[str, float]
    holders: tuple[SampleHolder, ...] = ()
    state: str = ""
    processes: Mapping[str, int] = {}
    samples: tuple[float, ...] = ()


def devices_of(series: Iterable[SeriesValues], node: str = "") -> list[DeviceSample]:
    """The devices of these series, by node, GPU and instance. `node` is that of the exporter; without it the labels
    have it."""
    found: dict[DeviceKey, _Parts] = {}
    for one in series:
        labels = one.labels
        uuid = labels.get("UUID", "")
        if uuid:
            name = node or labels.get("hostname") or labels.get("Hostname") or ""
            key = DeviceKey(name, uuid, labels.get("GPU_I_ID", ""))
            parts = found.get(key)
            if parts is None:
                parts = found[key] = _Parts(labels)
            parts.add(labels, one.values)
    return sorted(
        (parts.sample(key) for key, parts in found.items()),
        key=lambda one: (one.key.node, one.index, one.key.uuid, _number(one.key.instance)),
    )


class _Parts:
    """What the series of one device have."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = labels
        self._values: dict[str, float] = {}
        self._holders: dict[tuple[str, ...], SampleHolder] = {}
        self._use: dict[tuple[str, str], dict[str, float]] = {}
        self._state = ""
        self._processes: dict[str, int] = {}

    def add(self, labels: Mapping[str, str], values: Mapping[str, float]) -> None:
        if HEALTH_STATE in values and values[HEALTH_STATE] >= 1:
            self._state = labels.get("state", "")
        if PROCESSES in values:
            self._processes[labels.get("holder", "")] = int(values[PROCESSES])
        pod = labels.get("pod", "")
        if POD_MEMORY in values or POD_SM in values:
            self._use.setdefault((labels.get("namespace", ""), pod), {}).update(values)
        own = {name: value for name, value in values.items() if name in VALUES}
        self._values.update(own)
        if pod and (own or SHARE in values):
            container = labels.get("container", "")
            key = (labels.get("namespace", ""), pod, container, labels.get("vgpu", ""))
            if key not in self._holders:
                names = (labels.get(name, "") for name in ("job", "queue", "owner"))
                self._holders[key] = SampleHolder(key[0], pod, container, 1.0, None, None, *names)
            holder = self._holders[key]
            holder.share = values.get(SHARE, holder.share)

    def sample(self, key: DeviceKey) -> DeviceSample:
        values = self._values
        if len(self._holders) > 1:
            self._add_up()
        for holder in self._holders.values():
            use = self._use.get((holder.namespace, holder.pod), {})
            if POD_SM in use:
                holder.utilization = 100 * use[POD_SM]
            elif len(self._holders) == 1:
                holder.utilization = values.get(UTILIZATION)
            if POD_MEMORY in use:
                holder.memory_mib = use[POD_MEMORY] / _MIB
            elif len(self._holders) == 1:
                holder.memory_mib = values.get(MEMORY_USED)
        state = self._state
        if not state and HEALTHY in values:
            state = "healthy" if values[HEALTHY] else "unhealthy"
        labels = self._labels
        return DeviceSample(
            key, _number(labels.get("gpu", "")), labels.get("modelName", ""), labels.get("GPU_I_PROFILE", ""), values,
            tuple(self._holders.values()), state, self._processes,
        )  # fmt: skip

    def _add_up(self) -> None:
        """Utilization and memory of a device with several holders, from their processes."""
        values = self._values
        sms = [use[POD_SM] for use in self._use.values() if POD_SM in use]
        if sms:
            values[UTILIZATION] = min(100.0, 100 * sum(sms))
        used = [use[POD_MEMORY] for use in self._use.values() if POD_MEMORY in use]
        if MEMORY_TOTAL in values and MEMORY_FREE in values:
            values[MEMORY_USED] = values[MEMORY_TOTAL] - values[MEMORY_FREE] - values.get(MEMORY_RESERVED, 0.0)
        elif used:
            values[MEMORY_USED] = sum(used) / _MIB


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
