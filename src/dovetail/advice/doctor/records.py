# SPDX-License-Identifier: Apache-2.0
"""What the doctor is told of a cluster, and what it looks by and finds: the records that its checks share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set

from msgspec import Struct, field

from dovetail.kube.protection import Binding, ProtectionPolicy

HAS_GPUS = ("nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present")
_WORKLOAD = "nvidia.com/gpu.workload.config"
PRODUCT = "nvidia.com/gpu.product"
DRIVERS = frozenset({"gpu.nvidia.com"})
"""DRA drivers for GPUs."""


class NodeRecord(Struct, frozen=True):
    """`gpus` is allocatable by resource name; `unready` what its condition Ready says, "" where that is True or is not
    there."""

    name: str
    labels: Mapping[str, str]
    gpus: Mapping[str, int]
    unready: str = ""

    @property
    def label_of_gpus(self) -> str:
        """The label by which it has GPUs for containers, "" for none. Those of virtual machines are not for these."""
        if self.labels.get(_WORKLOAD, "").startswith("vm-"):
            return ""
        return next((key for key in HAS_GPUS if self.labels.get(key) == "true"), "")

    @property
    def has_gpus(self) -> bool:
        return bool(self.label_of_gpus) or any(self.gpus.values())


class PartRecord(Struct, frozen=True):
    """A pod that makes the GPUs of its node usable. `role` is plugin (a device plugin for GPUs), driver, toolkit,
    validator or discovery (GPU Feature Discovery), `name` whose it is. Of one that is not ready `container` is the
    container or init container that it is stuck in, and `trouble` what that one says."""

    role: str
    pod: str
    node: str
    name: str = "NVIDIA"
    container: str = ""
    trouble: str = ""


class PendingRecord(Struct, frozen=True):
    """A pod that asks for GPUs and is on no node. `asks` are the names of the GPU resources, `selector` is its
    nodeSelector. `reason` and `message` are those of its condition PodScheduled, `source` says whose words they are
    where they are not the condition's."""

    pod: str
    scheduler: str
    ours: bool
    reason: str
    message: str
    asks: tuple[str, ...] = ()
    selector: Mapping[str, str] = field(default_factory=dict)
    age_s: int = 0
    source: str = ""


class Running(Struct, frozen=True):
    """A pod that has GPUs on its node. `quality` is its QoS class."""

    pod: str
    node: str
    scheduler: str
    quality: str = ""


class Scheduler(Struct, frozen=True):
    """A pod of a known scheduler or quota manager for GPUs."""

    name: str
    pod: str


class Pods(Struct, frozen=True):
    """`parts` go by node; `misaligned` are pods by node that the kubelet rejected with TopologyAffinityError and that
    still exist."""

    parts: Mapping[str, tuple[PartRecord, ...]] = field(default_factory=dict)
    pending: tuple[PendingRecord, ...] = ()
    running: tuple[Running, ...] = ()
    schedulers: tuple[Scheduler, ...] = ()
    misaligned: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class KubeletRecord(Struct, frozen=True):
    """`source` is the object that tells; "" is a policy that it does not tell. `gpu_numa` are the NUMA nodes that have
    GPUs; `blind` says that GPUs have such a node and the device plugin told the kubelet none."""

    source: str
    topology_policy: str = ""
    cpu_policy: str = ""
    gpu_numa: tuple[int, ...] = ()
    blind: bool = False


class GpuNode(Struct, frozen=True):
    """What a GPUNode tells. `driver` is the message of its condition DriverReady where that is False, else "";
    `mig_state` and `mig_message` what became of a layout."""

    driver: str = ""
    mig_state: str = ""
    mig_message: str = ""
    kubelet: KubeletRecord | None = None


class Webhook(Struct, frozen=True):
    """One webhook of a MutatingWebhookConfiguration."""

    configuration: str
    name: str


class QueueRecord(Struct, frozen=True):
    """A queue of ours: why it cannot be used (`problem`), and what does not count of what is guaranteed (`scaled`)."""

    name: str
    problem: str = ""
    scaled: str = ""


class Lease(Struct, frozen=True):
    """A lease of one of our schedulers, that somebody holds and has renewed lately. `scheduler` is the schedulerName
    for whose pods the holder decides."""

    name: str
    scheduler: str
    holder: str
    renewed_s: int


class ClusterFacts(Struct, frozen=True):
    """What was read, one field for each list; None is what could not be. `drivers` are nodes by the DRA drivers that
    offer devices there; `gpu_nodes` and `topologies` (NodeResourceTopology) go by node. `fabric` are the label keys
    that the scheduler is given, from the widest to the narrowest."""

    nodes: tuple[NodeRecord, ...] | None
    pods: Pods | None
    drivers: Mapping[str, Set[str]] | None
    gpu_nodes: Mapping[str, GpuNode] | None
    topologies: Mapping[str, KubeletRecord] | None
    webhooks: tuple[Webhook, ...] | None
    queues: tuple[QueueRecord, ...] | None
    leases: tuple[Lease, ...] | None
    policies: tuple[ProtectionPolicy, ...] | None
    bindings: tuple[Binding, ...] | None
    fabric: tuple[str, ...]

    def claimed(self, node: str) -> bool:
        """Whether its GPUs are offered to claims."""
        return any(node in nodes for driver, nodes in (self.drivers or {}).items() if driver in DRIVERS)

    def parts(self, node: str, *roles: str) -> list[PartRecord]:
        """Those on a node, by pod."""
        parts = self.pods.parts.get(node, ()) if self.pods is not None else ()
        return sorted((one for one in parts if one.role in roles), key=lambda one: one.pod)

    def gpu_node(self, node: str) -> GpuNode:
        return (self.gpu_nodes or {}).get(node) or GpuNode()


class DoctorFinding(Struct, frozen=True):
    """`object` is `kind/name`; `evidence` what says so; `fix` a command or a setting. `level` is error, warning, or
    unknown for what could not be looked at."""

    id: str
    level: str
    object: str
    wrong: str
    evidence: str
    fix: str


Told = Iterator[tuple[str, str, str]]
"""Object, evidence, fix."""


class Check(Struct, frozen=True):
    """`needs` are the fields of Seen without which it is left out."""

    id: str
    level: str
    wrong: str
    needs: tuple[str, ...]
    look: Callable[[ClusterFacts], Told]


def logs_of(pod: str, container: str = "") -> str:
    """The command that shows the log of `namespace/name`."""
    namespace, _, name = pod.partition("/")
    return f"kubectl logs -n {namespace} {name}" + (f" -c {container}" if container else "")


def some(names: list[str], most: int = 3) -> str:
    """`a, b, c and 4 more`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
