# SPDX-License-Identifier: Apache-2.0
"""Alternatives and devices of leases in words: `8 GPUs, 4 on each node, of NVIDIA-H100-80GB-HBM3, for 30m, Burst`,
`gpu-1 0,1,2,3`."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.core import quantities
from dovetail.core.bargaining.types import Holding, LeaseAlternative
from dovetail.core.devices.mig.geometry import RESOURCE_PREFIX
from dovetail.core.model import CPU, GPU, MEMORY
from dovetail.kube.nodes.instances import shown
from dovetail.kube.objects.base import milli_time_text
from dovetail.kube.translate.lease_durations import text_of_ms
from dovetail.views.lease_types import NodeDevices

_MIB = 2**20


def alternative_text(one: LeaseAlternative) -> str:
    """An alternative in words; a share of a GPU, CPU and memory are for each device."""
    parts = [devices_text(one)]
    if one.least and one.least < one.count:
        parts.append(f"at least {one.least}")
    if 1 < one.per_node < one.count:
        parts.append(f"{one.per_node} on each node")
    elif one.per_node > 1:
        parts.append("on one node")
    if one.nvlink:
        parts.append("by NVLinks")
    if one.models:
        parts.append(f"of {' or '.join(one.models)}")
    if one.within:
        parts.append(f"inside one {', '.join(one.within)}")
    if one.cpu_milli:
        parts.append(f"{quantities.display(CPU, one.cpu_milli)} CPUs each")
    if one.memory_bytes:
        parts.append(f"{quantities.display(MEMORY, one.memory_bytes)} of memory each")
    least = f", or {text_of_ms(one.least_duration_ms)} at least" if one.least_duration_ms else ""
    parts.append(f"for {text_of_ms(one.duration_ms)}{least}")
    if one.earliest_ms:
        parts.append(f"from {milli_time_text(one.earliest_ms)} on")
    if one.latest_ms:
        parts.append(f"until {milli_time_text(one.latest_ms)} at the latest")
    return ", ".join((*parts, one.service.value))


def devices_text(one: LeaseAlternative) -> str:
    """The number and the kind of the devices: `1 GPU`, `2 mig-1g.5gb`, `0.5 of a GPU`."""
    if one.resource.startswith(RESOURCE_PREFIX):
        return f"{one.count} {one.resource.rpartition('/')[2]}"
    if one.resource != GPU:
        return f"{one.count} {one.resource}"
    times = f"{one.count} times " if one.count > 1 else ""
    if one.gpu_milli:
        return f"{times}{one.gpu_milli / 1000:g} of a GPU"
    if one.gpu_memory_mib:
        return f"{times}{quantities.display(MEMORY, one.gpu_memory_mib * _MIB)} of a GPU"
    return f"{one.count} GPU{'s' if one.count > 1 else ''}"


def nodes_of(holdings: Sequence[Holding]) -> tuple[NodeDevices, ...]:
    """The devices by node, in the order of the holdings."""
    gpus: dict[str, list[int]] = {}
    instances: dict[str, list[str]] = {}
    for one in holdings:
        gpus.setdefault(one.node, []).extend(() if one.instances else one.devices)
        instances.setdefault(one.node, []).extend(map(shown, one.instances))
    return tuple([NodeDevices(node, tuple(sorted(gpus[node])), tuple(instances[node])) for node in gpus])
