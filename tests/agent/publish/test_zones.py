# SPDX-License-Identifier: Apache-2.0
"""NodeResourceTopology: what each NUMA node has and has left, as the scheduler reads it back; and its field manager."""

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import msgspec
import pytest

from dovetail.agent.apis import podresources_pb2 as wire
from dovetail.agent.machine.sysfs import Sysfs, SysfsNumaNode
from dovetail.agent.publish.zones import NodeZones, zones_of_node
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import load_kubeconfig
from dovetail.kube.api.errors import NotFound
from dovetail.kube.nodes.inventories import zones_of
from dovetail.kube.objects.topology import NodeResourceTopology
from tools.controlplane.plane import Plane
from tools.standin import Standin

Make = Callable[[str | Mapping[str, Any]], Standin]
GPU = "nvidia.com/gpu"
GIB = 1 << 30


def place(*numa: int) -> wire.TopologyInfo:
    return wire.TopologyInfo(nodes=[wire.NUMANode(ID=number) for number in numa])


def devices(resource: str, *ids: str, numa: tuple[int, ...] = ()) -> wire.ContainerDevices:
    return wire.ContainerDevices(resource_name=resource, device_ids=ids, topology=place(*numa))


def memory(kind: str, size: int, *numa: int) -> wire.ContainerMemory:
    return wire.ContainerMemory(memory_type=kind, size=size, topology=place(*numa))


def pods(*containers: wire.ContainerResources) -> wire.ListPodResourcesResponse:
    return wire.ListPodResourcesResponse(pod_resources=[wire.PodResources(name="p", containers=containers)])


TWO = (
    SysfsNumaNode(0, (0, 1, 2, 3), (10, 21), 8 * GIB, ((2048, 512),)),
    SysfsNumaNode(1, (4, 5, 6, 7), (21, 10), 8 * GIB, ((2048, 0), (1048576, 2))),
)
ALLOCATABLE = wire.AllocatableResourcesResponse(
    cpu_ids=[1, 2, 3, 4, 5, 6, 7],
    memory=[
        memory("memory", 6 * GIB, 0),
        memory("memory", 7 * GIB, 1),
        memory("hugepages-2Mi", GIB, 0),
        memory("hugepages-1Gi", 2 * GIB, 1),
    ],
    devices=[
        devices(GPU, "GPU-0", "GPU-1", numa=(0,)),
        devices(GPU, "GPU-2", numa=(1,)),
        devices("example.com/nic", "nic0", numa=(0, 1)),
        devices("example.com/anywhere", "a", "b"),
    ],
)


def document(
    answer: wire.ListPodResourcesResponse, policy: str = "single-numa-node", scope: str = "pod"
) -> dict[str, Any]:
    return zones_of_node("node1", TWO, policy, scope, ALLOCATABLE, answer)


def resources(found: dict[str, Any], zone: int, field: str) -> dict[str, int]:
    return {one["name"]: int(one[field]) for one in found["zones"][zone]["resources"]}


def test_each_numa_node_is_a_zone_with_its_distances() -> None:
    found = document(pods())
    assert [(zone["name"], zone["type"]) for zone in found["zones"]] == [("node-0", "Node"), ("node-1", "Node")]
    assert found["zones"][1]["costs"] == [{"name": "node-0", "value": 21}, {"name": "node-1", "value": 10}]


def test_capacity_is_from_the_kernel_and_allocatable_from_the_kubelet() -> None:
    found = document(pods())
    assert resources(found, 0, "capacity") == {
        "cpu": 4, "memory": 8 * GIB, "hugepages-2Mi": GIB, GPU: 2, "example.com/nic": 1,
    }  # fmt: skip
    assert resources(found, 0, "allocatable") == {
        "cpu": 3, "memory": 6 * GIB, "hugepages-2Mi": GIB, GPU: 2, "example.com/nic": 1,
    }  # fmt: skip
    assert resources(found, 1, "capacity")["hugepages-1Gi"] == 2 * GIB
    assert resources(found, 0, "available") == resources(found, 0, "allocatable")


def test_what_containers_have_for_themselves_is_not_available() -> None:
    answer = pods(
        wire.ContainerResources(
            cpu_ids=[1, 4, 5],
            memory=[memory("memory", 2 * GIB, 1), memory("hugepages-2Mi", GIB // 2, 0)],
            devices=[devices(GPU, "GPU-1"), devices("example.com/nic", "nic0"), devices("example.com/anywhere", "a")],
        ),
        wire.ContainerResources(devices=[devices(GPU, "GPU-2"), devices(GPU, "GPU-gone")]),
    )
    found = document(answer)
    assert resources(found, 0, "available") == {
        "cpu": 2, "memory": 6 * GIB, "hugepages-2Mi": GIB // 2, GPU: 1, "example.com/nic": 0,
    }  # fmt: skip
    assert resources(found, 1, "available") == {
        "cpu": 2, "memory": 5 * GIB, "hugepages-1Gi": 2 * GIB, GPU: 0, "example.com/nic": 0,
    }  # fmt: skip


def test_memory_on_several_nodes_is_taken_from_the_first_ones() -> None:
    found = document(pods(wire.ContainerResources(memory=[memory("memory", 8 * GIB, 0, 1)])))
    assert [resources(found, zone, "available")["memory"] for zone in (0, 1)] == [0, 5 * GIB]


def test_what_a_pod_has_as_a_whole_counts_once() -> None:
    container = wire.ContainerResources(cpu_ids=[1, 2], memory=[memory("memory", GIB, 0)])
    pod = wire.PodResources(name="p", containers=[container], cpu_ids=[1, 2, 3], memory=[memory("memory", 2 * GIB, 0)])
    found = document(wire.ListPodResourcesResponse(pod_resources=[pod]))
    assert resources(found, 0, "available") | {GPU: 0, "hugepages-2Mi": 0, "example.com/nic": 0} == {
        "cpu": 0, "memory": 4 * GIB, "hugepages-2Mi": 0, GPU: 0, "example.com/nic": 0,
    }  # fmt: skip


def test_a_node_that_may_give_nothing_has_no_cpus_to_give() -> None:
    found = zones_of_node("node1", TWO, "none", "container", wire.AllocatableResourcesResponse(), pods())
    assert found["zones"][1]["resources"] == [{"name": "cpu", "capacity": "4", "allocatable": "0", "available": "0"}]


@pytest.mark.parametrize(
    ("policy", "scope", "old"),
    [
        ("single-numa-node", "pod", "SingleNUMANodePodLevel"),
        ("single-numa-node", "container", "SingleNUMANodeContainerLevel"),
        ("restricted", "pod", "RestrictedPodLevel"),
        ("best-effort", "container", "BestEffortContainerLevel"),
        ("none", "container", "None"),
    ],
)
def test_policy_and_scope_are_published_in_both_forms(policy: str, scope: str, old: str) -> None:
    found = document(pods(), policy, scope)
    assert found["topologyPolicies"] == [old]
    assert found["attributes"] == [
        {"name": "topologyManagerPolicy", "value": policy},
        {"name": "topologyManagerScope", "value": scope},
    ]
    read, findings = zones_of(read_back(found))
    assert (read.policy, read.scope, findings) == (policy, scope, ())
    only_old, _ = zones_of(read_back({**found, "attributes": []}))
    assert (only_old.policy, only_old.scope) == (policy, scope)


def read_back(found: dict[str, Any]) -> NodeResourceTopology:
    return msgspec.json.decode(msgspec.json.encode(found), type=NodeResourceTopology)


def test_an_unknown_policy_is_not_published() -> None:
    assert document(pods(), "", "")["attributes"] == []


@pytest.mark.parametrize("host", ["dgx-a100", "small-2numa", "gh200", "gb200-nvl72", "pcie-l40s"])
def test_the_scheduler_reads_back_what_the_machine_has(host: str, standin: Make) -> None:
    machine = standin(host)
    sysfs = Sysfs(machine.sysfs, machine.proc)
    numa = [gpu.device.numa for gpu in machine.description.gpus]
    allocatable = wire.AllocatableResourcesResponse(
        cpu_ids=[cpu for node in sysfs.numa_nodes for cpu in node.cpus],
        devices=[devices(GPU, f"GPU-{i}", numa=(number,)) for i, number in enumerate(numa)],
    )
    found = zones_of_node("node1", sysfs.numa_nodes, "restricted", "pod", allocatable, pods())
    read, findings = zones_of(read_back(found))
    assert findings == ()
    assert read.numa == tuple(range(len(machine.description.numa)))
    assert read.distances == tuple(node.distances for node in sysfs.numa_nodes)
    assert read.per_numa(GPU) == {number: numa.count(number) for number in set(numa)}
    assert sum(resources(found, zone, "capacity")["cpu"] for zone in range(len(read.numa))) == len(allocatable.cpu_ids)


CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "noderesourcetopologies.topology.node.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870"},
    },
    "spec": {
        "group": "topology.node.k8s.io",
        "scope": "Cluster",
        "names": {
            "plural": "noderesourcetopologies",
            "singular": "noderesourcetopology",
            "kind": "NodeResourceTopology",
            "listKind": "NodeResourceTopologyList",
        },
        "versions": [
            {
                "name": "v1alpha2",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["zones"],
                        "properties": {
                            "topologyPolicies": {"type": "array", "items": {"type": "string"}},
                            "attributes": {
                                "type": "array",
                                "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                            },
                            "zones": {
                                "type": "array",
                                "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                            },
                        },
                    }
                },
            }
        ],
    },
}
NODE = "zoned"


@pytest.fixture
def zoned(plane: Plane) -> Iterator[Plane]:
    plane.kubectl("create", "--filename=-", input=json.dumps(CRD))
    plane.kubectl("wait", "--for=condition=Established", f"crd/{CRD['metadata']['name']}", "--timeout=60s")
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
    plane.kubectl("create", "--filename=-", input=json.dumps(node))
    yield plane
    plane.kubectl("delete", "node", NODE)
    plane.kubectl("delete", "crd", CRD["metadata"]["name"])


@pytest.fixture
async def client(plane: Plane) -> AsyncIterator[Client]:
    async with Client(load_kubeconfig([plane.kubeconfig])) as client:
        yield client


def there(plane: Plane, *path: str) -> Any:
    found = json.loads(plane.kubectl("get", "noderesourcetopologies", NODE, "--output=json"))
    for step in path:
        found = found[step]
    return found


@pytest.mark.plane
async def test_it_is_written_belongs_to_the_node_and_leaves_other_writers_alone(zoned: Plane, client: Client) -> None:
    idle, busy = document(pods()), document(pods(wire.ContainerResources(cpu_ids=[1])))
    zones = NodeZones(client, NODE)
    assert await zones.write(idle) == ""
    zoned.kubectl("annotate", "noderesourcetopologies", NODE, "people=wrote-this")
    assert there(zoned, "zones") == idle["zones"]
    assert there(zoned, "metadata", "ownerReferences")[0]["name"] == NODE
    assert await zones.write(busy) == ""
    before = there(zoned)
    assert before["zones"] == busy["zones"]
    assert await zones.write(busy) == ""
    assert there(zoned) == before

    other = {key: idle[key] for key in ("apiVersion", "kind", "zones")} | {"metadata": before["metadata"]}
    zoned.kubectl("replace", "--field-manager=nfd-topology-updater", "--filename=-", input=json.dumps(other))
    assert await zones.write(idle | {"topologyPolicies": ["None"]}) == "nfd-topology-updater writes it"
    assert there(zoned, "zones") == idle["zones"]


@pytest.mark.plane
async def test_a_cluster_without_this_kind_is_reported(plane: Plane, client: Client) -> None:
    with pytest.raises(NotFound):
        await NodeZones(client, "unknown").write(document(pods()))
