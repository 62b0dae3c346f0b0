# SPDX-License-Identifier: Apache-2.0
"""The pods that hold GPUs of a node, whole or in part, with their jobs.

Rules: a pod that the next step binds there holds them already. Leases hold theirs by a placeholder. Pods without GPUs
are left out.
"""

from __future__ import annotations

from dovetail.core.model import GPU
from dovetail.core.queues.types import MODEL_LABEL
from dovetail.core.state import State
from dovetail.views.gpus import gpus_of
from dovetail.views.held_types import HeldGpus, NodeGpus, NodeHolder
from dovetail.views.holders import parts_of
from dovetail.views.jobs import name_of
from dovetail.views.leased import is_placeholder, key_of


def node_holders(state: State, name: str) -> tuple[NodeHolder, ...]:
    """The holders on a node, by GPU; none on a node that does not exist."""
    cluster = state.cluster
    slot = cluster.nodes.slots.get(name)
    found = []
    for uid in cluster.on_slot.get(slot, ()) if slot is not None else ():
        placement = cluster.placements[uid]
        pod, held, parts = placement.pod, gpus_of(state, placement.pod), parts_of(cluster, placement)
        if not held.count and not parts:
            continue
        ours = pod.managed and not is_placeholder(pod)
        job = name_of(state, state.workloads.workload_of(pod)) if ours else ""
        queue = state.shares.pod_queues.of(pod) if ours else ""
        found.append(NodeHolder(key_of(pod), job, pod.user, queue, held.count, held.gpus, parts))
    return tuple(sorted(found, key=lambda one: (one.gpus is None, one.gpus or (), one.pod)))


def gpu_holders(state: State, now_ms: int) -> HeldGpus:
    """The holders on all nodes with GPUs or with a holder."""
    nodes = state.cluster.nodes
    found = []
    for name in sorted(nodes.slots):
        record = nodes.records[nodes.slots[name]]
        if record is None:
            continue
        gpus, held = dict(record.allocatable).get(GPU, 0), node_holders(state, name)
        if gpus or held:
            found.append(NodeGpus(name, dict(record.labels).get(MODEL_LABEL, ""), gpus, held))
    return HeldGpus(now_ms, tuple(found))
