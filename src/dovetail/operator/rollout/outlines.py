# SPDX-License-Identifier: Apache-2.0
"""The objects that a rollout reads, reduced to what it needs. Rules of the structs: see `kube/objects/base`.

Sources: k8s.io/api core/v1, apps/v1.
"""

from __future__ import annotations

from msgspec import field
from msgspec.structs import replace

from dovetail.kube.objects.base import ObjectMeta, Quantities, Wire, epoch_ms
from dovetail.kube.objects.topology import Condition, NodeMaintenance, NodeQuarantine, NodeReadiness

TEMPLATE = "operator.dovetail.dev/template"
"""Annotation of a DaemonSet's pods: which template they are of."""
COMPONENT_LABEL = "app.kubernetes.io/name"
COMPONENTS = ("dovetail-agent", "dovetail-driver", "dovetail-mps", "dovetail-toolkit")
"""Its values on the pods of DaemonSets of a stack."""


class RolledNodeSpec(Wire, frozen=True):
    unschedulable: bool = False


class RolledNodeStatus(Wire, frozen=True):
    allocatable: Quantities = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()


class RolledNode(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: RolledNodeSpec = RolledNodeSpec()
    status: RolledNodeStatus = RolledNodeStatus()

    @property
    def reachable(self) -> bool:
        """Whether its kubelet answers."""
        return any(one.type == "Ready" and one.status == "True" for one in self.status.conditions)

    @property
    def gpus(self) -> int:
        amount = str(self.status.allocatable.get("nvidia.com/gpu", 0))
        return int(amount) if amount.isdecimal() else 0


class RolledGPUNodeSpec(Wire, frozen=True):
    maintenance: NodeMaintenance | None = None


class RolledGPU(Wire, frozen=True):
    index: int = 0


class RolledGPUNodeStatus(Wire, frozen=True):
    gpus: tuple[RolledGPU, ...] = ()
    quarantine: NodeQuarantine | None = None
    readiness: NodeReadiness | None = None


class RolledGPUNode(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: RolledGPUNodeSpec = RolledGPUNodeSpec()
    status: RolledGPUNodeStatus = RolledGPUNodeStatus()


class RolledPodSpec(Wire, frozen=True):
    node_name: str = ""


class RolledPodStatus(Wire, frozen=True):
    conditions: tuple[Condition, ...] = ()


class RolledPod(Wire, frozen=True):
    """A pod of a DaemonSet of the stack."""

    metadata: ObjectMeta = ObjectMeta()
    spec: RolledPodSpec = RolledPodSpec()
    status: RolledPodStatus = RolledPodStatus()

    @property
    def daemon_set(self) -> str:
        """The DaemonSet that made it."""
        owners = self.metadata.owner_references
        return next((one.name for one in owners if one.kind == "DaemonSet" and one.controller), "")

    @property
    def template(self) -> str:
        return self.metadata.annotations.get(TEMPLATE, "")

    @property
    def ready_ms(self) -> int:
        """Since when it is ready, 0 if it is not."""
        found = [one for one in self.status.conditions if one.type == "Ready" and one.status == "True"]
        return max(1, epoch_ms(found[0].last_transition_time)) if found else 0


class RolledTemplate(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


class RolledSetSpec(Wire, frozen=True):
    template: RolledTemplate = RolledTemplate()


class RolledSet(Wire, frozen=True):
    """A DaemonSet of the stack."""

    metadata: ObjectMeta = ObjectMeta()
    spec: RolledSetSpec = RolledSetSpec()

    @property
    def template(self) -> str:
        return self.spec.template.metadata.annotations.get(TEMPLATE, "")


def kept_node(node: RolledNode) -> RolledNode:
    """The node with its labels, and the condition that counts."""
    meta = node.metadata
    conditions = tuple(one for one in node.status.conditions if one.type == "Ready")
    kept = ObjectMeta(meta.name, "", meta.uid, meta.resource_version, labels=meta.labels)
    amounts = {name: value for name, value in node.status.allocatable.items() if name == "nvidia.com/gpu"}
    return RolledNode(kept, node.spec, RolledNodeStatus(amounts, conditions))


def kept_pod(pod: RolledPod) -> RolledPod:
    """The pod with the annotation and the condition that count."""
    meta = pod.metadata
    annotations = {name: value for name, value in meta.annotations.items() if name == TEMPLATE}
    conditions = tuple(one for one in pod.status.conditions if one.type == "Ready")
    return replace(pod, metadata=replace(meta, annotations=annotations, labels={}), status=RolledPodStatus(conditions))
