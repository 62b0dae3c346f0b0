# SPDX-License-Identifier: Apache-2.0
"""The inside of a node: the wiring of its GPUs and its source, the policies of its kubelet, the GPUs of each pod.

What is not known is None. The wiring of the whole node, or of the GPUs of one pod, can be written as XML for NCCL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.devices import products
from dovetail.core.devices.kubelet.inventory import Inventory
from dovetail.core.devices.layout import Layout, LayoutError
from dovetail.core.model import GPU, Node
from dovetail.core.state import State
from dovetail.kube.objects.topology import GPUNode
from dovetail.kube.translate.read_notes import ReadNotes
from dovetail.topology.nccl_xml_write import coarse, write
from dovetail.topology.reading import Reading
from dovetail.views.gpus import gpus_of
from dovetail.views.jobs import find_pod
from dovetail.views.names import JobNotFound, nearest
from dovetail.views.topology import of_reading
from dovetail.views.topology_types import OWNER, GpuProcess, NodeInside, NodeQuestion, NodeTopology, Policies, Topology

_GPU_NODE = "GPUNode"
_LABELS = "labels of the node"
_ALL_ASSUMED = "the labels have only the product: the wiring is the usual one of such a node"
_SOME_ASSUMED = "NVLinks or NICs were not reported: they are the usual ones of the product"


class NotForNccl(Exception):
    """The XML cannot be written; the message names what is not known and the object that should have it."""


class ReadObjects(Struct, frozen=True):
    """What was read besides a state: the GPUNode of a node, and the notes of "Node NAME" and "Pod NAMESPACE/NAME"."""

    gpu_node: Callable[[str], GPUNode | None]
    notes: Callable[[str], ReadNotes]


def node_topology(state: State, objects: ReadObjects, asked: NodeQuestion) -> NodeTopology:
    """The answer. Raises JobNotFound for a node or pod that does not exist, NotForNccl."""
    found = inside(state, objects, asked.node)
    return NodeTopology(found, nccl_xml(state, objects, asked.node, asked.pod) if asked.nccl else "")


def _known(state: State, name: str) -> tuple[int, Node]:
    """The node and its slot. Raises JobNotFound."""
    nodes = state.cluster.nodes
    slot = nodes.slots.get(name)
    record = nodes.records[slot] if slot is not None else None
    if slot is None or record is None:
        raise JobNotFound(f"no node is called {name}{nearest(name, nodes.slots)}")
    return slot, record


def inside(state: State, objects: ReadObjects, name: str) -> NodeInside:
    """The node as the scheduler sees it. Raises JobNotFound."""
    cluster = state.cluster
    slot, record = _known(state, name)
    pods = [cluster.placements[uid].pod for uid in cluster.on_slot.get(slot, ())]
    holders = [held for pod in pods if (held := gpus_of(state, pod)).count]
    column = cluster.nodes.resources[GPU]
    about = [f"Node {name}", *(f"Pod {pod.key}" for pod in pods)]
    return NodeInside(
        node=name,
        gpus=dict(record.allocatable).get(GPU, 0),
        free=max(0, int(cluster.nodes.free[column, slot])),
        topology=_topology(record.layout, objects.notes(about[0]).origin),
        findings=tuple(finding for key in about for finding in objects.notes(key).findings),
        policies=_policies(record.inventory),
        pods=tuple(sorted(holders, key=lambda held: (held.gpus is None, held.gpus or (), held.pod))),
        processes=_processes(objects.gpu_node(name)),
    )


def _processes(gpu_node: GPUNode | None) -> tuple[GpuProcess, ...]:
    """Those that the agent reports, by GPU."""
    if gpu_node is None:
        return ()
    foreign = (
        GpuProcess(
            one.pid, one.gpu, one.uuid, one.holder, f"{one.namespace}/{one.pod}" if one.pod else "", one.memory_mib
        )
        for one in gpu_node.status.foreign_processes
    )
    own = (
        GpuProcess(one.pid, one.gpu, one.uuid, OWNER, f"{one.namespace}/{one.pod}", one.memory_mib)
        for one in gpu_node.status.holder_processes
    )
    return tuple(sorted((*foreign, *own), key=lambda one: (one.gpu is None, one.gpu or 0, one.uuid, one.pid)))


def _topology(layout: Layout | None, origin: str) -> Topology | None:
    if layout is None:
        return None
    reported = origin in (_GPU_NODE, "ResourceSlice")
    notes = ((_SOME_ASSUMED if reported else _ALL_ASSUMED),) if layout.assumed else ()
    return of_reading(origin if reported else _LABELS, Reading(layout, notes))


def _policies(inventory: Inventory | None) -> Policies:
    if inventory is None:
        return Policies()
    return Policies(
        inventory.topology_policy,
        inventory.scope if inventory.topology_policy is not None else None,
        inventory.cpu_policy,
        tuple(sorted(inventory.cpu_options)),
        inventory.memory_policy,
    )


def nccl_xml(state: State, objects: ReadObjects, name: str, pod: str = "") -> str:
    """The text of a file for NCCL_TOPO_FILE in the pod "namespace/name", or, without one, in a pod with all GPUs of the
    node. Raises NotForNccl, JobNotFound."""
    layout, gpu_node = _known(state, name)[1].layout, objects.gpu_node(name)
    described = gpu_node is not None and objects.notes(f"Node {name}").origin == _GPU_NODE
    # The object may be newer than the state.
    if gpu_node is None or layout is None or not described or len(gpu_node.status.gpus) != layout.gpus:
        raise NotForNccl(f"no GPUNode reports the wiring of the GPUs of {name} and their PCI bus ids")
    gpus = _gpus(state, name, pod) if pod else tuple(range(layout.gpus))
    known = [gpu_node.status.gpus[gpu] for gpu in gpus]
    for gpu in known:
        if not gpu.pci_bus_id:
            raise NotForNccl(f"GPUNode {name}: status.gpus[{gpu.index}].pciBusId: is missing, and NCCL needs it")
    product = known[0].product if products.find(known[0].product) is not None else None
    try:
        return write(
            coarse(_part(layout, gpus)),
            product,
            [_bus_id(gpu.pci_bus_id) for gpu in known],
            nic_names=[nic.name for nic in gpu_node.status.nics or ()],
        )
    except LayoutError as error:
        raise NotForNccl(f"NCCL's XML cannot express the wiring of {name}: {error}") from error


def _gpus(state: State, name: str, key: str) -> tuple[int, ...]:
    pod = find_pod(state, key)
    if pod.node != name:
        raise NotForNccl(f"pod {key} is not on {name}: it {f'is on {pod.node}' if pod.node else 'waits'}")
    held = gpus_of(state, pod)
    if not held.gpus:
        why = "it is not known which GPUs it has" if held.count else "it has no GPUs"
        raise NotForNccl(f"pod {key}: {why}")
    return held.gpus


def _part(layout: Layout, gpus: Sequence[int]) -> Layout:
    """The layout of some of the GPUs, in this order, with all NICs."""
    return replace(
        layout,
        numa=tuple(layout.numa[i] for i in gpus),
        pcie=tuple(tuple(layout.pcie[i][j] for j in gpus) for i in gpus),
        nvlinks=tuple(tuple(layout.nvlinks[i][j] for j in gpus) for i in gpus),
        nics=tuple(replace(nic, levels=tuple(nic.levels[i] for i in gpus)) for nic in layout.nics),
    )


def _bus_id(text: str) -> str:
    """The PCI bus id as NCCL writes it: NVML writes eight digits of the domain, sysfs and NCCL at least four."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:] if domain.startswith('0000') else domain}:{rest}"
