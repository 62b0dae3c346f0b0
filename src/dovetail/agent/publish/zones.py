# SPDX-License-Identifier: Apache-2.0
"""The NodeResourceTopology of this node: capacity, allocatable and available resources of each NUMA node.

Rules
- Each NUMA node is a zone, named node-N, with its distances as costs. Resources are those for which the kubelet's
  PodResources service has a NUMA node: CPUs, memory and huge pages if their managers are static, and devices.
- Allocatable is what the kubelet can allocate. Capacity of CPUs and memory is that of the NUMA node (memory includes
  huge pages, which are also listed themselves); capacity of devices is the allocatable number. Available is allocatable
  without the exclusive CPUs, pinned memory and devices of containers. A device on several NUMA nodes counts on each.
- Memory that is pinned to several NUMA nodes is taken from them in ascending order.
- Attributes are the policy and the scope of the kubelet's topology manager; the older field has both in one word.
- The object is written by server-side apply with a field manager of its own, and not if another manager writes it
  (managedFields).
Source: nfd-topology-updater and its resource monitor, which write the same; noderesourcetopology-api v1alpha2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from dovetail.agent.apis import podresources_pb2 as wire
from dovetail.agent.machine.sysfs import SysfsNumaNode
from dovetail.agent.publish.field_managers import FieldsWritten, writers
from dovetail.kube.api.client import Client
from dovetail.kube.api.errors import Conflict, NotFound
from dovetail.kube.api.resources import NODE_TOPOLOGIES, NODES

MANAGER = "dovetail-agent-zones"
_POLICIES = {"single-numa-node": "SingleNUMANode", "restricted": "Restricted", "best-effort": "BestEffort"}
_SCOPES = {"pod": "PodLevel", "container": "ContainerLevel"}
_FIELDS = frozenset({"topologyPolicies", "attributes", "zones"})
_MEMORY, _HUGE_PAGES = "memory", "hugepages-"

Amounts = dict[int, Counter[str]]
"""By NUMA node the amount of each resource."""


def zones_of_node(
    name: str,
    nodes: Sequence[SysfsNumaNode],
    policy: str,
    scope: str,
    allocatable: wire.AllocatableResourcesResponse,
    pods: wire.ListPodResourcesResponse,
) -> dict[str, Any]:
    """The object without its owner. `policy` and `scope` are the kubelet's topologyManagerPolicy and
    topologyManagerScope, "" if they are unknown."""
    numa_of_cpu = {cpu: node.id for node in nodes for cpu in node.cpus}
    most = _allocatable(nodes, numa_of_cpu, allocatable)
    left = _available(most, numa_of_cpu, _places(allocatable.devices), pods)
    zones = [
        {
            "name": _zone(node.id),
            "type": "Node",
            "costs": [
                {"name": _zone(other.id), "value": distance}
                for other, distance in zip(nodes, node.distances, strict=False)
            ],
            "resources": [
                {
                    "name": resource,
                    "capacity": str(_capacity(node, resource, amount)),
                    "allocatable": str(amount),
                    "available": str(left[node.id][resource]),
                }
                for resource, amount in sorted(most[node.id].items())
            ],
        }
        for node in nodes
    ]
    attributes = {"topologyManagerPolicy": policy, "topologyManagerScope": scope}
    return {
        "apiVersion": NODE_TOPOLOGIES.api_version,
        "kind": NODE_TOPOLOGIES.kind,
        "metadata": {"name": name},
        "topologyPolicies": [_POLICIES.get(policy, "None") + (_SCOPES.get(scope, "") if policy in _POLICIES else "")],
        "attributes": [{"name": key, "value": value} for key, value in attributes.items() if value],
        "zones": zones,
    }


def _zone(number: int) -> str:
    return f"node-{number}"


def _allocatable(
    nodes: Iterable[SysfsNumaNode], numa_of_cpu: dict[int, int], response: wire.AllocatableResourcesResponse
) -> Amounts:
    # A node without allocatable CPUs has an entry of 0 CPUs.
    found: Amounts = {node.id: Counter(cpu=0) for node in nodes}
    for cpu in response.cpu_ids:
        if cpu in numa_of_cpu:
            found[numa_of_cpu[cpu]]["cpu"] += 1
    for entry in response.devices:
        for place in _known(entry.topology, found):
            found[place][entry.resource_name] += len(entry.device_ids)
    for block in response.memory:
        for place in _known(block.topology, found):
            found[place][block.memory_type] += block.size
    return found


def _available(
    most: Amounts,
    numa_of_cpu: dict[int, int],
    places: dict[tuple[str, str], tuple[int, ...]],
    pods: wire.ListPodResourcesResponse,
) -> Amounts:
    left = {number: Counter(amounts) for number, amounts in most.items()}
    for pod in pods.pod_resources:
        # The containers' CPUs are part of those of the pod.
        cpus = {*pod.cpu_ids, *(cpu for container in pod.containers for cpu in container.cpu_ids)}
        for cpu in cpus & numa_of_cpu.keys():
            left[numa_of_cpu[cpu]]["cpu"] -= 1
        for block in pod.memory or [block for container in pod.containers for block in container.memory]:
            _take(left, block.memory_type, block.size, sorted(_known(block.topology, left)))
        for entry in (entry for container in pod.containers for entry in container.devices):
            for one in entry.device_ids:
                for place in places.get((entry.resource_name, one), ()):
                    left[place][entry.resource_name] -= 1
    return {number: Counter({name: max(0, n) for name, n in amounts.items()}) for number, amounts in left.items()}


def _take(left: Amounts, kind: str, size: int, places: Iterable[int]) -> None:
    for place in places:
        taken = min(size, max(0, left[place][kind]))
        left[place][kind] -= taken
        size -= taken


def _places(devices: Iterable[wire.ContainerDevices]) -> dict[tuple[str, str], tuple[int, ...]]:
    """The NUMA nodes of each device, by resource and id. The kubelet may list a device in several entries."""
    found: dict[tuple[str, str], tuple[int, ...]] = {}
    for entry in devices:
        for one in entry.device_ids:
            key = (entry.resource_name, one)
            found[key] = (*found.get(key, ()), *(node.ID for node in entry.topology.nodes))
    return found


def _known(topology: wire.TopologyInfo, found: Amounts) -> list[int]:
    return [node.ID for node in topology.nodes if node.ID in found]


def _capacity(node: SysfsNumaNode, resource: str, allocatable: int) -> int:
    if resource == "cpu":
        return len(node.cpus)
    if resource == _MEMORY:
        return node.memory_bytes
    return {f"{_HUGE_PAGES}{_size(kib)}": kib * 1024 * count for kib, count in node.huge_pages}.get(
        resource, allocatable
    )


def _size(kib: int) -> str:
    """The size of a huge page as Kubernetes writes it: 2Mi, 1Gi."""
    for unit, name in ((1 << 20, "Gi"), (1 << 10, "Mi")):
        if kib % unit == 0:
            return f"{kib // unit}{name}"
    return f"{kib}Ki"


class NodeZones:
    """This node's NodeResourceTopology."""

    def __init__(self, client: Client, node: str) -> None:
        self._client = client
        self._node = node
        self._path = NODE_TOPOLOGIES.path(name=node)
        self._uid = ""
        self._written: dict[str, Any] | None = None

    async def write(self, document: dict[str, Any]) -> str:
        """Write the object if it has changed. Returns "", or the other manager that writes the object; then nothing is
        written. Raises ApiError: NotFound if the cluster does not have this kind."""
        if document == self._written:
            return ""
        if why := await self._others():
            return why
        if not self._uid:
            self._uid = (
                await self._client.request("GET", NODES.path(name=self._node), decode=FieldsWritten)
            ).metadata.uid
        owner = {"apiVersion": NODES.api_version, "kind": NODES.kind, "name": self._node, "uid": self._uid}
        body = {**document, "metadata": {"name": self._node, "ownerReferences": [owner]}}
        try:
            await self._client.apply(self._path, body, field_manager=MANAGER)
        except Conflict as error:
            return f"another manager has begun to write it: {error.message}"
        self._written = document
        return ""

    async def _others(self) -> str:
        try:
            found = await self._client.request("GET", self._path, decode=FieldsWritten)
        except NotFound:
            return ""
        others = sorted(manager for manager, own in writers(found).items() if manager != MANAGER and _FIELDS & {*own})
        return f"{', '.join(others)} writes it" if others else ""
