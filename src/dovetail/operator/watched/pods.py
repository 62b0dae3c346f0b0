# SPDX-License-Identifier: Apache-2.0
"""Pods, and the DaemonSets and Deployments that make them, as far as the operator reads them.

Sources: k8s.io/api core/v1, apps/v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from msgspec import field
from msgspec.structs import replace

from dovetail.kube.objects.base import LabelSelector, ObjectMeta, Wire, epoch_ms
from dovetail.kube.objects.containers import AnyContainerState
from dovetail.kube.objects.pods import Affinity, Toleration
from dovetail.kube.objects.topology import Condition
from dovetail.operator.watched.nodes import is_gpu_resource

TEMPLATE = "operator.dovetail.dev/template"
"""Annotation of a DaemonSet's pods: which template they are of."""
NAME_LABEL = "app.kubernetes.io/name"
POOL_LABEL = "dovetail.dev/pool"
_OURS = ("operator.dovetail.dev/", "dovetail.dev/")


class WatchedContainer(Wire, frozen=True):
    """The status of a container. `last_state` is that of its run before."""

    name: str = ""
    image: str = ""
    ready: bool = False
    restart_count: int = 0
    state: AnyContainerState = AnyContainerState()
    last_state: AnyContainerState = AnyContainerState()


class WatchedAmounts(Wire, frozen=True):
    limits: dict[str, str | int] = field(default_factory=dict)


class WatchedContainerSpec(Wire, frozen=True):
    name: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    resources: WatchedAmounts = WatchedAmounts()


class WatchedPodSpec(Wire, frozen=True):
    """The spec of a pod, or of a template of pods."""

    node_name: str = ""
    containers: tuple[WatchedContainerSpec, ...] = ()
    init_containers: tuple[WatchedContainerSpec, ...] = ()
    node_selector: dict[str, str] = field(default_factory=dict)
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()


class WatchedPodStatus(Wire, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: datetime | None = None
    conditions: tuple[Condition, ...] = ()
    init_container_statuses: tuple[WatchedContainer, ...] = ()
    container_statuses: tuple[WatchedContainer, ...] = ()


class WatchedPod(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: WatchedPodSpec = WatchedPodSpec()
    status: WatchedPodStatus = WatchedPodStatus()

    @property
    def gone(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def ready(self) -> bool:
        return not self.metadata.deletion_timestamp and bool(self.ready_ms)

    @property
    def ready_ms(self) -> int:
        """Since when it is ready, 0 if it is not."""
        found = [one for one in self.status.conditions if one.type == "Ready" and one.status == "True"]
        return max(1, epoch_ms(found[0].last_transition_time)) if found else 0

    @property
    def daemon_set(self) -> str:
        """The DaemonSet that made it, "" for none."""
        owners = self.metadata.owner_references
        return next((one.name for one in owners if one.kind == "DaemonSet" and one.controller), "")

    @property
    def template(self) -> str:
        return self.metadata.annotations.get(TEMPLATE, "")


class WatchedTemplate(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: WatchedPodSpec = WatchedPodSpec()


class WatchedOwnerSpec(Wire, frozen=True):
    selector: LabelSelector = LabelSelector()
    template: WatchedTemplate = WatchedTemplate()


class WatchedOwner(Wire, frozen=True):
    """A DaemonSet or a Deployment."""

    metadata: ObjectMeta = ObjectMeta()
    spec: WatchedOwnerSpec = WatchedOwnerSpec()

    @property
    def template(self) -> str:
        """The mark of the template that its pods get."""
        return self.spec.template.metadata.annotations.get(TEMPLATE, "")


def kept_pod(pod: WatchedPod) -> WatchedPod:
    """A pod in Dovetail's own namespaces, with the labels and annotations that are read."""
    meta = pod.metadata
    labels = {key: value for key, value in meta.labels.items() if key in (NAME_LABEL, POOL_LABEL) or _is_ours(key)}
    annotations = {key: value for key, value in meta.annotations.items() if _is_ours(key)}
    return replace(pod, metadata=replace(meta, labels=labels, annotations=annotations))


def kept_foreign_pod(pod: WatchedPod) -> WatchedPod:
    """A pod in another namespace; of one that is not of a DaemonSet only its node is kept."""
    by_daemon_set = any(one.kind == "DaemonSet" for one in pod.metadata.owner_references)
    spec = WatchedPodSpec(pod.spec.node_name, pod.spec.containers if by_daemon_set else ())
    conditions = tuple(one for one in pod.status.conditions if one.type == "Ready") if by_daemon_set else ()
    meta = replace(pod.metadata, annotations={})
    return WatchedPod(meta, spec, WatchedPodStatus(pod.status.phase, conditions=conditions))


def _is_ours(key: str) -> bool:
    return key.startswith(_OURS)


def node_of(pod: WatchedPod) -> str:
    """The node of a pod of a DaemonSet, also before it is bound: the controller names it in the affinity."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    if pod.spec.node_name or affinity is None or affinity.required is None:
        return pod.spec.node_name
    fields = (field for term in affinity.required.node_selector_terms for field in term.match_fields)
    return next((one.values[0] for one in fields if one.key == "metadata.name" and one.values), "")


def requests_gpus(pod: WatchedPod, resource: str = "") -> int:
    """How many devices the pod requests of a resource, or of all whose devices are GPUs, replicas or MIG instances; an
    extended resource has a limit. An amount that cannot be read counts as one: it is there, and no more is asked."""
    counts = [_gpus(container.resources.limits, resource) for container in pod.spec.containers]
    begun = [_gpus(container.resources.limits, resource) for container in pod.spec.init_containers]
    return max(sum(counts), max(begun, default=0))


def _gpus(limits: Mapping[str, str | int], resource: str) -> int:
    amounts = (str(text) for name, text in limits.items() if (name == resource if resource else is_gpu_resource(name)))
    return sum(int(text) if text.isdecimal() else 1 for text in amounts)
