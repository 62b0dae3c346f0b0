# SPDX-License-Identifier: Apache-2.0
"""GPUs with the pods that hold them, as the scheduler knows them: for users that may not read the exporters.

Rules
- What a GPU does is not known: it counts neither as computing nor as idle.
- Where it is not known which GPUs of its node a pod holds, those with the lowest indices are shown that no other pod
  holds, and a note names the pod.
- Of GPUs in MIG mode only the instances are listed that a pod holds, and beside them no free GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from dovetail.kube.reading.gpu_exporters import NodeSamples
from dovetail.monitoring.bottleneck import UNKNOWN
from dovetail.views.held_types import HeldGpus, HeldPart, NodeGpus, NodeHolder
from dovetail.views.names import some
from dovetail.views.top_rows import GpuHolder, GpuRow, TopReading

NOT_MEASURED = (
    "what the GPUs do is not known: you may not read the metrics of the agents; the scheduler has answered which pods "
    "hold them"
)
_CLAIMED = re.compile(r"gpu-([0-9]{1,3})(-|$)")
"""How the DRA drivers of GPUs begin the names of devices."""
_Device = tuple[int, str, str]
"""The index of a GPU, and the instance of it with its profile, "" for the GPU."""


def reading_of(answer: HeldGpus, source: str) -> TopReading:
    """All nodes, read from `source`."""
    at_s = answer.now_ms / 1000
    rows: list[GpuRow] = []
    assumed: list[str] = []
    for node in answer.nodes:
        held = _held(node, assumed)
        rows += [_row(node, device, held[device]) for device in sorted(held)]
    notes = [NOT_MEASURED]
    if assumed:
        notes.append(f"it is assumed which GPUs of their nodes these pods hold: {some(tuple(dict.fromkeys(assumed)))}")
    nodes = tuple(NodeSamples(node.node, at_s=at_s) for node in answer.nodes)
    return TopReading(source, at_s, 0.0, tuple(rows), nodes, tuple(notes))


def _held(node: NodeGpus, assumed: list[str]) -> dict[_Device, list[GpuHolder]]:
    """The holders of each GPU and instance; pods whose GPUs are assumed are added to `assumed`."""
    held: dict[_Device, list[GpuHolder]] = {}
    for one in node.holders:
        for gpu in one.gpus or ():
            held.setdefault((gpu, "", ""), []).append(_holder(one, 1.0))
        for part in one.parts:
            if (device := _device(part)) is not None:
                held.setdefault(device, []).append(_holder(one, part.milli / 1000 if part.milli else 1.0))
    in_parts = {gpu for gpu, instance, _ in held if instance}
    free = (gpu for gpu in range(node.gpus) if (gpu, "", "") not in held and gpu not in in_parts)
    for one in node.holders:
        unknown = [part.milli / 1000 for part in one.parts if _device(part) is None and part.milli]
        shares = unknown if one.gpus is not None else [*unknown, *[1.0] * one.count]
        for share, gpu in zip(shares, free, strict=False):
            held[gpu, "", ""] = [_holder(one, share)]
        if shares:
            assumed.append(one.pod)
    for gpu in free if not in_parts else ():
        held[gpu, "", ""] = []
    return held


def _device(part: HeldPart) -> _Device | None:
    """None if it is not known which GPU it is of."""
    if part.kind == "instance":
        gpu, _, instance = part.device.partition("/")
        return int(gpu), instance, instance.partition("@")[0]
    if part.kind == "share":
        return (int(part.device), "", "") if part.device else None
    found = _CLAIMED.match(part.device.rpartition("/")[2])
    return (int(found[1]), "", "") if found is not None else None


def _holder(one: NodeHolder, share: float) -> GpuHolder:
    return GpuHolder(one.pod, "", share, None, None, one.job or one.pod, one.queue, one.user)


def _row(node: NodeGpus, device: _Device, holders: Iterable[GpuHolder]) -> GpuRow:
    gpu, instance, profile = device
    return GpuRow(
        node=node.node, gpu=gpu, uuid=str(gpu), instance=instance, profile=profile, product=node.model,
        holders=tuple(holders), used=None, utilization=None, engine=None, sm=None, tensor=None, fp64=None, dram=None,
        pcie_bytes_s=None, nvlink_bytes_s=None, memory_used_mib=None, memory_total_mib=None, power_w=None,
        power_limit_w=None, temperature_c=None, bottleneck=UNKNOWN.name, meaning="what it does is not read", advice="",
        health="", age_s=0.0, processes={}, sm_samples=(),
    )  # fmt: skip
