# SPDX-License-Identifier: Apache-2.0
"""The objects of each scenario, and the check of the result.

Rules: all pods of a scenario are equivalent and fit at the same time, except those that are meant to fit nowhere. Gangs
are native PodGroups whose minCount is their size. The objects are the same for all schedulers except for
spec.schedulerName. Node names sort in topology order, so that a binder that iterates over the nodes by name keeps
blocks together.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.live.hostile import parts
from dovetail.kube.api.resources import NODES, POD_GROUPS, PODS, Resource
from dovetail.kube.objects.pods import SchedulingGroup

NAMESPACE = "default"
POD_GROUP = POD_GROUPS[0]
GPUS_PER_NODE = 8
NODES_PER_RACK = 16
RACK, BLOCK, ZONE = "dovetail.dev/rack", "dovetail.dev/block", "topology.kubernetes.io/zone"
AMOUNTS_BESIDE_GPUS = {"cpu": "96", "memory": "1Ti", "pods": "110"}
AMOUNTS = AMOUNTS_BESIDE_GPUS | {"nvidia.com/gpu": str(GPUS_PER_NODE)}
FINISHED = ("Succeeded", "Failed")
UNPLACEABLE = "-unplaceable"
"""The name suffix of pods that fit nowhere."""

Document = dict[str, object]
Kinds = Iterator[tuple[Resource, Iterable[Document]]]
Arrivals = Iterator[tuple[float, Document]]
"""Pods with their creation times in seconds after the first one."""


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
    phase: str = ""
    resource_claim_statuses: tuple[_ClaimMade, ...] = ()


class SeenPod(Struct, frozen=True):
    """The fields of a pod that show its placement."""

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


class Scenario(Struct, frozen=True):
    """A scenario. With `gangs` 0 it has `pods` lone pods, otherwise that many gangs of `pods` pods each.

    required: node label key; each gang must be inside one domain of it.
    unplaceable: additional pods, evenly spread among the others, that request more GPUs than a node has.
    stream, per_s: additional pods that arrive at this rate after the others are bound.
    run_s: run time of a pod from its bind on; 0 is unlimited.
    hostile_per_s: rate of hostile pods, which never fit, during the stream.
    alone: the same scenario without the obstacle for its pods.
    """

    title: str
    nodes: int
    pods: int
    gpus: int
    gangs: int = 0
    nodes_per_block: int = 512
    required: str = ""
    unplaceable: int = 0
    stream: int = 0
    per_s: float = 1.0
    run_s: float = 0.0
    hostile_per_s: float = 0.0
    alone: str = ""

    def scaled(self, scale: float) -> "Scenario":
        """The scenario with `scale` times the nodes and pods. Several gangs become fewer, a single one becomes smaller,
        and a stream becomes shorter."""
        many, streams = self.gangs > 1, self.stream > 0
        return replace(
            self,
            nodes=ceil(self.nodes * scale),
            nodes_per_block=ceil(self.nodes_per_block * scale),
            gangs=max(1, int(self.gangs * scale)) if many else self.gangs,
            pods=self.pods if many or streams else max(1, int(self.pods * scale)),
            unplaceable=int(self.unplaceable * scale),
            stream=int(self.stream * scale),
            run_s=self.run_s * scale,
        )

    @property
    def backlog(self) -> int:
        """The number of placeable pods that exist before the scheduler starts."""
        return self.pods * max(1, self.gangs)

    @property
    def pod_count(self) -> int:
        """The number of pods to bind."""
        return self.backlog + self.stream

    @property
    def controllers(self) -> tuple[str, ...]:
        """The controllers of kube-controller-manager to run."""
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
        there = self.backlog + self.unplaceable
        for number in range(there):
            # Spread them evenly.
            if number * self.unplaceable // there < (number + 1) * self.unplaceable // there:
                yield self._pod(f"pod-{number:05}{UNPLACEABLE}", scheduler_name, 2 * GPUS_PER_NODE)
                continue
            group = {"schedulingGroup": {"podGroupName": f"gang-{number // self.pods:05}"}} if self.gangs else {}
            yield self._pod(f"pod-{number:05}", scheduler_name, self.gpus, **group)

    def arrivals(self, scheduler_name: str) -> Arrivals:
        hostile, hostile_s = parts(), 0.0
        for number in range(self.stream):
            due_s = number / self.per_s
            if self.hostile_per_s and due_s >= hostile_s:
                hostile_s += 1 / self.hostile_per_s
                meta, spec = next(hostile)
                name = f"hostile-{number:05}{UNPLACEABLE}"
                document = self._pod(name, scheduler_name, 2 * GPUS_PER_NODE, **spec)
                yield due_s, document | {"metadata": {"name": name, "namespace": NAMESPACE} | meta}
            yield due_s, self._pod(f"late-{number:05}", scheduler_name, self.gpus)

    def _pod(self, name: str, scheduler_name: str, gpus: int, **more: object) -> Document:
        amounts = {"cpu": str(8 * self.gpus), "memory": f"{64 * self.gpus}Gi", "nvidia.com/gpu": str(gpus)}
        spec: Document = {
            "schedulerName": scheduler_name,
            "containers": [{"name": "main", "image": "train", "resources": {"requests": amounts, "limits": amounts}}],
        }
        return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec | more}

    def ready(self, pods: Iterable[SeenPod]) -> bool:
        """Whether the backlog is complete after the creation of all objects."""
        return True

    def problems(self, pods: Iterable[SeenPod], claims: Iterable[object]) -> list[str]:
        """The errors in the placement of all `pods`, one line per kind of error; empty if it is correct."""
        bound = [pod for pod in pods if pod.spec.node_name]
        placed = [pod for pod in bound if not pod.metadata.name.endswith(UNPLACEABLE)]
        pods_on = Counter(pod.spec.node_name for pod in bound if pod.status.phase not in FINISHED)
        bound_of = Counter(pod.spec.scheduling_group.pod_group_name for pod in placed if pod.spec.scheduling_group)
        block_of = {node: int(node.rpartition("-")[2]) // self.nodes_per_block for node in pods_on}
        overfull = [node for node, count in pods_on.items() if count * self.gpus > GPUS_PER_NODE]
        partial = [gang for gang, bound in bound_of.items() if bound < self.pods]
        spread = len(set(block_of.values())) if self.required == BLOCK else 0
        checks = (
            (len(placed) < self.pod_count, f"{len(placed)} of {self.pod_count} pods are bound"),
            (len(bound) > len(placed), f"{len(bound) - len(placed)} pods are bound that fit nowhere"),
            (bool(overfull), f"{len(overfull)} nodes have more pods than GPUs, e.g. {overfull[:1]}"),
            (bool(partial), f"{len(partial)} gangs are bound by part, e.g. {partial[:1]}"),
            (spread > 1, f"the gang is spread over {spread} blocks"),
        )
        return [text for wrong, text in checks if wrong]


_CALM = Scenario(
    "20 pods of 1 GPU a second for 60 s, each for 30 s, on 500 nodes",
    nodes=500, pods=8, gpus=1, stream=1_200, per_s=20.0, run_s=30.0,
)  # fmt: skip
_AMONG = Scenario("2,000 pods of 1 GPU on 500 nodes", nodes=500, pods=2_000, gpus=1)
SCENARIOS = {
    "singles": Scenario("10,000 pods of 1 GPU on 1,500 nodes", nodes=1500, pods=10_000, gpus=1),
    "singles-5000": Scenario("10,000 pods of 1 GPU on 5,000 nodes", nodes=5000, pods=10_000, gpus=1),
    "gangs": Scenario("500 gangs of 20 pods x 1 GPU on 1,500 nodes", nodes=1500, pods=20, gpus=1, gangs=500),
    "one-gang": Scenario(
        "one gang of 512 pods x 8 GPUs in one block of 512 nodes in racks of 16, of 1,024 nodes",
        nodes=1024, pods=512, gpus=8, gangs=1, required=BLOCK,
    ),
    "alone": _AMONG,
    "among": replace(
        _AMONG, title=f"{_AMONG.title}, among them 200 pods that fit nowhere", unplaceable=200, alone="alone",
    ),
    "calm": _CALM,
    "storm": replace(
        _CALM, title=f"{_CALM.title}, and 2 pods a second that are meant to hurt", hostile_per_s=2.0, alone="calm",
    ),
    "stream": Scenario(
        "200 pods of 1 GPU a second for 120 s, each for 30 s, on 1,500 nodes",
        nodes=1500, pods=8, gpus=1, stream=24_000, per_s=200.0, run_s=30.0,
    ),
}  # fmt: skip
