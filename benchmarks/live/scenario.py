# SPDX-License-Identifier: Apache-2.0
"""What is scheduled: the objects of each scenario, and what a right answer to it is.

Rules: all pods of a scenario are alike and fit together; gangs are native PodGroups whose minCount is their whole size.
The objects are the same for every scheduler but for spec.schedulerName. Names sort in topology order, so that also a
binder that goes through the nodes by name keeps a block together.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import ceil

from msgspec import Struct

from dovetail.kube.objects_pod import SchedulingGroup
from dovetail.kube.resources import NODES, POD_GROUPS, PODS, Resource

NAMESPACE = "default"
POD_GROUP = POD_GROUPS[0]
GPUS_PER_NODE = 8
NODES_PER_RACK = 16
RACK, BLOCK, ZONE = "dovetail.dev/rack", "dovetail.dev/block", "topology.kubernetes.io/zone"
AMOUNTS_BESIDE_GPUS = {"cpu": "96", "memory": "1Ti", "pods": "110"}
AMOUNTS = AMOUNTS_BESIDE_GPUS | {"nvidia.com/gpu": str(GPUS_PER_NODE)}

Document = dict[str, object]
Kinds = Iterator[tuple[Resource, Iterable[Document]]]


class Meta(Struct, rename="camel", frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class SeenSpec(Struct, rename="camel", frozen=True):
    node_name: str = ""
    scheduling_group: SchedulingGroup | None = None


class _ClaimMade(Struct, frozen=True):
    name: str = ""


class SeenStatus(Struct, rename="camel", frozen=True):
    resource_claim_statuses: tuple[_ClaimMade, ...] = ()


class SeenPod(Struct, frozen=True):
    """What is read of a pod to see where it went."""

    metadata: Meta
    spec: SeenSpec = SeenSpec()
    status: SeenStatus = SeenStatus()


def node_documents(nodes: int, nodes_per_block: int, amounts: dict[str, str]) -> Iterator[Document]:
    for number in range(nodes):
        block = number // nodes_per_block
        name = f"node-{number:05}"
        labels = {
            "kubernetes.io/hostname": name,
            RACK: f"rack-{block}-{number % nodes_per_block // NODES_PER_RACK}",
            BLOCK: f"block-{block}",
            ZONE: f"zone-{block}",
        }
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        yield {
            "metadata": {"name": name, "labels": labels},
            "status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]},
        }


@dataclass(frozen=True)
class Scenario:
    """`gangs` 0 means `pods` pods on their own, otherwise that many gangs of `pods` pods each.

    required: node label key; each gang must be inside one domain of it.
    """

    title: str
    nodes: int
    pods: int
    gpus: int
    gangs: int = 0
    nodes_per_block: int = 512
    required: str = ""

    def scaled(self, scale: float) -> "Scenario":
        """The same scenario with `scale` times the nodes and pods; many gangs become fewer, one becomes smaller."""
        many = self.gangs > 1
        return replace(
            self,
            nodes=ceil(self.nodes * scale),
            nodes_per_block=ceil(self.nodes_per_block * scale),
            gangs=max(1, int(self.gangs * scale)) if many else self.gangs,
            pods=self.pods if many else max(1, int(self.pods * scale)),
        )

    @property
    def pod_count(self) -> int:
        return self.pods * max(1, self.gangs)

    @property
    def controllers(self) -> tuple[str, ...]:
        """Of kube-controller-manager."""
        return ()

    def kinds(self, scheduler_name: str) -> Kinds:
        """The objects to create, in this order of kinds."""
        yield NODES, node_documents(self.nodes, self.nodes_per_block, AMOUNTS)
        yield POD_GROUP, self.gang_documents()
        yield PODS, self.pod_documents(scheduler_name)

    def gang_documents(self) -> Iterator[Document]:
        spec: Document = {"schedulingPolicy": {"gang": {"minCount": self.pods}}}
        if self.required:
            spec["schedulingConstraints"] = {"topology": [{"key": self.required}]}
        for number in range(self.gangs):
            yield {"metadata": {"name": f"gang-{number:05}"}, "spec": spec}

    def pod_documents(self, scheduler_name: str) -> Iterator[Document]:
        amounts = {"cpu": str(8 * self.gpus), "memory": f"{64 * self.gpus}Gi", "nvidia.com/gpu": str(self.gpus)}
        spec: Document = {
            "schedulerName": scheduler_name,
            "containers": [{"name": "main", "image": "train", "resources": {"requests": amounts, "limits": amounts}}],
        }
        for number in range(self.pod_count):
            group = {"schedulingGroup": {"podGroupName": f"gang-{number // self.pods:05}"}} if self.gangs else {}
            yield {"metadata": {"name": f"pod-{number:05}"}, "spec": spec | group}

    def ready(self, pods: Iterable[SeenPod]) -> bool:
        """Whether the backlog is complete once all is created."""
        return True

    def problems(self, pods: Iterable[SeenPod], claims: Iterable[object]) -> list[str]:
        """What is wrong with the placement of all `pods`, one line for each kind of mistake; nothing if it is right."""
        placed = [pod for pod in pods if pod.spec.node_name]
        pods_on = Counter(pod.spec.node_name for pod in placed)
        bound_of = Counter(pod.spec.scheduling_group.pod_group_name for pod in placed if pod.spec.scheduling_group)
        block_of = {node: int(node.rpartition("-")[2]) // self.nodes_per_block for node in pods_on}
        overfull = [node for node, count in pods_on.items() if count * self.gpus > GPUS_PER_NODE]
        partial = [gang for gang, bound in bound_of.items() if bound < self.pods]
        spread = len(set(block_of.values())) if self.required == BLOCK else 0
        checks = (
            (len(placed) < self.pod_count, f"{len(placed)} of {self.pod_count} pods are bound"),
            (bool(overfull), f"{len(overfull)} nodes have more pods than GPUs, e.g. {overfull[:1]}"),
            (bool(partial), f"{len(partial)} gangs are bound by part, e.g. {partial[:1]}"),
            (spread > 1, f"the gang is spread over {spread} blocks"),
        )
        return [text for wrong, text in checks if wrong]


SCENARIOS = {
    "a": Scenario("10,000 pods of 1 GPU on 1,500 nodes", nodes=1500, pods=10_000, gpus=1),
    "b": Scenario(
        "one gang of 512 pods x 8 GPUs in one block of 512 nodes, of 1,024 nodes",
        nodes=1024, pods=512, gpus=8, gangs=1, required=BLOCK,
    ),
    "c": Scenario("500 gangs of 20 pods x 1 GPU on 1,500 nodes", nodes=1500, pods=20, gpus=1, gangs=500),
}  # fmt: skip
