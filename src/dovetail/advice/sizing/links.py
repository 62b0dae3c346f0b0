# SPDX-License-Identifier: Apache-2.0
"""How the GPUs of a job were connected, and which connection to ask for.

Rules
- A run is spread if its GPUs were in more nodes than hold as many, or in several zones. What half of the measured time
  was is taken for what the job has.
- Within a node, NVLink was not used if it carried less than a twentieth of what PCIe did.
- Nothing is known of NUMA domains: the history has no such record of a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from msgspec import Struct

from dovetail.advice.gpus import GpuProduct, named
from dovetail.advice.sizing.seen import JobSeen
from dovetail.advice.sizing.thresholds import CLASS_TIME, NVLINK_PART, SAME_MEMORY
from dovetail.core.devices.products import BRIDGE, MESH


class RunPlaces(Struct, frozen=True):
    """Where the GPUs of a run were: in how many nodes and zones, how many nodes hold as many, GPUs per node."""

    nodes: int
    zones: int
    fewest: int
    node_gpus: int
    measured_ms: int


def run_places(seen: JobSeen) -> Iterator[RunPlaces]:
    """Of each run whose places are known."""
    for _, group in groupby(seen.members, lambda one: one.run):
        run = list(group)
        places = [one.place for one in run if one.place is not None]
        nodes = {place.node for place in places}
        if len(places) == len(run) and "" not in nodes:
            largest = max(place.gpus for place in places)
            fewest = -(-len(run) // max(1, largest))
            zones = len({place.zone for place in places})
            yield RunPlaces(len(nodes), zones, fewest, largest, sum(one.measured_ms for one in run))


def over_zones(seen: JobSeen) -> RunPlaces | None:
    """The longest of the runs in several zones, if most were."""
    return _most(seen, [one for one in run_places(seen) if one.zones > 1])


def over_nodes(seen: JobSeen) -> RunPlaces | None:
    """The longest of the runs in more nodes than needed, if most were."""
    return _most(seen, [one for one in run_places(seen) if one.nodes > one.fewest])


def _most(seen: JobSeen, found: list[RunPlaces]) -> RunPlaces | None:
    if seen.part_of_time(sum(one.measured_ms for one in found)) < CLASS_TIME:
        return None
    return max(found, key=lambda one: one.measured_ms, default=None)


def without_nvlink(seen: JobSeen) -> bool:
    """Whether the GPUs of a pod exchange over PCIe, although their model has NVLink for as many."""
    gpus = seen.use.most_per_pod
    if gpus < 2 or seen.gpu is None or not seen.gpu.linked(gpus):
        return False
    moved = seen.total.activity
    nvlink = moved.get("nvlink_tx", 0) + moved.get("nvlink_rx", 0)
    pcie = moved.get("pcie_tx", 0) + moved.get("pcie_rx", 0)
    return "nvlink_tx" in moved and nvlink * 1000 < pcie * NVLINK_PART


def by_choice(gpu: GpuProduct) -> bool:
    """Whether NVLinks connect some GPUs of a node and not others, so that it depends on which a pod gets."""
    return gpu.product.reach in (MESH, BRIDGE)


def linked_model(seen: JobSeen) -> GpuProduct | None:
    """A model of the cluster that connects the GPUs of a pod by NVLink, where the own one does not, and has as much
    memory: the one with the least; None if there is none."""
    gpus = seen.use.most_per_pod
    if gpus < 2 or seen.gpu is None or seen.gpu.linked(gpus):
        return None
    others = (other for model in sorted(seen.models) if (other := named(model)) is not None)
    least_mib = seen.gpu.usable_mib * SAME_MEMORY // 1000
    better = [one for one in others if one.linked(gpus) and not by_choice(one) and one.usable_mib >= least_mib]
    return min(better, key=lambda one: one.usable_mib, default=None)
