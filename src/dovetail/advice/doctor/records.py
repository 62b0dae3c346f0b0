# SPDX-License-Identifier: Apache-2.0
"""The records of the doctor: the cluster facts that its checks read, the checks, and the findings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Set

from msgspec import Struct, field

from dovetail.advice.doctor.accelerators import accelerator_label
from dovetail.kube.objects.topology import ForeignProcess, GpuDirectObstacle
from dovetail.kube.protection import Binding, ProtectionPolicy

_HAS_GPUS = re.compile(
    r"nvidia\.com/gpu\.present|feature\.node\.kubernetes\.io/pci-(?:10de|030[02]_10de(?:_[0-9a-f_]+)?)\.present"
)
"""Labels of the GPU Operator and of Node Feature Discovery, which names a PCI device by vendor (10de) alone or by its
class (0300 VGA, 0302 3D), vendor, and further ids, as it is configured."""
_WORKLOAD = "nvidia.com/gpu.workload.config"
PRODUCT = "nvidia.com/gpu.product"
DRIVERS = frozenset({"gpu.nvidia.com"})
"""DRA drivers for GPUs."""


class NodeRecord(Struct, frozen=True):
    """`gpus` is the allocatable amount by resource name, `capacity` the same with unhealthy devices; `others` are the
    allocatable resources that are no GPUs. `unready` is the message of the condition Ready, "" if it is True or
    missing."""

    name: str
    labels: Mapping[str, str]
    gpus: Mapping[str, int]
    unready: str = ""
    capacity: Mapping[str, int] = field(default_factory=dict)
    others: tuple[str, ...] = ()

    @property
    def sign_of_gpus(self) -> str:
        """The label that states that the node has GPUs, as `key=value`; "" for none. GPUs for virtual machines do not
        count."""
        if self.labels.get(_WORKLOAD, "").startswith("vm-"):
            return ""
        found = (f"{key}=true" for key, value in self.labels.items() if value == "true" and _HAS_GPUS.fullmatch(key))
        return next(found, "") or accelerator_label(self.labels)

    @property
    def has_gpus(self) -> bool:
        return bool(self.sign_of_gpus) or any(self.gpus.values())


class PartRecord(Struct, frozen=True):
    """A pod that makes the GPUs of its node usable. `role` is plugin (a device plugin for GPUs), driver, toolkit,
    validator or discovery (GPU Feature Discovery); `name` is its vendor. If the pod is not ready, `container` is the
    container or init container at which it is stuck, and `trouble` the status of that container."""

    role: str
    pod: str
    node: str
    name: str = "NVIDIA"
    container: str = ""
    trouble: str = ""


class PendingRecord(Struct, frozen=True):
    """A pending pod that requests GPUs. `asks` are the names of the GPU resources, `selector` is its nodeSelector.
    `reason` and `message` are those of its condition PodScheduled, or from `source` if that is set."""

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


class UnknownRequest(Struct, frozen=True):
    """A pending pod that requests no GPU, but other extended resources."""

    pod: str
    resources: tuple[str, ...]


class RefusedPod(Struct, frozen=True):
    """A pod that its node did not start; `message` is that of its kubelet or container runtime."""

    pod: str
    message: str


class Scheduler(Struct, frozen=True):
    """A pod of a known scheduler or quota manager for GPUs."""

    name: str
    pod: str


class Pods(Struct, frozen=True):
    """The pods of the cluster. `parts` are by node. `misaligned` are the existing pods, by node, that the kubelet
    rejected with TopologyAffinityError, `unexpected` those that it rejected with UnexpectedAdmissionError, and
    `unstarted` those whose containers fail in NVIDIA's container toolkit. `unknown` request no GPU."""

    parts: Mapping[str, tuple[PartRecord, ...]] = field(default_factory=dict)
    pending: tuple[PendingRecord, ...] = ()
    running: tuple[Running, ...] = ()
    schedulers: tuple[Scheduler, ...] = ()
    misaligned: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unexpected: Mapping[str, tuple[RefusedPod, ...]] = field(default_factory=dict)
    unstarted: Mapping[str, tuple[RefusedPod, ...]] = field(default_factory=dict)
    unknown: tuple[UnknownRequest, ...] = ()


class KubeletRecord(Struct, frozen=True):
    """Settings of a kubelet. `source` is the object that reports them; a policy that it does not report is "".
    `gpu_numa` are the NUMA nodes with GPUs. `blind`: the device plugin reports no NUMA nodes of GPUs to the kubelet."""

    source: str
    topology_policy: str = ""
    cpu_policy: str = ""
    gpu_numa: tuple[int, ...] = ()
    blind: bool = False


class GpuNode(Struct, frozen=True):
    """The status of a GPUNode. `physical` is the number of its GPUs, of which `unhealthy` are; `split`: some are in MIG
    mode. `driver` is the message of its condition DriverReady if that is False, else "".
    `mig_state` and `mig_message` are the state of its MIG layout; `foreign` are the processes on devices that their
    pods do not hold, `gpu_direct` what GPUDirect RDMA lacks."""

    driver: str = ""
    mig_state: str = ""
    mig_message: str = ""
    kubelet: KubeletRecord | None = None
    foreign: tuple[ForeignProcess, ...] = ()
    physical: int = 0
    unhealthy: tuple[str, ...] = ()
    split: bool = False
    gpu_direct: tuple[GpuDirectObstacle, ...] = ()


class Webhook(Struct, frozen=True):
    """One webhook of a MutatingWebhookConfiguration."""

    configuration: str
    name: str


class QueueRecord(Struct, frozen=True):
    """A Dovetail queue. `problem` is the reason if it is invalid; `scaled` describes scaled-down guarantees."""

    name: str
    problem: str = ""
    scaled: str = ""


class Lease(Struct, frozen=True):
    """A lease of a Dovetail scheduler with a holder and a recent renewal. `scheduler` is the schedulerName that the
    holder serves."""

    name: str
    scheduler: str
    holder: str
    renewed_s: int


class ClusterFacts(Struct, frozen=True):
    """The lists read from the cluster; None for a list that could not be read. `drivers` are the nodes of each DRA
    driver. `gpu_nodes` and `topologies` (NodeResourceTopology) are by node. `fabric` are the label keys of the
    scheduler's option `--fabric`, from the widest to the narrowest level. `sandboxes` are the pods, by node, whose
    sandbox failed in NVIDIA's container toolkit by an event."""

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
    sandboxes: Mapping[str, tuple[RefusedPod, ...]] | None = None

    def claimed(self, node: str) -> bool:
        """Whether a DRA driver offers the GPUs of the node."""
        return any(node in nodes for driver, nodes in (self.drivers or {}).items() if driver in DRIVERS)

    def parts(self, node: str, *roles: str) -> list[PartRecord]:
        """The parts of these roles on a node, sorted by pod."""
        parts = self.pods.parts.get(node, ()) if self.pods is not None else ()
        return sorted((one for one in parts if one.role in roles), key=lambda one: one.pod)

    def gpu_node(self, node: str) -> GpuNode:
        return (self.gpu_nodes or {}).get(node) or GpuNode()


class DoctorFinding(Struct, frozen=True):
    """A finding. `object` is `kind/name`, `evidence` the proof, `fix` a command or a setting. `level` is error,
    warning, or unknown for a list that could not be read."""

    id: str
    level: str
    object: str
    wrong: str
    evidence: str
    fix: str


Problems = Iterator[tuple[str, str, str]]
"""The results of a check: (object, evidence, fix)."""


class Check(Struct, frozen=True):
    """A check. It is skipped if one of the fields `needs` of ClusterFacts is None."""

    id: str
    level: str
    wrong: str
    needs: tuple[str, ...]
    look: Callable[[ClusterFacts], Problems]


def logs_of(pod: str, container: str = "") -> str:
    """The command that shows the log of `namespace/name`."""
    namespace, _, name = pod.partition("/")
    return f"kubectl logs -n {namespace} {name}" + (f" -c {container}" if container else "")


def some(names: list[str], most: int = 3) -> str:
    """`a, b, c and 4 more`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
