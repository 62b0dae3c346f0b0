# SPDX-License-Identifier: Apache-2.0
"""The inside of a node: the wiring of its GPUs and its source, the policies of its kubelet, the GPUs of each pod.

What is not known is None. The wiring of the whole node, or of the GPUs of one pod, can be written as XML for NCCL.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.devices import products
from dovetail.core.devices.kubelet.inventory import Inventory
from dovetail.core.devices.layout import Layout, LayoutError
from dovetail.core.model import GPU
from dovetail.core.state import State
from dovetail.kube.nodes.wiring import Wiring
from dovetail.kube.translate.translator import Translator
from dovetail.topology.nccl_xml_write import coarse, write
from dovetail.topology.reading import Reading
from dovetail.views.gpus import PodGpus, gpus_of
from dovetail.views.jobs import find_pod
from dovetail.views.topology import Topology, of_reading

_GPU_NODE = "GPUNode"
_LABELS = "labels of the node"
_ALL_ASSUMED = "the labels have only the product: the wiring is the usual one of such a node"
_SOME_ASSUMED = "NVLinks or NICs were not reported: they are the usual ones of the product"


class Policies(Struct, frozen=True):
    """Policies of the kubelet's managers, as KubeletConfiguration names them."""

    topology_manager: str | None = None
    topology_manager_scope: str | None = None
    cpu_manager: str | None = None
    cpu_manager_options: tuple[str, ...] = ()
    memory_manager: str | None = None


class NodeInside(Struct, frozen=True):
    """A node. It offers `gpus` GPUs, `free` of which no pod holds. `topology` is None if the wiring is not known.
    `findings` name contradictions between objects, and values that cannot be used. `pods` hold GPUs there."""

    node: str
    gpus: int
    free: int
    topology: Topology | None
    findings: tuple[str, ...]
    policies: Policies
    pods: tuple[PodGpus, ...]


class NodeNotFound(Exception):
    """There is no such node; the message has similar names."""


class NotForNccl(Exception):
    """The XML cannot be written; the message names what is not known and the object that should have it."""


def inside(state: State, feed: Translator, name: str) -> NodeInside:
    """The node as the scheduler sees it. `feed` is the translator of the objects of `state`. Raises NodeNotFound."""
    cluster = state.cluster
    slot = cluster.nodes.slots.get(name)
    record = cluster.nodes.records[slot] if slot is not None else None
    if slot is None or record is None:
        near = ", ".join(sorted(other for other in cluster.nodes.slots if name in other or other in name)[:5])
        raise NodeNotFound(f"no node of this name{f'; did you mean {near}?' if near else ''}")
    wiring = feed.node_records.wiring(name)
    pods = [cluster.placements[uid].pod for uid in cluster.on_slot.get(slot, ())]
    holders = [held for pod in pods if (held := gpus_of(state, pod)).count]
    column = cluster.nodes.resources[GPU]
    about = [f"Node {name}", *(f"Pod {pod.key}" for pod in pods)]
    return NodeInside(
        node=name,
        gpus=dict(record.allocatable).get(GPU, 0),
        free=max(0, int(cluster.nodes.free[column, slot])),
        topology=_topology(wiring),
        findings=tuple(str(finding) for key in about for finding in feed.findings.get(key, ())),
        policies=_policies(wiring.inventory),
        pods=tuple(sorted(holders, key=lambda held: (held.gpus is None, held.gpus or (), held.pod))),
    )


def _topology(wiring: Wiring) -> Topology | None:
    if wiring.layout is None:
        return None
    reported = wiring.origin in (_GPU_NODE, "ResourceSlice")
    notes = ((_SOME_ASSUMED if reported else _ALL_ASSUMED),) if wiring.layout.assumed else ()
    return of_reading(wiring.origin if reported else _LABELS, Reading(wiring.layout, notes))


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


def nccl_xml(state: State, feed: Translator, name: str, pod: str = "") -> str:
    """The text of a file for NCCL_TOPO_FILE in the pod "namespace/name", or, without one, in a pod with all GPUs of the
    node. Raises NotForNccl, JobNotFound."""
    wiring, gpu_node = feed.node_records.wiring(name), feed.node_records.gpu_node(name)
    if gpu_node is None or wiring.layout is None or wiring.origin != _GPU_NODE:
        raise NotForNccl(f"no GPUNode reports the wiring of the GPUs of {name} and their PCI bus ids")
    gpus = _gpus(state, name, pod) if pod else tuple(range(wiring.layout.gpus))
    known = [gpu_node.status.gpus[gpu] for gpu in gpus]
    for gpu in known:
        if not gpu.pci_bus_id:
            raise NotForNccl(f"GPUNode {name}: status.gpus[{gpu.index}].pciBusId: is missing, and NCCL needs it")
    product = known[0].product if products.find(known[0].product) is not None else None
    try:
        return write(
            coarse(_part(wiring.layout, gpus)),
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
