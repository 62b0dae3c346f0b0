# SPDX-License-Identifier: Apache-2.0
"""What is read of DaemonSets, Deployments and pods to know NVIDIA's stack and our agents. Rules of the structs: see
`kube.objects.base`."""

from __future__ import annotations

from msgspec import field
from msgspec.structs import replace

from dovetail.kube.objects.base import LabelSelector, ObjectMeta, Wire
from dovetail.kube.objects.pods import Affinity, Toleration
from dovetail.kube.objects.topology import Condition


class ProgramContainer(Wire, frozen=True):
    name: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()


class ProgramSpec(Wire, frozen=True):
    """The spec of a pod, or of a template of pods."""

    node_name: str = ""
    containers: tuple[ProgramContainer, ...] = ()
    node_selector: dict[str, str] = field(default_factory=dict)
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()


class ProgramTemplate(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ProgramSpec = ProgramSpec()


class ProgramOwnerSpec(Wire, frozen=True):
    selector: LabelSelector = LabelSelector()
    template: ProgramTemplate = ProgramTemplate()


class ProgramOwner(Wire, frozen=True):
    """A DaemonSet or a Deployment."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ProgramOwnerSpec = ProgramOwnerSpec()


class ProgramPodStatus(Wire, frozen=True):
    phase: str = ""
    conditions: tuple[Condition, ...] = ()


class ProgramPod(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ProgramSpec = ProgramSpec()
    status: ProgramPodStatus = ProgramPodStatus()

    @property
    def gone(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def ready(self) -> bool:
        return not self.metadata.deletion_timestamp and any(
            one.type == "Ready" and one.status == "True" for one in self.status.conditions
        )


def kept_program_pod(pod: ProgramPod) -> ProgramPod:
    """A pod with no more than is read of it, as a cluster has many: of one that is not of a DaemonSet only its node."""
    by_daemon_set = any(one.kind == "DaemonSet" for one in pod.metadata.owner_references)
    spec = ProgramSpec(pod.spec.node_name, pod.spec.containers if by_daemon_set else ())
    conditions = tuple(one for one in pod.status.conditions if one.type == "Ready") if by_daemon_set else ()
    meta = replace(pod.metadata, annotations={})
    return replace(pod, metadata=meta, spec=spec, status=replace(pod.status, conditions=conditions))
