# SPDX-License-Identifier: Apache-2.0
"""Which nodes of a cluster can measure its network, and what is expected between them.

Rules
- A node takes part if it has whole GPUs, no problem, no quarantine, no maintenance, is not cordoned and no spare.
  Nodes with another number of GPUs than most of them are left out: a job needs as many on each node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from dovetail.core.cluster.columns import ABSENT
from dovetail.core.placing.collective import of_gpus
from dovetail.core.state import State
from dovetail.topology.fabric_measured import PlacedGpuNode


def gpu_nodes(state: State, named: Collection[str]) -> tuple[tuple[PlacedGpuNode, ...], int, int]:
    """The nodes that take part, of those that are named (none: of all); how many GPUs each has; and how many nodes are
    left out as they have another number."""
    slots = [slot for slot in _usable(state) if not named or _name(state, slot) in named]
    counts = {slot: state.cluster.nodes.gpu_count(slot) for slot in slots}
    usual = Counter(counts.values()).most_common(1)
    if not usual:
        return (), 0, 0
    gpus = usual[0][0]
    fabric = state.cluster.fabric
    by_level = [(key, fabric.domains(key)) for key in fabric.levels]
    found = [
        PlacedGpuNode(
            _name(state, slot),
            tuple(fabric.name(key, int(ids[slot])) if ids[slot] != ABSENT else "" for key, ids in by_level),
        )
        for slot in slots
        if counts[slot] == gpus
    ]
    found.sort(key=lambda one: (one.domains, one.name))
    return tuple(found), gpus, len(slots) - len(found)


def expected_mbps(state: State, nodes: Sequence[str], gpus: int) -> int:
    """The bus bandwidth that is expected of an all-reduce of all GPUs of these nodes; 0 where it is not known."""
    slots = state.cluster.nodes.slots
    found = of_gpus(state.cluster, {slots[name]: (1 << gpus) - 1 for name in nodes})
    return found.mbps if found is not None else 0


def _usable(state: State) -> Iterator[int]:
    nodes = state.cluster.nodes
    for slot, node in enumerate(nodes.records):
        # A measurement would not be placed on a spare.
        out = (
            node is None
            or nodes.spare[slot]
            or node.unschedulable
            or node.problem
            or node.quarantine_ms
            or node.maintenance
        )
        if not out and nodes.gpu_count(slot):
            yield slot


def _name(state: State, slot: int) -> str:
    return state.cluster.nodes.names[slot]
