# SPDX-License-Identifier: Apache-2.0
"""The agents' exporters, simulated: what `pods/NAME:9400/proxy/metrics` of an agent's pod answers.

A pod with the agent's label that is bound to a node is the exporter of this node. Its GPUs are those of the node's
labels (`nvidia.com/gpu.product`, `.count`), with the MIG instances of its GPUNode. The pods on them are those that run
there, with the devices of `dovetail.dev/devices`, or of their claims for a device named `gpu-N`. Their load is the
annotation `playground.dovetail.dev/gpu-load` (percent: sm, tensor, dram, engine, memory; GB/s: pcie, nvlink), such as
`sm=90,tensor=60`; it rises and falls a little. Not simulated: other metrics than those that `dovetail top` reads, time
before the pod's start, health other than healthy.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from zlib import crc32

from msgspec import Struct

from dovetail.apiserver.objects import Clock, Object, key_of, labels_of, object_at, objects_at, text_at
from dovetail.apiserver.store import Store

AGENT = ("app.kubernetes.io/name", "dovetail-agent")
GPU_LOAD = "playground.dovetail.dev/gpu-load"
_DEVICES, _FRACTION = "dovetail.dev/devices", "dovetail.dev/gpu-fraction"
_CLAIMS = "resourceclaims.resource.k8s.io"
_TYPICAL = {"sm": 70.0, "tensor": 35.0, "dram": 30.0, "engine": 95.0, "memory": 60.0, "pcie": 0.3, "nvlink": 0.0}
_MEMORY_MIB = {"H200": 143_771, "H100": 81_559, "A100": 40_960, "A10": 23_028}
_IDLE_W, _LIMIT_W = 90.0, 700.0
_SLICES = 7
_MIB = 1 << 20
_SWING, _PERIOD_S = 0.05, 20.0


class _Use(Struct):
    """A pod on a device: the part that it holds and its load."""

    pod: Object
    share: float
    load: dict[str, float]


class SimulatedExporters:
    """The exporters of all nodes in a store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    def metrics(self, namespace: str, name: str, names: Collection[str]) -> str | None:
        """The answer of the exporter in this pod: the metrics `names`, or all. None if the pod is no agent's."""
        pod = self._store.get("pods", namespace, name)
        node = self._store.get("nodes", "", text_at(pod, "spec.nodeName"))
        if pod is None or node is None or labels_of(pod).get(AGENT[0]) != AGENT[1]:
            return None
        kinds: dict[str, list[str]] = {}
        for labels, values in self._series(node):
            text = ",".join(f'{label}="{value}"' for label, value in labels.items())
            for metric, value in values.items():
                if not names or metric in names:
                    kinds.setdefault(metric, []).append(f"{metric}{{{text}}} {value:.10g}\n")
        return "".join(f"# TYPE {metric} gauge\n{''.join(lines)}" for metric, lines in kinds.items())

    def _series(self, node: Object) -> Iterator[tuple[dict[str, str], dict[str, float]]]:
        name, labels = text_at(node, "metadata.name"), labels_of(node)
        product = labels.get("nvidia.com/gpu.product", "")
        count = labels.get("nvidia.com/gpu.count", "")
        memory_mib = _memory_mib(product)
        uses = self._uses(name)
        gpus = objects_at(self._store.get("gpunodes.dovetail.dev", "", name), "status.gpus")
        for gpu in range(int(count) if count.isdecimal() else 0):
            uuid = f"GPU-{crc32(f'{name}/{gpu}'.encode()):08x}"
            own = {"gpu": str(gpu), "UUID": uuid, "modelName": product, "hostname": name, "Hostname": name}
            mig = objects_at(gpus[gpu], "mig") if gpu < len(gpus) else []
            for number, instance in enumerate(mig, 1):
                profile = text_at(instance, "profile")
                slices = profile.partition("g")[0]
                part = int(slices) / _SLICES if slices.isdecimal() else 1.0
                more = {"GPU_I_PROFILE": profile, "GPU_I_ID": str(number)}
                held = uses.get(f"{gpu}/{profile}@{instance.get('start')}", [])
                yield from self._device(own | more, held, memory_mib * part)
            held = uses.get(str(gpu), [])
            everything = held or [one for key, each in uses.items() if key.startswith(f"{gpu}/") for one in each]
            for labelled, values in self._device(own, held, memory_mib):
                yield labelled, values | (self._board(uuid, everything) if "dovetail_gpu_healthy" in values else {})

    def _uses(self, node: str) -> dict[str, list[_Use]]:
        found: dict[str, list[_Use]] = {}
        for pod in self._store.list("pods"):
            if text_at(pod, "spec.nodeName") == node and text_at(pod, "status.phase") == "Running":
                annotations = object_at(pod, "metadata.annotations")
                share = _number(str(annotations.get(_FRACTION, "1")), 1.0)
                use = _Use(pod, share, _load(str(annotations.get(GPU_LOAD, ""))))
                devices = [*str(annotations.get(_DEVICES, "")).split(","), *self._claimed(pod)]
                for device in filter(None, devices):
                    found.setdefault(device, []).append(use)
        return found

    def _claimed(self, pod: Object) -> Iterator[str]:
        for one in objects_at(pod, "spec.resourceClaims"):
            claim = self._store.get(_CLAIMS, key_of(pod)[0], text_at(one, "resourceClaimName"))
            for result in objects_at(claim, "status.allocation.devices.results"):
                yield text_at(result, "device").removeprefix("gpu-")

    def _device(
        self, labels: dict[str, str], uses: list[_Use], memory_mib: float
    ) -> Iterator[tuple[dict[str, str], dict[str, float]]]:
        whole = {kind: self._now(labels["UUID"], kind, uses) for kind in _TYPICAL}
        used = min(1.0, sum(use.load["memory"] * use.share for use in uses) / 100) * memory_mib
        values = {
            "DCGM_FI_PROF_SM_ACTIVE": whole["sm"] / 100,
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": whole["tensor"] / 100,
            "DCGM_FI_PROF_DRAM_ACTIVE": whole["dram"] / 100,
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE": whole["engine"] / 100,
            "DCGM_FI_PROF_PCIE_TX_BYTES": whole["pcie"] * 5e8,
            "DCGM_FI_PROF_PCIE_RX_BYTES": whole["pcie"] * 5e8,
            "DCGM_FI_PROF_NVLINK_TX_BYTES": whole["nvlink"] * 5e8,
            "DCGM_FI_PROF_NVLINK_RX_BYTES": whole["nvlink"] * 5e8,
            "DCGM_FI_DEV_FB_TOTAL": memory_mib,
            "DCGM_FI_DEV_FB_FREE": memory_mib - used,
            "DCGM_FI_DEV_FB_USED": used,
            "dovetail_gpu_healthy": 1.0,
        }
        if "GPU_I_ID" not in labels:
            values["DCGM_FI_DEV_GPU_UTIL"] = whole["engine"]
        for use in uses:
            namespace, pod = key_of(use.pod)
            container = next((text_at(one, "name") for one in objects_at(use.pod, "spec.containers")), "")
            own = {"namespace": namespace, "pod": pod, "container": container}
            mine = {"dovetail_gpu_allocated_share": use.share}
            yield labels | own, values | mine
            processes = {
                "dovetail_gpu_pod_memory_used_bytes": use.load["memory"] * use.share / 100 * memory_mib * _MIB,
                "dovetail_gpu_pod_sm_ratio": self._now(labels["UUID"], "engine", [use]) / 100,
            }
            yield labels | {"namespace": namespace, "pod": pod}, processes
        if not uses:
            yield labels, values | {"dovetail_gpu_allocated_share": 0.0}

    def _board(self, uuid: str, uses: list[_Use]) -> dict[str, float]:
        """The values of the whole board."""
        busy = self._now(uuid, "sm", uses) / 100
        power = _IDLE_W + (_LIMIT_W - _IDLE_W) * 0.8 * busy
        limits = {"DCGM_FI_DEV_ENFORCED_POWER_LIMIT": _LIMIT_W}
        return limits | {"DCGM_FI_DEV_POWER_USAGE": power, "DCGM_FI_DEV_GPU_TEMP": round(32 + 40 * busy)}

    def _now(self, uuid: str, kind: str, uses: list[_Use]) -> float:
        """The load of all pods together, at this time."""
        phase = crc32(uuid.encode()) % 628 / 100
        wave = 1 + _SWING * math.sin(2 * math.pi * self._clock() / _PERIOD_S + phase)
        total = wave * sum(use.load[kind] * use.share for use in uses)
        return total if kind in ("pcie", "nvlink") else min(100.0, total)


def _load(text: str) -> dict[str, float]:
    """Kinds without a valid number have the typical one."""
    written = dict(part.partition("=")[::2] for part in text.replace(" ", "").split(","))
    return {kind: _number(written.get(kind, ""), typical) for kind, typical in _TYPICAL.items()}


def _number(text: str, default: float) -> float:
    try:
        value = float(text)
    except ValueError:
        return default
    return value if math.isfinite(value) and value >= 0 else default


def _memory_mib(product: str) -> float:
    return next((float(mib) for name, mib in _MEMORY_MIB.items() if f"-{name}-" in f"{product}-"), 24_576.0)
